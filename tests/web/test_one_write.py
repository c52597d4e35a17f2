"""uvicorn's protocol that writes at once what belongs together."""

import asyncio
from typing import Any

import pytest

from web.one_write import OneWriteTransport

pytestmark = pytest.mark.anyio


class Written:
    """A transport that notes what is done to it."""

    def __init__(self) -> None:
        self.acts: list[Any] = []

    def write(self, data: bytes) -> None:
        self.acts.append(data)

    def close(self) -> None:
        self.acts.append("close")

    def abort(self) -> None:
        self.acts.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.acts


def made() -> tuple[Written, OneWriteTransport]:
    below = Written()
    return below, OneWriteTransport(below, asyncio.get_running_loop())  # type: ignore[arg-type]  # all it uses is there


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_what_is_written_in_one_go_is_one_write_in_order() -> None:
    below, transport = made()
    transport.write(b"head ")
    transport.write(b"body")
    assert below.acts == []
    await turn()
    assert below.acts == [b"head body"]


async def test_what_is_written_later_is_a_write_of_its_own() -> None:
    below, transport = made()
    for piece in (b"one", b"two"):
        transport.write(piece)
        await turn()
    assert below.acts == [b"one", b"two"]


async def test_a_close_comes_after_what_was_written_and_nothing_after_it() -> None:
    below, transport = made()
    transport.write(b"last words")
    transport.close()
    await turn()
    assert below.acts == [b"last words", "close"]


async def test_an_abort_drops_what_was_not_written_yet() -> None:
    below, transport = made()
    transport.write(b"never")
    transport.abort()
    await turn()
    assert below.acts == ["abort"]


async def test_all_else_is_the_transports_own() -> None:
    below, transport = made()
    assert not transport.is_closing()
    below.close()
    assert transport.is_closing()
