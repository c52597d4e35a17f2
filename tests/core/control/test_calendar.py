import asyncio
import time as stopwatch
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest

from core.clock import SystemClock
from core.control.calendar import Calendar
from core.control.windows import OneOff, Schedule, bounds_at
from core.quotas import Bounds

BASE = Bounds(1, 8)


class Pruned:
    """Records what was pruned; waits for `gate` first."""

    def __init__(self) -> None:
        self.before: list[datetime] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = False

    async def __call__(self, before: datetime) -> None:
        self.before.append(before)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def opens_in(seconds: float, *, lasts: float = 3600) -> Schedule:
    start = datetime.now(UTC) + timedelta(seconds=seconds)
    return Schedule(one_offs=(OneOff("Soon", start, start + timedelta(seconds=lasts), ceiling=3),))


async def until(condition: Callable[[], object]) -> None:
    """Poll, with a deadline far beyond anything measured."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came true")


def block(seconds: float) -> None:
    """Let the loop stand still."""
    stopwatch.sleep(seconds)


@pytest.fixture
async def pruned() -> Pruned:
    return Pruned()


@pytest.fixture
async def woken() -> list[datetime]:
    return []


@pytest.fixture
async def calendar(pruned: Pruned, woken: list[datetime]) -> AsyncIterator[Calendar]:
    calendar = Calendar(
        clock=SystemClock(),
        schedule=Schedule(),
        wake=lambda: woken.append(datetime.now(UTC)),
        prune=pruned,
        retention=timedelta(days=7),
    )
    yield calendar
    await calendar.stop()


@pytest.mark.anyio
async def test_each_edge_wakes_and_the_next_one_is_armed(calendar: Calendar, woken: list[datetime]) -> None:
    schedule = opens_in(0.05, lasts=0.1)
    calendar.start()
    calendar.rearm(schedule)
    await until(lambda: len(woken) == 2)
    assert woken[0] >= schedule.one_offs[0].start
    assert woken[1] >= schedule.one_offs[0].end
    assert calendar.next_edge is None


@pytest.mark.anyio
async def test_a_loop_blocked_over_the_edge_runs_it_late_and_the_bounds_are_the_clocks_anyway(
    calendar: Calendar, woken: list[datetime]
) -> None:
    """R74 agronholm/apscheduler#296, rfsbraz/deleterr#292: a run late by more than a second was dropped."""
    schedule = opens_in(0.1)
    calendar.start()
    calendar.rearm(schedule)
    await asyncio.sleep(0)
    block(3)
    assert bounds_at(schedule, datetime.now(UTC), pool="default", base=BASE).ceiling == 3
    await until(lambda: woken)
    assert woken[0] - schedule.one_offs[0].start > timedelta(seconds=2)


@pytest.mark.anyio
async def test_an_edge_that_passed_while_stopped_needs_no_wake_up(calendar: Calendar, woken: list[datetime]) -> None:
    """R74: the process was down over the edge."""
    schedule = opens_in(-1)
    calendar.rearm(schedule)
    calendar.start()
    assert calendar.next_edge == schedule.one_offs[0].end
    assert bounds_at(schedule, datetime.now(UTC), pool="default", base=BASE).ceiling == 3
    assert woken == []


@pytest.mark.anyio
async def test_a_wake_up_that_fails_does_not_lose_the_next_edge(pruned: Pruned) -> None:
    calls: list[int] = []

    def wake() -> None:
        calls.append(1)
        raise RuntimeError("broken on purpose")

    calendar = Calendar(
        clock=SystemClock(), schedule=opens_in(0.05), wake=wake, prune=pruned, retention=timedelta(days=1)
    )
    calendar.start()
    await until(lambda: calls)
    assert calendar.next_edge is not None
    await calendar.stop()


@pytest.mark.anyio
async def test_a_changed_schedule_replaces_the_edge_that_was_armed(calendar: Calendar) -> None:
    first, second = opens_in(3600), opens_in(60)
    calendar.start()
    calendar.rearm(first)
    assert calendar.next_edge == first.one_offs[0].start
    calendar.rearm(second)
    assert calendar.next_edge == second.one_offs[0].start
    calendar.rearm(Schedule())
    assert calendar.next_edge is None


@pytest.mark.anyio
async def test_decisions_older_than_the_retention_are_pruned_from_the_start_on(
    calendar: Calendar, pruned: Pruned
) -> None:
    calendar.start()
    await until(lambda: pruned.before)
    assert timedelta(0) <= datetime.now(UTC) - timedelta(days=7) - pruned.before[0] < timedelta(minutes=1)


@pytest.mark.anyio
async def test_start_and_stop_may_come_twice_and_again(
    calendar: Calendar, pruned: Pruned, woken: list[datetime]
) -> None:
    await calendar.stop()
    calendar.start()
    calendar.start()
    await calendar.stop()
    await calendar.stop()
    calendar.rearm(opens_in(0.05))
    calendar.start()
    await until(lambda: woken)
    assert len(pruned.before) <= 2


@pytest.mark.anyio
async def test_a_stop_cancels_a_pruning_that_runs(calendar: Calendar, pruned: Pruned) -> None:
    pruned.gate.clear()
    calendar.start()
    await until(lambda: pruned.before)
    await calendar.stop()
    await until(lambda: pruned.cancelled)
    assert calendar.next_edge is None


@pytest.mark.anyio
async def test_what_grows_fast_is_trimmed_often(pruned: Pruned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.control.calendar.TRIM_EVERY", timedelta(seconds=0.05))
    trimmed = Pruned()
    calendar = Calendar(
        clock=SystemClock(),
        schedule=Schedule(),
        wake=lambda: None,
        prune=pruned,
        retention=timedelta(days=1),
        trim=trimmed,
    )
    calendar.start()
    await until(lambda: len(trimmed.before) > 2)
    await calendar.stop()
    assert all(datetime.now(UTC) - at < timedelta(minutes=1) for at in trimmed.before)
