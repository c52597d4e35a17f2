import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from core.batch.service import NewBatch
from core.batch.values import BatchPause, BatchStatus, ItemState
from core.errors import InvalidValue, NotFound
from core.people.audit import AuditQuery
from core.people.identity import ASKING, OPEN
from tests.batch_house import ENDPOINT, House, jsonl, line

pytestmark = pytest.mark.anyio
GOOD, BAD = ItemState.SUCCEEDED, ItemState.FAILED
DAY = timedelta(hours=24)


async def test_two_deliberate_creates_make_two_batches_and_a_resend_finds_its_first(parts: House) -> None:
    file = await parts.file(jsonl(line()))
    order = NewBatch("t", ENDPOINT, file.id, DAY)
    first = await parts.batches.create(order, dedupe="d", again=False)
    second = await parts.batches.create(order, dedupe="d", again=False)
    assert first.id != second.id
    assert (await parts.batches.create(order, dedupe="d", again=True)).id == second.id
    assert (await parts.batches.create(order, dedupe="other", again=True)).id not in (first.id, second.id)
    parts.clock.time += timedelta(minutes=11)
    assert (await parts.batches.create(order, dedupe="d", again=True)).id not in (first.id, second.id)


async def test_resends_at_the_same_time_wait_for_the_first(parts: House) -> None:
    file = await parts.file(jsonl(line()))
    order = NewBatch("t", ENDPOINT, file.id, DAY)
    made = await asyncio.gather(*(parts.batches.create(order, dedupe="d", again=n > 0) for n in range(3)))
    assert len({batch.id for batch in made}) == 1


async def test_lines_sent_with_the_create_are_stored_once(parts: House) -> None:
    order = NewBatch("t", ENDPOINT, "", DAY, name="task")
    made = [
        await parts.batches.create_from(order, [jsonl(line())], filename="task.jsonl", dedupe="d", again=again)
        for again in (False, True)
    ]
    assert made[0].id == made[1].id
    files = await parts.store.files(tenant="t", purpose=None, after=None, limit=9, ascending=True)
    assert [file.id for file in files] == [made[0].input_file_id]
    assert await parts.files.untouched(since=2**40) == [made[0].input_file_id]


async def test_another_tenants_file_and_a_result_file_start_no_batch(parts: House) -> None:
    file = await parts.file(jsonl(line()), tenant="other")
    with pytest.raises(NotFound):
        await parts.batches.create(NewBatch("t", ENDPOINT, file.id, DAY), dedupe="d", again=False)
    batch = await parts.started(1)
    await parts.run(batch, GOOD)
    done = await parts.closer.settle(batch.id)
    with pytest.raises(InvalidValue, match="purpose"):
        await parts.batches.create(NewBatch("t", ENDPOINT, str(done.output_file_id), DAY), dedupe="e", again=False)


async def test_a_file_over_the_limit_is_refused_and_nothing_is_left_of_it(parts: House) -> None:
    upload = parts.batches.upload()
    for _ in range(10):
        await upload.write(b"x" * 1_000_000)
    with pytest.raises(InvalidValue, match="batch_file_bytes"):
        await upload.write(b"x")
    await upload.abort()
    assert await parts.files.untouched(since=2**40) == []


async def test_cancel_is_idempotent_until_the_end_and_refused_after_another_end(parts: House) -> None:
    batch = await parts.started(1)
    seen = parts.wake.count
    first = await parts.batches.cancel(batch.id, tenant="t")
    assert (first.status, first.cancelling_at) == (BatchStatus.CANCELLING, parts.clock.now())
    assert parts.wake.count == seen + 1
    assert await parts.batches.cancel(batch.id, tenant="t") == first
    cancelled = await parts.closer.settle(batch.id)
    assert await parts.batches.cancel(batch.id, tenant="t") == cancelled
    done = await parts.started(1, dedupe="2")
    await parts.run(done, GOOD)
    await parts.closer.settle(done.id)
    with pytest.raises(InvalidValue, match="completed"):
        await parts.batches.cancel(done.id, tenant="t")
    with pytest.raises(NotFound):
        await parts.batches.cancel(batch.id, tenant="other")


async def test_pause_resume_and_priority_change_an_open_batch(parts: House) -> None:
    batch = await parts.started(1)
    paused = await parts.batches.pause(batch.id, tenant="t", by="ann", reason="costs")
    assert paused.pause == BatchPause("ann", "costs", parts.clock.now())
    parts.clock.time += timedelta(minutes=1)
    assert (await parts.batches.pause(batch.id, tenant="t", by="bob")).pause == paused.pause
    assert (await parts.batches.resume(batch.id, tenant="t")).pause is None
    assert (await parts.batches.prioritise(batch.id, 5, tenant="t")).priority == 5
    for priority in (101, -101):
        with pytest.raises(InvalidValue, match="100"):
            await parts.batches.prioritise(batch.id, priority, tenant="t")
    await parts.batches.cancel(batch.id, tenant="t")
    with pytest.raises(InvalidValue, match="cancelling"):
        await parts.batches.pause(batch.id, tenant="t", by="ann")


