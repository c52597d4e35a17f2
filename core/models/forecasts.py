"""The tables behind forecasts: what was measured, and which ETAs were given."""

from datetime import datetime

from sqlalchemy import Index
from sqlmodel import Field, SQLModel

from core.models.columns import Instant, big_id


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

    number: int | None = Field(default=None, primary_key=True, sa_type=big_id())
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
