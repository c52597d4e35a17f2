"""What every BatchStore does, on both databases."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from core.batch.states import move
from core.batch.values import (
    Batch,
    BatchPause,
    BatchStatus,
    ClaimedItem,
    ItemEnd,
    ItemState,
    LineError,
    NewItem,
    StoredFile,
    Usage,
)
from core.errors import InvalidValue, NotFound, StaleVersion
from core.storage.store import SqlStore

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 9, 12, 0, 0, 5, tzinfo=UTC)
LEASE = timedelta(seconds=60)
BATCH = Batch(
    id="batch_1",
    tenant="search",
    key="nightly",
    pool="",
    model=None,
    endpoint="/v1/chat/completions",
    input_file_id="file-in",
    window=timedelta(hours=24),
    created_at=NOW,
    completion_window="1d",
    metadata={"team": "é", "run": "7"},
    output_expires_after=timedelta(hours=2),
    interval_s=0.25,
    max_concurrency=3,
    dedupe="d1",
)


def item(index: int) -> NewItem:
    return NewItem(index, f"id-{index}", index * 100, 90, "m", 20, 50 if index % 2 else None)


def done(index: int, state: ItemState = ItemState.SUCCEEDED, batch: str = "batch_1", **options: object) -> ItemEnd:
    return replace(ItemEnd(batch, index, state), **options)  # type: ignore[arg-type]


async def started(store: SqlStore, items: int, batch: Batch = BATCH) -> Batch:
    """Store a batch in progress with `items` pending items."""
    await store.create(batch)
    await store.add_items(batch.id, [item(index) for index in range(items)])
    stored = await store.batch(batch.id)
    return await store.update(replace(move(stored, BatchStatus.IN_PROGRESS, NOW), pool="default", model="m"))


async def claim(
    store: SqlStore, limit: int, owner: str = "a", batch: str = "batch_1", now: datetime = NOW
) -> list[int]:
    claimed = await store.claim(batch, owner=owner, now=now, lease=LEASE, limit=limit)
    return [each.index for each in claimed]


async def states(store: SqlStore, batch: str = "batch_1") -> dict[int, ItemState]:
    return {row.index: row.state for row in await store.items(batch, limit=10_000)}


async def test_a_batch_is_read_back_as_it_was(store: SqlStore) -> None:
    assert await store.create(BATCH) == BATCH
    assert await store.batch("batch_1") == BATCH
    full = replace(
        move(BATCH, BatchStatus.FAILED, NOW),
        name="n",
        pool="p",
        model="m",
        errors=(LineError("x", "bad", 3, "url"), LineError("y", "worse")),
        output_file_id="o",
        error_file_id="e",
        priority=-7,
        pause=BatchPause("ann", "costs", NOW),
    )
    assert await store.update(full) == replace(full, version=2)
    assert await store.batch("batch_1") == replace(full, version=2)


async def test_only_the_owner_sees_a_batch(store: SqlStore) -> None:
    await store.create(BATCH)
    assert (await store.batch("batch_1", tenant="search")).id == "batch_1"
    for name, tenant in (("batch_1", "other"), ("batch_2", None)):
        with pytest.raises(NotFound):
            await store.batch(name, tenant=tenant)
    assert await store.batches(tenant="other", after=None, limit=5) == []


async def test_a_create_sent_again_within_ten_minutes_is_the_first_batch(store: SqlStore) -> None:
    first = await store.create(BATCH)
    again = replace(BATCH, id="batch_2", created_at=NOW + timedelta(minutes=10))
    assert await store.create(again) == first
    late = replace(BATCH, id="batch_3", created_at=NOW + timedelta(minutes=10, seconds=1))
    assert (await store.create(late)).id == "batch_3"
    deliberate = replace(again, id="batch_4")
    assert (await store.create(deliberate, again=False)).id == "batch_4"
    assert (await store.create(replace(again, id="batch_5", dedupe="other"))).id == "batch_5"
    assert (await store.create(replace(again, id="batch_6", dedupe=None))).id == "batch_6"


async def test_of_many_equal_creates_at_once_one_is_stored(store: SqlStore, url: str) -> None:
    other = SqlStore(url)
    made = await asyncio.gather(
        *(each.create(replace(BATCH, id=f"batch_{n}{k}")) for n in range(8) for k, each in enumerate((store, other)))
    )
    assert len({batch.id for batch in made}) == 1
    assert len(await store.batches(tenant=None, after=None, limit=100)) == 1
    await other.close()


async def test_batches_come_newest_first_page_by_page(store: SqlStore) -> None:
    for n in range(5):
        tenant = "other" if n == 2 else "search"
        await store.create(replace(BATCH, id=f"batch_{n}", tenant=tenant, dedupe=None))
    page = await store.batches(tenant="search", after=None, limit=2)
    assert [batch.id for batch in page] == ["batch_4", "batch_3", "batch_1"]
    page = await store.batches(tenant="search", after="batch_3", limit=2)
    assert [batch.id for batch in page] == ["batch_1", "batch_0"]
    with pytest.raises(NotFound):
        await store.batches(tenant="search", after="batch_2", limit=2)
    await store.update(move(await store.batch("batch_0"), BatchStatus.FAILED, NOW))
    failed = await store.batches(tenant=None, after=None, limit=9, statuses=[BatchStatus.FAILED])
    assert [batch.id for batch in failed] == ["batch_0"]
    assert [batch.id for batch in await store.active()] == ["batch_1", "batch_2", "batch_3", "batch_4"]


async def test_an_update_on_another_version_is_refused_and_counts_are_not_touched(store: SqlStore) -> None:
    batch = await started(store, 3)
    assert (batch.version, batch.total, batch.prompt_tokens_total) == (2, 3, 60)
    await claim(store, 1)
    await store.finish([done(0, input_tokens=5)], owner="a", sizes={"batch_1": (10, 0)})
    stored = await store.update(replace(batch, priority=4))
    assert (stored.version, stored.priority, stored.completed, stored.output_size) == (3, 4, 1, 10)
    with pytest.raises(StaleVersion):
        await store.update(replace(batch, priority=5))
    with pytest.raises(NotFound):
        await store.update(replace(batch, id="batch_9"))


async def test_items_are_taken_only_while_the_batch_is_validating(store: SqlStore) -> None:
    await started(store, 1)
    with pytest.raises(InvalidValue):
        await store.add_items("batch_1", [item(1)])
    assert await store.drop_items("batch_1", limit=10) == 0
    assert (await store.batch("batch_1")).total == 1


async def test_items_of_a_refused_batch_go_piece_by_piece(store: SqlStore) -> None:
    await store.create(BATCH)
    await store.add_items("batch_1", [item(index) for index in range(5)])
    assert [await store.drop_items("batch_1", limit=2) for _ in range(3)] == [2, 2, 1]
    batch = await store.batch("batch_1")
    assert (batch.total, batch.prompt_tokens_total) == (0, 0)
    await store.add_items("batch_1", [item(0)])
    assert (await store.batch("batch_1")).total == 1


@pytest.mark.parametrize("odd", ['"', "'; --", "\\u0041", "\u2028\t", "é😀", ":rows", "$[0]", " "])
async def test_odd_texts_and_large_numbers_come_back_as_they_were(store: SqlStore, odd: str) -> None:
    await store.create(BATCH)
    await store.add_items(
        "batch_1", [NewItem(0, odd, 2**40, 2**30, odd, 2**30, None), NewItem(1, "b", 0, 1, "m", 1, 7)]
    )
    await store.update(move(await store.batch("batch_1"), BatchStatus.IN_PROGRESS, NOW))
    claimed = await store.claim("batch_1", owner=odd, now=NOW, lease=LEASE, limit=1)
    assert claimed == [ClaimedItem("batch_1", 0, odd, 2**40, 2**30, odd, 0)]
    end = done(0, ItemState.FAILED, error_code=odd, seconds=0.1 + 0.2, offset=2**41, length=5)
    assert await store.finish([end], owner=odd, sizes={}) == [end]
    [row, _] = await store.items("batch_1")
    assert (row.error_code, row.seconds, row.offset, row.status_code) == (odd, 0.1 + 0.2, 2**41, None)


async def test_items_are_claimed_in_order_and_by_one_owner_only(store: SqlStore) -> None:
    await started(store, 5)
    claimed = await store.claim("batch_1", owner="a", now=NOW, lease=LEASE, limit=2)
    first = claimed[0]
    assert (first.batch_id, first.index, first.custom_id, first.offset, first.length) == ("batch_1", 0, "id-0", 0, 90)
    assert (first.model, first.attempts, claimed[1].offset) == ("m", 0, 100)
    assert await claim(store, 9, owner="b") == [2, 3, 4]
    assert await claim(store, 9, owner="c") == []
    assert (await store.batch("batch_1")).running == 5


@pytest.mark.parametrize("status", [BatchStatus.VALIDATING, BatchStatus.CANCELLING, BatchStatus.FINALIZING])
async def test_nothing_is_claimed_of_a_batch_that_is_not_in_progress(store: SqlStore, status: BatchStatus) -> None:
    await store.create(BATCH)
    await store.add_items("batch_1", [item(0)])
    batch = await store.batch("batch_1")
    if status is not BatchStatus.VALIDATING:
        batch = await store.update(move(batch, BatchStatus.IN_PROGRESS, NOW))
        await store.update(move(batch, status, NOW))
    assert await claim(store, 9) == []
    assert await claim(store, 9, batch="batch_9") == []


async def test_parallel_workers_never_get_the_same_item(store: SqlStore, url: str) -> None:
    """R65 BerriAI/litellm#19301: two workers take the same queued request."""
    await started(store, 500)
    other = SqlStore(url)
    taken: list[int] = []

    async def worker(store: SqlStore, owner: str) -> None:
        while indexes := await claim(store, 7, owner=owner):
            taken.extend(indexes)
            await store.finish([done(index) for index in indexes], owner=owner, sizes={})

    await asyncio.gather(*(worker(each, f"w{n}") for n, each in enumerate((store, other, store, other))))
    # On PostgreSQL a claim passes over what another holds locked, and may find nothing for a moment.
    await worker(store, "last")
    await other.close()
    assert sorted(taken) == list(range(500))
    assert (await store.batch("batch_1")).completed == 500


