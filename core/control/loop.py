"""The loop that ticks every pool's controller, and the writer that keeps what they decide.

Apart from each other: a database that is slow or down never delays a tick.
"""

import asyncio
import math
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

import structlog

from core.control.controller import PoolController
from core.control.decisions import Decision
from core.lifecycle import Service
from core.ports import Clock, DecisionStore, SettingsStore

log = structlog.get_logger(__name__)

SAVE_EVERY = 60.0
"""Seconds after which a limit is saved, cut or not."""

PATIENCE = 2.0
"""Seconds that a write under way gets to end at the stop."""


class Outbox:
    """Decisions not yet stored, in order; `add` is what controllers emit to. Beyond `capacity` the oldest go."""

    def __init__(self, capacity: int = 10_000) -> None:
        self.dropped = 0
        self._waiting: deque[Decision] = deque()
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, decision: Decision) -> None:
        """Keep a decision until it is stored."""
        self._waiting.append(decision)
        self._trim()

    def take(self) -> list[Decision]:
        """Hand over all that waits."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def put_back(self, taken: list[Decision]) -> None:
        """Take back, before all that came since, what could not be stored."""
        self._waiting.extendleft(reversed(taken))
        self._trim()

    def _trim(self) -> None:
        while len(self._waiting) > self._capacity:
            self._waiting.popleft()
            self.dropped += 1


class ControlLoop(Service):
    """Ticks every controller once per `period` seconds of the clock; `wake` has them refreshed at once.

    `controllers` may change while the loop runs. A tick that fails is logged and hinders neither the other pools nor
    the next tick. Decisions in `outbox`, and the limits (at each cut and every 60 s), are stored as soon as the stores
    allow.
    """

    name = "control loop"

    def __init__(
        self,
        *,
        controllers: Mapping[str, PoolController],
        clock: Clock,
        outbox: Outbox,
        decisions: DecisionStore,
        settings: SettingsStore,
        period: float = 5.0,
    ) -> None:
        super().__init__()
        self.period = period
        self._controllers = controllers
        self._clock = clock
        self._outbox = outbox
        self._decisions = decisions
        self._settings = settings
        self._woken = asyncio.Event()
        self._dirty = asyncio.Event()
        self._writing = asyncio.Lock()
        self._saved: dict[str, tuple[float, float]] = {}
        self._failing: set[str] = set()

    @property
    def tick_age(self) -> float:
        """Seconds since the tick of the pool that waits longest; 0 without pools."""
        now = self._clock.monotonic()
        return max((now - controller.last_tick for controller in self._controllers.values()), default=0.0)

    @property
    def stale(self) -> bool:
        """Tell whether three ticks are missing."""
        return self.tick_age > 3 * self.period

    def wake(self) -> None:
        """Have window edges and expired holds put in force now; the limit moves at the next tick only."""
        self._woken.set()

    async def run(self) -> None:
        """Tick and write until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick_forever(), name="control ticks")
            group.create_task(self._write_forever(), name="decision writer")

    async def stop(self) -> None:
        """Stop the loop, then store what is left, if the stores allow."""
        was_running = self.running
        await self._let_finish_writing()
        await super().stop()
        if was_running:
            self._saved.clear()
            await self._write()

    # Ticking

    async def _let_finish_writing(self) -> None:
        """Wait for a write under way, though not for ever: a statement cancelled in the middle costs its connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE), self._writing:
                pass

    async def _tick_forever(self) -> None:
        due = self._clock.monotonic()
        while True:
            now = self._clock.monotonic()
            ticks = now >= due
            for name, controller in list(self._controllers.items()):
                self._guarded_tick(name, controller, ticks=ticks)
            if ticks:
                due = due + self.period if due + self.period > now else now + self.period
            self._dirty.set()
            await self._sleep_until(due)

    def _guarded_tick(self, name: str, controller: PoolController, *, ticks: bool) -> None:
        try:
            if ticks:
                controller.tick()
            else:
                controller.refresh()
        except Exception as error:
            self._complain(f"tick of {name}", error)
        else:
            self._recovered(f"tick of {name}")

    async def _sleep_until(self, due: float) -> None:
        """Wait until `due`, or until somebody wakes the loop."""
        timer = self._clock.call_later(max(0.0, due - self._clock.monotonic()), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        self._woken.clear()

    # Writing

    async def _write_forever(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._write()

    async def _write(self) -> None:
        async with self._writing:
            await self._write_decisions()
            for name, controller in list(self._controllers.items()):
                await self._save(name, controller)

    async def _write_decisions(self) -> None:
        rows = self._outbox.take()
        if not rows:
            return
        try:
            await self._decisions.append(rows)
        except asyncio.CancelledError:
            self._outbox.put_back(rows)
            raise
        except Exception as error:
            self._outbox.put_back(rows)
            self._complain("storing decisions", error)
        else:
            self._recovered("storing decisions")

    async def _save(self, name: str, controller: PoolController) -> None:
        at, cut_at = self._saved.get(name, (-math.inf, -math.inf))
        now = self._clock.monotonic()
        if controller.cut_at == cut_at and now - at < SAVE_EVERY:
            return
        try:
            await self._settings.save_limit(name, controller.saved())
        except Exception as error:
            self._complain(f"saving the limit of {name}", error)
        else:
            self._saved[name] = (now, controller.cut_at)
            self._recovered(f"saving the limit of {name}")

    def _complain(self, what: str, error: Exception) -> None:
        """Log a failure once, until it is over."""
        if what not in self._failing:
            self._failing.add(what)
            log.error("control: this fails and is tried again", what=what, exc_info=error)

    def _recovered(self, what: str) -> None:
        if what in self._failing:
            self._failing.discard(what)
            log.info("control: this works again", what=what, decisions_dropped=self._outbox.dropped)
