"""Batches keep their completion window as the client wrote it.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def _written() -> sa.ColumnElement[str]:
    """Return what was told of a batch so far: its window in hours."""
    hours = sa.cast(sa.func.round(sa.column("window") / 3600), sa.Integer)
    return sa.cast(hours, sa.String) + "h"


def upgrade() -> None:
    # The default is for rows that are there, and for a replica of the version before that still runs.
    op.add_column("batch", sa.Column("completion_window", sa.String(), nullable=False, server_default=""))
    op.execute(sa.update(sa.table("batch", sa.column("completion_window"))).values(completion_window=_written()))


def downgrade() -> None:
    op.drop_column("batch", "completion_window")
