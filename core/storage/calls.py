"""The call log in SQL."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, delete, func, or_
from sqlmodel import col, select

from core.call_record import COLUMNS, STORED, CallQuery, CallRecord
from core.models import CallRow
from core.storage.bulk import insert_rows
from core.storage.database import Database
from core.storage.tables import CALLS

PRUNE_GROUP = 2000
_EQUAL = ("tenant", "key", "pool", "model", "lane", "outcome", "batch", "request")


class SqlCalls:
    """See `core.ports.CallStore`."""

    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def add_calls(self, records: Sequence[CallRecord]) -> None:
        """Store a group of calls."""
        if records:
            await self._database.work(lambda connection: _insert(connection, records), durable=False)

    async def calls(self, query: CallQuery) -> list[CallRecord]:
        """Return the newest calls that fit."""
        wanted = select(CallRow).where(*_conditions(query)).order_by(col(CallRow.id).desc()).limit(query.limit)
        async with self._database.read() as session:
            return [
                CallRecord(**{name: getattr(row, name) for name in COLUMNS}) for row in await session.scalars(wanted)
            ]

    async def prune_calls(self, *, before: float, keep: int) -> int:
        """Delete the oldest, a few thousand at a time, so that nobody waits long for the write lock."""
        async with self._database.read() as session:
            newest = (await session.scalars(select(func.max(CallRow.id)))).one_or_none() or 0
        doomed = or_(col(CallRow.id) <= newest - keep, col(CallRow.at) < before)
        group = select(CallRow.id).where(doomed).limit(PRUNE_GROUP)
        pruned = 0
        while True:
            async with self._database.write() as session:
                ids = (await session.scalars(group)).all()
                await session.execute(delete(CallRow).where(col(CallRow.id).in_(ids)))
            pruned += len(ids)
            if len(ids) < PRUNE_GROUP:
                return pruned


def _conditions(query: CallQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [
        getattr(CALLS.c, name) == value for name in _EQUAL if (value := getattr(query, name)) is not None
    ]
    if query.since is not None:
        found.append(col(CallRow.at) >= query.since.timestamp())
    if query.until is not None:
        found.append(col(CallRow.at) < query.until.timestamp())
    if query.before is not None:
        found.append(col(CallRow.id) < query.before)
    return found


def _insert(connection: Connection, records: Sequence[CallRecord]) -> None:
    insert_rows(connection, CALLS, STORED, [record[:-1] for record in records])
