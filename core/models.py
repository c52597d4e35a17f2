"""The tables. Rows are the storage's matter: all others speak of values (core.quotas, core.control, core.batch)."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Index, Integer, text
from sqlalchemy.types import TypeDecorator, TypeEngine
from sqlmodel import Field, SQLModel

SCHEDULE_ID = 1
HEAD_ID = 1
PEOPLE_ID = 1


class Instant(TypeDecorator[datetime]):
    """An aware instant, kept in UTC; SQLite, which knows no zones, gets it without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive time; store UTC."""
        if value is None:
            return None
        if value.utcoffset() is None:
            raise ValueError("an instant needs its offset")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _big_id() -> TypeEngine[int]:
    """Return a 64-bit type that SQLite, too, numbers by itself."""
    return BigInteger().with_variant(Integer(), "sqlite")


def _part(condition: str) -> dict[str, Any]:
    """Make an index one of the rows for which `condition` holds."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class PoolRow(SQLModel, table=True):
    """One pool's settings: `core.quotas.PoolSettings`."""

    __tablename__ = "pool"

    name: str = Field(primary_key=True)
    slots: int
    reserve: int
    headroom: int
    floor: int
    ceiling: int
    budgets: dict[str, Any] = Field(sa_type=JSON)
    model_budgets: dict[str, Any] = Field(sa_type=JSON)
    hold: dict[str, Any] | None = Field(default=None, sa_type=JSON(none_as_null=True))
    pause: dict[str, Any] | None = Field(default=None, sa_type=JSON(none_as_null=True))
    version: int


class ScheduleRow(SQLModel, table=True):
    """The one schedule: `core.control.windows.Schedule`."""

    __tablename__ = "schedule"

    id: int = Field(default=SCHEDULE_ID, primary_key=True)
    zone: str
    windows: list[Any] = Field(sa_type=JSON)
    one_offs: list[Any] = Field(sa_type=JSON)
    version: int


class LimitRow(SQLModel, table=True):
    """What a pool's controller keeps across restarts: `core.ports.SavedLimit`."""

    __tablename__ = "learned_limit"

    pool: str = Field(primary_key=True)
    learned: float
    slow_start: float
    last_cut_level: float
    at: datetime = Field(sa_type=Instant)


class DecisionRow(SQLModel, table=True):
    """One row of the decision log: `core.control.decisions.Decision`, the figures that are not queried in `figures`."""

    __tablename__ = "decision"
    __table_args__ = (Index("ix_decision_at", "at"), Index("ix_decision_pool_at", "pool", "at"))

    id: int | None = Field(default=None, primary_key=True, sa_type=_big_id())
    at: datetime = Field(sa_type=Instant)
    pool: str
    actor: str
    action: str
    reason: str
    sentence: str
    by: str | None = Field(default=None)
    note: str | None = Field(default=None)
    figures: dict[str, Any] = Field(sa_type=JSON)


class FileRow(SQLModel, table=True):
    """One file's facts: `core.batch.values.StoredFile`."""

    __tablename__ = "file"
    __table_args__ = (
        Index("ix_file_tenant_created_at", "tenant", "created_at"),
        Index("ix_file_expires_at", "expires_at"),
    )

    id: str = Field(primary_key=True)
    tenant: str
    filename: str
    purpose: str
    size: int = Field(sa_type=BigInteger)
    created_at: datetime = Field(sa_type=Instant)
    expires_at: datetime | None = Field(default=None, sa_type=Instant)


