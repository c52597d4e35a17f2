"""The tables of webhooks."""

from datetime import datetime

from sqlalchemy import JSON, Index
from sqlmodel import Field, SQLModel

from core.models.columns import Instant, big_id, part


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
    rotations: int = Field(default=0)
    old_until: datetime | None = Field(default=None, sa_type=Instant)
    disabled_at: datetime | None = Field(default=None, sa_type=Instant)


class WebhookDeliveryRow(SQLModel, table=True):
    """One event for one endpoint: `core.webhooks.values.Delivery`. `due` is seconds since 1970."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        Index("ix_webhook_delivery_once", "webhook", "event", unique=True),
        Index("ix_webhook_delivery_log", "webhook", "number"),
        Index("ix_webhook_delivery_pending", "due", "webhook", **part("state = 'pending'")),
        Index("ix_webhook_delivery_last_at", "last_at"),
    )

    number: int | None = Field(default=None, primary_key=True, sa_type=big_id())
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
