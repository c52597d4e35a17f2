"""Rows by the hundred, given to the database as one JSON text, and so in one statement.

What Python does for each row, even only to hand it to the driver, keeps every other thread of the process waiting.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Dialect, Table, TextClause, text
from sqlalchemy.types import TypeEngine


def insert_rows(connection: Connection, table: Table, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Insert rows, whose values stand in the order of `names`."""
    connection.execute(_insert(connection.dialect, table, tuple(names)), {"rows": rows_text(rows)})


def rows_text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as the text that `rows_query` reads."""
    return msgspec.json.encode(list(rows)).decode()


def rows_query(dialect: Dialect, columns: Mapping[str, TypeEngine[Any]]) -> str:
    """Return the SELECT of the rows in the parameter `:rows`, whose values stand in the order of `columns`."""
    if dialect.name == "sqlite":
        values = (f"json_extract(value, '$[{place}]') AS {name}" for place, name in enumerate(columns))
        return " ".join(("SELECT", ", ".join(values), "FROM json_each(:rows)"))
    kinds = ((name, kind.compile(dialect)) for name, kind in columns.items())
    values = (f"CAST(value ->> {place} AS {kind}) AS {name}" for place, (name, kind) in enumerate(kinds))
    return " ".join(("SELECT", ", ".join(values), "FROM json_array_elements(CAST(:rows AS JSON))"))


@lru_cache(maxsize=16)
def _insert(dialect: Dialect, table: Table, names: tuple[str, ...]) -> TextClause:
    query = rows_query(dialect, {name: table.c[name].type for name in names})
    quoted = ", ".join(dialect.identifier_preparer.quote(name) for name in names)
    return text(" ".join(("INSERT INTO", table.name, f"({quoted})", query)))
