"""The audit trail as values: who changed what, and the chain of hashes that shows whether a row was touched since.

Pure. Each row carries the hash of the one before, so that none can be changed, taken out or put in between without
every later hash being wrong.
"""

import hashlib
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from core.control.decisions import Decision
from core.errors import InvalidValue
from core.people.identity import Identity

GENESIS = "0" * 64
"""What the first row carries as the hash of the one before."""

BROWSER = "browser"
COMMAND_LINE = "command line"
API = "api"
CONTROLLER = "controller"
"""By which way a change came; with a key it is `api key NAME`. `CONTROLLER`: no person made it."""

LONGEST_TEXT = 1000
_CONTROLLER_STILL = frozenset({"hold"})


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: `actor` did `action` to `target` ("pool:default", "schedule", "key:chat"), by a `way`.

    `before` and `after` are the whole thing as JSON values, `None` where it did not exist or nothing is to be shown;
    never a secret. `reason` is what the person gave, or why the controller moved.
    """

    at: datetime
    actor: str
    action: str
    target: str
    before: Any = None
    after: Any = None
    reason: str = ""
    way: str = BROWSER

    @property
    def automatic(self) -> bool:
        """Tell whether no person made this change."""
        return self.way == CONTROLLER


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An entry in its place: rows are numbered from 1 without a gap; hashes are hexadecimal SHA-256."""

    number: int
    entry: AuditEntry
    previous: str
    hash: str


@dataclass(frozen=True, slots=True)
class AuditHead:
    """The place and hash of the last row; number 0 and `GENESIS` while there is none."""

    number: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which rows to show, newest first. `action` and `target` also match what begins with them and a mark (. or :).

    `automatic` False leaves out what no person did. `text` is searched for, letter case aside, in actor, action,
    target, reason and way. `before` is a row's number: only older ones.
    """

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str = ""
    automatic: bool = False
    before: int | None = None
    limit: int = 100


VIA: ContextVar[str] = ContextVar("via", default=BROWSER)
"""By which way, `BROWSER` or `API`, the request came that is being answered in this task."""


def way_of(identity: Identity) -> str:
    """Return by which way somebody asks: with an API key, which is named; who needs none by API or from the browser."""
    if identity.key:
        return f"api key {identity.key}"
    return VIA.get() if identity.anonymous else BROWSER


def canonical(value: object) -> str:
    """Return the one JSON text of `value`: names sorted, no blanks, no NaN; what JSON does not know as text."""
    return msgspec.json.encode(value, order="sorted", enc_hook=str).decode()


def digest(number: int, entry: AuditEntry, previous: str) -> str:
    """Return the hash of a row: SHA-256 over its canonical JSON, its place and the hash before it included."""
    row = {
        "number": number,
        "previous": previous,
        "at": entry.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "before": entry.before,
        "after": entry.after,
        "reason": entry.reason,
        "way": entry.way,
    }
    return hashlib.sha256(canonical(row).encode()).hexdigest()


def chained(entries: Iterable[AuditEntry], head: AuditHead) -> list[AuditRecord]:
    """Return the entries as the rows that follow `head`, in order."""
    records = []
    number, previous = head.number, head.hash
    for entry in map(sound, entries):
        number += 1
        record = AuditRecord(number, entry, previous, digest(number, entry, previous))
        records.append(record)
        previous = record.hash
    return records


def sound(entry: AuditEntry) -> AuditEntry:
    """Return the entry as any database can hold it: texts bounded and printable in UTF-8, values plain JSON."""
    return replace(
        entry,
        actor=_bounded(entry.actor),
        action=_bounded(entry.action),
        target=_bounded(entry.target),
        reason=_bounded(entry.reason),
        way=_bounded(entry.way),
        before=msgspec.json.decode(canonical(entry.before)),
        after=msgspec.json.decode(canonical(entry.after)),
    )


def _bounded(text: str) -> str:
    return text[:LONGEST_TEXT].replace("\0", "").encode("utf-8", "replace").decode()


class Verifier:
    """Follows the chain row by row, oldest first; each method returns what is wrong, `None` if nothing is."""

    def __init__(self) -> None:
        self.number = 0
        self.hash = GENESIS

    def check(self, record: AuditRecord) -> str | None:
        """Check the next row."""
        wanted = self.number + 1
        if record.number != wanted:
            return f"entry {wanted} is missing (entry {record.number} follows entry {self.number})"
        if record.previous != self.hash:
            return f"entry {wanted} does not carry the hash of the entry before it"
        if record.hash != digest(record.number, record.entry, record.previous):
            return f"entry {wanted} was changed after it was written"
        self.number, self.hash = record.number, record.hash
        return None

    def end(self, head: AuditHead) -> str | None:
        """Check that the last row seen is the last that was written."""
        if head.number > self.number:
            return f"entry {self.number + 1} is missing (the last one written is entry {head.number})"
        if head.number < self.number:
            return f"entry {head.number + 1} was added by hand (the last one written is entry {head.number})"
        return None if head.hash == self.hash else f"entry {self.number} is not the one that was written last"


def of_decision(decision: Decision) -> AuditEntry | None:
    """Return the entry of a move that no person made; `None` for what moved nothing or has an entry of its own."""
    if decision.actor == "operator" or decision.action in _CONTROLLER_STILL:
        return None
    (limit, new_limit), (quota, new_quota) = decision.limit, decision.quota
    return AuditEntry(
        at=decision.at,
        actor=decision.actor,
        action=f"limit.{decision.action}",
        target=f"pool:{decision.pool}",
        before={"limit": limit, "quota": quota},
        after={"limit": new_limit, "quota": new_quota},
        reason=decision.sentence,
        way=CONTROLLER,
    )


def check_reason(reason: str, *, required: bool) -> None:
    """Raise InvalidValue where policy (setting `require_reason`) asks for a reason and none is given."""
    if required and not reason.strip():
        raise InvalidValue("reason", "is required by policy: say why, in a few words")
