"""What every WebhookStore and BatchViews does, on both databases."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from core.batch.states import move
from core.batch.values import Batch, BatchStatus, ItemEnd, ItemState, NewItem
from core.batch.views import BatchFilter, ErrorKind, ItemFilter
from core.errors import InvalidValue, NotFound, StaleVersion
from core.people.audit import AuditEntry, AuditQuery
from core.storage.store import SqlStore
from core.webhooks.values import Delivery, DeliveryState, Endpoint, EventType, Health, event_of, trial_of

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 9, 12, 0, 0, 5, tzinfo=UTC)
UNTIL = NOW + timedelta(seconds=60)
ENDPOINT = Endpoint("we_1", "search", "https://example.com/é?x=1", (EventType.FAILED,), NOW, "on call")


def told(*endpoints: Endpoint) -> AuditEntry:
    return AuditEntry(NOW, "ada", "webhook.change", f"webhook:{endpoints[0].id}", after=endpoints[-1].rotations)


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
    await store.add_webhook(ENDPOINT, most=1, audit=[])
    assert await store.webhook("we_1", tenant="search") == ENDPOINT
    assert await store.webhooks(tenant="search") == await store.webhooks(tenant=None) == [ENDPOINT]
    assert await store.webhooks(tenant="other") == []
    for tenant, name in (("other", "we_1"), (None, "we_2")):
        with pytest.raises(NotFound):
            await store.webhook(name, tenant=tenant)
    with pytest.raises(InvalidValue, match="one too many"):
        await store.add_webhook(replace(ENDPOINT, id="we_2"), most=1, audit=[])


async def test_the_end_of_a_batch_enters_the_outbox_once(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=9, audit=[])
    batch = await failed(store, "batch_1")
    await store.update(batch)
    (row,) = await store.deliveries("we_1", limit=9)
    assert row.event == event_of(batch)
    assert (row.state, row.attempts, row.due) == (DeliveryState.PENDING, 0, NOW)


async def test_an_end_that_comes_too_late_leaves_no_event(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=9, audit=[])
    await store.create(batch_named("batch_1"))
    stale = await store.batch("batch_1")
    await store.update(replace(stale, priority=3))
    with pytest.raises(StaleVersion):
        await store.update(move(stale, BatchStatus.FAILED, NOW))
    assert await store.deliveries("we_1", limit=9) == []


async def test_claims_give_the_oldest_of_each_endpoint_to_one_claimer_until_the_lease_ends(store: SqlStore) -> None:
    for name in ("we_1", "we_2"):
        await store.add_webhook(replace(ENDPOINT, id=name), most=9, audit=[])
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
        await store.add_webhook(replace(ENDPOINT, id=name), most=9, audit=[])
    await failed(store, "batch_1")
    found = await asyncio.gather(*(claim(store) for _ in range(4)))
    assert sorted(row.endpoint for rows in found for row in rows) == names


async def test_attempts_are_kept_and_ended_deliveries_are_pruned(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=9, audit=[])
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
    await store.add_webhook(ENDPOINT, most=9, audit=[])
    await failed(store, "batch_1")
    with pytest.raises(NotFound):
        await store.delete_webhook("we_1", tenant="other", entry=told)
    await store.delete_webhook("we_1", tenant="search", entry=told)
    assert await store.deliveries("we_1", limit=9) == []
    assert await claim(store) == []


# Changes


async def actions(store: SqlStore) -> list[str]:
    return [record.entry.action for record in await store.audit(AuditQuery())]


def rotated(endpoint: Endpoint) -> Endpoint:
    return replace(endpoint, rotations=endpoint.rotations + 1, old_until=UNTIL)


async def test_each_change_and_its_audit_entry_are_one_transaction(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=1, audit=[told(ENDPOINT)])
    with pytest.raises(InvalidValue, match="one too many"):
        await store.add_webhook(replace(ENDPOINT, id="we_2"), most=1, audit=[told(ENDPOINT)])
    changed = await store.change_webhook("we_1", rotated, tenant="search", entry=told)
    assert changed == await store.webhook("we_1", tenant=None) == rotated(ENDPOINT)
    for tenant, change in (("search", lambda endpoint: endpoint), ("other", rotated)):
        try:
            await store.change_webhook("we_1", change, tenant=tenant, entry=told)
        except NotFound:
            assert tenant == "other"

    def broken(*endpoints: Endpoint) -> AuditEntry:
        raise ValueError("no entry")

    with pytest.raises(ValueError, match="no entry"):
        await store.change_webhook("we_1", rotated, tenant=None, entry=broken)
    with pytest.raises(ValueError, match="no entry"):
        await store.delete_webhook("we_1", tenant=None, entry=broken)
    assert await store.webhook("we_1", tenant=None) == changed
    await store.delete_webhook("we_1", tenant="search", entry=told)
    assert await actions(store) == ["webhook.change"] * 3


async def test_changes_at_the_same_time_are_all_made(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=1, audit=[])
    await asyncio.gather(*(store.change_webhook("we_1", rotated, tenant=None, entry=told) for _ in range(5)))
    assert (await store.webhook("we_1", tenant=None)).rotations == 5
    assert sorted(record.entry.after for record in await store.audit(AuditQuery())) == [1, 2, 3, 4, 5]


async def test_an_endpoint_that_rests_is_told_of_no_end_and_gets_what_was_pending_later(store: SqlStore) -> None:
    await store.add_webhook(ENDPOINT, most=1, audit=[])
    first = await failed(store, "batch_1")
    await store.change_webhook("we_1", lambda each: replace(each, disabled_at=NOW), tenant=None, entry=told)
    await failed(store, "batch_2")
    assert await claim(store) == []
    await store.change_webhook("we_1", lambda each: replace(each, disabled_at=None), tenant=None, entry=told)
    assert [row.event.batch for row in await claim(store)] == [first.id]


async def test_how_endpoints_fare_is_counted_and_the_last_attempt_is_told(store: SqlStore) -> None:
    assert await store.webhook_health(["we_1"]) == {}
    for name in ("we_1", "we_2", "we_3"):
        await store.add_webhook(replace(ENDPOINT, id=name), most=9, audit=[])
    for number in range(3):
        await failed(store, f"batch_{number}")
    (first, second), now = (await claim(store))[:2], NOW + timedelta(seconds=1)
    assert {first.endpoint, second.endpoint} <= {"we_1", "we_2", "we_3"}
    gone = replace(first, state=DeliveryState.GIVEN_UP, attempts=9, due=None, last_at=now, status=500)
    tried = replace(second, attempts=1, due=UNTIL, last_at=NOW, error="no connection")
    test = Delivery(0, first.endpoint, trial_of(ENDPOINT, NOW), DeliveryState.DELIVERED, 1, last_at=NOW, status=200)
    await store.end_attempt(gone)
    await store.end_attempt(tried)
    await store.add_delivery(test)
    health = await store.webhook_health(["we_1", "we_2", "we_3", "nothing"])
    assert health[first.endpoint] == Health(failing=0, given_up=1, last=gone)
    assert health[second.endpoint] == Health(failing=1, given_up=0, last=tried)
    (third,) = {"we_1", "we_2", "we_3"} - {first.endpoint, second.endpoint}
    assert health[third] == Health()
    (row, *_) = await store.deliveries(first.endpoint, limit=9)
    assert row == replace(test, number=row.number)


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
