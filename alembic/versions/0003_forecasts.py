"""What ETAs are made from, and the ETAs that were given.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

from core.models import Instant

revision = "0003"
down_revision = "0002"

_MEANS = ("seconds", "items", "input_tokens", "output_tokens", "quota", "ceiling")


def _needed(name: str, kind: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, kind, nullable=False)


def _throughput() -> None:
    op.create_table(
        "throughput",
        sa.Column("pool", sa.String(), primary_key=True),
        sa.Column("start", Instant(), primary_key=True),
        sa.Column("source", sa.String(), primary_key=True),
        *(_needed(name, sa.Float()) for name in _MEANS),
    )
    op.create_index("ix_throughput_start", "throughput", ["start"])


def _priors() -> None:
    op.create_table(
        "prior",
        *(sa.Column(name, sa.String(), primary_key=True) for name in ("pool", "tenant", "model")),
        *(_needed(name, sa.Float()) for name in ("items", "output_tokens", "seconds", "prompt_ratio")),
        _needed("at", Instant()),
    )
    op.create_index("ix_prior_at", "prior", ["at"])


def _etas() -> None:
    op.create_table(
        "eta",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        *(_needed(name, sa.String()) for name in ("batch", "tenant", "pool")),
        *(_needed(name, Instant()) for name in ("at", "low", "mid", "high")),
        *(_needed(name, sa.Float()) for name in ("items", "input_tokens", "output_tokens")),
        *(_needed(name, sa.Boolean()) for name in ("first", "calibrated")),
        sa.Column("ended_at", Instant(), nullable=True),
    )
    op.create_index("ix_eta_batch", "eta", ["batch"])
    op.create_index("ix_eta_at", "eta", ["at"])


def upgrade() -> None:
    _throughput()
    _priors()
    _etas()


def downgrade() -> None:
    for table in ("eta", "prior", "throughput"):
        op.drop_table(table)
