"""The audit trail in SQL."""

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, func, or_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlmodel import col, select

from core.errors import NotFound
from core.models import HEAD_ID, AuditHeadRow, AuditRow
from core.people.audit import CONTROLLER, AuditEntry, AuditHead, AuditQuery, AuditRecord, canonical, chained
from core.storage.database import Database

_SEARCHED = (AuditRow.actor, AuditRow.action, AuditRow.target, AuditRow.reason, AuditRow.way)


async def append(session: AsyncSession, entries: Iterable[AuditEntry]) -> list[AuditRecord]:
    """Add entries to the trail within the transaction of the change that they tell; return them in their places.

    Do so last in the transaction: from here to its end no other one can append.
    """
    entries = list(entries)
    if not entries:
        return []
    head = await session.get(AuditHeadRow, HEAD_ID, with_for_update=True, populate_existing=True)
    if head is None:
        raise NotFound("audit head", str(HEAD_ID))
    records = chained(entries, AuditHead(head.number, head.hash))
    session.add_all(_row(record) for record in records)
    head.number, head.hash = records[-1].number, records[-1].hash
    return records


class SqlAudit:
    """See `core.ports.AuditStore`."""

    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def record(self, *entries: AuditEntry) -> list[AuditRecord]:
        """Add entries in a transaction of their own."""
        async with self._database.write() as session:
            return await append(session, entries)

    async def audit_record(self, number: int) -> AuditRecord:
        """Return one row."""
        async with self._database.read() as session:
            row = await session.get(AuditRow, number)
        if row is None:
            raise NotFound("audit entry", str(number))
        return _record(row)

    async def audit(self, query: AuditQuery) -> list[AuditRecord]:
        """Return the newest rows that fit."""
        wanted = select(AuditRow).where(*_conditions(query)).order_by(col(AuditRow.number).desc()).limit(query.limit)
        async with self._database.read() as session:
            return [_record(row) for row in await session.scalars(wanted)]

    async def audit_chain(self, *, after: int, limit: int) -> list[AuditRecord]:
        """Return the rows after a number, oldest first."""
        rows = select(AuditRow).where(col(AuditRow.number) > after).order_by(col(AuditRow.number)).limit(limit)
        async with self._database.read() as session:
            return [_record(row) for row in await session.scalars(rows)]

    async def audit_head(self) -> AuditHead:
        """Return what the last append left behind."""
        async with self._database.read() as session:
            row = await session.get(AuditHeadRow, HEAD_ID)
        return AuditHead(row.number, row.hash) if row is not None else AuditHead()


def _conditions(query: AuditQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if query.actor is not None:
        found.append(col(AuditRow.actor) == query.actor)
    for column, wanted, mark in ((AuditRow.action, query.action, "."), (AuditRow.target, query.target, ":")):
        if wanted is not None:
            found.append(or_(col(column) == wanted, col(column).startswith(wanted + mark, autoescape=True)))
    if query.since is not None:
        found.append(col(AuditRow.at) >= query.since)
    if query.until is not None:
        found.append(col(AuditRow.at) < query.until)
    if query.before is not None:
        found.append(col(AuditRow.number) < query.before)
    if not query.automatic:
        found.append(col(AuditRow.way) != CONTROLLER)
    if query.text:
        found.append(or_(*(_holds(column, query.text) for column in _SEARCHED)))
    return found


def _holds(column: Any, text: str) -> ColumnElement[bool]:
    return func.lower(col(column)).contains(text.lower(), autoescape=True)


def _row(record: AuditRecord) -> AuditRow:
    entry = record.entry
    return AuditRow(
        number=record.number,
        at=entry.at,
        actor=entry.actor,
        action=entry.action,
        target=entry.target,
        before=canonical(entry.before),
        after=canonical(entry.after),
        reason=entry.reason,
        way=entry.way,
        previous=record.previous,
        hash=record.hash,
    )


def _record(row: AuditRow) -> AuditRecord:
    entry = AuditEntry(
        at=row.at,
        actor=row.actor,
        action=row.action,
        target=row.target,
        before=msgspec.json.decode(row.before),
        after=msgspec.json.decode(row.after),
        reason=row.reason,
        way=row.way,
    )
    return AuditRecord(row.number, entry, row.previous, row.hash)
