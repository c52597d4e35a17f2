"""The tables of files, batches and their items."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Index
from sqlmodel import Field, SQLModel

from core.models.columns import Instant, big_id, part


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
        Index("ix_batch_active", "number", **part("ended_at IS NULL")),
    )

    number: int | None = Field(default=None, primary_key=True, sa_type=big_id())
    id: str
    tenant: str
    key: str | None = Field(default=None)
    pool: str
    model: str | None = Field(default=None)
    endpoint: str
    input_file_id: str
    window: float
    completion_window: str
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
        Index("ix_batch_item_fresh", "batch", "idx", **part("state = 'pending' AND due = 0")),
        Index("ix_batch_item_later", "batch", "due", **part("state = 'pending' AND due > 0")),
        Index("ix_batch_item_running", "batch", "owner", **part("state = 'running'")),
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
