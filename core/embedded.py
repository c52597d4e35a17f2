"""Tidegate inside a program of your own: the same lanes and quota, around any coroutine, without HTTP.

async with Tidegate(Settings(slots=8)) as gate:
    answer = await gate.submit("interactive", lambda: client.chat(prompt))
    texts = await asyncio.gather(*(gate.submit("batch", partial(summarise, page)) for page in pages))
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Literal, Self, TypeVar

import structlog

from core.clock import SystemClock
from core.config import Settings, pool_settings
from core.control.controller import PoolController
from core.control.decisions import Decision
from core.control.windows import Schedule
from core.errors import Evicted, NotFound, UpstreamFailed
from core.lanes import Lane, Outcome
from core.lifecycle import Service
from core.pools import Pool, serving
from core.ports import Clock, UpstreamAnswer, UpstreamRequest
from core.runtime import build_pool
from core.samples import Observation
from core.scheduling.tickets import Ticket

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Tidegate:
    """Decides when coroutines may run, as the gateway does for requests: interactive first, batch in what is left.

    `settings` are those of `serve` (slots, reserve, floor, ceiling, budgets, pools); no upstream is needed. The time
    that interactive calls take is held against the first-token budget, and the quota of batch follows from that. What
    runs is never pulled back. Use it on one event loop, as a context; at its end, calls that still wait fail with
    Evicted, and calls that run are left to their owners. `emit` is told of the controller's decisions.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        emit: Callable[[Decision], None] = lambda decision: None,
    ) -> None:
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._emit = emit
        self._pools: dict[str, Pool] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._ticks = _Ticks(clock=self._clock, period=settings.tick)

    async def __aenter__(self) -> Self:
        for config in _with_some_upstream(self._settings).pool_configs:
            self._pools[config.name] = build_pool(
                config,
                settings=pool_settings(config),
                schedule=Schedule(),
                clock=self._clock,
                upstream=_NoServer(),
                emit=self._emit,
                period=self._settings.tick,
            )
        self._ticks.controllers = [pool.controller for pool in self._pools.values()]
        self._ticks.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(Evicted(503, "shutting_down", "Tidegate was closed before this call could run."))
        await self._ticks.stop()

    @property
    def pending(self) -> int:
        """Calls that wait for a slot."""
        return sum(pool.counts.interactive_waiting + pool.counts.backlog for pool in self._pools.values())

    @property
    def active(self) -> int:
        """Calls that run."""
        return sum(pool.counts.interactive + pool.counts.batch for pool in self._pools.values())

    @property
    def active_batch(self) -> int:
        """Batch calls that run."""
        return sum(pool.counts.batch for pool in self._pools.values())

    async def submit(
        self, lane: Literal["interactive", "batch"], factory: Callable[[], Awaitable[T]], *, model: str = ""
    ) -> T:
        """Wait for a slot, then run what `factory` returns, and return or raise what that does.

        `model` chooses the pool, as in requests; with a single pool it may be left out. Cancelling the task that waits
        here gives the place or the slot back. Raises NotFound where no pool serves the model, Rejected where the lane's
        queue is full, Evicted where Tidegate is closed first.
        """
        pool = self._pool(model)
        now = self._clock.monotonic()
        seen = Observation(Lane(lane), model, now, streamed=False, has_tokens=False, source=model)
        pool.board.open(seen, now)
        outcome = Outcome.CANCELLED
        try:
            ticket = await self._slot(pool, Lane(lane), model)
            seen.started = self._clock.monotonic()
            try:
                result = await factory()
                outcome = Outcome.SUCCESS
                return result
            except Exception as error:
                outcome = Outcome.TIMEOUT if isinstance(error, TimeoutError) else Outcome.UPSTREAM_ERROR
                raise
            finally:
                pool.dispatcher.release(ticket, outcome)
        finally:
            pool.board.close(seen, outcome, self._clock.monotonic(), output_tokens=None)

    async def _slot(self, pool: Pool, lane: Lane, model: str) -> Ticket:
        """Return a ticket that holds a slot."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if not granted.done():
                granted.set_result(None)

        ticket = Ticket(
            lane,
            self._clock.monotonic(),
            grant,
            lambda cause: None,
            model=model,
            streamed=False,
            has_tokens=False,
            answered=True,
        )
        if pool.dispatcher.submit(ticket):
            return ticket
        self._waiting.add(granted)
        try:
            await granted
        except BaseException:
            if ticket.lease is not None:
                pool.dispatcher.release(ticket, Outcome.CANCELLED)
            else:
                pool.dispatcher.cancel(ticket)
            raise
        finally:
            self._waiting.discard(granted)
        return ticket

    def _pool(self, model: str) -> Pool:
        if not model and len(self._pools) == 1:
            return next(iter(self._pools.values()))
        found = serving(self._pools.values(), model)
        if found is None:
            raise NotFound("model", model)
        return found[0]


class _Ticks(Service):
    """Lets every controller move its limit once per period."""

    name = "embedded control"

    def __init__(self, *, clock: Clock, period: float) -> None:
        super().__init__()
        self.controllers: Iterable[PoolController] = ()
        self._clock = clock
        self._period = period

    async def run(self) -> None:
        """Tick until cancelled; a tick that fails hinders no other."""
        while True:
            await self._clock.sleep(self._period)
            for controller in self.controllers:
                try:
                    controller.tick()
                except Exception:
                    log.exception("a controller's tick failed")


class _NoServer:
    """Stands where pools keep their upstream: coroutines talk to theirs by themselves."""

    async def send(self, request: UpstreamRequest) -> UpstreamAnswer:
        """Refuse."""
        raise UpstreamFailed(502, "upstream_unreachable", "There is no model server here.")

    async def close(self) -> None:
        """Do nothing."""


def _with_some_upstream(settings: Settings) -> Settings:
    """Return the settings with an upstream, which pools must have, though nothing is sent to it."""
    if settings.pools or settings.upstream is not None:
        return settings
    return settings.model_copy(update={"upstream": "http://localhost/v1"})
