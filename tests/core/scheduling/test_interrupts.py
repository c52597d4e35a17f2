import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.clock import LoopClock
from core.lanes import Outcome
from core.scheduling.interrupts import Deadlines, Interrupted, Scope
from core.simulation.virtual_time import run_virtual

Body = Callable[[LoopClock, Scope], Coroutine[Any, Any, None]]


def virtually(body: Body) -> None:
    async def main(clock: LoopClock) -> None:
        deadlines = Deadlines(clock=clock)
        scope = Scope(clock=clock, loop=asyncio.get_running_loop(), deadlines=deadlines)
        await body(clock, scope)

    run_virtual(main, datetime(2026, 1, 5, tzinfo=UTC))


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20)), min_size=1, max_size=8))
def test_the_latest_deadline_breaks_the_block_off_in_time_however_it_was_moved(
    moves: list[tuple[float, float]],
) -> None:
    """Each move: the seconds until it is made, and those from then to the deadline that it sets."""

    async def body(clock: LoopClock, scope: Scope) -> None:
        expected = float("inf")

        async def work() -> None:
            nonlocal expected
            for pause, seconds in moves:
                await clock.sleep(pause)
                expected = clock.monotonic() + seconds
                scope.deadline(expected, "late", clock.monotonic())
            await clock.sleep(1000)

        with pytest.raises(Interrupted, match="late"), scope:
            await work()
        assert clock.monotonic() == pytest.approx(expected, abs=0.001)

    virtually(body)


def test_a_deadline_that_is_far_away_sets_no_timer_of_its_own() -> None:
    async def body(clock: LoopClock, scope: Scope) -> None:
        loop = asyncio.get_running_loop()
        others = [Scope(clock=clock, loop=loop, deadlines=scope._deadlines) for _ in range(100)]
        for each in others:
            each.deadline(50.0, "late", clock.monotonic())
        assert len(loop._scheduled) == 1  # type: ignore[attr-defined]  # asyncio's own list of timers

    virtually(body)


def test_a_block_that_was_left_is_looked_after_no_more() -> None:
    async def body(clock: LoopClock, scope: Scope) -> None:
        for seconds in (0.5, 5.0):
            with scope:
                scope.deadline(clock.monotonic() + seconds, "late", clock.monotonic())
            await clock.sleep(10)
        with scope:
            await clock.sleep(10)

    virtually(body)


def test_an_interrupt_between_two_blocks_breaks_the_next_one_off() -> None:
    async def body(clock: LoopClock, scope: Scope) -> None:
        with scope:
            await clock.sleep(1)
        scope.interrupt(Outcome.CANCELLED)
        scope.interrupt(Outcome.TIMEOUT)
        with pytest.raises(Interrupted) as broken, scope:
            await clock.sleep(1000)
        assert broken.value.reason is Outcome.CANCELLED
        assert clock.monotonic() == 1

    virtually(body)


def test_a_cancellation_from_elsewhere_passes_through() -> None:
    async def body(clock: LoopClock, scope: Scope) -> None:
        async def work() -> None:
            with scope:
                await clock.sleep(1000)

        task = asyncio.create_task(work())
        await clock.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtually(body)
