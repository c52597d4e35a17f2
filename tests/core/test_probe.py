"""Whether an upstream can be reached, asked of real sockets."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import structlog

from core.clock import SystemClock
from core.probe import Probe

pytestmark = pytest.mark.anyio
CANARY = "sk-canary-0123456789"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        for _ in itertools.count():
            if condition():
                return
            await asyncio.sleep(0.005)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@asynccontextmanager
async def upstream(port: int, answer: bytes | None) -> AsyncIterator[list[bytes]]:
    """A server that answers each request with `answer`, breaks off at b"", and is silent at `None`."""
    seen: list[bytes] = []
    open_writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.append(writer)
        seen.append(await reader.read(65536))
        if answer is not None:
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield seen
    finally:
        server.close()
        for writer in open_writers:
            writer.close()
        await server.wait_closed()


@asynccontextmanager
async def probing(port: int, *, scheme: str = "http", timeout: float = 5.0) -> AsyncIterator[Probe]:
    base_url = f"{scheme}://127.0.0.1:{port}/v1"
    probe = Probe(
        pool="default",
        base_url=base_url,
        api_key=CANARY,
        clock=SystemClock(),
        every=0.02,
        every_down=0.02,
        timeout=timeout,
    )
    assert probe.reachable is None
    probe.start()
    try:
        yield probe
    finally:
        await probe.stop()


def answer(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()


@pytest.mark.parametrize(
    "status", ["200 OK", "401 Unauthorized", "404 Not Found", "500 Oops", "302 Found\r\nlocation: /x"]
)
async def test_any_answer_counts_as_reachable(status: str) -> None:
    port = free_port()
    async with upstream(port, answer(status)) as seen, probing(port) as probe:
        await until(lambda: probe.reachable is not None)
        assert probe.reachable
        assert probe.error is None
        assert seen[0].startswith(b"GET /v1/models HTTP/1.1\r\n")
        assert f"Bearer {CANARY}".encode() in seen[0]


async def test_an_upstream_that_goes_and_comes_back_is_noticed_and_told_once() -> None:
    port = free_port()
    with structlog.testing.capture_logs() as logged:
        async with probing(port) as probe:
            await until(lambda: probe.reachable is False)
            assert probe.error == "connection failed"
            async with upstream(port, answer("200 OK")) as seen:
                await until(lambda: len(seen) > 2)
                assert probe.reachable
            await until(lambda: probe.reachable is False)
    assert [entry["event"] for entry in logged] == ["upstream is away", "upstream is back", "upstream is away"]
    assert CANARY not in repr(logged)


async def test_an_upstream_that_says_nothing_is_away() -> None:
    port = free_port()
    async with upstream(port, None), probing(port, timeout=0.05) as probe:
        await until(lambda: probe.reachable is False)
        assert probe.error == "no answer in time"


async def test_an_upstream_that_breaks_off_is_away() -> None:
    port = free_port()
    async with upstream(port, b""), probing(port) as probe:
        await until(lambda: probe.reachable is False)
        assert probe.error == "answer broke off"


async def test_plain_http_behind_an_https_address_is_told_as_such() -> None:
    port = free_port()
    async with upstream(port, answer("200 OK")), probing(port, scheme="https") as probe:
        await until(lambda: probe.reachable is False)
        assert probe.error == "TLS failed"