async def test_changes_at_the_same_time_are_all_kept(parts: House) -> None:
    batch = await parts.started(1)
    await asyncio.gather(
        parts.batches.pause(batch.id, tenant="t", by="ann"),
        *(parts.batches.prioritise(batch.id, n, tenant="t") for n in range(5)),
    )
    after = await parts.store.batch(batch.id)
    assert after.pause is not None
    assert after.version >= batch.version + 5


async def test_failed_lines_run_again_and_leave_the_error_file(parts: House) -> None:
    batch = await parts.started(3)
    await parts.run(batch, GOOD, BAD, BAD)
    await parts.closer.settle(batch.id)
    again = await parts.batches.retry_failed(batch.id, tenant="t")
    assert (again.status, again.completed, again.failed) == (BatchStatus.IN_PROGRESS, 1, 0)
    assert await parts.files.size(batch.error_file) == 0
    await parts.run(again, GOOD, BAD)
    after = await parts.closer.settle(batch.id)
    assert (after.status, after.completed, after.failed) == (BatchStatus.COMPLETED, 2, 1)
    assert [each["custom_id"] for each in await parts.lines_of(after.output_file_id)] == ["id-0", "id-1"]
    assert [each["custom_id"] for each in await parts.lines_of(after.error_file_id)] == ["id-2"]
    await parts.batches.retry_failed(batch.id, tenant="t")
    await parts.run(after, GOOD)
    last = await parts.closer.settle(batch.id)
    assert (last.completed, last.error_file_id) == (3, None)
    with pytest.raises(NotFound):
        await parts.store.file(batch.error_file, tenant=None)


async def test_nothing_is_retried_that_cannot_be(parts: House) -> None:
    batch = await parts.started(2)
    with pytest.raises(InvalidValue, match="in_progress"):
        await parts.batches.retry_failed(batch.id, tenant="t")
    await parts.run(batch, GOOD, BAD)
    done = await parts.closer.settle(batch.id)
    parts.clock.time += DAY
    with pytest.raises(InvalidValue, match="window"):
        await parts.batches.retry_failed(batch.id, tenant="t")
    parts.clock.time -= DAY
    await parts.batches.delete_file(str(done.output_file_id), tenant="t")
    with pytest.raises(InvalidValue, match="deleted"):
        await parts.batches.retry_failed(batch.id, tenant="t")
    assert len(await parts.lines_of(done.error_file_id)) == 1


async def test_a_file_of_a_running_batch_cannot_be_deleted(parts: House) -> None:
    batch = await parts.started(1)
    with pytest.raises(InvalidValue, match=batch.id):
        await parts.batches.delete_file(batch.input_file_id, tenant="t")
    assert await parts.files.size(batch.input_file_id) > 0
    await parts.batches.cancel(batch.id, tenant="t")
    await parts.closer.settle(batch.id)
    await parts.batches.delete_file(batch.input_file_id, tenant="t")
    assert await parts.files.size(batch.input_file_id) == 0


async def test_every_change_of_a_batch_has_its_entry_in_the_audit_trail_and_none_that_changes_nothing(
    parts: House,
) -> None:
    file = await parts.file(jsonl(line()))
    batch = await parts.batches.create(NewBatch("t", ENDPOINT, file.id, DAY), dedupe="d", again=False)
    token = ASKING.set(replace(OPEN, key="ops", tenant="t"))
    try:
        await parts.batches.pause(batch.id, tenant="t", by="ops", reason="too early")
        await parts.batches.pause(batch.id, tenant="t", by="ops", reason="again")
        await parts.batches.resume(batch.id, tenant="t")
        await parts.batches.prioritise(batch.id, 5, tenant="t")
        await parts.batches.cancel(batch.id, tenant="t")
        with pytest.raises(InvalidValue):
            await parts.batches.prioritise(batch.id, 6, tenant="t")
    finally:
        ASKING.reset(token)
    found = [record.entry for record in await parts.store.audit(AuditQuery(target=f"batch:{batch.id}"))]
    assert [entry.action for entry in found] == ["batch.cancel", "batch.priority", "batch.resume", "batch.pause"]
    assert {(entry.actor, entry.way) for entry in found} == {("ops", "api key ops")}
    assert found[-1].reason == "too early"
    assert (found[1].before["priority"], found[1].after["priority"]) == (0, 5)
