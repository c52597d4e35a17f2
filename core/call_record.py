"""One call as the call log tells it: who, where, how it ended, how long it took; never what was said. Values."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple


class CallRecord(NamedTuple):
    """One LLM request, or one sending of a durable item. `id` rises with each and is 0 until it is stored.

    `at` is the arrival in seconds since 1970, times are milliseconds from there: `queue_ms` of waiting for slots,
    `first_token_ms` to the first token of a streamed answer, `total_ms` to the end. `batch` names the durable batch,
    "" for a call of a client. `status` is what was answered, 0 where nothing was.
    """

    at: float
    request: str
    tenant: str
    key: str
    pool: str
    model: str
    lane: str
    batch: str
    outcome: str
    status: int
    queue_ms: float
    first_token_ms: float | None
    total_ms: float
    input_tokens: int
    output_tokens: int
    estimated: bool
    id: int = 0


@dataclass(frozen=True, slots=True)
class CallQuery:
    """Which calls to show, newest first; `None` means any. `before` is an id: only older ones."""

    tenant: str | None = None
    key: str | None = None
    pool: str | None = None
    model: str | None = None
    lane: str | None = None
    outcome: str | None = None
    batch: str | None = None
    request: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: int | None = None
    limit: int = 100


STORED = CallRecord._fields[:-1]
"""What a row is stored with; its id comes by itself."""
_TIMES = ("queue_ms", "first_token_ms", "total_ms")
COLUMNS = ("id", *STORED)


def as_json(record: CallRecord) -> dict[str, Any]:
    """Return a record as the API tells it."""
    told: dict[str, Any] = {name: getattr(record, name) for name in COLUMNS}
    told |= {name: round(told[name], 1) for name in _TIMES if told[name] is not None}
    at = datetime.fromtimestamp(record.at, UTC).isoformat(timespec="milliseconds")
    return told | {"at": at.replace("+00:00", "Z")}
