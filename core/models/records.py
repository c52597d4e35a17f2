"""The tables of what happened: the audit trail and the call log."""

from datetime import datetime

from sqlalchemy import BigInteger, Index
from sqlmodel import Field, SQLModel

from core.models.columns import Instant, big_id, part

HEAD_ID = 1


class AuditRow(SQLModel, table=True):
    """One row of the audit trail: `core.people.audit.AuditRecord`; `before` and `after` are canonical JSON texts.

    The database itself refuses to change or delete a row.
    """

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_at", "at"),
        Index("ix_audit_people", "number", **part("way <> 'controller'")),
    )

    number: int = Field(primary_key=True, sa_type=big_id())
    at: datetime = Field(sa_type=Instant)
    actor: str
    action: str
    target: str
    before: str
    after: str
    reason: str
    way: str
    previous: str
    hash: str


class AuditHeadRow(SQLModel, table=True):
    """The last row of the audit trail; who appends holds this row, so that the chain has one order."""

    __tablename__ = "audit_head"

    id: int = Field(default=HEAD_ID, primary_key=True)
    number: int = Field(sa_type=BigInteger)
    hash: str


class CallRow(SQLModel, table=True):
    """One call of the call log: `core.call_record.CallRecord`."""

    __tablename__ = "call_log"
    __table_args__ = (Index("ix_call_log_at", "at"), Index("ix_call_log_tenant", "tenant", "id"))

    id: int | None = Field(default=None, primary_key=True, sa_type=big_id())
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
    first_token_ms: float | None = Field(default=None)
    total_ms: float
    input_tokens: int
    output_tokens: int
    estimated: bool
