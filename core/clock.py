"""Time as a parameter: wall clock for people, monotonic seconds for durations."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any


class SystemClock:
    """The machine's wall clock and the running event loop's monotonic time (see `core.ports.Clock`)."""

    def now(self) -> datetime:
        """Return the present instant, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds on the running loop's clock, the one its timers use."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds` on the loop's clock."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call `callback(*args)` after `seconds`; the handle cancels it."""
        return asyncio.get_running_loop().call_later(seconds, callback, *args)


class LoopClock(SystemClock):
    """A clock whose wall time is tied to the loop's time: on a virtual-time loop both pass together."""

    def __init__(self, *, epoch: datetime) -> None:
        """Let loop time 0 be the instant `epoch` (aware)."""
        self._epoch = epoch

    def now(self) -> datetime:
        """Return `epoch` plus the loop's time."""
        return self._epoch + timedelta(seconds=self.monotonic())
