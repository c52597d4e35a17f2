"""Tells whoever runs batches that something changed. A wake-up only: the truth is in the store."""

import asyncio
from contextlib import suppress


class Wake:
    """Any number of waiters; none misses a `notify` that came while it was busy."""

    def __init__(self) -> None:
        self.count = 0
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiters."""
        self.count += 1
        woken, self._next = self._next, asyncio.Event()
        woken.set()

    async def wait(self, seen: int, seconds: float) -> int:
        """Return the count of notifications once it differs from `seen`, at the latest after `seconds`."""
        if self.count == seen:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._next.wait()
        return self.count
