"""Batches in SQL."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import RowMapping, Select, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from core.batch.values import Batch, BatchStatus
from core.errors import NotFound, StaleVersion
from core.people.audit import AuditEntry
from core.storage.audit import append
from core.storage.batch_rows import batch_of, changing_columns, new_columns
from core.storage.database import Database
from core.storage.tables import BATCHES, ITEMS
from core.storage.webhooks import record_end

RESEND_WITHIN = timedelta(minutes=10)
ACTIVE = text("ended_at IS NULL")
_RUNNING = (
    select(func.count())
    .select_from(ITEMS)
    .where(ITEMS.c.batch == BATCHES.c.number, text("state = 'running'"))
    .scalar_subquery()
)
SELECT_BATCH = select(*BATCHES.c, _RUNNING.label("running"))


class SqlBatches:
    """The batches of `core.ports.BatchStore`."""

    _database: Database

    async def create(self, batch: Batch, *, again: bool = True, audit: Sequence[AuditEntry] = ()) -> Batch:
        """Store a new batch, or return the latest one with its `dedupe` of the last 10 minutes."""
        async with self._database.write() as session:
            if batch.dedupe is not None:
                await self._take_turns(session, batch.dedupe)
                if again and (found := await _sent_before(session, batch)) is not None:
                    return found
            await session.execute(insert(BATCHES).values(new_columns(batch)))
            await append(session, audit)
            return batch

    async def batch(self, batch_id: str, *, tenant: str | None = None) -> Batch:
        """Return a batch."""
        async with self._database.read() as session:
            return batch_of(await _found(session, batch_id, tenant))

    async def batches(
        self, *, tenant: str | None, after: str | None, limit: int, statuses: Sequence[BatchStatus] = ()
    ) -> list[Batch]:
        """Return one page, newest first, plus one batch more where there is more."""
        query = SELECT_BATCH.order_by(BATCHES.c.number.desc()).limit(limit + 1)
        if tenant is not None:
            query = query.where(BATCHES.c.tenant == tenant)
        if statuses:
            query = query.where(BATCHES.c.status.in_([status.value for status in statuses]))
        async with self._database.read() as session:
            if after is not None:
                query = query.where(BATCHES.c.number < (await _found(session, after, tenant))["number"])
            return await _all(session, query)

    async def active(self) -> list[Batch]:
        """Return every batch that is not in a final status, oldest first."""
        async with self._database.read() as session:
            return await _all(session, SELECT_BATCH.where(ACTIVE).order_by(BATCHES.c.number))

    async def update(self, batch: Batch, *, audit: Sequence[AuditEntry] = ()) -> Batch:
        """Store what changed as the next version; counts and usage are left alone."""
        async with self._database.write() as session:
            await _save(session, batch)
            if batch.ended:
                await record_end(self._database, session, batch)
            saved = batch_of(await _found(session, batch.id, None))
            await append(session, audit)
            return saved

    async def retry_failed(self, batch: Batch, *, audit: Sequence[AuditEntry] = ()) -> Batch:
        """Make every failed item pending again, the error file void, and store the batch."""
        void = {"failed": 0, "error_size": 0}
        async with self._database.write() as session:
            await _save(session, batch)
            row = await _found(session, batch.id, None)
            await session.execute(
                update(ITEMS)
                .where(ITEMS.c.batch == row["number"], ITEMS.c.state == "failed")
                .values(
                    state="pending",
                    attempts=0,
                    due=0.0,
                    status_code=None,
                    error_code=None,
                    result_start=0,
                    result_length=0,
                    seconds=0.0,
                )
            )
            await session.execute(update(BATCHES).where(BATCHES.c.number == row["number"]).values(void))
            saved = batch_of(await _found(session, batch.id, None))
            await append(session, audit)
            return saved

    async def _take_turns(self, session: AsyncSession, dedupe: str) -> None:
        """Let equal creates of several processes follow each other; on SQLite all writers do."""
        if not self._database.is_sqlite:
            await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(dedupe, 0))))


async def _sent_before(session: AsyncSession, batch: Batch) -> Batch | None:
    since = batch.created_at - RESEND_WITHIN
    query = SELECT_BATCH.where(BATCHES.c.dedupe == batch.dedupe, BATCHES.c.created_at >= since)
    rows = await _all(session, query.order_by(BATCHES.c.number.desc()).limit(1))
    return rows[0] if rows else None


async def _found(session: AsyncSession, batch_id: str, tenant: str | None) -> RowMapping:
    row = (await session.execute(SELECT_BATCH.where(BATCHES.c.id == batch_id))).mappings().first()
    if row is None or tenant not in (None, row["tenant"]):
        raise NotFound("batch", batch_id)
    return row


async def _all(session: AsyncSession, query: Select[tuple[object, ...]]) -> list[Batch]:
    return [batch_of(row) for row in (await session.execute(query)).mappings()]


async def _save(session: AsyncSession, batch: Batch) -> None:
    saved = await session.execute(
        update(BATCHES)
        .where(BATCHES.c.id == batch.id, BATCHES.c.version == batch.version)
        .values(changing_columns(replace(batch, version=batch.version + 1)))
        .returning(BATCHES.c.number)
    )
    if saved.first() is None:
        present = await _found(session, batch.id, None)
        raise StaleVersion(batch.version, present["version"])
