"""What every CallStore does."""

from datetime import UTC, datetime, timedelta

import pytest

from core.call_record import CallQuery, CallRecord
from core.ports import CallStore
from core.storage.store import SqlStore

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 9, 12, tzinfo=UTC)
CALL = CallRecord(
    at=NOW.timestamp(),
    request="req_1",
    tenant="search",
    key="chat",
    pool="large",
    model="m",
    lane="interactive",
    batch="",
    outcome="success",
    status=200,
    queue_ms=0.1,
    first_token_ms=None,
    total_ms=120.5,
    input_tokens=7,
    output_tokens=9,
    estimated=True,
)


async def test_calls_are_read_back_as_they_were_newest_first(store: SqlStore) -> None:
    calls: CallStore = store
    await calls.add_calls([CALL, CALL._replace(request="req_2", first_token_ms=3.5, estimated=False)])
    await calls.add_calls([])
    found = await calls.calls(CallQuery())
    assert [record._replace(id=0) for record in found] == [
        CALL._replace(request="req_2", first_token_ms=3.5, estimated=False),
        CALL,
    ]
    assert found[0].id > found[1].id


@pytest.mark.parametrize("name", ["tenant", "key", "pool", "model", "lane", "outcome", "batch", "request"])
async def test_calls_are_found_by_each_of_their_names(store: SqlStore, name: str) -> None:
    await store.add_calls([CALL, CALL._replace(**{name: "other"})])
    [found] = await store.calls(CallQuery(**{name: "other"}))
    assert getattr(found, name) == "other"


async def test_calls_are_found_by_time_and_page_by_page(store: SqlStore) -> None:
    hours = [CALL._replace(at=(NOW + timedelta(hours=n)).timestamp(), request=f"r{n}") for n in range(4)]
    await store.add_calls(hours)

    async def names(**query: object) -> list[str]:
        return [record.request for record in await store.calls(CallQuery(**query))]  # type: ignore[arg-type]

    assert await names(since=NOW + timedelta(hours=2)) == ["r3", "r2"]
    assert await names(until=NOW + timedelta(hours=2)) == ["r1", "r0"]
    first = await store.calls(CallQuery(limit=2))
    assert await names(before=first[-1].id, limit=2) == ["r1", "r0"]


async def test_pruning_bounds_the_log_in_number_and_age(store: SqlStore) -> None:
    hours = [CALL._replace(at=(NOW + timedelta(hours=n)).timestamp(), request=f"r{n}") for n in range(6)]
    await store.add_calls(hours)
    assert await store.prune_calls(before=0, keep=6) == 0
    assert await store.prune_calls(before=0, keep=4) == 2
    assert await store.prune_calls(before=(NOW + timedelta(hours=4)).timestamp(), keep=100) == 2
    assert [record.request for record in await store.calls(CallQuery())] == ["r5", "r4"]
    assert await store.prune_calls(before=0, keep=0) == 2
    assert await store.prune_calls(before=0, keep=0) == 0


async def test_more_than_one_group_is_pruned(store: SqlStore) -> None:
    await store.add_calls([CALL] * 4500)
    assert await store.prune_calls(before=0, keep=1) == 4499
