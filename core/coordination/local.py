"""Coordination within one process."""

import asyncio


class LocalNotifier:
    """See `core.ports.Notifier`. Wakes the waiters of this process, on the event loop that they wait on."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all that wait now; who begins to wait later waits for the next."""
        woken, self._next = self._next, asyncio.Event()
        woken.set()

    async def changed(self) -> None:
        """Wait for the next `notify`."""
        await self._next.wait()