async def test_a_retry_waits_until_it_is_due_and_then_goes_first(store: SqlStore) -> None:
    await started(store, 4)
    assert await claim(store, 2) == [0, 1]
    later = NOW + timedelta(seconds=8)
    back = done(1, ItemState.PENDING, not_before=later, error_code="rate_limited")
    await store.finish([back], owner="a", sizes={})
    assert await claim(store, 1) == [2]
    assert await claim(store, 5, now=later - timedelta(milliseconds=1)) == [3]
    again = await store.claim("batch_1", owner="a", now=later, lease=LEASE, limit=5)
    assert [(each.index, each.attempts) for each in again] == [(1, 1)]


async def test_an_attempt_that_does_not_count_is_none(store: SqlStore) -> None:
    await started(store, 1)
    await claim(store, 1)
    await store.finish([done(0, ItemState.PENDING, counted=False)], owner="a", sizes={})
    [again] = await store.claim("batch_1", owner="a", now=NOW, lease=LEASE, limit=1)
    assert again.attempts == 0
    batch = await store.batch("batch_1")
    assert (batch.completed, batch.failed, batch.running, batch.left) == (0, 0, 1, 1)


async def test_ends_are_stored_with_counts_usage_and_sizes_at_once(store: SqlStore) -> None:
    await started(store, 3)
    await claim(store, 3)
    good = done(
        0,
        offset=0,
        length=40,
        status_code=200,
        input_tokens=10,
        cached_tokens=4,
        output_tokens=20,
        reasoning_tokens=3,
        seconds=1.5,
    )
    bad = done(1, ItemState.FAILED, offset=7, length=9, status_code=400, error_code="invalid", input_tokens=1)
    assert await store.finish([good, bad], owner="a", sizes={"batch_1": (40, 16)}) == [good, bad]
    batch = await store.batch("batch_1")
    assert (batch.completed, batch.failed, batch.running, batch.left) == (1, 1, 1, 1)
    assert batch.usage == Usage(11, 4, 20, 3)
    assert (batch.output_size, batch.error_size) == (40, 16)
    first, second, third = await store.items("batch_1")
    assert (first.state, first.offset, first.length, first.status_code) == (ItemState.SUCCEEDED, 0, 40, 200)
    assert (first.attempts, first.seconds, third.state) == (1, 1.5, ItemState.RUNNING)
    assert (second.state, second.error_code, second.offset) == (ItemState.FAILED, "invalid", 7)


