"""Webhook endpoints and their outbox in SQL."""

from collections.abc import Collection
from datetime import UTC, datetime

from sqlalchemy import delete, func, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlmodel import col, select

from core.batch.values import Batch
from core.errors import InvalidValue, NotFound
from core.models import WebhookDeliveryRow, WebhookRow
from core.storage.database import Database
from core.webhooks.values import Delivery, DeliveryState, Endpoint, Event, EventType, event_of

_ROW = WebhookDeliveryRow
_PENDING = DeliveryState.PENDING.value


async def record_end(database: Database, session: AsyncSession, batch: Batch) -> None:
    """Put the end of `batch` into the outbox of its tenant's endpoints, within the transaction that ends it.

    Legal again for the same end: each endpoint is told once, and only of what ended after it was made.
    """
    event = event_of(batch)
    mine = col(WebhookRow.tenant) == batch.tenant
    made = col(WebhookRow.created_at) <= event.created_at
    rows = list(await session.scalars(select(WebhookRow).where(mine, made)))
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

    async def add_webhook(self, endpoint: Endpoint, *, most: int) -> None:
        """Store a new endpoint. Raises InvalidValue where its tenant has `most` already."""
        async with self._database.write() as session:
            mine = select(func.count()).select_from(WebhookRow).where(col(WebhookRow.tenant) == endpoint.tenant)
            if (await session.scalar(mine) or 0) >= most:
                raise InvalidValue("url", f"is one too many: a tenant may have {most} endpoints; delete one first")
            events = [event.value for event in endpoint.events]
            session.add(
                WebhookRow(
                    id=endpoint.id,
                    tenant=endpoint.tenant,
                    url=endpoint.url,
                    events=events,
                    created_at=endpoint.created_at,
                    description=endpoint.description,
                )
            )

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

    async def delete_webhook(self, endpoint_id: str, *, tenant: str | None) -> None:
        """Delete an endpoint with its deliveries. Raises NotFound."""
        async with self._database.write() as session:
            await session.delete(await _found(session, endpoint_id, tenant))
            await session.execute(delete(_ROW).where(col(_ROW.webhook) == endpoint_id))

    async def deliveries(self, endpoint_id: str, *, limit: int) -> list[Delivery]:
        """Return the latest deliveries to an endpoint, newest first."""
        query = select(_ROW).where(col(_ROW.webhook) == endpoint_id).order_by(col(_ROW.number).desc()).limit(limit)
        async with self._database.read() as session:
            return [_delivery(row) for row in await session.scalars(query)]

    async def claim_deliveries(
        self, *, now: datetime, until: datetime, busy: Collection[str], limit: int
    ) -> list[Delivery]:
        """Return the oldest due delivery of each endpoint that is not busy; nobody else gets them before `until`."""
        due = (
            select(func.min(col(_ROW.number)))
            .where(col(_ROW.state) == _PENDING, col(_ROW.due) <= now.timestamp(), col(_ROW.webhook).not_in(busy))
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
        values = {
            "state": delivery.state.value,
            "attempts": delivery.attempts,
            "due": delivery.due.timestamp() if delivery.due else 0.0,
            "last_at": delivery.last_at,
            "status": delivery.status,
            "error": delivery.error,
        }
        async with self._database.write() as session:
            await session.execute(update(_ROW).where(col(_ROW.number) == delivery.number).values(values))

    async def prune_deliveries(self, *, before: datetime, limit: int) -> int:
        """Forget deliveries that ended before `before`; return how many."""
        old = select(_ROW.number).where(col(_ROW.last_at) < before, col(_ROW.state) != _PENDING).limit(limit)
        async with self._database.write() as session:
            numbers = list(await session.scalars(old))
            if numbers:
                await session.execute(delete(_ROW).where(col(_ROW.number).in_(numbers)))
            return len(numbers)


async def _found(session: AsyncSession, endpoint_id: str, tenant: str | None) -> WebhookRow:
    row = await session.get(WebhookRow, endpoint_id)
    if row is None or tenant not in (None, row.tenant):
        raise NotFound("webhook", endpoint_id)
    return row


def _endpoint(row: WebhookRow) -> Endpoint:
    events = tuple(EventType(event) for event in row.events)
    return Endpoint(row.id, row.tenant, row.url, events, row.created_at, row.description)


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
