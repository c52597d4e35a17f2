"""Who makes a change of people, teams or keys, and by which way; becomes the audit entry."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from core.errors import InvalidValue
from core.people.audit import COMMAND_LINE, AuditEntry

LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class By:
    """Who does it, by which `way` (see `core.people.audit`), and why."""

    name: str
    way: str
    reason: str = ""

    def __post_init__(self) -> None:
        if len(self.reason) > LONGEST_REASON:
            raise InvalidValue("reason", f"must have at most {LONGEST_REASON} characters")

    def entry(self, at: datetime, action: str, target: str, *, before: Any = None, after: Any = None) -> AuditEntry:
        """Return the audit entry of what is done."""
        return AuditEntry(
            at=at,
            actor=self.name,
            action=action,
            target=target,
            before=before,
            after=after,
            reason=self.reason,
            way=self.way,
        )


def shell(reason: str = "") -> By:
    """Return whoever has a shell on the machine. Raises InvalidValue."""
    return By("operator", COMMAND_LINE, " ".join(reason.split()))
