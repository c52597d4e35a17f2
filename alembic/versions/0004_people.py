"""Tenants, API keys, accounts and sessions.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

from core.models import PEOPLE_ID, Instant

revision = "0004"
down_revision = "0003"

_TENANT_LIMITS = ("batch_slots", "requests_per_minute", "tokens_per_minute", "queued_items", "queued_tokens")


def _needed(name: str, kind: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, kind, nullable=False)


def _maybe(name: str, kind: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, kind, nullable=True)


def _teams() -> None:
    op.create_table(
        "tenant",
        sa.Column("name", sa.String(), primary_key=True),
        _needed("weight", sa.Float()),
        *(_maybe(name, sa.BigInteger()) for name in _TENANT_LIMITS),
        _needed("lanes", sa.JSON()),
        _needed("created_at", Instant()),
        _needed("version", sa.Integer()),
    )
    op.create_table(
        "api_key",
        sa.Column("name", sa.String(), primary_key=True),
        *(_needed(name, sa.String()) for name in ("tenant", "hash", "prefix", "role", "lane")),
        *(_needed(name, sa.JSON()) for name in ("lanes", "models", "cidrs")),
        _needed("created_at", Instant()),
        *(_maybe(name, Instant()) for name in ("expires_at", "last_used_at", "revoked_at", "old_until")),
        *(_maybe(name, sa.String()) for name in ("old_hash", "old_prefix")),
    )


def _people() -> None:
    op.create_table(
        "account",
        sa.Column("name", sa.String(), primary_key=True),
        *(_needed(name, sa.String()) for name in ("role", "tenant")),
        *(_maybe(name, sa.String()) for name in ("password", "subject")),
        _needed("created_at", Instant()),
        *(_maybe(name, Instant()) for name in ("last_sign_in_at", "disabled_at")),
    )
    where = sa.text("subject IS NOT NULL")
    op.create_index(
        "ix_account_subject", "account", ["subject"], unique=True, sqlite_where=where, postgresql_where=where
    )
    op.create_table(
        "session",
        sa.Column("id", sa.String(), primary_key=True),
        *(_needed(name, sa.String()) for name in ("hash", "account", "address", "agent", "way")),
        *(_needed(name, Instant()) for name in ("created_at", "expires_at", "seen_at")),
    )
    op.create_index("ix_session_account", "session", ["account"])
    op.create_index("ix_session_expires_at", "session", ["expires_at"])


def upgrade() -> None:
    _teams()
    _people()
    people = op.create_table(
        "people",
        sa.Column("id", sa.Integer(), primary_key=True),
        _needed("revision", sa.BigInteger()),
        *(_maybe(name, sa.String()) for name in ("secret_mark", "setup_hash")),
        _maybe("setup_until", Instant()),
    )
    op.bulk_insert(people, [{"id": PEOPLE_ID, "revision": 1}])


def downgrade() -> None:
    for table in ("people", "session", "account", "api_key", "tenant"):
        op.drop_table(table)
