"""The driver: the same engine, stepwise or in long stretches, in virtual time."""

import asyncio
from datetime import UTC, datetime
from random import Random

import pytest

from core.clock import LoopClock
from core.simulation.arrivals import Traffic, arrivals
from core.simulation.driver import EngineDriver, Generation, GenerationLost
from core.simulation.engine import Condition, Engine, EngineSettings, OverLimit
from core.simulation.figures import percentile
from core.simulation.virtual_time import run_virtual

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
DECODE_STEP = 0.02 + 0.00025 + 2.5e-8 * 100


async def serve_trace(clock: LoopClock, *, report_every: float) -> list[tuple[float, float, float]]:
    """Serve half an hour of interactive traffic; return (arrival, first token, end) of each request."""
    driver = EngineDriver(engine=Engine(), clock=clock, report_every=report_every)
    done: list[tuple[float, float, float]] = []

    async def read(at: float, generation: Generation) -> None:
        while await generation.more():
            pass
        assert generation.first is not None
        assert generation.ended is not None
        done.append((at, generation.first, generation.ended))

    async with asyncio.TaskGroup() as tasks:
        for arrival in arrivals(Traffic(seconds=1800.0), seed=5):
            await clock.sleep(arrival.at - clock.monotonic())
            tasks.create_task(read(arrival.at, driver.submit(arrival.prompt, arrival.output)))
    return sorted(done)


def test_interactive_traffic_alone_feels_as_in_the_reference() -> None:
    done = run_virtual(lambda clock: serve_trace(clock, report_every=1.0), EPOCH)
    late = [(at, first, end) for at, first, end in done if at >= 300 and end < 1800]
    assert len(late) == 374
    assert percentile((first - at for at, first, _ in late), 0.95) == pytest.approx(0.3235, rel=0.02)
    assert percentile((end - at for at, _, end in late), 0.95) == pytest.approx(11.81, rel=0.02)


def test_long_stretches_tell_the_same_times_as_single_steps() -> None:
    coarse = run_virtual(lambda clock: serve_trace(clock, report_every=5.0), EPOCH)
    fine = run_virtual(lambda clock: serve_trace(clock, report_every=0.0), EPOCH)
    assert len(coarse) == len(fine)
    for one, other in zip(coarse, fine, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_every_step_is_told_in_real_time_and_few_in_coarse() -> None:
    async def pieces(clock: LoopClock, report_every: float) -> list[int]:
        driver = EngineDriver(engine=Engine(), clock=clock, report_every=report_every)
        generation = driver.submit(100, 200)
        came = []
        while new := await generation.more():
            came.append(new)
        return came

    assert run_virtual(lambda clock: pieces(clock, 0.0), EPOCH) == [1] * 200
    coarse = run_virtual(lambda clock: pieces(clock, 1.0), EPOCH)
    assert coarse[0] == 1
    assert sum(coarse) == 200
    assert len(coarse) < 8


def test_speed_divides_every_duration() -> None:
    async def lasts(clock: LoopClock, speed: float) -> float:
        await EngineDriver(engine=Engine(), clock=clock, speed=speed).submit(100, 50).complete()
        return clock.monotonic()

    slow, fast = (run_virtual(lambda clock, s=speed: lasts(clock, s), EPOCH) for speed in (1.0, 10.0))
    assert fast == pytest.approx(slow / 10)


def test_an_abort_frees_the_place_at_once_and_counts_what_was_wasted() -> None:
    async def main(clock: LoopClock) -> None:
        driver = EngineDriver(engine=Engine(EngineSettings(max_sequences=1)), clock=clock, report_every=1.0)
        first, second = driver.submit(100, 10_000), driver.submit(100, 5)
        await first.more()
        await clock.sleep(10.0)
        first.abort()
        first.abort()
        assert driver.engine.running == 0
        assert (driver.aborted, driver.wasted_tokens) == (1, first.tokens)
        assert driver.wasted_tokens == pytest.approx(10.0 / DECODE_STEP, rel=0.05)
        assert await first.more() > 0
        assert await first.more() == 0
        assert not first.finished
        await second.complete()
        assert second.finished

    run_virtual(main, EPOCH)


def test_a_newcomer_does_not_wait_for_a_long_stretch_to_end() -> None:
    async def main(clock: LoopClock) -> float:
        driver = EngineDriver(engine=Engine(), clock=clock, report_every=60.0)
        driver.submit(100, 5000)
        await clock.sleep(10.0)
        newcomer = driver.submit(100, 5)
        await newcomer.more()
        return clock.monotonic() - 10.0

    assert run_virtual(main, EPOCH) < 0.1


def test_a_killed_generation_tells_its_reader() -> None:
    async def main(clock: LoopClock) -> None:
        driver = EngineDriver(engine=Engine(), clock=clock)
        streaming, whole = driver.submit(100, 5000), driver.submit(100, 5000)
        await streaming.more()
        clock.call_later(1.0, driver.kill, 1.0, Random(1))
        with pytest.raises(GenerationLost):
            await whole.complete()
        with pytest.raises(GenerationLost):
            await streaming.more()
        assert (driver.lost, driver.aborted, driver.engine.in_flight) == (2, 0, 0)

    run_virtual(main, EPOCH)


def test_a_pause_stands_still_and_a_resume_goes_on() -> None:
    async def main(clock: LoopClock) -> float:
        driver = EngineDriver(engine=Engine(), clock=clock, report_every=1.0)
        generation = driver.submit(100, 100)
        clock.call_later(1.0, driver.pause)
        clock.call_later(101.0, driver.resume)
        await generation.complete()
        return clock.monotonic()

    assert run_virtual(main, EPOCH) == pytest.approx(100.0 + 100 * DECODE_STEP, abs=0.1)


def test_a_slower_server_takes_effect_in_the_middle_of_a_stretch() -> None:
    async def main(clock: LoopClock) -> float:
        driver = EngineDriver(engine=Engine(), clock=clock, report_every=60.0)
        generation = driver.submit(100, 100)
        clock.call_later(1.0, driver.become, Condition(slow=2.0))
        await generation.complete()
        return clock.monotonic()

    assert run_virtual(main, EPOCH) == pytest.approx(1.0 + 2 * (100 * DECODE_STEP - 1.0), abs=0.1)


def test_a_refusal_is_counted_and_leaves_nothing_behind() -> None:
    async def main(clock: LoopClock) -> None:
        driver = EngineDriver(engine=Engine(EngineSettings(hidden_limit=1)), clock=clock)
        driver.submit(10, 2)
        with pytest.raises(OverLimit):
            driver.submit(10, 2)
        assert (driver.requests, driver.refused, driver.max_in_flight) == (2, 1, 1)

    run_virtual(main, EPOCH)
