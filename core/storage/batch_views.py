"""What pages ask about batches, in SQL: searches, and errors by kind."""

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Select, func, or_, select

from core.batch.values import Batch, ItemRow, ItemState
from core.batch.views import BatchFilter, ErrorKind, ItemFilter
from core.errors import NotFound
from core.storage.batch_rows import batch_of
from core.storage.batches import SELECT_BATCH
from core.storage.database import Database
from core.storage.items import ROW_COLUMNS
from core.storage.tables import BATCHES, ITEMS

_WITHOUT_RESULT = tuple(state.value for state in (ItemState.FAILED, ItemState.EXPIRED, ItemState.CANCELLED))


class SqlBatchViews:
    """See `core.ports.BatchViews`."""

    _database: Database

    async def find_batches(self, wanted: BatchFilter, *, after: str | None, limit: int) -> list[Batch]:
        """Return one page of batches, newest first, plus one more where there is more. Raises NotFound for `after`."""
        query = SELECT_BATCH.where(*_batch_conditions(wanted)).order_by(BATCHES.c.number.desc()).limit(limit + 1)
        async with self._database.read() as session:
            if after is not None:
                number = await session.scalar(select(BATCHES.c.number).where(BATCHES.c.id == after))
                if number is None:
                    raise NotFound("batch", after)
                query = query.where(BATCHES.c.number < number)
            return [batch_of(row) for row in (await session.execute(query)).mappings()]

    async def named_batches(self, ids: Collection[str], *, tenant: str | None) -> list[Batch]:
        """Return those of the batches that there are, newest first."""
        query = SELECT_BATCH.where(BATCHES.c.id.in_(ids)).order_by(BATCHES.c.number.desc())
        if tenant is not None:
            query = query.where(BATCHES.c.tenant == tenant)
        async with self._database.read() as session:
            return [batch_of(row) for row in (await session.execute(query)).mappings()]

    async def batch_tenants(self) -> list[str]:
        """Return the tenants that have batches, by name."""
        async with self._database.read() as session:
            return list(await session.scalars(select(BATCHES.c.tenant).distinct().order_by(BATCHES.c.tenant)))

    async def error_kinds(self, batch_id: str, *, limit: int) -> list[ErrorKind]:
        """Return how items of a batch ended without a result, the commonest first."""
        count = func.count()
        alike = (ITEMS.c.state, ITEMS.c.error_code, ITEMS.c.status_code)
        query = (
            select(*alike, count, func.min(ITEMS.c.idx))
            .where(ITEMS.c.batch == _number(batch_id), ITEMS.c.state.in_(_WITHOUT_RESULT))
            .group_by(*alike)
            .order_by(count.desc(), func.min(ITEMS.c.idx))
            .limit(limit)
        )
        async with self._database.read() as session:
            rows = (await session.execute(query)).all()
        return [ErrorKind(ItemState(row[0]), row[1] or "", row[2], row[3], row[4]) for row in rows]

    async def find_items(self, batch_id: str, wanted: ItemFilter, *, after: int, limit: int) -> list[ItemRow]:
        """Return one page of items in order of index, plus one more where there is more."""
        conditions = [ITEMS.c.batch == _number(batch_id), ITEMS.c.idx > after, *_item_conditions(wanted)]
        query = select(*ROW_COLUMNS).where(*conditions).order_by(ITEMS.c.idx).limit(limit + 1)
        async with self._database.read() as session:
            rows = (await session.execute(query)).all()
        return [ItemRow(batch_id, row[0], row[1], ItemState(row[2]), *row[3:]) for row in rows]


def _number(batch_id: str) -> ColumnElement[int]:
    found: Select[tuple[int]] = select(BATCHES.c.number).where(BATCHES.c.id == batch_id)
    return found.scalar_subquery()


def _batch_conditions(wanted: BatchFilter) -> Sequence[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.tenant is not None:
        found.append(BATCHES.c.tenant == wanted.tenant)
    if wanted.statuses:
        found.append(BATCHES.c.status.in_([status.value for status in wanted.statuses]))
    if wanted.text:
        named = (column.icontains(wanted.text, autoescape=True) for column in (BATCHES.c.name, BATCHES.c.id))
        found.append(or_(*named))
    return found


def _item_conditions(wanted: ItemFilter) -> Sequence[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.states:
        found.append(ITEMS.c.state.in_([state.value for state in wanted.states]))
    if wanted.text:
        found.append(ITEMS.c.custom_id.icontains(wanted.text, autoescape=True))
    if wanted.code:
        found.append(ITEMS.c.error_code == wanted.code)
    return found