class BatchRow(SQLModel, table=True):
    """One batch: `core.batch.values.Batch`. `number` rises with each; lengths are seconds; `ended_at` set is final."""

    __tablename__ = "batch"
    __table_args__ = (
        Index("ix_batch_id", "id", unique=True),
        Index("ix_batch_tenant", "tenant", "number"),
        Index("ix_batch_dedupe", "dedupe", "created_at"),
        Index("ix_batch_ended_at", "ended_at"),
        Index("ix_batch_active", "number", **_part("ended_at IS NULL")),
    )

    number: int | None = Field(default=None, primary_key=True, sa_type=_big_id())
    id: str
    tenant: str
    key: str | None = Field(default=None)
    pool: str
    model: str | None = Field(default=None)
    endpoint: str
    input_file_id: str
    window: float
    created_at: datetime = Field(sa_type=Instant)
    name: str
    status: str
    errors: list[Any] = Field(sa_type=JSON)
    output_file_id: str | None = Field(default=None)
    error_file_id: str | None = Field(default=None)
    output_size: int = Field(sa_type=BigInteger)
    error_size: int = Field(sa_type=BigInteger)
    in_progress_at: datetime | None = Field(default=None, sa_type=Instant)
    finalizing_at: datetime | None = Field(default=None, sa_type=Instant)
    completed_at: datetime | None = Field(default=None, sa_type=Instant)
    failed_at: datetime | None = Field(default=None, sa_type=Instant)
    expired_at: datetime | None = Field(default=None, sa_type=Instant)
    cancelling_at: datetime | None = Field(default=None, sa_type=Instant)
    cancelled_at: datetime | None = Field(default=None, sa_type=Instant)
    ended_at: datetime | None = Field(default=None, sa_type=Instant)
    total: int
    completed: int
    failed: int
    input_tokens: int = Field(sa_type=BigInteger)
    cached_tokens: int = Field(sa_type=BigInteger)
    output_tokens: int = Field(sa_type=BigInteger)
    reasoning_tokens: int = Field(sa_type=BigInteger)
    prompt_tokens_total: int = Field(sa_type=BigInteger)
    labels: dict[str, str] = Field(sa_type=JSON)
    output_expires_after: float | None = Field(default=None)
    priority: int
    pause: dict[str, Any] | None = Field(default=None, sa_type=JSON(none_as_null=True))
    max_concurrency: int | None = Field(default=None)
    interval_s: float
    dedupe: str | None = Field(default=None)
    version: int


class BatchItemRow(SQLModel, table=True):
    """One request line. `batch` is the batch's number; `start` and `length` place it in the input file.

    `due` and `lease_until` are seconds since 1970, `due` 0 for an item that waits for no instant. The partial indexes
    keep the cost of a claim apart from the number of items.
    """

    __tablename__ = "batch_item"
    __table_args__ = (
        Index("ix_batch_item_fresh", "batch", "idx", **_part("state = 'pending' AND due = 0")),
        Index("ix_batch_item_later", "batch", "due", **_part("state = 'pending' AND due > 0")),
        Index("ix_batch_item_running", "batch", "owner", **_part("state = 'running'")),
        {"sqlite_with_rowid": False},
    )

    batch: int = Field(primary_key=True, sa_type=BigInteger)
    idx: int = Field(primary_key=True)
    custom_id: str
    start: int = Field(sa_type=BigInteger)
    length: int
    model: str
    prompt_tokens: int
    max_tokens: int | None = Field(default=None)
    state: str
    attempts: int
    due: float
    owner: str | None = Field(default=None)
    lease_until: float | None = Field(default=None)
    status_code: int | None = Field(default=None)
    error_code: str | None = Field(default=None)
    result_start: int = Field(sa_type=BigInteger)
    result_length: int
    seconds: float


class AuditRow(SQLModel, table=True):
    """One row of the audit trail: `core.people.audit.AuditRecord`; `before` and `after` are canonical JSON texts.

    The database itself refuses to change or delete a row.
    """

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_at", "at"),
        Index("ix_audit_people", "number", **_part("way <> 'controller'")),
    )

    number: int = Field(primary_key=True, sa_type=_big_id())
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

    id: int | None = Field(default=None, primary_key=True, sa_type=_big_id())
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


class TenantRow(SQLModel, table=True):
    """One team: `core.people.tenants.Tenant`."""

    __tablename__ = "tenant"

    name: str = Field(primary_key=True)
    weight: float
    batch_slots: int | None = Field(default=None, sa_type=BigInteger)
    requests_per_minute: int | None = Field(default=None, sa_type=BigInteger)
    tokens_per_minute: int | None = Field(default=None, sa_type=BigInteger)
    queued_items: int | None = Field(default=None, sa_type=BigInteger)
    queued_tokens: int | None = Field(default=None, sa_type=BigInteger)
    lanes: list[str] = Field(sa_type=JSON)
    created_at: datetime = Field(sa_type=Instant)
    version: int


class ApiKeyRow(SQLModel, table=True):
    """One API key: `core.people.keys.ApiKey`; of its secrets the keyed hashes."""

    __tablename__ = "api_key"

    name: str = Field(primary_key=True)
    tenant: str
    hash: str
    prefix: str
    role: str
    lane: str
    lanes: list[str] = Field(sa_type=JSON)
    models: list[str] = Field(sa_type=JSON)
    cidrs: list[str] = Field(sa_type=JSON)
    created_at: datetime = Field(sa_type=Instant)
    expires_at: datetime | None = Field(default=None, sa_type=Instant)
    last_used_at: datetime | None = Field(default=None, sa_type=Instant)
    revoked_at: datetime | None = Field(default=None, sa_type=Instant)
    old_hash: str | None = Field(default=None)
    old_prefix: str | None = Field(default=None)
    old_until: datetime | None = Field(default=None, sa_type=Instant)


