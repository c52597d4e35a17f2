"""What every Upstream does: the one over HTTP and the one in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import msgspec
import pytest

from core.clock import SystemClock
from core.ports import Upstream, UpstreamRequest
from core.scheduling.answer_scan import StreamScan
from core.simulation.driver import EngineDriver
from core.simulation.engine import Engine, EngineSettings
from core.simulation.upstream import SimulatedUpstream
from core.upstream import HttpUpstream
from tests.servers import running
from web import mock_server

pytestmark = pytest.mark.anyio
SPEED = 20.0


@pytest.fixture(params=["http", "simulated"])
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[Upstream]:
    async with AsyncExitStack() as stack:
        made: Upstream
        if request.param == "http":
            url = stack.enter_context(running(mock_server.create_app(speed=SPEED), lifespan="off"))
            made = HttpUpstream(base_url=f"{url}/v1", api_key=None)
        else:
            clock = SystemClock()
            driver = EngineDriver(engine=Engine(EngineSettings()), clock=clock, speed=SPEED)
            made = SimulatedUpstream(driver=driver, clock=clock)
        stack.push_async_callback(made.close)
        yield made


def chat(*, stream: bool, tokens: int = 20) -> UpstreamRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": stream, "max_tokens": tokens}
    headers = [(b"content-type", b"application/json")]
    return UpstreamRequest("POST", "/chat/completions", msgspec.json.encode(body), headers)


async def test_a_stream_ends_with_its_mark_and_holds_all_tokens(upstream: Upstream) -> None:
    answer = await upstream.send(chat(stream=True))
    scan = StreamScan("/chat/completions")
    while piece := await answer.read():
        scan.feed(piece)
    assert (answer.status, scan.complete, scan.pieces) == (200, True, 20)
    assert await answer.read() == b""
    answer.close()


async def test_a_whole_answer_tells_its_usage(upstream: Upstream) -> None:
    answer = await upstream.send(chat(stream=False))
    body = b""
    while piece := await answer.read():
        body += piece
    answer.close()
    assert msgspec.json.decode(body)["usage"]["completion_tokens"] == 20


async def test_an_unknown_endpoint_is_an_answer_not_an_error(upstream: Upstream) -> None:
    answer = await upstream.send(UpstreamRequest("POST", "/nonsense", b"{}"))
    assert answer.status == 404
    answer.close()


async def test_closing_early_and_cancelling_are_legal(upstream: Upstream) -> None:
    answer = await upstream.send(chat(stream=True, tokens=2000))
    assert await answer.read()
    answer.close()
    answer.close()
    task = asyncio.ensure_future(upstream.send(chat(stream=False, tokens=2000)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    again = await upstream.send(chat(stream=False))
    assert again.status == 200
    again.close()