async def test_a_size_stored_by_a_process_that_wrote_further_stays(store: SqlStore) -> None:
    await started(store, 4)
    await claim(store, 2, owner="a")
    await claim(store, 2, owner="b")
    sizes = []
    for index, owner, told in ((0, "a", (70, 0)), (2, "b", (40, 9)), (1, "a", (2**40, 9)), (3, "b", (71, 3))):
        assert await store.finish([done(index)], owner=owner, sizes={"batch_1": told})
        batch = await store.batch("batch_1")
        sizes.append((batch.output_size, batch.error_size))
    assert sizes == [(70, 0), (70, 9), (2**40, 9), (2**40, 9)]
    assert batch.completed == 4


async def test_the_error_file_of_a_retried_batch_begins_anew(store: SqlStore) -> None:
    batch = await started(store, 2)
    await claim(store, 2)
    await store.finish([done(0), done(1, ItemState.FAILED)], owner="a", sizes={"batch_1": (40, 90)})
    await store.retry_failed(replace(batch, priority=1))
    await claim(store, 1)
    await store.finish([done(1, ItemState.FAILED)], owner="a", sizes={"batch_1": (40, 12)})
    again = await store.batch("batch_1")
    assert (again.output_size, again.error_size) == (40, 12)


async def test_who_lost_the_lease_changes_nothing(store: SqlStore) -> None:
    await started(store, 3)
    await claim(store, 3)
    await store.finish([done(0)], owner="a", sizes={})
    await store.give_back(owner="a", before=None)
    assert await claim(store, 1, owner="b") == [1]
    ends = [done(index) for index in range(3)]
    assert await store.finish(ends, owner="a", sizes={"batch_1": (99, 99)}) == []
    batch = await store.batch("batch_1")
    assert (batch.completed, batch.output_size) == (1, 0)
    assert await store.finish(ends, owner="b", sizes={}) == [ends[1]]


