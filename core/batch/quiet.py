"""Waiting for statements in progress before a stop: one that is cancelled in the middle costs its connection."""

import asyncio
from contextlib import suppress


class Quiet:
    """A context around each call of a store; `wait` returns when none is inside."""

    def __init__(self) -> None:
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def __enter__(self) -> None:
        self._inside += 1
        self._empty.clear()

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._empty.set()

    async def wait(self, seconds: float) -> None:
        """Return when nobody is inside, at the latest after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
