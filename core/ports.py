"""The seams of the house: each port is a Protocol whose docstring is the contract.

One conformance suite per port, in tests/conformance, runs over every implementation.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from core.batch.values import Batch, BatchStatus, ClaimedItem, ItemEnd, ItemRow, ItemState, NewItem, StoredFile
from core.batch.views import BatchFilter, ErrorKind, ItemFilter
from core.call_record import CallQuery, CallRecord
from core.control.decisions import Decision
from core.control.windows import Schedule
from core.lanes import Lane, Outcome
from core.people.audit import AuditEntry, AuditHead, AuditQuery, AuditRecord
from core.quotas import PoolLimits, PoolSettings
from core.webhooks.values import Delivery, Endpoint, Health, Posting


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
    """One HTTP request to a model server: `path` below the base URL, with its slash; `body` as the client sent it."""

    method: str
    path: str
    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    connect_timeout: float = 5.0


class UpstreamAnswer(Protocol):
    """An answer whose head has arrived; the names of its headers are in lower case.

    `read` must be called until it returns b"", or `close` at any time before.
    """

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
    """Operators' settings and the schedule. Each save is one transaction with the decision and the audit entries."""

    async def seed(self, pools: Sequence[PoolSettings], schedule: Schedule) -> None:
        """Store the pools, and the schedule, that are not stored yet; leave what is.

        But for the slots: who says at the start what a server can take is obeyed. A pool that nobody has changed since
        it was stored, and that now gets other slots, begins anew from what is given.
        """

    async def pool(self, name: str) -> PoolSettings:
        """Return a pool's settings. Raises NotFound."""

    async def save_pool(
        self,
        settings: PoolSettings,
        *,
        based_on: int | None,
        decision: Decision,
        audit: Sequence[AuditEntry] = (),
    ) -> PoolSettings:
        """Store `settings` as version stored + 1 with `decision` and `audit`, and return them so.

        `based_on` is the version that the caller read, `None` to override on purpose. Raises StaleVersion, NotFound.
        """

    async def schedule(self) -> Schedule:
        """Return the schedule with its version."""

    async def save_schedule(
        self,
        schedule: Schedule,
        *,
        based_on: int | None,
        decisions: Sequence[Decision],
        audit: Sequence[AuditEntry] = (),
    ) -> Schedule:
        """Store the schedule as version stored + 1 with `decisions` and `audit`. Raises StaleVersion."""

    async def saved_limit(self, pool: str) -> SavedLimit | None:
        """Return what the controller saved last for this pool."""

    async def save_limit(self, pool: str, saved: SavedLimit) -> None:
        """Keep `saved` for the next start."""

    async def ping(self) -> None:
        """Do a trivial read. Raises whatever the database raises when it is down."""


class DecisionStore(Protocol):
    """The log of decisions, newest first when read."""

    async def append(self, decisions: Sequence[Decision]) -> None:
        """Store them in one transaction, in order, with an audit entry for each move that no person made."""

    async def recent(
        self, *, pool: str | None = None, since: datetime | None = None, limit: int = 100
    ) -> list[Decision]:
        """Return at most `limit` decisions not older than `since`, newest first."""

    async def prune(self, before: datetime) -> int:
        """Delete those older than `before` in small transactions; return how many."""


class AuditStore(Protocol):
    """The audit trail: rows that nobody can change or delete, each with the hash of the one before.

    Whoever appends at the same time takes turns, in this process and in others: the chain never forks.
    """

    async def record(self, *entries: AuditEntry) -> list[AuditRecord]:
        """Add entries in order, in a transaction of their own; return them in their places."""

    async def audit_record(self, number: int) -> AuditRecord:
        """Return one row. Raises NotFound."""

    async def audit(self, query: AuditQuery) -> list[AuditRecord]:
        """Return the rows that fit, newest first."""

    async def audit_chain(self, *, after: int, limit: int) -> list[AuditRecord]:
        """Return at most `limit` rows after number `after`, oldest first."""

    async def audit_head(self) -> AuditHead:
        """Return what the last append left behind."""


class CallStore(Protocol):
    """The call log."""

    async def add_calls(self, records: Sequence[CallRecord]) -> None:
        """Store a group of calls in one transaction."""

    async def calls(self, query: CallQuery) -> list[CallRecord]:
        """Return the calls that fit, newest first."""

    async def prune_calls(self, *, before: float, keep: int) -> int:
        """Delete, in small transactions, all but the newest `keep` and those older than `before` (seconds since 1970).

        Returns how many.
        """