async def test_ends_of_several_batches_go_together(store: SqlStore) -> None:
    await started(store, 2)
    await started(store, 2, replace(BATCH, id="batch_2", dedupe=None))
    await claim(store, 2)
    await claim(store, 2, batch="batch_2")
    ends = [done(0), done(1, batch="batch_2"), done(1), done(0, ItemState.FAILED, batch="batch_2")]
    kept = await store.finish(ends, owner="a", sizes={"batch_1": (5, 0), "batch_2": (6, 7)})
    assert sorted(kept, key=ends.index) == ends
    one, two = await store.batch("batch_1"), await store.batch("batch_2")
    assert (one.completed, one.failed, one.output_size) == (2, 0, 5)
    assert (two.completed, two.failed, two.output_size, two.error_size) == (1, 1, 6, 7)


async def test_a_lease_that_is_renewed_does_not_expire(store: SqlStore) -> None:
    await started(store, 3)
    await claim(store, 1, owner="a")
    await claim(store, 2, owner="b")
    assert await store.renew(owner="a", until=NOW + 2 * LEASE) == 1
    assert await store.give_back(owner=None, before=NOW + LEASE) == 0
    assert await store.give_back(owner=None, before=NOW + LEASE + timedelta(seconds=1)) == 2
    assert await states(store) == {0: ItemState.RUNNING, 1: ItemState.PENDING, 2: ItemState.PENDING}
    assert await claim(store, 9, owner="c") == [1, 2]


