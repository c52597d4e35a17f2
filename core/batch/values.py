"""What a durable batch, its items and its files are. Values, no I/O. Instants are aware and in UTC."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum


class BatchStatus(StrEnum):
    """OpenAI's eight, and nothing else."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


FINAL_STATUSES = frozenset((BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED))


class ItemState(StrEnum):
    """One request line: pending and running may change, the others are final.

    `succeeded` is a 2xx answer, `failed` any other end that a line has by itself, `cancelled` and `expired` lines were
    never answered.
    """

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class LineError:
    """What is wrong with an input file, as OpenAI tells it; `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file's facts; its bytes are the FileStore's."""

    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_at: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewItem:
    """A validated request line: where its text stands in the input file (bytes), and what it will cost (tokens)."""

    index: int
    custom_id: str
    offset: int
    length: int
    model: str
    prompt_tokens: int
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class ClaimedItem:
    """An item under a lease. `attempts` counts the sends before this one; `body_offset`/`length` as in NewItem."""

    batch_id: str
    index: int
    custom_id: str
    offset: int
    length: int
    model: str
    attempts: int


@dataclass(frozen=True, slots=True)
class ItemRow:
    """An item as it stands; `offset` and `length` are those of its result once it has one."""

    batch_id: str
    index: int
    custom_id: str
    state: ItemState
    attempts: int
    status_code: int | None = None
    error_code: str | None = None
    offset: int = 0
    length: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ItemEnd:
    """How one attempt at an item ended.

    With a final `state` the result stands at `offset`/`length` of the batch's output file (`succeeded`) or error file
    (all others). With `pending` the item goes back to the queue until `not_before`; `counted` tells whether the
    attempt counts (a pull-back or shut-down does not).
    """

    batch_id: str
    index: int
    state: ItemState
    offset: int = 0
    length: int = 0
    status_code: int | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    seconds: float = 0.0
    error_code: str | None = None
    not_before: datetime | None = None
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens summed over a batch's answered items."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class BatchPause:
    """A batch stopped by a person."""

    by: str
    reason: str
    since: datetime


class EtaState(StrEnum):
    """Whether a time can be told: `learning` for want of data, `paused` while nothing may start."""

    ESTIMATED = "estimated"
    LEARNING = "learning"
    PAUSED = "paused"
    DONE = "done"


class Risk(StrEnum):
    """Whether a batch will be done within its window."""

    ON_TIME = "on_time"
    AT_RISK = "at_risk"
    WILL_MISS = "will_miss"


@dataclass(frozen=True, slots=True)
class Eta:
    """When a batch will be done: p5, p50 and p95, `None` unless estimated. `basis` tells what that rests on."""

    state: EtaState
    as_of: datetime
    low: datetime | None = None
    mid: datetime | None = None
    high: datetime | None = None
    basis: str = ""
    waiting_for: str | None = None
    risk: Risk | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A durable batch. `total`, `completed` and `failed` count items and never fall; `version` rises at each change.

    `output_size` and `error_size` are the bytes of the result files that committed items account for: what stands
    beyond them after a crash was never committed and is cut off. `max_concurrency` and `interval_s` bound this batch's
    own starts. `dedupe` is the hash by which a create that is sent again finds the first. `completion_window` is
    `window` as the client wrote it.
    """

    id: str
    tenant: str
    key: str | None
    pool: str
    model: str | None
    endpoint: str
    input_file_id: str
    window: timedelta
    created_at: datetime
    completion_window: str = ""
    name: str = ""
    status: BatchStatus = BatchStatus.VALIDATING
    errors: tuple[LineError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_size: int = 0
    error_size: int = 0
    in_progress_at: datetime | None = None
    finalizing_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    expired_at: datetime | None = None
    cancelling_at: datetime | None = None
    cancelled_at: datetime | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    running: int = 0
    usage: Usage = Usage()
    prompt_tokens_total: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    output_expires_after: timedelta | None = None
    priority: int = 0
    pause: BatchPause | None = None
    max_concurrency: int | None = None
    interval_s: float = 0.0
    dedupe: str | None = None
    version: int = 1

    @property
    def expires_at(self) -> datetime:
        """When the batch must be done: the end of its completion window."""
        return self.created_at + self.window

    @property
    def left(self) -> int:
        """Items without a final state."""
        return self.total - self.completed - self.failed

    @property
    def ended(self) -> bool:
        """Tell whether the status is final."""
        return self.status in FINAL_STATUSES

    @property
    def ended_at(self) -> datetime | None:
        """When the final status was reached."""
        ends = {
            BatchStatus.FAILED: self.failed_at,
            BatchStatus.COMPLETED: self.completed_at,
            BatchStatus.EXPIRED: self.expired_at,
            BatchStatus.CANCELLED: self.cancelled_at,
        }
        return ends.get(self.status)

    @property
    def output_file(self) -> str:
        """The FileStore's id of the file to which results of this batch are appended, from the first on."""
        return f"file-{self.id.removeprefix('batch_')}-output"

    @property
    def error_file(self) -> str:
        """The FileStore's id of the file to which failed lines of this batch are appended, from the first on."""
        return f"file-{self.id.removeprefix('batch_')}-error"
