"""Endpoints of webhooks may rest, and get new secrets.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

from core.models import Instant

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    # The default is for rows that are there, and for a replica of the version before that still runs.
    op.add_column("webhook", sa.Column("rotations", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("webhook", sa.Column("old_until", Instant(), nullable=True))
    op.add_column("webhook", sa.Column("disabled_at", Instant(), nullable=True))


def downgrade() -> None:
    for column in ("disabled_at", "old_until", "rotations"):
        op.drop_column("webhook", column)
