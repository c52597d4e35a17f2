"""The simulated server as an Upstream in process."""

import asyncio
import json
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from core.clock import LoopClock
from core.errors import UpstreamFailed
from core.ports import UpstreamAnswer, UpstreamRequest
from core.scheduling.answer_scan import StreamScan
from core.simulation.driver import EngineDriver, Generation
from core.simulation.engine import Engine, EngineSettings
from core.simulation.prompts import Prompt
from core.simulation.upstream import SimulatedUpstream
from core.simulation.virtual_time import run_virtual

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
CHAT = "/chat/completions"


def request(path: str = CHAT, **fields: Any) -> UpstreamRequest:
    return UpstreamRequest("POST", path, json.dumps({"model": "m", "max_tokens": 40, **fields}).encode())


def make(clock: LoopClock, **settings: Any) -> tuple[SimulatedUpstream, EngineDriver]:
    driver = EngineDriver(engine=Engine(EngineSettings(**settings)), clock=clock, report_every=1.0)
    return SimulatedUpstream(driver=driver, clock=clock, retry_after=3), driver


async def body_of(answer: UpstreamAnswer) -> bytes:
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    assert await answer.read() == b""
    answer.close()
    return b"".join(pieces)


@pytest.mark.parametrize("path", [CHAT, "/completions", "/responses"])
def test_a_stream_has_one_event_for_each_token_and_its_proper_end(path: str) -> None:
    async def main(clock: LoopClock) -> None:
        upstream, driver = make(clock)
        answer = await upstream.send(request(path, stream=True))
        assert answer.status == 200
        scan = StreamScan(path)
        scan.feed(await body_of(answer))
        assert scan.complete
        assert scan.pieces - 40 in (0, 1)  # the end of a completion may carry an empty text
        assert (driver.aborted, driver.engine.in_flight) == (0, 0)

    run_virtual(main, EPOCH)


@pytest.mark.parametrize("path", [CHAT, "/completions", "/responses", "/embeddings"])
def test_an_unstreamed_answer_comes_whole_and_late(path: str) -> None:
    async def main(clock: LoopClock) -> None:
        upstream, _ = make(clock)
        answer = await upstream.send(request(path, input="text"))
        assert clock.monotonic() > 0.02 * (1 if path == "/embeddings" else 40)
        told = json.loads(await body_of(answer))
        assert told["model"] == "m"
        assert told["usage"]["total_tokens"] > 0

    run_virtual(main, EPOCH)


def test_the_first_token_is_told_when_it_comes_and_the_rest_in_few_pieces() -> None:
    async def main(clock: LoopClock) -> None:
        upstream, _ = make(clock)
        answer = await upstream.send(request(stream=True, max_tokens=200))
        assert clock.monotonic() == 0.0
        await answer.read()
        assert clock.monotonic() < 0.1
        pieces = 0
        while await answer.read():
            pieces += 1
        assert pieces < 8

    run_virtual(main, EPOCH)


def test_closing_early_aborts_the_sequence() -> None:
    async def main(clock: LoopClock) -> None:
        upstream, driver = make(clock)
        answer = await upstream.send(request(stream=True, max_tokens=5000))
        await answer.read()
        answer.close()
        answer.close()
        assert (driver.aborted, driver.engine.in_flight) == (1, 0)
        assert await answer.read() == b""

    run_virtual(main, EPOCH)


def test_cancelling_an_unstreamed_request_aborts_the_sequence() -> None:
    async def main(clock: LoopClock) -> None:
        upstream, driver = make(clock)
        sending = asyncio.create_task(upstream.send(request(max_tokens=5000)))
        await clock.sleep(1.0)
        sending.cancel()
        await asyncio.wait({sending})
        assert (driver.aborted, driver.engine.in_flight) == (1, 0)

    run_virtual(main, EPOCH)


def test_a_lost_generation_breaks_the_stream_off_or_answers_503() -> None:
    async def main(clock: LoopClock) -> None:
        upstream, driver = make(clock)
        answer = await upstream.send(request(stream=True, max_tokens=5000))
        await answer.read()
        clock.call_later(1.0, driver.kill, 1.0, Random(1))
        whole = await upstream.send(request(max_tokens=5000))
        assert whole.status == 503
        with pytest.raises(UpstreamFailed, match="upstream_truncated"):
            await body_of(answer)

    run_virtual(main, EPOCH)


def test_the_hidden_limit_answers_429_and_the_observer_hears_of_it() -> None:
    async def main(clock: LoopClock) -> None:
        seen: list[tuple[Prompt, Generation | None]] = []
        driver = EngineDriver(engine=Engine(EngineSettings(hidden_limit=1)), clock=clock)
        upstream = SimulatedUpstream(
            driver=driver,
            clock=clock,
            retry_after=3,
            observer=lambda prompt, generation: seen.append((prompt, generation)),
        )
        await upstream.send(request(stream=True))
        answer = await upstream.send(request(stream=True, sim={"tag": "second"}))
        assert answer.status == 429
        assert (b"retry-after", b"3") in list(answer.headers)
        assert [(prompt.wishes.tag, generation is None) for prompt, generation in seen] == [
            ("", False),
            ("second", True),
        ]

    run_virtual(main, EPOCH)


@pytest.mark.parametrize(
    ("path", "text", "status"), [("/nowhere", b"{}", 404), (CHAT, b"[", 400), ("/models", b"", 200)]
)
def test_everything_else_is_answered_too(path: str, text: bytes, status: int) -> None:
    async def main(clock: LoopClock) -> None:
        upstream, _ = make(clock)
        answer = await upstream.send(UpstreamRequest("POST", path, text))
        assert answer.status == status
        assert json.loads(await body_of(answer))
        await upstream.close()

    run_virtual(main, EPOCH)
