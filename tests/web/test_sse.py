import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from core.clock import SystemClock
from web import sse
from web.sse import QUEUE, Full, Hub, message

pytestmark = pytest.mark.anyio


class Pages:
    """Renders a counter per page and notes every call."""

    def __init__(self) -> None:
        self.drawn: list[tuple[str, bool]] = []

    async def render(self, key: str, whole: bool) -> str:
        if key == "broken":
            raise ValueError("cannot be drawn")
        self.drawn.append((key, whole))
        return f"{key} {len(self.drawn)}{' whole' if whole else ''}"


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def hub(pages: Pages) -> Hub[str]:
    return Hub(clock=SystemClock(), render=pages.render, most=60)


async def opened(hub: Hub[str], key: str) -> AsyncIterator[str]:
    stream = hub.events(key)
    await anext(stream)
    return stream


def test_a_fragment_is_one_unnamed_event_of_its_lines() -> None:
    assert message("<p>\n\n  a\n</p>") == "data: <p>\ndata:   a\ndata: </p>\n\n"


def test_a_line_break_in_data_cannot_forge_an_event() -> None:
    forged = message("a\r\rdata: b\r\nevent: x\u2028retry: 1")
    assert all(line.startswith("data: ") for line in forged.splitlines() if line)


async def test_a_newcomer_gets_the_whole_page_at_once(hub: Hub[str]) -> None:
    assert await anext(hub.events("a")) == "retry: 1000\n\ndata: a 1 whole\n\n"


async def test_a_page_is_drawn_once_a_tick_for_all_who_watch_it(hub: Hub[str], pages: Pages) -> None:
    streams = [await opened(hub, "a") for _ in range(20)]
    pages.drawn.clear()
    await hub.tick()
    assert pages.drawn == [("a", False)]
    assert {await anext(stream) for stream in streams} == {"data: a 1\n\n"}


async def test_slow_parts_come_every_fifth_tick(hub: Hub[str], pages: Pages) -> None:
    await opened(hub, "a")
    pages.drawn.clear()
    for _ in range(10):
        await hub.tick()
    assert [whole for _, whole in pages.drawn] == [False] * 4 + [True] + [False] * 4 + [True]


async def test_a_slow_reader_loses_the_oldest_and_delays_nobody(hub: Hub[str]) -> None:
    slow, quick = await opened(hub, "a"), await opened(hub, "a")
    seen = []
    for _ in range(10):
        await hub.tick()
        seen.append(await anext(quick))
    assert len(seen) == 10
    assert [await anext(slow) for _ in range(QUEUE)] == seen[-QUEUE:]


async def test_one_page_that_cannot_be_drawn_does_not_stop_the_others(hub: Hub[str]) -> None:
    broken, fine = await opened(hub, "broken"), await opened(hub, "a")
    await hub.tick()
    assert (await anext(broken)).startswith(":")
    assert "a" in await anext(fine)


async def test_a_browser_that_left_is_forgotten(hub: Hub[str], pages: Pages) -> None:
    stream = await opened(hub, "a")
    assert hub.watchers == 1
    await stream.aclose()  # type: ignore[attr-defined]
    assert hub.watchers == 0
    pages.drawn.clear()
    await hub.tick()
    assert pages.drawn == []


async def test_closing_ends_every_stream_and_new_ones_at_once(hub: Hub[str]) -> None:
    """R87 sysid/sse-starlette#124: an open stream keeps the shut-down from ever running."""
    full = await opened(hub, "a")
    for _ in range(QUEUE + 1):
        await hub.tick()
    waiting = asyncio.ensure_future(_rest(await opened(hub, "b")))
    hub.close()
    hub.close()
    async with asyncio.timeout(5):
        assert await waiting == []
        assert len(await _rest(full)) <= QUEUE
        assert len(await _rest(hub.events("c"))) == 1
    assert hub.watchers == 0


async def _rest(stream: AsyncIterator[str]) -> list[str]:
    return [text async for text in stream]


async def test_a_comment_comes_where_nothing_else_does(hub: Hub[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.01)
    stream = await opened(hub, "a")
    assert (await anext(stream)).startswith(": ")


async def test_the_number_of_streams_is_bounded(hub: Hub[str]) -> None:
    streams = [await opened(hub, "a") for _ in range(60)]
    with pytest.raises(Full):
        hub.stream("a")
    await streams[0].aclose()  # type: ignore[attr-defined]
    assert hub.stream("a").headers["x-accel-buffering"] == "no"


async def test_the_hub_ticks_by_itself(pages: Pages) -> None:
    class Quick(SystemClock):
        def now(self) -> datetime:
            return datetime(2026, 1, 1, tzinfo=UTC)

        async def sleep(self, seconds: float) -> None:
            assert seconds == 1.0
            await asyncio.sleep(0)

    hub: Hub[str] = Hub(clock=Quick(), render=pages.render)
    hub.start()
    stream = await opened(hub, "a")
    async with asyncio.timeout(5):
        assert "a" in await anext(stream)
    await hub.stop()
    assert hub.failure is None
