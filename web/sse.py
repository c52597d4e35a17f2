"""Live pages: one render per page and tick, fanned out to every browser that shows it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

import structlog
from starlette.responses import StreamingResponse

from core.lifecycle import Service
from core.ports import Clock

Key = TypeVar("Key", bound=Hashable)

QUEUE = 4
KEEP_ALIVE_S = 15.0
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_RETRY = "retry: 1000\n\n"
_END = ""

log = structlog.get_logger(__name__)


class Full(Exception):
    """No more streams can be opened."""


def message(fragment: str) -> str:
    """Return `fragment` as one unnamed server-sent event."""
    return "".join(f"data: {line}\n" for line in fragment.splitlines() if line.strip()) + "\n"


class Hub(Service, Generic[Key]):
    """Renders what is being watched once a tick and hands it to all who watch it.

    `render(key, whole)` returns the fragment of a page; `whole` is True every `slow_every` ticks and for a newcomer,
    when the parts that change slowly belong to it. A watcher that reads too slowly loses its oldest messages, never
    delays another. After `close` all streams end and new ones end at once.
    """

    name = "live pages"

    def __init__(
        self,
        *,
        clock: Clock,
        render: Callable[[Key, bool], Awaitable[str]],
        tick_s: float = 1.0,
        slow_every: int = 5,
        most: int = 256,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._render = render
        self._tick_s = tick_s
        self._slow_every = slow_every
        self._most = most
        self._watchers: dict[Key, set[asyncio.Queue[str]]] = {}
        self._ticks = 0
        self._closed = False

    @property
    def watchers(self) -> int:
        """How many streams are open."""
        return sum(map(len, self._watchers.values()))

    async def run(self) -> None:
        """Render and fan out until cancelled."""
        while True:
            await self._clock.sleep(self._tick_s)
            await self.tick()

    async def tick(self) -> None:
        """Render each watched page once and hand it out."""
        self._ticks += 1
        whole = self._ticks % self._slow_every == 0
        for key in list(self._watchers):
            text = await self._rendered(key, whole)
            for queue in self._watchers.get(key, ()):
                _offer(queue, text)

    async def _rendered(self, key: Key, whole: bool) -> str:
        """Return the event for `key`; a page that cannot be drawn costs its own message, not the other pages."""
        try:
            return message(await self._render(key, whole))
        except Exception:
            log.exception("a live page could not be drawn", page=str(key))
            return ": not drawn\n\n"

    def stream(self, key: Key) -> StreamingResponse:
        """Return the endless answer for one browser. Raises Full."""
        if self.watchers >= self._most:
            raise Full
        return StreamingResponse(self.events(key), media_type="text/event-stream", headers=_HEADERS)

    async def events(self, key: Key) -> AsyncIterator[str]:
        """Yield the whole page at once, then each tick, with a comment where nothing came for 15 s."""
        queue: asyncio.Queue[str] = asyncio.Queue(QUEUE)
        self._watchers.setdefault(key, set()).add(queue)
        try:
            yield _RETRY + await self._rendered(key, True)
            while not self._closed:
                text = await self._next(queue)
                if text == _END:
                    return
                yield text
        finally:
            self._forget(key, queue)

    async def _next(self, queue: asyncio.Queue[str]) -> str:
        with suppress(TimeoutError):
            return await asyncio.wait_for(queue.get(), KEEP_ALIVE_S)
        return ": still here\n\n"

    def _forget(self, key: Key, queue: asyncio.Queue[str]) -> None:
        watching = self._watchers.get(key, set())
        watching.discard(queue)
        if not watching:
            self._watchers.pop(key, None)

    def close(self) -> None:
        """End every stream now, so that a shut-down need not wait for them. Legal twice."""
        self._closed = True
        for watching in self._watchers.values():
            for queue in watching:
                _offer(queue, _END)


def _offer(queue: asyncio.Queue[str], text: str) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(text)
