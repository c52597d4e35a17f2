"""What every WebhookStore and BatchViews does, on both databases."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from core.batch.states import move
from core.batch.values import Batch, BatchStatus, ItemEnd, ItemState, NewItem
from core.batch.views import BatchFilter, ErrorKind, ItemFilter
from core.errors import InvalidValue, NotFound, StaleVersion
from core.storage.store import SqlStore
from core.webhooks.values import Delivery, DeliveryState, Endpoint, EventType, event_of

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 9, 12, 0, 0, 5, tzinfo=UTC)
UNTIL = NOW + timedelta(seconds=60)
ENDPOINT = Endpoint("we_1", "search", "https://example.com/é?x=1", (EventType.FAILED,), NOW, "on call")


def batch_named(batch_id: str, **changes: object) -> Batch:
    made = Batch(
        id=batch_id,
        tenant="search",
        key=None,
        pool="",
        model=None,
        endpoint="/v1/chat/completions",
        input_file_id="file-in",
        window=timedelta(hours=24),
        created_at=NOW,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


async def failed(store: SqlStore, batch_id: str, **changes: object) -> Batch:
    await store.create(batch_named(batch_id, **changes))
    return await store.update(move(await store.batch(batch_id), BatchStatus.FAILED, NOW))


async def claim(store: SqlStore, *busy: str, now: datetime = NOW, limit: int = 10) -> list[Delivery]:
    return await store.claim_deliveries(now=now, until=now + timedelta(seconds=60), busy=busy, limit=limit)


async def test_an_endpoint_comes_back_as_it_was_stored(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=1)
    assert await store.webhook("we_1", tenant="search") == ENDPOINT
    assert await store.webhooks(tenant="search") == await store.webhooks(tenant=None) == [ENDPOINT]
    assert await store.webhooks(tenant="other") == []
    for tenant, name in (("other", "we_1"), (None, "we_2")):
        with pytest.raises(NotFound):
            await store.webhook(name, tenant=tenant)
    with pytest.raises(InvalidValue, match="one too many"):
        await store.add_webhook(replace(ENDPOINT, id="we_2"), most=1)


async def test_the_end_of_a_batch_enters_the_outbox_once(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=9)
    batch = await failed(store, "batch_1")
    await store.update(batch)
    (row,) = await store.deliveries("we_1", limit=9)
    assert row.event == event_of(batch)
    assert (row.state, row.attempts, row.due) == (DeliveryState.PENDING, 0, NOW)


async def test_an_end_that_comes_too_late_leaves_no_event(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=9)
    await store.create(batch_named("batch_1"))
    stale = await store.batch("batch_1")
    await store.update(replace(stale, priority=3))
    with pytest.raises(StaleVersion):
        await store.update(move(stale, BatchStatus.FAILED, NOW))
    assert await store.deliveries("we_1", limit=9) == []


async def test_claims_give_the_oldest_of_each_endpoint_to_one_claimer_until_the_lease_ends(store: SqlStore) -> None:
    for name in ("we_1", "we_2"):
        await store.add_webhook(replace(ENDPOINT, id=name), most=9)
    first, second = await failed(store, "batch_1"), await failed(store, "batch_2")
    assert await claim(store, now=NOW - timedelta(seconds=1)) == []
    assert [row.endpoint for row in await claim(store, "we_2")] == ["we_1"]
    later = await claim(store, "we_1", limit=1)
    assert [(row.endpoint, row.event.batch) for row in later] == [("we_2", first.id)]
    assert {row.event.batch for row in await claim(store)} == {second.id}
    assert await claim(store) == []
    assert {row.event.batch for row in await claim(store, now=UNTIL)} == {first.id}


async def test_two_claimers_never_get_the_same(store: SqlStore) -> None:
    names = [f"we_{number}" for number in range(8)]
    for name in names:
        await store.add_webhook(replace(ENDPOINT, id=name), most=9)
    await failed(store, "batch_1")
    found = await asyncio.gather(*(claim(store) for _ in range(4)))
    assert sorted(row.endpoint for rows in found for row in rows) == names


async def test_attempts_are_kept_and_ended_deliveries_are_pruned(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=9)
    await failed(store, "batch_1")
    (row,) = await claim(store)
    again = replace(row, attempts=1, due=UNTIL, last_at=NOW, error="no connection")
    await store.end_attempt(again)
    assert await store.deliveries("we_1", limit=9) == [again]
    assert await store.prune_deliveries(before=UNTIL, limit=9) == 0
    done = replace(again, state=DeliveryState.DELIVERED, attempts=2, due=None, status=204, error=None)
    await store.end_attempt(done)
    assert await store.deliveries("we_1", limit=9) == [done]
    assert await claim(store, now=UNTIL) == []
    assert await store.prune_deliveries(before=NOW, limit=9) == 0
    assert await store.prune_deliveries(before=UNTIL, limit=9) == 1


async def test_an_endpoint_that_is_deleted_leaves_nothing(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=9)
    await failed(store, "batch_1")
    with pytest.raises(NotFound):
        await store.delete_webhook("we_1", tenant="other")
    await store.delete_webhook("we_1", tenant="search")
    assert await store.deliveries("we_1", limit=9) == []
    assert await claim(store) == []


# What pages ask


async def running(store: SqlStore, batch_id: str, items: int) -> Batch:
    await store.create(batch_named(batch_id))
    new = [NewItem(index, f"doc_{index}", index * 9, 9, "m", 1, None) for index in range(items)]
    await store.add_items(batch_id, new)
    stored = await store.batch(batch_id)
    return await store.update(replace(move(stored, BatchStatus.IN_PROGRESS, NOW), pool="default"))


async def end(store: SqlStore, batch: Batch, *ends: ItemEnd) -> None:
    await store.claim(batch.id, owner="w", now=NOW, lease=timedelta(seconds=60), limit=len(ends))
    await store.finish(ends, owner="w", sizes={batch.id: (0, 0)})


async def test_batches_are_found_by_tenant_status_and_text(store: SqlStore) -> None:
    await store.create(batch_named("batch_a", name="Nightly 50%"))
    await store.create(batch_named("batch_b", name="recap", tenant="other"))
    last = await failed(store, "batch_c")

    async def found(after: str | None = None, limit: int = 9, **wanted: object) -> list[str]:
        rows = await store.find_batches(BatchFilter(**wanted), after=after, limit=limit)  # type: ignore[arg-type]
        return [row.id for row in rows]

    assert await found() == ["batch_c", "batch_b", "batch_a"]
    assert await found(limit=1) == ["batch_c", "batch_b"]
    assert await found(after="batch_b") == ["batch_a"]
    assert await found(tenant="other") == ["batch_b"]
    assert await found(statuses=[BatchStatus.FAILED]) == ["batch_c"]
    assert await found(text="NIGHT") == await found(text="50%") == ["batch_a"]
    assert await found(text="%") == ["batch_a"]
    assert await found(text="batch_") == ["batch_c", "batch_b", "batch_a"]
    assert await store.batch_tenants() == ["other", "search"]
    named = await store.named_batches(["batch_c", "batch_b", "batch_x"], tenant="search")
    assert named == [last]
    with pytest.raises(NotFound):
        await found(after="batch_x")


async def test_errors_are_counted_by_kind_and_items_are_found(store: SqlStore) -> None:
    batch = await running(store, "batch_1", 6)
    kinds = ["http_400", "http_503", "http_503"]
    ends = [ItemEnd("batch_1", 0, ItemState.SUCCEEDED, status_code=200)]
    ends += [
        ItemEnd("batch_1", index, ItemState.FAILED, status_code=int(code[-3:]), error_code=code)
        for index, code in enumerate(kinds, 1)
    ]
    await end(store, batch, *ends)
    await store.end_rest("batch_1", ItemState.EXPIRED, limit=1)
    assert await store.error_kinds("batch_1", limit=9) == [
        ErrorKind(ItemState.FAILED, "http_503", 503, 2, 2),
        ErrorKind(ItemState.FAILED, "http_400", 400, 1, 1),
        ErrorKind(ItemState.EXPIRED, "", None, 1, 4),
    ]
    assert len(await store.error_kinds("batch_1", limit=1)) == 1

    async def found(after: int = -1, limit: int = 9, **wanted: object) -> list[int]:
        rows = await store.find_items("batch_1", ItemFilter(**wanted), after=after, limit=limit)  # type: ignore[arg-type]
        return [row.index for row in rows]

    assert await found() == [0, 1, 2, 3, 4, 5]
    assert await found(after=1, limit=2) == [2, 3, 4]
    assert await found(states=[ItemState.PENDING]) == [5]
    assert await found(text="OC_3") == [3]
    assert await found(text="_") == [0, 1, 2, 3, 4, 5]
    assert await found(text="%") == []
    assert await found(code="http_503") == [2, 3]
