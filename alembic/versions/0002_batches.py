"""Files, batches and their items.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

from core.models import Instant

revision = "0002"
down_revision = "0001"

_INSTANTS = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled", "ended")
_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "prompt_tokens_total")


def _needed(name: str, kind: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, kind, nullable=False)


def _partial(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def _files() -> None:
    op.create_table(
        "file",
        sa.Column("id", sa.String(), primary_key=True),
        _needed("tenant", sa.String()),
        _needed("filename", sa.String()),
        _needed("purpose", sa.String()),
        _needed("size", sa.BigInteger()),
        _needed("created_at", Instant()),
        sa.Column("expires_at", Instant(), nullable=True),
    )
    op.create_index("ix_file_tenant_created_at", "file", ["tenant", "created_at"])
    op.create_index("ix_file_expires_at", "file", ["expires_at"])


def _batches() -> None:
    op.create_table(
        "batch",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        _needed("id", sa.String()),
        _needed("tenant", sa.String()),
        sa.Column("key", sa.String(), nullable=True),
        _needed("pool", sa.String()),
        sa.Column("model", sa.String(), nullable=True),
        _needed("endpoint", sa.String()),
        _needed("input_file_id", sa.String()),
        _needed("window", sa.Float()),
        _needed("created_at", Instant()),
        _needed("name", sa.String()),
        _needed("status", sa.String()),
        _needed("errors", sa.JSON()),
        sa.Column("output_file_id", sa.String(), nullable=True),
        sa.Column("error_file_id", sa.String(), nullable=True),
        _needed("output_size", sa.BigInteger()),
        _needed("error_size", sa.BigInteger()),
        *(sa.Column(f"{name}_at", Instant(), nullable=True) for name in _INSTANTS),
        *(_needed(name, sa.Integer()) for name in ("total", "completed", "failed")),
        *(_needed(name, sa.BigInteger()) for name in _TOKENS),
        _needed("labels", sa.JSON()),
        sa.Column("output_expires_after", sa.Float(), nullable=True),
        _needed("priority", sa.Integer()),
        sa.Column("pause", sa.JSON(), nullable=True),
        sa.Column("max_concurrency", sa.Integer(), nullable=True),
        _needed("interval_s", sa.Float()),
        sa.Column("dedupe", sa.String(), nullable=True),
        _needed("version", sa.Integer()),
    )
    op.create_index("ix_batch_id", "batch", ["id"], unique=True)
    op.create_index("ix_batch_tenant", "batch", ["tenant", "number"])
    op.create_index("ix_batch_dedupe", "batch", ["dedupe", "created_at"])
    op.create_index("ix_batch_ended_at", "batch", ["ended_at"])
    _partial("ix_batch_active", "batch", ["number"], "ended_at IS NULL")


def _items() -> None:
    op.create_table(
        "batch_item",
        sa.Column("batch", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("idx", sa.Integer(), primary_key=True, autoincrement=False),
        _needed("custom_id", sa.String()),
        _needed("start", sa.BigInteger()),
        _needed("length", sa.Integer()),
        _needed("model", sa.String()),
        _needed("prompt_tokens", sa.Integer()),
        sa.Column("max_tokens", sa.Integer(), nullable=True),
        _needed("state", sa.String()),
        _needed("attempts", sa.Integer()),
        _needed("due", sa.Float()),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("error_code", sa.String(), nullable=True),
        _needed("result_start", sa.BigInteger()),
        _needed("result_length", sa.Integer()),
        _needed("seconds", sa.Float()),
        sqlite_with_rowid=False,
    )
    _partial("ix_batch_item_fresh", "batch_item", ["batch", "idx"], "state = 'pending' AND due = 0")
    _partial("ix_batch_item_later", "batch_item", ["batch", "due"], "state = 'pending' AND due > 0")
    _partial("ix_batch_item_running", "batch_item", ["batch", "owner"], "state = 'running'")


def upgrade() -> None:
    _files()
    _batches()
    _items()


def downgrade() -> None:
    for table in ("batch_item", "batch", "file"):
        op.drop_table(table)
