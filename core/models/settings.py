"""The tables of what is set, learned and decided."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Index
from sqlmodel import Field, SQLModel

from core.models.columns import Instant, big_id

SCHEDULE_ID = 1


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

    id: int | None = Field(default=None, primary_key=True, sa_type=big_id())
    at: datetime = Field(sa_type=Instant)
    pool: str
    actor: str
    action: str
    reason: str
    sentence: str
    by: str | None = Field(default=None)
    note: str | None = Field(default=None)
    figures: dict[str, Any] = Field(sa_type=JSON)
