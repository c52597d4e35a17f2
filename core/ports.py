"""The seams of the house: each port is a Protocol whose docstring is the contract.

One conformance suite per port, in tests/conformance, runs over every implementation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from core.control.decisions import Decision
from core.control.windows import Schedule
from core.lanes import Lane, Outcome
from core.quotas import PoolLimits, PoolSettings


class TimerHandle(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Make the call never happen; legal after it did."""


class Clock(Protocol):
    """Time. Wall instants are aware and in UTC; durations are measured on `monotonic` alone."""

    def now(self) -> datetime:
        """Return the present instant."""

    def monotonic(self) -> float:
        """Return seconds that never go back, on the same clock as `call_later`."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call `callback(*args)` on the event loop after `seconds`."""


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """One HTTP request to a model server: path below the base URL, with its leading slash; body as the client sent it."""

    method: str
    path: str
    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    connect_timeout: float = 5.0


class UpstreamAnswer(Protocol):
    """An answer whose head has arrived. `read` must be called until it returns b"", or `close` at any time before."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]

    async def read(self) -> bytes:
        """Return the next piece of the body as it arrived, b"" at its clean end.

        Raises UpstreamFailed (`upstream_truncated`) when the server breaks off. Cancellable; close afterwards.
        """

    def close(self) -> None:
        """Give the connection back if the body was read to its end, else abort it. Legal at any time, and twice."""


class Upstream(Protocol):
    """A model server. Sends exactly once; never retries, never follows a redirect."""

    async def send(self, request: UpstreamRequest) -> UpstreamAnswer:
        """Send and wait for the answer's head, with no time-out but the connect time-out.

        Raises UpstreamFailed with code `upstream_unreachable`, `upstream_timeout` (connect) or `upstream_truncated` (no
        head). Cancelling aborts the request: the server sees the connection close.
        """

    async def close(self) -> None:
        """Release all connections."""


@dataclass(slots=True, eq=False)
class Lease:
    """The right to one slot, from acquire to release. `started` is monotonic seconds."""

    lane: Lane
    started: float
    owner: str = "local"
    id: int = 0
    released: bool = field(default=False)


class SlotPool(Protocol):
    """Counts who holds a pool's slots. O(1), never blocks, never admits more than `slots`.

    Batch in flight never exceeds slots - reserve. Lowering a limit leaves running leases alone.
    """

    in_flight: dict[Lane, int]

    def acquire(self, lane: Lane, now: float) -> Lease | None:
        """Return a lease, or `None` where no slot is free for that lane. The batch quota is the dispatcher's matter."""

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Give the slot back. Raises ValueError if it was given back before: a lease ends exactly once."""

    def apply(self, limits: PoolLimits) -> None:
        """Let `limits` be in force from the next acquire on."""


@dataclass(frozen=True, slots=True)
class SavedLimit:
    """What the controller keeps across restarts: C, slow-start threshold, level of the last cut, and when."""

    limit: float
    slow_start: float
    last_cut_level: float
    at: datetime


class SettingsStore(Protocol):
    """Operators' settings and the schedule. Each save is one transaction with the decision that records it."""

    async def seed(self, pools: Sequence[PoolSettings], schedule: Schedule) -> None:
        """Store the pools, and the schedule, that are not stored yet; leave what is."""

    async def pool(self, name: str) -> PoolSettings:
        """Return a pool's settings. Raises NotFound."""

    async def save_pool(self, settings: PoolSettings, *, based_on: int | None, decision: Decision) -> PoolSettings:
        """Store `settings` as version stored + 1 with `decision`, and return them so.

        `based_on` is the version that the caller read, `None` to override on purpose. Raises StaleVersion, NotFound.
        """

    async def schedule(self) -> Schedule:
        """Return the schedule with its version."""

    async def save_schedule(
        self, schedule: Schedule, *, based_on: int | None, decisions: Sequence[Decision]
    ) -> Schedule:
        """Store the schedule as version stored + 1 with `decisions`. Raises StaleVersion."""

    async def saved_limit(self, pool: str) -> SavedLimit | None:
        """Return what the controller saved last for this pool."""

    async def save_limit(self, pool: str, saved: SavedLimit) -> None:
        """Keep `saved` for the next start."""

    async def ping(self) -> None:
        """Do a trivial read. Raises whatever the database raises when it is down."""


class DecisionStore(Protocol):
    """The log of decisions, newest first when read."""

    async def append(self, decisions: Sequence[Decision]) -> None:
        """Store them in one transaction, in order."""

    async def recent(
        self, *, pool: str | None = None, since: datetime | None = None, limit: int = 100
    ) -> list[Decision]:
        """Return at most `limit` decisions not older than `since`, newest first."""

    async def prune(self, before: datetime) -> int:
        """Delete those older than `before` in small transactions; return how many."""


class Notifier(Protocol):
    """Tells every interested party that stored settings changed. A wake-up only: the truth is in the store."""

    def notify(self) -> None:
        """Wake all waiters."""

    async def changed(self) -> None:
        """Wait for the next `notify`."""