async def test_leases_of_one_owner_or_of_all_are_given_back(store: SqlStore) -> None:
    await started(store, 4)
    for owner in ("a", "b", "c"):
        await claim(store, 1, owner=owner)
    assert await store.give_back(owner="b", before=None) == 1
    assert await store.give_back(owner="b", before=None) == 0
    assert await store.give_back(owner=None, before=None) == 2
    assert set((await states(store)).values()) == {ItemState.PENDING}
    assert await claim(store, 9) == [0, 1, 2, 3]


async def test_the_rest_ends_piece_by_piece_and_counts_as_failed(store: SqlStore) -> None:
    await started(store, 6)
    await claim(store, 2)
    await store.finish([done(0), done(1, ItemState.PENDING, not_before=NOW + LEASE)], owner="a", sizes={})
    await claim(store, 1)
    ended = [await store.end_rest("batch_1", ItemState.CANCELLED, limit=3) for _ in range(3)]
    assert [[each.index for each in part] for part in ended] == [[1, 3, 4], [5], []]
    batch = await store.batch("batch_1")
    assert (batch.completed, batch.failed, batch.running, batch.left) == (1, 4, 1, 1)
    found = await states(store)
    assert (found[2], found[5]) == (ItemState.RUNNING, ItemState.CANCELLED)


async def test_items_are_read_by_state_and_page(store: SqlStore) -> None:
    await started(store, 5)
    await claim(store, 3)
    await store.finish([done(0), done(2)], owner="a", sizes={})
    found = await store.items("batch_1", states=[ItemState.SUCCEEDED, ItemState.RUNNING], after=0, limit=1)
    assert [row.index for row in found] == [1]
    assert [row.index for row in await store.items("batch_1", after=2)] == [3, 4]
    with pytest.raises(NotFound):
        await store.items("batch_9")


async def test_failed_items_run_once_more_with_nothing_left_of_the_first_time(store: SqlStore) -> None:
    await started(store, 3)
    await claim(store, 3)
    ends = [done(0, length=5), done(1, ItemState.FAILED, length=7, error_code="x"), done(2, ItemState.FAILED)]
    await store.finish(ends, owner="a", sizes={"batch_1": (5, 7)})
    batch = await store.batch("batch_1")
    for status in (BatchStatus.FINALIZING, BatchStatus.COMPLETED):
        batch = await store.update(move(batch, status, NOW))
    again = await store.retry_failed(move(batch, BatchStatus.IN_PROGRESS, NOW))
    assert (again.status, again.completed, again.failed, again.left) == (BatchStatus.IN_PROGRESS, 1, 0, 2)
    assert (again.output_size, again.error_size, again.ended_at) == (5, 0, None)
    rows = await store.items("batch_1")
    assert [(row.state, row.attempts, row.length, row.error_code) for row in rows[1:]] == [
        (ItemState.PENDING, 0, 0, None)
    ] * 2
    assert await claim(store, 9) == [1, 2]
    with pytest.raises(StaleVersion):
        await store.retry_failed(move(batch, BatchStatus.IN_PROGRESS, NOW))


async def test_items_of_batches_long_ended_go_piece_by_piece(store: SqlStore) -> None:
    await started(store, 5)
    await started(store, 2, replace(BATCH, id="batch_2", dedupe=None))
    batch = await store.update(move(await store.batch("batch_1"), BatchStatus.CANCELLING, NOW))
    await store.update(move(batch, BatchStatus.CANCELLED, NOW))
    assert await store.prune_items(before=NOW, limit=10) == 0
    after = NOW + timedelta(seconds=1)
    assert [await store.prune_items(before=after, limit=3) for _ in range(3)] == [3, 2, 0]
    assert await store.items("batch_1") == []
    assert len(await store.items("batch_2")) == 2


FILE = StoredFile("file-in", "search", "in.jsonl", "batch", 3_000_000_000, NOW, NOW + timedelta(days=1))


