"""The items of batches in SQL: the hot statements, in Core and in bulk.

A claim reads two partial indexes, one of items that wait for nothing and one of those that wait for a retry, so that
its cost does not depend on how many items there are. Their conditions stand as text: with bound values SQLite would
not use them.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    Select,
    TextClause,
    and_,
    bindparam,
    delete,
    exists,
    select,
    text,
    update,
)

from core.batch.values import BatchStatus, ClaimedItem, ItemEnd, ItemRow, ItemState, NewItem
from core.errors import InvalidValue, NotFound
from core.storage.database import Database
from core.storage.tables import BATCHES, ITEMS

_IN_ONE_QUERY = 500
_FRESH = text("state = 'pending' AND due = 0")
_LATER = text("state = 'pending' AND due > 0")
_RUNNING = text("state = 'running'")
_CLAIMED = (ITEMS.c.idx, ITEMS.c.custom_id, ITEMS.c.start, ITEMS.c.length, ITEMS.c.model, ITEMS.c.attempts)
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
_IN_PROGRESS = select(BATCHES.c.number).where(
    BATCHES.c.id == bindparam("batch_id"), BATCHES.c.status == BatchStatus.IN_PROGRESS.value
)


def _pending_where(condition: TextClause) -> Select[Any]:
    """Return the query of a batch's items; only on PostgreSQL it passes over those that another claims right now."""
    query = select(*_CLAIMED).where(ITEMS.c.batch == bindparam("number"), condition)
    return query.limit(bindparam("most")).with_for_update(skip_locked=True)


_NEVER_BEGUN = _pending_where(_FRESH).order_by(ITEMS.c.idx)
_DUE_AGAIN = _pending_where(_LATER).where(ITEMS.c.due <= bindparam("until")).order_by(ITEMS.c.due)
_CHOSEN = update(ITEMS).where(
    ITEMS.c.batch == bindparam("of_batch"), ITEMS.c.idx.in_(bindparam("indexes", expanding=True))
)
_LEASE = _CHOSEN.values(state=ItemState.RUNNING.value, owner=bindparam("to_owner"), lease_until=bindparam("to_until"))
_HELD = (
    select(ITEMS.c.idx)
    .where(ITEMS.c.batch == bindparam("of_batch"), ITEMS.c.idx.in_(bindparam("indexes", expanding=True)))
    .where(_RUNNING, ITEMS.c.owner == bindparam("of_owner"))
    .with_for_update()
)
_NEW_COLUMNS = (
    ITEMS.c.batch,
    ITEMS.c.idx,
    ITEMS.c.custom_id,
    ITEMS.c.start,
    ITEMS.c.length,
    ITEMS.c.model,
    ITEMS.c.prompt_tokens,
    ITEMS.c.max_tokens,
    ITEMS.c.state,
    ITEMS.c.attempts,
    ITEMS.c.due,
    ITEMS.c.result_start,
    ITEMS.c.result_length,
    ITEMS.c.seconds,
)
_NAMES = [column.name for column in _NEW_COLUMNS]
_INSERT = " ".join(("INSERT INTO", ITEMS.name, f"({', '.join(_NAMES)}) VALUES ({', '.join('?' for _ in _NAMES)})"))
_END = " ".join(
    (
        "UPDATE",
        ITEMS.name,
        "SET state = ?, attempts = attempts + ?, due = ?, status_code = ?, error_code = ?, result_start = ?,",
        "result_length = ?, seconds = ?, owner = NULL, lease_until = NULL WHERE batch = ? AND idx = ?",
    )
)
_COUNTED = ("completed", "failed", *_TOKENS)
_COUNT = (
    update(BATCHES)
    .where(BATCHES.c.number == bindparam("of_number"))
    .values({name: BATCHES.c[name] + bindparam(f"more_{name}") for name in _COUNTED})
)
_COUNT_AND_SIZE = _COUNT.values(output_size=bindparam("to_output_size"), error_size=bindparam("to_error_size"))


