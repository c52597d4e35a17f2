"""Changes of batches as entries of the audit trail."""

from datetime import datetime
from typing import Any

import msgspec

from core.batch.values import Batch
from core.people.audit import AuditEntry, way_of
from core.people.identity import ASKING

_TOLD = ("name", "tenant", "status", "priority", "pause")


def batch_entry(before: Batch, after: Batch, *, kind: str, at: datetime, reason: str = "") -> AuditEntry:
    """Return the entry of a batch that whoever asks in this task changed; `kind` is cancel, pause, resume, ..."""
    asking = ASKING.get()
    return AuditEntry(
        at=at,
        actor=asking.name,
        action=f"batch.{kind}",
        target=f"batch:{before.id}",
        before=_told(before),
        after=_told(after),
        reason=reason.strip(),
        way=way_of(asking),
    )


def _told(batch: Batch) -> Any:
    return msgspec.to_builtins({name: getattr(batch, name) for name in _TOLD})