class Notifier(Protocol):
    """Tells every interested party that stored settings changed. A wake-up only: the truth is in the store."""

    def notify(self) -> None:
        """Wake all waiters."""

    async def changed(self) -> None:
        """Wait for the next `notify`."""


class FileStore(Protocol):
    """Bytes of files, by id. Writers append; a reader sees what was synced. Never holds a whole file in memory."""

    async def append(self, file_id: str, data: bytes) -> int:
        """Append and return the offset at which `data` now stands; the file is made if need be. Not yet durable."""

    async def sync(self, file_id: str) -> None:
        """Return once all that was appended would survive a power cut."""

    async def size(self, file_id: str) -> int:
        """Return the bytes that the file has, 0 where there is none."""

    async def truncate(self, file_id: str, size: int) -> None:
        """Cut the file to `size` bytes; legal where it is no longer than that."""

    async def read(self, file_id: str, offset: int, length: int) -> bytes:
        """Return at most `length` bytes from `offset`. Raises NotFound."""

    def stream(self, file_id: str, *, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield the file in pieces up to byte `end`. Raises NotFound."""

    async def delete(self, file_id: str) -> None:
        """Delete; legal where there is none."""

    async def untouched(self, *, since: float) -> list[str]:
        """Return the ids of all files that nobody wrote after `since` (seconds since 1970)."""


class BatchStore(Protocol):
    """Durable batches, their items and the facts of files. Every method is one transaction.

    An item is claimed under a lease (owner, expiry); who claims holds it alone until it ends or expires.
    """

    async def add_file(self, file: StoredFile, *, audit: Sequence[AuditEntry] = ()) -> None:
        """Store a file's facts, with `audit`."""

    async def file(self, file_id: str, *, tenant: str | None) -> StoredFile:
        """Return a file's facts; `tenant` None means any. Raises NotFound."""

    async def files(
        self, *, tenant: str | None, purpose: str | None, after: str | None, limit: int, ascending: bool
    ) -> list[StoredFile]:
        """Return one page of files, plus one more where there is more."""

    async def delete_file(self, file_id: str, *, tenant: str | None, audit: Sequence[AuditEntry] = ()) -> None:
        """Forget a file, with `audit`. Raises NotFound; InvalidValue while a batch that is not ended needs it."""

    async def expired_files(self, *, now: datetime, limit: int) -> list[StoredFile]:
        """Return files whose time is over and that no batch needs any more."""

    async def create(self, batch: Batch, *, again: bool = True, audit: Sequence[AuditEntry] = ()) -> Batch:
        """Store a new batch with `audit`, or return the latest with the same `dedupe` of the last 10 minutes.

        With `again` False the batch is always stored: the caller knows that nobody sent it before.
        """

    async def batch(self, batch_id: str, *, tenant: str | None = None) -> Batch:
        """Return a batch. Raises NotFound."""

    async def batches(
        self, *, tenant: str | None, after: str | None, limit: int, statuses: Sequence[BatchStatus] = ()
    ) -> list[Batch]:
        """Return one page of batches, newest first, plus one more where there is more. Raises NotFound for `after`."""

    async def active(self) -> list[Batch]:
        """Return every batch that is not in a final status, oldest first."""

    async def add_items(self, batch_id: str, items: Sequence[NewItem]) -> None:
        """Store a run of items while the batch is validating."""

    async def drop_items(self, batch_id: str, *, limit: int) -> int:
        """Delete at most `limit` items of a batch that never left validation, with its counts; return how many."""

    async def update(self, batch: Batch, *, audit: Sequence[AuditEntry] = ()) -> Batch:
        """Store what a person or a move of status changed, as version + 1, with `audit`; counts and usage are not
        touched.

        Only this raises the version: items that start and end do not. Raises StaleVersion where the stored version is
        another.
        """

    async def retry_failed(self, batch: Batch, *, audit: Sequence[AuditEntry] = ()) -> Batch:
        """Make every failed item pending again, the error file void, and store `batch` as `update` does, at once."""

    async def claim(
        self, batch_id: str, *, owner: str, now: datetime, lease: timedelta, limit: int
    ) -> list[ClaimedItem]:
        """Lease at most `limit` pending items that are due, in order of index; those that wait for a retry first."""

    async def renew(self, *, owner: str, until: datetime) -> int:
        """Prolong every lease of `owner`; return how many there are."""

    async def finish(
        self, ends: Sequence[ItemEnd], *, owner: str, sizes: Mapping[str, tuple[int, int]]
    ) -> list[ItemEnd]:
        """Store how items ended, with counts, usage and the new (output_size, error_size) of each batch, at once.

        Only items that `owner` still leases are touched; those are returned. A size that is stored never falls: of
        several processes that write, the one that wrote furthest counts.
        """

    async def give_back(self, *, owner: str | None, before: datetime | None) -> int:
        """Make pending again what `owner` leases (None: whoever does), as far as it expired `before` (None: all).

        Returns how many.
        """

    async def end_rest(self, batch_id: str, state: ItemState, *, limit: int) -> list[ClaimedItem]:
        """Give at most `limit` pending items the final `state` (cancelled or expired), counted as failed.

        They get no place in the error file: their lines are written when the batch is closed.
        """

    async def items(
        self, batch_id: str, *, states: Sequence[ItemState] = (), after: int = -1, limit: int = 100
    ) -> list[ItemRow]:
        """Return items in order of index, for pages and results."""

    async def prune_items(self, *, before: datetime, limit: int) -> int:
        """Delete items of batches that ended before `before`, in a small transaction; return how many went."""


class BatchViews(Protocol):
    """What pages ask about batches: searches, and errors by kind. Reads only."""

    async def find_batches(self, wanted: BatchFilter, *, after: str | None, limit: int) -> list[Batch]:
        """Return one page of batches, newest first, plus one more where there is more. Raises NotFound for `after`."""

    async def named_batches(self, ids: Collection[str], *, tenant: str | None) -> list[Batch]:
        """Return those of the batches that there are and that `tenant` (None: anybody) owns, newest first."""

    async def batch_tenants(self) -> list[str]:
        """Return the tenants that have batches, by name."""

    async def error_kinds(self, batch_id: str, *, limit: int) -> list[ErrorKind]:
        """Return how items of a batch ended without a result, the commonest first."""

    async def find_items(self, batch_id: str, wanted: ItemFilter, *, after: int, limit: int) -> list[ItemRow]:
        """Return one page of items in order of index, plus one more where there is more."""


class WebhookStore(Protocol):
    """Endpoints of webhooks, and the outbox of what is to be told to them.

    An event enters the outbox in the very transaction that moves its batch to a final status (`BatchStore.update`), for
    each endpoint that its tenant has then; once per endpoint and event, however often that is tried.
    """

    async def add_webhook(self, endpoint: Endpoint, *, most: int, audit: Sequence[AuditEntry]) -> None:
        """Store a new endpoint, with `audit`. Raises InvalidValue where its tenant has `most` already."""

    async def webhooks(self, *, tenant: str | None) -> list[Endpoint]:
        """Return the endpoints of a tenant (None: of all), oldest first."""

    async def webhook(self, endpoint_id: str, *, tenant: str | None) -> Endpoint:
        """Return an endpoint. Raises NotFound."""

    async def change_webhook(
        self,
        endpoint_id: str,
        change: Callable[[Endpoint], Endpoint],
        *,
        tenant: str | None,
        entry: Callable[[Endpoint, Endpoint], AuditEntry],
    ) -> Endpoint:
        """Store what `change` makes of rotations, old_until and disabled_at, with its audit `entry`, as one change.

        What changes nothing has no entry. Raises NotFound.
        """

    async def delete_webhook(
        self, endpoint_id: str, *, tenant: str | None, entry: Callable[[Endpoint], AuditEntry]
    ) -> None:
        """Delete an endpoint with its deliveries, with its audit `entry`. Raises NotFound."""

    async def webhook_health(self, ids: Collection[str]) -> Mapping[str, Health]:
        """Return how endpoints fare, by id, as far as their deliveries are still known."""

    async def add_delivery(self, delivery: Delivery) -> None:
        """Store a delivery that ended outside the outbox; legal after its endpoint was deleted."""

    async def deliveries(self, endpoint_id: str, *, limit: int) -> list[Delivery]:
        """Return the latest deliveries to an endpoint, newest first."""

    async def claim_deliveries(
        self, *, now: datetime, until: datetime, busy: Collection[str], limit: int
    ) -> list[Delivery]:
        """Return the oldest due delivery of each endpoint that is neither `busy` nor disabled, at most `limit`.

        Nobody else gets them before `until`.
        """

    async def end_attempt(self, delivery: Delivery) -> None:
        """Store a delivery after one more attempt; legal after its endpoint was deleted."""

    async def prune_deliveries(self, *, before: datetime, limit: int) -> int:
        """Forget deliveries that ended before `before`, in a small transaction; return how many."""


class WebhookClient(Protocol):
    """Posts to endpoints. Follows no redirect, reads no body, connects to allowed addresses alone."""

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> Posting:
        """Post once and tell how it went; never raises for what the other side does."""

    async def close(self) -> None:
        """Release all connections."""
