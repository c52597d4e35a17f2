"""The decision log in SQL."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete
from sqlmodel import col, select

from core.control.decisions import Decision
from core.models import DecisionRow
from core.people.audit import of_decision
from core.storage.audit import append
from core.storage.database import Database
from core.storage.rows import decision_of, decision_row

PRUNE_BATCH = 500
EVERY_POOL = "*"


class SqlDecisions:
    """See `core.ports.DecisionStore`."""

    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def append(self, decisions: Sequence[Decision]) -> None:
        """Store them in order, with the audit entries of those moves that no person made."""
        if decisions:
            async with self._database.write() as session:
                session.add_all([decision_row(each) for each in decisions])
                await append(session, [entry for each in decisions if (entry := of_decision(each)) is not None])

    async def recent(
        self, *, pool: str | None = None, since: datetime | None = None, limit: int = 100
    ) -> list[Decision]:
        """Return the newest; those that concern every pool (`*`) are among any pool's."""
        query = select(DecisionRow).order_by(col(DecisionRow.at).desc(), col(DecisionRow.id).desc()).limit(limit)
        if pool is not None:
            query = query.where(col(DecisionRow.pool).in_([pool, EVERY_POOL]))
        if since is not None:
            query = query.where(col(DecisionRow.at) >= since)
        async with self._database.read() as session:
            return [decision_of(row) for row in await session.scalars(query)]

    async def prune(self, before: datetime) -> int:
        """Delete those older than `before`, a few hundred at a time, so that nobody waits long for the write lock."""
        old = select(DecisionRow.id).where(col(DecisionRow.at) < before).limit(PRUNE_BATCH)
        pruned = 0
        while True:
            async with self._database.write() as session:
                ids = (await session.scalars(old)).all()
                await session.execute(delete(DecisionRow).where(col(DecisionRow.id).in_(ids)))
            pruned += len(ids)
            if len(ids) < PRUNE_BATCH:
                return pruned
