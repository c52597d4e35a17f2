"""The items of batches in SQL.

A claim reads two partial indexes, one of items that wait for nothing and one of those that wait for a retry, so that
its cost does not depend on how many items there are.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, case, delete, exists, select, text, update

from core.batch.values import BatchStatus, ClaimedItem, ItemEnd, ItemRow, ItemState, NewItem
from core.errors import InvalidValue, NotFound
from core.storage.bulk import insert_rows, rows_text
from core.storage.database import Database
from core.storage.item_statements import claim_statement, end_rest_statement, end_statement
from core.storage.tables import BATCHES, ITEMS

_RUNNING = text("state = 'running'")
ROW_COLUMNS = (
    ITEMS.c.idx,
    ITEMS.c.custom_id,
    ITEMS.c.state,
    ITEMS.c.attempts,
    ITEMS.c.status_code,
    ITEMS.c.error_code,
    ITEMS.c.result_start,
    ITEMS.c.result_length,
    ITEMS.c.seconds,
)
_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_FREE = {"state": ItemState.PENDING.value, "due": 0.0, "owner": None, "lease_until": None}


_NEW = (
    "batch",
    "idx",
    "custom_id",
    "start",
    "length",
    "model",
    "prompt_tokens",
    "max_tokens",
    "state",
    "attempts",
    "due",
    "result_start",
    "result_length",
    "seconds",
)
_COUNTED = ("completed", "failed", *_TOKENS)
_COUNT = (
    update(BATCHES)
    .where(BATCHES.c.number == bindparam("of_number"))
    .values({name: BATCHES.c[name] + bindparam(f"more_{name}") for name in _COUNTED})
)


def _greater(name: str) -> ColumnElement[int]:
    """Keep the greater of the size that is stored and the one given: another process may have written further."""
    given = bindparam(f"to_{name}", type_=BATCHES.c[name].type)
    return case((BATCHES.c[name] < given, given), else_=BATCHES.c[name])


_COUNT_AND_SIZE = _COUNT.values({name: _greater(name) for name in ("output_size", "error_size")})


class SqlItems:
    """The items of `core.ports.BatchStore`."""

    _database: Database

    async def add_items(self, batch_id: str, items: Sequence[NewItem]) -> None:
        """Store a run of items. Raises InvalidValue where the batch is validating no more.

        This does not wait for the disk; the update that ends validation does, and with it all that was written before.
        """
        await self._database.work(lambda connection: _add(connection, batch_id, items), durable=False)

    async def drop_items(self, batch_id: str, *, limit: int) -> int:
        """Delete items of a batch that never left validation, and its counts with the last of them."""
        return await self._database.work(lambda connection: _drop(connection, batch_id, limit))

    async def claim(
        self, batch_id: str, *, owner: str, now: datetime, lease: timedelta, limit: int
    ) -> list[ClaimedItem]:
        """Lease at most `limit` pending items of a batch in progress."""
        due, until = now.timestamp(), (now + lease).timestamp()
        return await self._database.work(
            lambda connection: _claim(connection, batch_id, limit, owner=owner, due=due, until=until), durable=False
        )

    async def renew(self, *, owner: str, until: datetime) -> int:
        """Prolong every lease of `owner`."""
        these = update(ITEMS).where(_RUNNING, ITEMS.c.owner == owner).values(lease_until=until.timestamp())
        return await self._database.work(lambda connection: _count(connection.execute(these)), durable=False)

    async def finish(
        self, ends: Sequence[ItemEnd], *, owner: str, sizes: Mapping[str, tuple[int, int]]
    ) -> list[ItemEnd]:
        """Store how items ended, with the counts, usage and sizes of their batches."""
        by_batch: dict[str, list[ItemEnd]] = defaultdict(list)
        for end in ends:
            by_batch[end.batch_id].append(end)
        return await self._database.work(lambda connection: _finish(connection, by_batch, owner, sizes))

    async def give_back(self, *, owner: str | None, before: datetime | None) -> int:
        """Make leased items pending again."""
        these = update(ITEMS).where(_RUNNING).values(_FREE)
        if owner is not None:
            these = these.where(ITEMS.c.owner == owner)
        if before is not None:
            these = these.where(ITEMS.c.lease_until < before.timestamp())
        return await self._database.work(lambda connection: _count(connection.execute(these)), durable=False)

    async def end_rest(self, batch_id: str, state: ItemState, *, limit: int) -> list[ClaimedItem]:
        """Give pending items a final state, counted as failed."""
        return await self._database.work(lambda connection: _end_rest(connection, batch_id, state, limit))

    async def items(
        self, batch_id: str, *, states: Sequence[ItemState] = (), after: int = -1, limit: int = 100
    ) -> list[ItemRow]:
        """Return items in order of index. Raises NotFound."""
        async with self._database.read() as session:
            number = await session.scalar(select(BATCHES.c.number).where(BATCHES.c.id == batch_id))
            if number is None:
                raise NotFound("batch", batch_id)
            query = select(*ROW_COLUMNS).where(ITEMS.c.batch == number, ITEMS.c.idx > after)
            if states:
                query = query.where(ITEMS.c.state.in_([state.value for state in states]))
            rows = await session.execute(query.order_by(ITEMS.c.idx).limit(limit))
            return [ItemRow(batch_id, row[0], row[1], ItemState(row[2]), *row[3:]) for row in rows]

    async def prune_items(self, *, before: datetime, limit: int) -> int:
        """Delete items of one batch that ended before `before`."""
        return await self._database.work(lambda connection: _prune(connection, before, limit))


def _add(connection: Connection, batch_id: str, items: Sequence[NewItem]) -> None:
    grown = {
        "total": BATCHES.c.total + len(items),
        "prompt_tokens_total": BATCHES.c.prompt_tokens_total + sum(item.prompt_tokens for item in items),
    }
    mine = and_(BATCHES.c.id == batch_id, BATCHES.c.status == BatchStatus.VALIDATING.value)
    number = connection.scalar(update(BATCHES).where(mine).values(grown).returning(BATCHES.c.number))
    if number is None:
        raise InvalidValue("status", f"{batch_id} is validating no more")
    if items:
        insert_rows(connection, ITEMS, _NEW, [_new_row(number, item) for item in items])


def _drop(connection: Connection, batch_id: str, limit: int) -> int:
    unused = and_(BATCHES.c.id == batch_id, BATCHES.c.in_progress_at.is_(None))
    number = connection.scalar(select(BATCHES.c.number).where(unused))
    if number is None:
        return 0
    dropped = _delete_items(connection, number, limit)
    if dropped < limit:
        nothing = {"total": 0, "prompt_tokens_total": 0}
        connection.execute(update(BATCHES).where(BATCHES.c.number == number).values(nothing))
    return dropped


def _claim(
    connection: Connection, batch_id: str, limit: int, *, owner: str, due: float, until: float
) -> list[ClaimedItem]:
    leased = {"batch": batch_id, "most": limit, "due_until": due, "owner": owner, "until": until}
    return _claimed(batch_id, connection.execute(claim_statement(connection.dialect), leased))


def _finish(
    connection: Connection,
    by_batch: Mapping[str, Sequence[ItemEnd]],
    owner: str,
    sizes: Mapping[str, tuple[int, int]],
) -> list[ItemEnd]:
    kept: list[ItemEnd] = []
    numbers = _numbers(connection, by_batch)
    for batch_id in sorted(numbers):  # always in one order, so that no two writers wait for each other
        number, ends = numbers[batch_id], by_batch[batch_id]
        ended = {"rows": rows_text(_end_row(end) for end in ends), "number": number, "owner": owner}
        held = set(connection.scalars(end_statement(connection.dialect), ended))
        mine = [end for end in ends if end.index in held]
        if mine:
            _count_ends(connection, number, mine, sizes.get(batch_id))
        kept += mine
    return kept


def _end_rest(connection: Connection, batch_id: str, state: ItemState, limit: int) -> list[ClaimedItem]:
    ended = {"batch": batch_id, "most": limit, "due_until": math.inf, "state": state.value}
    items = _claimed(batch_id, connection.execute(end_rest_statement(connection.dialect), ended))
    if items:
        counted = update(BATCHES).where(BATCHES.c.id == batch_id)
        connection.execute(counted.values(failed=BATCHES.c.failed + len(items)))
    return items


def _prune(connection: Connection, before: datetime, limit: int) -> int:
    has_items = exists().where(ITEMS.c.batch == BATCHES.c.number)
    old = select(BATCHES.c.number).where(BATCHES.c.ended_at < before, has_items).limit(1)
    number = connection.scalar(old)
    return 0 if number is None else _delete_items(connection, number, limit)


def _numbers(connection: Connection, batch_ids: Iterable[str]) -> dict[str, int]:
    query = select(BATCHES.c.id, BATCHES.c.number).where(BATCHES.c.id.in_(list(batch_ids)))
    return {row[0]: row[1] for row in connection.execute(query)}


def _delete_items(connection: Connection, number: int, limit: int) -> int:
    some = select(ITEMS.c.idx).where(ITEMS.c.batch == number).limit(limit)
    gone = connection.execute(delete(ITEMS).where(ITEMS.c.batch == number, ITEMS.c.idx.in_(some)))
    return _count(gone)


def _new_row(number: int, item: NewItem) -> tuple[object, ...]:
    placed = (number, item.index, item.custom_id, item.offset, item.length)
    return (*placed, item.model, item.prompt_tokens, item.max_tokens, "pending", 0, 0.0, 0, 0, 0.0)


def _claimed(batch_id: str, rows: Iterable[Row[Any]]) -> list[ClaimedItem]:
    fields: list[tuple[Any, ...]] = sorted(tuple(row) for row in rows)
    return [ClaimedItem(batch_id, *each) for each in fields]


def _end_row(end: ItemEnd) -> tuple[object, ...]:
    due = end.not_before.timestamp() if end.not_before is not None else 0.0
    told = (end.status_code, end.error_code, end.offset, end.length, end.seconds)
    return (end.index, int(end.counted), end.state.value, due, *told)


def _count_ends(connection: Connection, number: int, ends: Sequence[ItemEnd], sizes: tuple[int, int] | None) -> None:
    """Add items that ended to their batch's counts and usage, and note the sizes of its files."""
    done = sum(end.state is ItemState.SUCCEEDED for end in ends)
    waiting = sum(end.state is ItemState.PENDING for end in ends)
    more = {f"more_{name}": sum(getattr(end, name) for end in ends) for name in _TOKENS}
    more |= {"of_number": number, "more_completed": done, "more_failed": len(ends) - done - waiting}
    if sizes is None:
        connection.execute(_COUNT, more)
    else:
        connection.execute(_COUNT_AND_SIZE, {**more, "to_output_size": sizes[0], "to_error_size": sizes[1]})


def _count(result: Any) -> int:
    return int(result.rowcount)