async def test_files_are_known_to_their_tenant_and_come_page_by_page(store: SqlStore) -> None:
    made = [
        replace(FILE, id=f"f{n}", created_at=NOW + timedelta(seconds=n // 2), purpose="batch" if n else "batch_output")
        for n in range(5)
    ]
    for file in made:
        await store.add_file(file)
    await store.add_file(replace(FILE, id="x", tenant="other"))
    assert await store.file("f3", tenant="search") == made[3]
    assert await store.file("x", tenant=None) == replace(FILE, id="x", tenant="other")
    for name, tenant in (("x", "search"), ("nothing", None)):
        with pytest.raises(NotFound):
            await store.file(name, tenant=tenant)

    async def ids(after: str | None, *, ascending: bool, purpose: str | None = None) -> list[str]:
        rows = await store.files(tenant="search", purpose=purpose, after=after, limit=2, ascending=ascending)
        return [row.id for row in rows]

    assert await ids(None, ascending=False) == ["f4", "f3", "f2"]
    assert await ids("f3", ascending=False) == ["f2", "f1", "f0"]
    assert await ids("f1", ascending=True) == ["f2", "f3", "f4"]
    assert await ids(None, ascending=True, purpose="batch") == ["f1", "f2", "f3"]
    with pytest.raises(NotFound):
        await ids("x", ascending=False)


async def test_a_files_facts_are_replaced_by_newer_ones(store: SqlStore) -> None:
    await store.add_file(FILE)
    newer = replace(FILE, bytes=7, expires_at=None)
    await store.add_file(newer)
    assert await store.file("file-in", tenant=None) == newer


async def test_a_file_that_a_batch_needs_stays(store: SqlStore) -> None:
    await store.add_file(FILE)
    batch = await started(store, 1)
    after = NOW + timedelta(days=2)
    assert await store.expired_files(now=after, limit=5) == []
    with pytest.raises(InvalidValue, match="batch_1"):
        await store.delete_file("file-in", tenant="search")
    batch = await store.update(move(batch, BatchStatus.CANCELLING, NOW))
    await store.update(move(batch, BatchStatus.CANCELLED, NOW))
    assert await store.expired_files(now=after, limit=5) == [FILE]
    assert await store.expired_files(now=NOW, limit=5) == []
    with pytest.raises(NotFound):
        await store.delete_file("file-in", tenant="other")
    await store.delete_file("file-in", tenant="search")
    with pytest.raises(NotFound):
        await store.delete_file("file-in", tenant="search")


async def test_a_failed_batch_holds_no_file(store: SqlStore) -> None:
    """R67 openai/openai-python#2084: a failed batch still fills the queue and cannot be removed."""
    await store.add_file(FILE)
    await store.create(BATCH)
    await store.update(move(await store.batch("batch_1"), BatchStatus.FAILED, NOW))
    assert await store.active() == []
    await store.delete_file("file-in", tenant="search")


async def test_a_batch_of_500_beside_editors_and_audit_meets_no_error(store: SqlStore, url: str) -> None:
    """R85 AstrBotDevs/AstrBot PR#6474, dstackai/dstack#825: "database is locked" under parallel writes."""
    await started(store, 500)
    other = SqlStore(url)
    edits = 0

    async def worker(owner: str) -> None:
        while indexes := await claim(store, 16, owner=owner):
            await store.finish([done(index) for index in indexes], owner=owner, sizes={})

    async def editor(each: SqlStore) -> None:
        nonlocal edits
        done_here = 0
        while done_here < 10:
            batch = await each.batch("batch_1")
            try:
                await each.update(replace(batch, priority=batch.priority + 1))
            except StaleVersion:
                continue
            done_here += 1
            edits += 1

    async def audit() -> None:
        for n in range(50):
            await other.add_file(replace(FILE, id=f"audit-{n}"))

    await asyncio.gather(worker("a"), worker("b"), *(editor(each) for each in (store, other, store, other)), audit())
    await worker("last")
    batch = await store.batch("batch_1")
    assert (batch.completed, batch.left, batch.priority, batch.version) == (500, 0, edits, 2 + edits)
    await other.close()
