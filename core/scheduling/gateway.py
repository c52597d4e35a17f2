"""What the exchanges of one pool share: its dispatcher, samples, model server, clock, metrics and counters."""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from core.config import LaneTimeouts, PoolConfig
from core.lanes import Lane, Outcome
from core.metrics import PoolMeters
from core.ports import Clock, Upstream
from core.samples import Observation, SampleBoard
from core.scheduling.calls import Call
from core.scheduling.dispatcher import Dispatcher
from core.scheduling.interrupts import Deadlines

OnEnd = Callable[[Call, Observation, Outcome, int, float], object]
"""Is told of each call that ended, its outcome, the status it was answered with (0: none) and the monotonic time."""


class Live(Protocol):
    """A call that is being answered, or waits for it."""

    def shut_down(self, *, waiting_only: bool = False) -> None:
        """End with 503, if `waiting_only` unless it has a slot."""


@dataclass(slots=True)
class GatewayStats:
    """Counters since the start, read by the metrics."""

    evicted: Counter[tuple[Lane, str]] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    wasted_tokens: int = 0


class Gateway:
    """The way of every LLM request of one pool, whoever sends it: a client, a durable batch, or a simulation."""

    def __init__(
        self,
        *,
        config: PoolConfig,
        dispatcher: Dispatcher,
        board: SampleBoard,
        upstream: Upstream,
        clock: Clock,
        meters: PoolMeters,
        on_end: OnEnd | None = None,
    ) -> None:
        self.config = config
        self.dispatcher = dispatcher
        self.board = board
        self.upstream = upstream
        self.clock = clock
        self.meters = meters
        self.on_end = on_end
        self.stats = GatewayStats()
        self.deadlines = Deadlines(clock=clock)
        self.live: dict[Live, None] = {}

    @functools.cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which it first answers, hence on which it runs."""
        return asyncio.get_running_loop()

    def shut_down(self, *, waiting_only: bool = False) -> None:
        """End all calls that are answered, or only those that wait, because the process stops."""
        for call in list(self.live):
            call.shut_down(waiting_only=waiting_only)

    def timeouts(self, lane: Lane) -> LaneTimeouts:
        """Return the time-outs of a lane."""
        interactive = lane is Lane.INTERACTIVE
        return self.config.interactive_timeouts if interactive else self.config.batch_timeouts
