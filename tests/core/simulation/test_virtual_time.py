"""Virtual time: it passes only when everybody waits."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from core.clock import LoopClock
from core.simulation.virtual_time import Deadlock, run_virtual

EPOCH = datetime(2026, 3, 29, tzinfo=UTC)


def test_a_day_passes_without_anyone_waiting() -> None:
    async def main(clock: LoopClock) -> tuple[float, datetime]:
        for _ in range(24):
            await clock.sleep(3600.0)
        return clock.monotonic(), clock.now()

    began = time.monotonic()
    passed, instant = run_virtual(main, EPOCH)
    assert time.monotonic() - began < 60.0
    assert passed == pytest.approx(86_400.0)
    assert instant == EPOCH + timedelta(days=1)


def test_timers_fire_in_order_of_time_and_then_of_setting() -> None:
    async def main(clock: LoopClock) -> list[str]:
        fired: list[str] = []
        clock.call_later(2.0, fired.append, "late")
        clock.call_later(1.0, fired.append, "early")
        clock.call_later(1.0, fired.append, "early, set second")
        clock.call_later(1.5, fired.append, "cancelled").cancel()
        await clock.sleep(3.0)
        return fired

    assert run_virtual(main, EPOCH) == ["early", "early, set second", "late"]


def test_time_outs_count_virtual_seconds() -> None:
    async def main(clock: LoopClock) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50.0):
                await asyncio.get_running_loop().create_future()
        return clock.monotonic()

    assert run_virtual(main, EPOCH) == pytest.approx(50.0)


def test_waiting_for_what_never_comes_is_told_as_a_deadlock() -> None:
    async def main(clock: LoopClock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="nothing is scheduled"):
        run_virtual(main, EPOCH)


def test_what_main_raises_comes_through_and_leftover_tasks_are_cancelled() -> None:
    ended: list[str] = []

    async def forever(clock: LoopClock) -> None:
        try:
            await clock.sleep(1e9)
        finally:
            ended.append("cancelled")

    async def main(clock: LoopClock) -> None:
        task = asyncio.create_task(forever(clock))
        await clock.sleep(1.0)
        assert not task.done()
        raise LookupError("out")

    with pytest.raises(LookupError, match="out"):
        run_virtual(main, EPOCH)
    assert ended == ["cancelled"]
