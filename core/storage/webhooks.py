"""Webhook endpoints and their outbox in SQL."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, func, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlmodel import col, select

from core.batch.values import Batch
from core.errors import InvalidValue, NotFound
from core.models import WebhookDeliveryRow, WebhookRow
from core.people.audit import AuditEntry
from core.storage.audit import append
from core.storage.database import Database
from core.webhooks.values import Delivery, DeliveryState, Endpoint, Event, EventType, Health, event_of

_ROW = WebhookDeliveryRow
_PENDING = DeliveryState.PENDING.value
_FIXED = ("id", "tenant", "url", "created_at", "description")
_CHANGING = ("rotations", "old_until", "disabled_at")


async def record_end(database: Database, session: AsyncSession, batch: Batch) -> None:
    """Put the end of `batch` into the outbox of its tenant's endpoints, within the transaction that ends it.

    Legal again for the same end: each endpoint is told once, and only of what ended after it was made.
    """
    event = event_of(batch)
    mine = col(WebhookRow.tenant) == batch.tenant
    made = col(WebhookRow.created_at) <= event.created_at
    on = col(WebhookRow.disabled_at).is_(None)
    rows = list(await session.scalars(select(WebhookRow).where(mine, made, on)))
    columns = {
        "event": event.id,
        "type": event.type.value,
        "batch": batch.id,
        "created_at": event.created_at,
        "state": _PENDING,
        "attempts": 0,
        "due": event.created_at.timestamp(),
    }
    wanted = [{**columns, "webhook": row.id} for row in rows if event.type.value in row.events]
    if wanted:
        once = database.insert(_ROW).on_conflict_do_nothing(index_elements=["webhook", "event"])
        await session.execute(once, wanted)


class SqlWebhooks:
    """See `core.ports.WebhookStore`."""

    _database: Database

    async def add_webhook(self, endpoint: Endpoint, *, most: int, audit: Sequence[AuditEntry]) -> None:
        """Store a new endpoint. Raises InvalidValue where its tenant has `most` already."""
        async with self._database.write() as session:
            mine = select(func.count()).select_from(WebhookRow).where(col(WebhookRow.tenant) == endpoint.tenant)
            if (await session.scalar(mine) or 0) >= most:
                raise InvalidValue("url", f"is one too many: a tenant may have {most} endpoints; delete one first")
            events = [event.value for event in endpoint.events]
            fixed = {name: getattr(endpoint, name) for name in _FIXED}
            session.add(WebhookRow(events=events, **fixed, **_changing(endpoint)))
            await append(session, audit)

    async def webhooks(self, *, tenant: str | None) -> list[Endpoint]:
        """Return endpoints, oldest first."""
        query = select(WebhookRow).order_by(col(WebhookRow.created_at), col(WebhookRow.id))
        if tenant is not None:
            query = query.where(col(WebhookRow.tenant) == tenant)
        async with self._database.read() as session:
            return [_endpoint(row) for row in await session.scalars(query)]

    async def webhook(self, endpoint_id: str, *, tenant: str | None) -> Endpoint:
        """Return an endpoint. Raises NotFound."""
        async with self._database.read() as session:
            return _endpoint(await _found(session, endpoint_id, tenant))

    async def change_webhook(
        self,
        endpoint_id: str,
        change: Callable[[Endpoint], Endpoint],
        *,
        tenant: str | None,
        entry: Callable[[Endpoint, Endpoint], AuditEntry],
    ) -> Endpoint:
        """Store a change of an endpoint. Raises NotFound."""
        async with self._database.write() as session:
            row = await _found(session, endpoint_id, tenant, for_update=True)
            before = _endpoint(row)
            after = change(before)
            if after != before:
                row.sqlmodel_update(_changing(after))
                await append(session, [entry(before, after)])
            return after

    async def delete_webhook(
        self, endpoint_id: str, *, tenant: str | None, entry: Callable[[Endpoint], AuditEntry]
    ) -> None:
        """Delete an endpoint with its deliveries. Raises NotFound."""
        async with self._database.write() as session:
            row = await _found(session, endpoint_id, tenant, for_update=True)
            await session.delete(row)
            await session.execute(delete(_ROW).where(col(_ROW.webhook) == endpoint_id))
            await append(session, [entry(_endpoint(row))])

    async def webhook_health(self, ids: Collection[str]) -> Mapping[str, Health]:
        """Return how endpoints fare, by id."""
        theirs = col(_ROW.webhook).in_(ids)
        failing = func.count().filter(col(_ROW.state) == _PENDING, col(_ROW.attempts) > 0)
        given_up = func.count().filter(col(_ROW.state) == DeliveryState.GIVEN_UP.value)
        counts = select(_ROW.webhook, failing, given_up).where(theirs).group_by(_ROW.webhook)
        newest_first = (col(_ROW.last_at).desc(), col(_ROW.number).desc())
        place = func.row_number().over(partition_by=_ROW.webhook, order_by=newest_first).label("place")
        tried = select(_ROW.number, place).where(theirs, col(_ROW.last_at).is_not(None)).subquery()
        latest = select(_ROW).where(col(_ROW.number).in_(select(tried.c.number).where(tried.c.place == 1)))
        async with self._database.read() as session:
            last = {row.webhook: _delivery(row) for row in await session.scalars(latest)}
            rows = await session.execute(counts)
            return {name: Health(tried_on, gone, last.get(name)) for name, tried_on, gone in rows}

    async def add_delivery(self, delivery: Delivery) -> None:
        """Store a delivery that ended."""
        event = delivery.event
        async with self._database.write() as session:
            session.add(
                _ROW(
                    webhook=delivery.endpoint,
                    event=event.id,
                    type=event.type.value,
                    batch=event.batch,
                    created_at=event.created_at,
                    **_tried(delivery),
                )
            )

    async def deliveries(self, endpoint_id: str, *, limit: int) -> list[Delivery]:
        """Return the latest deliveries to an endpoint, newest first."""
        query = select(_ROW).where(col(_ROW.webhook) == endpoint_id).order_by(col(_ROW.number).desc()).limit(limit)
        async with self._database.read() as session:
            return [_delivery(row) for row in await session.scalars(query)]

    async def claim_deliveries(
        self, *, now: datetime, until: datetime, busy: Collection[str], limit: int
    ) -> list[Delivery]:
        """Return the oldest due delivery of each endpoint that is not busy; nobody else gets them before `until`."""
        off = select(WebhookRow.id).where(col(WebhookRow.disabled_at).is_not(None))
        may = col(_ROW.webhook).not_in(busy) & col(_ROW.webhook).not_in(off)
        due = (
            select(func.min(col(_ROW.number)))
            .where(col(_ROW.state) == _PENDING, col(_ROW.due) <= now.timestamp(), may)
            .group_by(col(_ROW.webhook))
            .limit(limit)
        )
        async with self._database.read() as session:
            numbers = list(await session.scalars(due))
        if not numbers:
            return []
        taken = (
            update(_ROW)
            .where(col(_ROW.number).in_(numbers), col(_ROW.state) == _PENDING, col(_ROW.due) <= now.timestamp())
            .values(due=until.timestamp())
            .returning(_ROW)
        )
        async with self._database.write() as session:
            return [_delivery(row) for row in await session.scalars(taken)]

    async def end_attempt(self, delivery: Delivery) -> None:
        """Store a delivery after one more attempt; legal after its endpoint was deleted."""
        async with self._database.write() as session:
            await session.execute(update(_ROW).where(col(_ROW.number) == delivery.number).values(_tried(delivery)))

    async def prune_deliveries(self, *, before: datetime, limit: int) -> int:
        """Forget deliveries that ended before `before`; return how many."""
        old = select(_ROW.number).where(col(_ROW.last_at) < before, col(_ROW.state) != _PENDING).limit(limit)
        async with self._database.write() as session:
            numbers = list(await session.scalars(old))
            if numbers:
                await session.execute(delete(_ROW).where(col(_ROW.number).in_(numbers)))
            return len(numbers)


async def _found(
    session: AsyncSession, endpoint_id: str, tenant: str | None, *, for_update: bool = False
) -> WebhookRow:
    row = await session.get(WebhookRow, endpoint_id, with_for_update=for_update)
    if row is None or tenant not in (None, row.tenant):
        raise NotFound("webhook", endpoint_id)
    return row


def _endpoint(row: WebhookRow) -> Endpoint:
    events = tuple(EventType(event) for event in row.events)
    return Endpoint(events=events, **{name: getattr(row, name) for name in (*_FIXED, *_CHANGING)})


def _changing(endpoint: Endpoint) -> dict[str, Any]:
    return {name: getattr(endpoint, name) for name in _CHANGING}


def _tried(delivery: Delivery) -> dict[str, Any]:
    return {
        "state": delivery.state.value,
        "attempts": delivery.attempts,
        "due": delivery.due.timestamp() if delivery.due else 0.0,
        "last_at": delivery.last_at,
        "status": delivery.status,
        "error": delivery.error,
    }


def _delivery(row: WebhookDeliveryRow) -> Delivery:
    state = DeliveryState(row.state)
    return Delivery(
        number=row.number or 0,
        endpoint=row.webhook,
        event=Event(row.event, EventType(row.type), row.batch, row.created_at),
        state=state,
        attempts=row.attempts,
        due=datetime.fromtimestamp(row.due, UTC) if state is DeliveryState.PENDING else None,
        last_at=row.last_at,
        status=row.status,
        error=row.error,
    )
