"""The audit trail, which the database itself keeps from being changed, and the call log.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

from core.models import Instant

revision = "0005"
down_revision = "0004"

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TEXTS = ("actor", "action", "target", "before", "after", "reason", "way", "previous", "hash")
_REFUSAL = "the audit trail is append-only"


def _needed(name: str, kind: sa.types.TypeEngine) -> sa.Column:
    return sa.Column(name, kind, nullable=False)


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("number", _BIG_ID, primary_key=True, autoincrement=False),
        _needed("at", Instant()),
        *(_needed(name, sa.String()) for name in _TEXTS),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    people = sa.text("way <> 'controller'")
    op.create_index("ix_audit_people", "audit", ["number"], sqlite_where=people, postgresql_where=people)
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), primary_key=True),
        _needed("number", sa.BigInteger()),
        _needed("hash", sa.String()),
    )
    op.bulk_insert(head, [{"id": 1, "number": 0, "hash": "0" * 64}])


def _append_only() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_no_{event.lower()} BEFORE {event} ON audit "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )
        # INSERT OR REPLACE deletes without firing the trigger of DELETE.
        op.execute(
            "CREATE TRIGGER audit_no_replace BEFORE INSERT ON audit "
            "WHEN EXISTS (SELECT 1 FROM audit WHERE number = NEW.number) "
            f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
        )
        return
    op.execute(
        "CREATE FUNCTION audit_refuses() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_refuses()"
    )


def _calls() -> None:
    op.create_table(
        "call_log",
        sa.Column("id", _BIG_ID, primary_key=True),
        _needed("at", sa.Float()),
        *(_needed(name, sa.String()) for name in ("request", "tenant", "key", "pool", "model", "lane", "batch")),
        _needed("outcome", sa.String()),
        _needed("status", sa.Integer()),
        _needed("queue_ms", sa.Float()),
        sa.Column("first_token_ms", sa.Float(), nullable=True),
        _needed("total_ms", sa.Float()),
        _needed("input_tokens", sa.Integer()),
        _needed("output_tokens", sa.Integer()),
        _needed("estimated", sa.Boolean()),
    )
    op.create_index("ix_call_log_at", "call_log", ["at"])
    op.create_index("ix_call_log_tenant", "call_log", ["tenant", "id"])


def upgrade() -> None:
    _audit()
    _append_only()
    _calls()


def downgrade() -> None:
    for table in ("call_log", "audit_head", "audit"):
        op.drop_table(table)
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION audit_refuses()")