class AccountRow(SQLModel, table=True):
    """One person: `core.people.accounts.Account`; `password` is Argon2's text."""

    __tablename__ = "account"
    __table_args__ = (Index("ix_account_subject", "subject", unique=True, **_part("subject IS NOT NULL")),)

    name: str = Field(primary_key=True)
    role: str
    tenant: str
    password: str | None = Field(default=None)
    subject: str | None = Field(default=None)
    created_at: datetime = Field(sa_type=Instant)
    last_sign_in_at: datetime | None = Field(default=None, sa_type=Instant)
    disabled_at: datetime | None = Field(default=None, sa_type=Instant)


class SessionRow(SQLModel, table=True):
    """One sign-in: `core.people.sessions.Session`; of the cookie the keyed hash."""

    __tablename__ = "session"
    __table_args__ = (Index("ix_session_account", "account"), Index("ix_session_expires_at", "expires_at"))

    id: str = Field(primary_key=True)
    hash: str
    account: str
    created_at: datetime = Field(sa_type=Instant)
    expires_at: datetime = Field(sa_type=Instant)
    seen_at: datetime = Field(sa_type=Instant)
    address: str
    agent: str
    way: str


class PeopleRow(SQLModel, table=True):
    """The one row that all changes of people, teams and keys go through: it numbers them, and keeps their order."""

    __tablename__ = "people"

    id: int = Field(default=PEOPLE_ID, primary_key=True)
    revision: int = Field(sa_type=BigInteger)
    secret_mark: str | None = Field(default=None)
    setup_hash: str | None = Field(default=None)
    setup_until: datetime | None = Field(default=None, sa_type=Instant)


class WebhookRow(SQLModel, table=True):
    """One endpoint of webhooks: `core.webhooks.values.Endpoint`."""

    __tablename__ = "webhook"
    __table_args__ = (Index("ix_webhook_tenant", "tenant", "created_at"),)

    id: str = Field(primary_key=True)
    tenant: str
    url: str
    events: list[str] = Field(sa_type=JSON)
    created_at: datetime = Field(sa_type=Instant)
    description: str


class WebhookDeliveryRow(SQLModel, table=True):
    """One event for one endpoint: `core.webhooks.values.Delivery`. `due` is seconds since 1970."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        Index("ix_webhook_delivery_once", "webhook", "event", unique=True),
        Index("ix_webhook_delivery_log", "webhook", "number"),
        Index("ix_webhook_delivery_pending", "due", "webhook", **_part("state = 'pending'")),
        Index("ix_webhook_delivery_last_at", "last_at"),
    )

    number: int | None = Field(default=None, primary_key=True, sa_type=_big_id())
    webhook: str
    event: str
    type: str
    batch: str
    created_at: datetime = Field(sa_type=Instant)
    state: str
    attempts: int
    due: float
    last_at: datetime | None = Field(default=None, sa_type=Instant)
    status: int | None = Field(default=None)
    error: str | None = Field(default=None)


class ThroughputRow(SQLModel, table=True):
    """What one pool's batch lane did in one hour under one source of bounds: `core.batch.throughput.Measured`."""

    __tablename__ = "throughput"
    __table_args__ = (Index("ix_throughput_start", "start"),)

    pool: str = Field(primary_key=True)
    start: datetime = Field(primary_key=True, sa_type=Instant)
    source: str = Field(primary_key=True)
    seconds: float
    items: float
    input_tokens: float
    output_tokens: float
    quota: float
    ceiling: float


class PriorRow(SQLModel, table=True):
    """What a tenant's requests to a model are like: `core.batch.work.Prior`; `at` is when that was last stored."""

    __tablename__ = "prior"
    __table_args__ = (Index("ix_prior_at", "at"),)

    pool: str = Field(primary_key=True)
    tenant: str = Field(primary_key=True)
    model: str = Field(primary_key=True)
    items: float
    output_tokens: float
    seconds: float
    prompt_ratio: float
    at: datetime = Field(sa_type=Instant)


class EtaRow(SQLModel, table=True):
    """One ETA that was given: `core.batch.residuals.GivenEta`."""

    __tablename__ = "eta"
    __table_args__ = (Index("ix_eta_batch", "batch"), Index("ix_eta_at", "at"))

    number: int | None = Field(default=None, primary_key=True, sa_type=_big_id())
    batch: str
    tenant: str
    pool: str
    at: datetime = Field(sa_type=Instant)
    low: datetime = Field(sa_type=Instant)
    mid: datetime = Field(sa_type=Instant)
    high: datetime = Field(sa_type=Instant)
    items: float
    input_tokens: float
    output_tokens: float
    first: bool
    calibrated: bool
    ended_at: datetime | None = Field(default=None, sa_type=Instant)
