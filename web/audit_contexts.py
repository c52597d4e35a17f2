"""What the templates of the audit trail and the call log are given; see `web.contexts`."""

from dataclasses import dataclass
from typing import ClassVar

from web.contexts import Applied, Change, Choice, Shell


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One entry of the audit trail as a line; `revert` tells whether what it changed can be put back."""

    number: int
    at: str
    day: str
    iso: str
    who: str
    what: str
    moved: str
    reason: str
    way: str
    automatic: bool
    revert: bool


@dataclass(frozen=True, slots=True)
class AuditPage(Shell):
    """GET /audit."""

    template: ClassVar[str] = "audit.html"

    rows: tuple[AuditRow, ...]
    values: dict[str, str]
    kinds: tuple[Choice, ...]
    export: str
    older: str
    zone: str
    applied: Applied | None = None


@dataclass(frozen=True, slots=True)
class Revert:
    """What putting an entry back would do now, on which version; `refused` tells why it cannot be done ("")."""

    changes: tuple[Change, ...]
    version: int
    refused: str


@dataclass(frozen=True, slots=True)
class EntryPage(Shell):
    """GET /audit/{number}: one entry in full."""

    template: ClassVar[str] = "entry.html"

    row: AuditRow
    changes: tuple[Change, ...]
    before: str
    after: str
    hash: str
    previous: str
    revert: Revert | None
    problem: str


@dataclass(frozen=True, slots=True)
class CallLogRow:
    """One call of the call log as a line."""

    at: str
    day: str
    iso: str
    request: str
    who: str
    where: str
    lane: str
    batch: str
    outcome: str
    good: bool
    waited: str
    first: str
    total: str
    tokens: str


@dataclass(frozen=True, slots=True)
class CallsPage(Shell):
    """GET /audit/calls."""

    template: ClassVar[str] = "calls.html"

    rows: tuple[CallLogRow, ...]
    values: dict[str, str]
    pools: tuple[Choice, ...]
    lanes: tuple[Choice, ...]
    outcomes: tuple[Choice, ...]
    export: str
    older: str
    kept: str
    zone: str