class SqlItems:
    """The items of `core.ports.BatchStore`."""

    _database: Database

    async def add_items(self, batch_id: str, items: Sequence[NewItem]) -> None:
        """Store a run of items. Raises InvalidValue where the batch is validating no more."""
        await self._database.work(lambda connection: _add(connection, batch_id, items))

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
        _each(connection, _INSERT, [_new_row(number, item) for item in items])


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
    number = connection.scalar(_IN_PROGRESS, {"batch_id": batch_id})
    rows = [] if number is None else _pending(connection, number, limit, due=due)
    if rows:
        indexes = [row[0] for row in rows]
        leased = {"of_batch": number, "indexes": indexes, "to_owner": owner, "to_until": until}
        connection.execute(_LEASE, leased)
    return [_claimed(batch_id, row) for row in rows]


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
        held = _held(connection, number, [end.index for end in ends], owner)
        mine = [end for end in ends if end.index in held]
        if mine:
            _each(connection, _END, [_end_row(number, end) for end in mine])
            _count_ends(connection, number, mine, sizes.get(batch_id))
        kept += mine
    return kept


def _end_rest(connection: Connection, batch_id: str, state: ItemState, limit: int) -> list[ClaimedItem]:
    number = _numbers(connection, [batch_id]).get(batch_id)
    rows = [] if number is None else _pending(connection, number, limit, due=math.inf)
    if rows:
        indexes = [row[0] for row in rows]
        connection.execute(_CHOSEN.values(state=state.value), {"of_batch": number, "indexes": indexes})
        counted = update(BATCHES).where(BATCHES.c.number == number)
        connection.execute(counted.values(failed=BATCHES.c.failed + len(rows)))
    return [_claimed(batch_id, row) for row in rows]


def _prune(connection: Connection, before: datetime, limit: int) -> int:
    has_items = exists().where(ITEMS.c.batch == BATCHES.c.number)
    old = select(BATCHES.c.number).where(BATCHES.c.ended_at < before, has_items).limit(1)
    number = connection.scalar(old)
    return 0 if number is None else _delete_items(connection, number, limit)


def _numbers(connection: Connection, batch_ids: Iterable[str]) -> dict[str, int]:
    query = select(BATCHES.c.id, BATCHES.c.number).where(BATCHES.c.id.in_(list(batch_ids)))
    return {row[0]: row[1] for row in connection.execute(query)}


def _pending(connection: Connection, number: int, limit: int, *, due: float) -> Sequence[Row[Any]]:
    """Return pending items: first those whose retry is due by then, after them those that never ran."""
    rows = list(connection.execute(_DUE_AGAIN, {"number": number, "most": limit, "until": due}))
    if len(rows) < limit:
        rows += connection.execute(_NEVER_BEGUN, {"number": number, "most": limit - len(rows)})
    return sorted(rows, key=lambda row: row[0])


def _held(connection: Connection, number: int, indexes: Sequence[int], owner: str) -> set[int]:
    held: set[int] = set()
    for start in range(0, len(indexes), _IN_ONE_QUERY):
        some = indexes[start : start + _IN_ONE_QUERY]
        held.update(connection.scalars(_HELD, {"of_batch": number, "indexes": some, "of_owner": owner}))
    return held


def _delete_items(connection: Connection, number: int, limit: int) -> int:
    some = select(ITEMS.c.idx).where(ITEMS.c.batch == number).limit(limit)
    gone = connection.execute(delete(ITEMS).where(ITEMS.c.batch == number, ITEMS.c.idx.in_(some)))
    return _count(gone)


def _each(connection: Connection, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Run a statement, with a ? for each value, for every row: as the driver does it, with nothing in between.

    What happens for each row in Python keeps every other thread of the process waiting.
    """
    if connection.dialect.name != "sqlite":
        number = count(1)
        statement = re.sub(r"\?", lambda _: f"${next(number)}", statement)
    connection.exec_driver_sql(statement, list(rows))


def _new_row(number: int, item: NewItem) -> tuple[object, ...]:
    placed = (number, item.index, item.custom_id, item.offset, item.length)
    return (*placed, item.model, item.prompt_tokens, item.max_tokens, "pending", 0, 0.0, 0, 0, 0.0)


def _claimed(batch_id: str, row: Row[Any]) -> ClaimedItem:
    fields: tuple[Any, ...] = tuple(row)
    return ClaimedItem(batch_id, *fields)


def _end_row(number: int, end: ItemEnd) -> tuple[object, ...]:
    due = end.not_before.timestamp() if end.not_before is not None else 0.0
    told = (end.status_code, end.error_code, end.offset, end.length, end.seconds)
    return (end.state.value, int(end.counted), due, *told, number, end.index)


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
