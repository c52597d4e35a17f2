"""What ETAs are made from, and the ETAs that were given, in SQL."""

from datetime import datetime

from sqlalchemy import delete, update
from sqlmodel import col, select

from core.batch.learned import Changes, Learned
from core.batch.residuals import GivenEta
from core.batch.throughput import Measured
from core.batch.work import Load, Prior
from core.models import EtaRow, PriorRow, ThroughputRow
from core.storage.database import Database

PRUNE_BATCH = 500
LATEST_ETAS = 5000

_PRIOR = ("items", "output_tokens", "seconds", "prompt_ratio")
_GIVEN = (
    "batch",
    "tenant",
    "pool",
    "at",
    "low",
    "mid",
    "high",
    "items",
    "input_tokens",
    "output_tokens",
    "first",
    "calibrated",
    "ended_at",
)


class SqlForecasts:
    """See `core.batch.forecast.ForecastStore`."""

    def __init__(self, *, database: Database) -> None:
        self._database = database

    async def learned(self, *, since: datetime) -> Learned:
        """Read all of it."""
        rows = select(ThroughputRow).where(col(ThroughputRow.start) >= since)
        scored = col(EtaRow.ended_at)
        given = select(EtaRow).order_by(scored.is_(None).desc(), scored.desc(), col(EtaRow.number).desc())
        async with self._database.read() as session:
            return Learned(
                rows=[(row.pool, _measured(row)) for row in await session.scalars(rows)],
                priors=[
                    ((row.pool, row.tenant, row.model), _prior(row)) for row in await session.scalars(select(PriorRow))
                ],
                given=[_given(row) for row in reversed((await session.scalars(given.limit(LATEST_ETAS))).all())],
            )

    async def keep_learned(self, changes: Changes, *, at: datetime) -> None:
        """Store in one transaction what has changed."""
        insert = self._database.insert
        async with self._database.write() as session:
            for pool, row in changes.rows:
                key = {"pool": pool, "start": row.start, "source": row.source}
                figures = _row_columns(row)
                statement = insert(ThroughputRow).values(**key, **figures)
                await session.execute(statement.on_conflict_do_update(index_elements=list(key), set_=figures))
            for (pool, tenant, model), prior in changes.priors:
                key = {"pool": pool, "tenant": tenant, "model": model}
                values = {name: getattr(prior, name) for name in _PRIOR} | {"at": at}
                statement = insert(PriorRow).values(**key, **values)
                await session.execute(statement.on_conflict_do_update(index_elements=list(key), set_=values))
            session.add_all([EtaRow(**{name: getattr(each, name) for name in _GIVEN}) for each in changes.given])

    async def score_etas(self, batch_id: str, ended_at: datetime | None) -> None:
        """Note when the batch was completed with each of its ETAs, or delete them."""
        theirs = col(EtaRow.batch) == batch_id
        open_ones = theirs & col(EtaRow.ended_at).is_(None)
        async with self._database.write() as session:
            if ended_at is None:
                await session.execute(delete(EtaRow).where(open_ones))
            else:
                await session.execute(update(EtaRow).where(open_ones).values(ended_at=ended_at))

    async def prune_learned(self, *, before: datetime) -> None:
        """Delete what is older, a few hundred rows at a time."""
        old_etas = select(EtaRow.number).where(col(EtaRow.at) < before).limit(PRUNE_BATCH)
        async with self._database.write() as session:
            await session.execute(delete(ThroughputRow).where(col(ThroughputRow.start) < before))
            await session.execute(delete(PriorRow).where(col(PriorRow.at) < before))
        while True:
            async with self._database.write() as session:
                numbers = (await session.scalars(old_etas)).all()
                await session.execute(delete(EtaRow).where(col(EtaRow.number).in_(numbers)))
            if len(numbers) < PRUNE_BATCH:
                return


def _measured(row: ThroughputRow) -> Measured:
    load = Load(row.items, row.input_tokens, row.output_tokens)
    return Measured(row.start, row.source, row.seconds, load, row.quota, row.ceiling)


def _row_columns(row: Measured) -> dict[str, float]:
    return {
        "seconds": row.seconds,
        "items": row.load.items,
        "input_tokens": row.load.input_tokens,
        "output_tokens": row.load.output_tokens,
        "quota": row.quota,
        "ceiling": row.ceiling,
    }


def _prior(row: PriorRow) -> Prior:
    return Prior(row.items, row.output_tokens, row.seconds, row.prompt_ratio)


def _given(row: EtaRow) -> GivenEta:
    return GivenEta(**{name: getattr(row, name) for name in _GIVEN})
