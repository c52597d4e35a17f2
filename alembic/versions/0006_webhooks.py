"""Endpoints of webhooks, and the outbox of what is told to them.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

from core.models import Instant

revision = "0006"
down_revision = "0005"


def _needed(name: str, kind: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, kind, nullable=False)


def _endpoints() -> None:
    op.create_table(
        "webhook",
        sa.Column("id", sa.String(), primary_key=True),
        _needed("tenant", sa.String()),
        _needed("url", sa.String()),
        _needed("events", sa.JSON()),
        _needed("created_at", Instant()),
        _needed("description", sa.String()),
    )
    op.create_index("ix_webhook_tenant", "webhook", ["tenant", "created_at"])


def _deliveries() -> None:
    op.create_table(
        "webhook_delivery",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        *(_needed(name, sa.String()) for name in ("webhook", "event", "type", "batch")),
        _needed("created_at", Instant()),
        _needed("state", sa.String()),
        _needed("attempts", sa.Integer()),
        _needed("due", sa.Float()),
        sa.Column("last_at", Instant(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
    )
    op.create_index("ix_webhook_delivery_once", "webhook_delivery", ["webhook", "event"], unique=True)
    op.create_index("ix_webhook_delivery_log", "webhook_delivery", ["webhook", "number"])
    op.create_index("ix_webhook_delivery_last_at", "webhook_delivery", ["last_at"])
    pending = sa.text("state = 'pending'")
    op.create_index(
        "ix_webhook_delivery_pending",
        "webhook_delivery",
        ["due", "webhook"],
        sqlite_where=pending,
        postgresql_where=pending,
    )


def upgrade() -> None:
    _endpoints()
    _deliveries()


def downgrade() -> None:
    op.drop_table("webhook_delivery")
    op.drop_table("webhook")
