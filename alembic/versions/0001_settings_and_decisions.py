"""Settings, schedule, learned limits and the decision log.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

from core.models import Instant

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "pool",
        sa.Column("name", sa.String(), primary_key=True),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("reserve", sa.Integer(), nullable=False),
        sa.Column("headroom", sa.Integer(), nullable=False),
        sa.Column("floor", sa.Integer(), nullable=False),
        sa.Column("ceiling", sa.Integer(), nullable=False),
        sa.Column("budgets", sa.JSON(), nullable=False),
        sa.Column("model_budgets", sa.JSON(), nullable=False),
        sa.Column("hold", sa.JSON(), nullable=True),
        sa.Column("pause", sa.JSON(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
    )
    op.create_table(
        "schedule",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("zone", sa.String(), nullable=False),
        sa.Column("windows", sa.JSON(), nullable=False),
        sa.Column("one_offs", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
    )
    op.create_table(
        "learned_limit",
        sa.Column("pool", sa.String(), primary_key=True),
        sa.Column("learned", sa.Float(), nullable=False),
        sa.Column("slow_start", sa.Float(), nullable=False),
        sa.Column("last_cut_level", sa.Float(), nullable=False),
        sa.Column("at", Instant(), nullable=False),
    )
    op.create_table(
        "decision",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("sentence", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=True),
        sa.Column("note", sa.String(), nullable=True),
        sa.Column("figures", sa.JSON(), nullable=False),
    )
    op.create_index("ix_decision_at", "decision", ["at"])
    op.create_index("ix_decision_pool_at", "decision", ["pool", "at"])


def downgrade() -> None:
    for table in ("decision", "learned_limit", "schedule", "pool"):
        op.drop_table(table)
