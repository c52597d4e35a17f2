"""Wakes the controller at window edges and prunes what is old. Never decides anything: the truth is the clock's."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from core.control.windows import Schedule, next_change
from core.ports import Clock

EDGE = "window edge"
PRUNE = "prune decisions"
SWEEP = "sweep"
TRIM = "trim"
TRIM_EVERY = timedelta(minutes=5)


class Calendar:
    """Calls `wake` at each edge of the schedule's rules, `prune(before)` at the start and daily, `sweep(now)` hourly,
    `trim(now)` every five minutes.

    A job that is late however much runs once when it can; one that is lost, late or doubled changes nothing, as `wake`
    may come at any time. `start` and `stop` may be called twice, and again after each other.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        schedule: Schedule,
        wake: Callable[[], object],
        prune: Callable[[datetime], Awaitable[object]],
        retention: timedelta,
        sweep: Callable[[datetime], Awaitable[object]] | None = None,
        trim: Callable[[datetime], Awaitable[object]] | None = None,
    ) -> None:
        self._clock = clock
        self._schedule = schedule
        self._wake = wake
        self._prune = prune
        self._retention = retention
        self._sweep = sweep
        self._trim = trim
        self._scheduler: AsyncIOScheduler | None = None

    @property
    def next_edge(self) -> datetime | None:
        """When `wake` is called next; `None` while stopped, or where no rule ever opens or closes."""
        job = self._scheduler.get_job(EDGE) if self._scheduler else None
        return job.next_run_time.astimezone(UTC) if job else None

    def start(self) -> None:
        """Start on the running event loop."""
        if self._scheduler is not None:
            return
        self._scheduler = AsyncIOScheduler(
            timezone=UTC, job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
        )
        self._scheduler.start()
        self._scheduler.add_job(
            self._prune_old, "interval", days=1, id=PRUNE, next_run_time=datetime.now(UTC), replace_existing=True
        )
        if self._sweep is not None:
            self._scheduler.add_job(
                self._sweep_old, "interval", hours=1, id=SWEEP, next_run_time=datetime.now(UTC), replace_existing=True
            )
        if self._trim is not None:
            self._scheduler.add_job(
                self._trim_much, "interval", seconds=TRIM_EVERY.total_seconds(), id=TRIM, replace_existing=True
            )
        self._arm()

    async def stop(self) -> None:
        """Drop all jobs; one that runs is cancelled."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.remove_all_jobs()
            scheduler.shutdown(wait=False)
            await asyncio.sleep(0)

    def rearm(self, schedule: Schedule) -> None:
        """Follow `schedule` from now on."""
        self._schedule = schedule
        self._arm()

    def _arm(self) -> None:
        if self._scheduler is None:
            return
        at = next_change(self._schedule, self._clock.now())
        if at is not None:
            self._scheduler.add_job(self._at_edge, "date", run_date=at, id=EDGE, replace_existing=True)
        elif self._scheduler.get_job(EDGE):
            self._scheduler.remove_job(EDGE)

    async def _at_edge(self) -> None:
        try:
            self._wake()
        finally:
            self._arm()

    async def _prune_old(self) -> None:
        await self._prune(self._clock.now() - self._retention)

    async def _sweep_old(self) -> None:
        if self._sweep is not None:
            await self._sweep(self._clock.now())

    async def _trim_much(self) -> None:
        if self._trim is not None:
            await self._trim(self._clock.now())
