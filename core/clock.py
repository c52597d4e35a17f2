"""Time as a parameter: wall clock for people, monotonic seconds for durations."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any


class SystemClock:
    """The machine's wall clock and the event loop's monotonic time (see `core.ports.Clock`).

    It belongs to the loop on which it is first asked for the monotonic time: to look the running loop up each time
    would cost a system call, a dozen times a request.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> datetime:
        """Return the present instant, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds on the loop's clock, the one its timers use."""
        return (self._loop or self._settle()).time()

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds` on the loop's clock."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call `callback(*args)` after `seconds`; the handle cancels it."""
        return (self._loop or self._settle()).call_later(seconds, callback, *args)

    def _settle(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        return self._loop


class LoopClock(SystemClock):
    """A clock whose wall time is tied to the loop's time: on a virtual-time loop both pass together."""

    def __init__(self, *, epoch: datetime) -> None:
        """Let loop time 0 be the instant `epoch` (aware)."""
        self._epoch = epoch

    def now(self) -> datetime:
        """Return `epoch` plus the loop's time."""
        return self._epoch + timedelta(seconds=self.monotonic())
