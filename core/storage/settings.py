"""The settings, the schedule and the learned limits in SQL."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlmodel import SQLModel, col

from core.control.decisions import Decision
from core.control.windows import Schedule
from core.errors import NotFound, StaleVersion
from core.models import SCHEDULE_ID, LimitRow, PoolRow, ScheduleRow
from core.people.audit import AuditEntry
from core.ports import SavedLimit
from core.quotas import PoolSettings
from core.storage.audit import append
from core.storage.database import Database
from core.storage.rows import decision_row, pool_columns, pool_of, schedule_columns, schedule_of

Row = TypeVar("Row", bound=SQLModel)


class SqlSettings:
    """See `core.ports.SettingsStore`."""

    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def seed(self, pools: Sequence[PoolSettings], schedule: Schedule) -> None:
        """Store what is not stored yet, and anew the pools that nobody changed since and that now get other slots."""
        async with self._database.write() as session:
            for pool in pools:
                await self._insert_missing(session, PoolRow, pool_columns(pool))
                row = (col(PoolRow.name) == pool.name, col(PoolRow.version) == 1, col(PoolRow.slots) != pool.slots)
                await session.execute(update(PoolRow).where(*row).values(**pool_columns(pool)))
            await self._insert_missing(session, ScheduleRow, schedule_columns(schedule))

    async def pool(self, name: str) -> PoolSettings:
        """Return a pool's settings."""
        async with self._database.read() as session:
            return pool_of(_found(await session.get(PoolRow, name), "pool", name))

    async def save_pool(
        self,
        settings: PoolSettings,
        *,
        based_on: int | None,
        decision: Decision,
        audit: Sequence[AuditEntry] = (),
    ) -> PoolSettings:
        """Store the settings as the next version, with the decision and the audit entries."""
        async with self._database.write() as session:
            stored = await session.get(PoolRow, settings.name, with_for_update=True)
            row = _found(stored, "pool", settings.name)
            _check_version(based_on, row.version)
            saved = replace(settings, version=row.version + 1)
            row.sqlmodel_update(pool_columns(saved))
            session.add(decision_row(replace(decision, config_version=saved.version)))
            await append(session, audit)
            return saved

    async def schedule(self) -> Schedule:
        """Return the schedule."""
        async with self._database.read() as session:
            return schedule_of(_found(await session.get(ScheduleRow, SCHEDULE_ID), "schedule", "schedule"))

    async def save_schedule(
        self,
        schedule: Schedule,
        *,
        based_on: int | None,
        decisions: Sequence[Decision],
        audit: Sequence[AuditEntry] = (),
    ) -> Schedule:
        """Store the schedule as the next version, with the decisions and the audit entries."""
        async with self._database.write() as session:
            stored = await session.get(ScheduleRow, SCHEDULE_ID, with_for_update=True)
            row = _found(stored, "schedule", "schedule")
            _check_version(based_on, row.version)
            saved = replace(schedule, version=row.version + 1)
            row.sqlmodel_update(schedule_columns(saved))
            session.add_all(decision_row(replace(each, config_version=saved.version)) for each in decisions)
            await append(session, audit)
            return saved

    async def saved_limit(self, pool: str) -> SavedLimit | None:
        """Return what the controller saved last."""
        async with self._database.read() as session:
            row = await session.get(LimitRow, pool)
            return SavedLimit(row.learned, row.slow_start, row.last_cut_level, row.at) if row else None

    async def save_limit(self, pool: str, saved: SavedLimit) -> None:
        """Keep the limit for the next start."""
        figures = {
            "learned": saved.limit,
            "slow_start": saved.slow_start,
            "last_cut_level": saved.last_cut_level,
            "at": saved.at,
        }
        insert = self._database.insert(LimitRow).values(pool=pool, **figures)
        async with self._database.write() as session:
            await session.execute(insert.on_conflict_do_update(index_elements=["pool"], set_=figures))

    async def ping(self) -> None:
        """Do a trivial read."""
        await self._database.ping()

    async def _insert_missing(self, session: AsyncSession, table: type[SQLModel], columns: dict[str, object]) -> None:
        await session.execute(self._database.insert(table).values(**columns).on_conflict_do_nothing())


def _found(row: Row | None, kind: str, name: str) -> Row:
    if row is None:
        raise NotFound(kind, name)
    return row


def _check_version(based_on: int | None, present: int) -> None:
    if based_on is not None and based_on != present:
        raise StaleVersion(based_on, present)
