"""The hot statements on items, as text: each takes or ends any number of items at once, on either database."""

from functools import lru_cache

from sqlalchemy import Dialect, TextClause, text

from core.storage.bulk import rows_query
from core.storage.tables import ITEMS

# How an item ended, by the column that is set; the first two tell which item, and whether the attempt counts.
ENDED = ("idx", "attempts", "state", "due", "status_code", "error_code", "result_start", "result_length", "seconds")


@lru_cache(maxsize=16)
def claim_statement(dialect: Dialect) -> TextClause:
    """Take `:most` items of `:batch`, if it is in progress, for `:owner` until `:until`; return them.

    Those whose retry is due until `:due_until` go first, after them those that never began.
    """
    return _take(dialect, "state = 'running', owner = :owner, lease_until = :until", "AND status = 'in_progress'")


@lru_cache(maxsize=16)
def end_rest_statement(dialect: Dialect) -> TextClause:
    """Bring `:most` pending items of `:batch` to `:state` and return them, in the order of `claim_statement`."""
    return _take(dialect, "state = :state")


@lru_cache(maxsize=16)
def end_statement(dialect: Dialect) -> TextClause:
    """Store how the items of batch `:number` in `:rows` ended, as far as `:owner` leases them; return their indexes."""
    given = rows_query(dialect, {f"new_{name}": ITEMS.c[name].type for name in ENDED})
    sets = ", ".join(f"{name} = given.new_{name}" for name in ENDED[2:])
    return _text(
        ("WITH given AS MATERIALIZED (", given, ") UPDATE batch_item SET", sets),
        (", attempts = attempts + given.new_attempts, owner = NULL, lease_until = NULL FROM given",),
        ("WHERE batch = :number AND idx = given.new_idx AND state = 'running' AND owner = :owner RETURNING idx",),
    )


def _take(dialect: Dialect, sets: str, which: str = "") -> TextClause:
    number = " ".join(("(SELECT number FROM batch WHERE id = :batch", which, ")"))
    again = _waiting(dialect, number, "ix_batch_item_later", "due > 0 AND due <= :due_until ORDER BY due")
    fresh = _waiting(dialect, number, "ix_batch_item_fresh", "due = 0 ORDER BY idx")
    return _text(
        ("WITH again AS (", *again, "), fresh AS (", *fresh, "),"),
        ("turns AS (SELECT idx, 0 AS turn FROM again UNION ALL SELECT idx, 1 FROM fresh)",),
        ("UPDATE batch_item SET", sets, "WHERE batch =", number),
        ("AND idx IN (SELECT idx FROM turns ORDER BY turn LIMIT :most)",),
        ("RETURNING idx, custom_id, start, length, model, attempts",),
    )


def _waiting(dialect: Dialect, number: str, index: str, which: str) -> tuple[str, ...]:
    """Return the query of a batch's pending items.

    SQLite has to be told the index: it would as soon go through all items that have ended. PostgreSQL passes over those
    that another takes right now.
    """
    found = ("WHERE batch =", number, "AND state = 'pending' AND", which, "LIMIT :most")
    if dialect.name == "sqlite":
        return ("SELECT idx FROM batch_item INDEXED BY", index, *found)
    return ("SELECT idx FROM batch_item", *found, "FOR UPDATE SKIP LOCKED")


def _text(*lines: tuple[str, ...]) -> TextClause:
    return text(" ".join(part for line in lines for part in line))
