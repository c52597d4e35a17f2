"""Changes of batches and files as entries of the audit trail, and what it takes to put one back. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from core.batch.states import still_open
from core.batch.values import Batch, BatchPause, StoredFile
from core.errors import InvalidValue
from core.people.audit import AuditEntry, way_of
from core.people.identity import ASKING

TARGET = "batch:"
REVERTIBLE = frozenset({"batch.pause", "batch.resume", "batch.priority"})
_TOLD = ("name", "tenant", "status", "priority", "pause")
_TOLD_OF_NEW = (*_TOLD, "endpoint", "input_file_id", "completion_window")
_TOLD_OF_FILE = ("tenant", "filename", "bytes", "expires_at")


@dataclass(frozen=True, slots=True)
class Steering:
    """What people set on a batch after it was made."""

    priority: int
    pause: BatchPause | None


def steering_of(batch: Batch) -> Steering:
    """Return what people set on a batch."""
    return Steering(batch.priority, batch.pause)


def batch_of(entry: AuditEntry) -> str | None:
    """Return the batch whose steering the entry changed, `None` where it changed something else."""
    return entry.target.removeprefix(TARGET) if entry.action in REVERTIBLE else None


def steerings(entry: AuditEntry) -> tuple[Steering, Steering]:
    """Return from what to what the entry changed a batch's steering."""
    return msgspec.convert(entry.before, Steering), msgspec.convert(entry.after, Steering)


def undone(batch: Batch, was: Steering, now: Steering, *, pause: BatchPause) -> Batch:
    """Return the batch with what a change from `was` to `now` moved as it was; a pause comes back as `pause`.

    Raises InvalidValue where the batch ended, or somebody changed the same since (field `entry`).
    """
    back: dict[str, Any] = {}
    if was.priority != now.priority:
        back["priority"] = was.priority
    if was.pause != now.pause:
        back["pause"] = pause if was.pause else None
    if not back or any(getattr(batch, name) != getattr(now, name) for name in back):
        raise InvalidValue("entry", "somebody changed the same since")
    return replace(still_open(batch), **back)


def batch_entry(before: Batch | None, after: Batch, *, kind: str, at: datetime, reason: str = "") -> AuditEntry:
    """Return the entry of a batch that whoever asks in this task changed; `kind` is create, cancel, pause, ..."""
    told = _TOLD if before else _TOLD_OF_NEW
    return _entry(f"batch.{kind}", f"{TARGET}{after.id}", _told(before, told), _told(after, told), at, reason)


def file_entry(before: StoredFile | None, after: StoredFile | None, *, at: datetime, reason: str = "") -> AuditEntry:
    """Return the entry of a file that whoever asks in this task stored (`before` is `None`) or deleted (`after` is)."""
    kind, name = ("delete", before.id) if before else ("create", after.id if after else "")
    return _entry(f"file.{kind}", f"file:{name}", _told(before, _TOLD_OF_FILE), _told(after, _TOLD_OF_FILE), at, reason)


def _entry(action: str, target: str, before: Any, after: Any, at: datetime, reason: str) -> AuditEntry:
    asking = ASKING.get()
    return AuditEntry(
        at=at,
        actor=asking.name,
        action=action,
        target=target,
        before=before,
        after=after,
        reason=reason.strip(),
        way=way_of(asking),
    )


def _told(value: object, names: tuple[str, ...]) -> Any:
    return None if value is None else msgspec.to_builtins({name: getattr(value, name) for name in names})
