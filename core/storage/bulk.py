"""Rows by the hundred, given to the database in one statement.

What Python does for each row, even only to hand it to the driver, keeps every other thread of the process waiting. So
rows go as one JSON text, but where SQLite only stores them: it takes as many values at once in less than half the time.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import Connection, Dialect, Table, TextClause, text
from sqlalchemy.types import TypeEngine

GROUP = 50
"""Rows that SQLite takes in one statement: far below the number of values that it allows."""


def insert_rows(connection: Connection, table: Table, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Insert rows, whose values stand in the order of `names`; they are plain: numbers, texts, None."""
    if connection.dialect.name != "sqlite":
        connection.execute(_insert(connection.dialect, table, tuple(names)), {"rows": rows_text(rows)})
        return
    for begin in range(0, len(rows), GROUP):
        group = rows[begin : begin + GROUP]
        statement = _insert_values(connection.dialect, table, tuple(names), len(group))
        connection.exec_driver_sql(statement, tuple(chain.from_iterable(group)))


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
    return text(f"{_into(dialect, table, names)} {query}")


@lru_cache(maxsize=128)
def _insert_values(dialect: Dialect, table: Table, names: tuple[str, ...], rows: int) -> str:
    row = f"({', '.join('?' * len(names))})"
    return f"{_into(dialect, table, names)} VALUES {', '.join([row] * rows)}"


def _into(dialect: Dialect, table: Table, names: tuple[str, ...]) -> str:
    quoted = ", ".join(dialect.identifier_preparer.quote(name) for name in names)
    return f"INSERT INTO {table.name} ({quoted})"
