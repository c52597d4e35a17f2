import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from core.batch.audit import steering_of
from core.batch.service import Batches, NewBatch
from core.batch.values import BatchPause, BatchStatus, ItemState
from core.errors import InvalidValue, NotFound
from core.people.audit import AuditEntry, AuditQuery
from core.people.identity import ASKING, OPEN
from tests.batch_house import ENDPOINT, House, jsonl, line

pytestmark = pytest.mark.anyio
GOOD, BAD = ItemState.SUCCEEDED, ItemState.FAILED
DAY = "24h"


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
    parts.clock.time += timedelta(hours=24)
    with pytest.raises(InvalidValue, match="window"):
        await parts.batches.retry_failed(batch.id, tenant="t")
    parts.clock.time -= timedelta(hours=24)
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
    kinds = ("cancel", "priority", "resume", "pause", "create")
    assert [entry.action for entry in found] == [f"batch.{kind}" for kind in kinds]
    assert {(entry.actor, entry.way) for entry in found[:-1]} == {("ops", "api key ops")}
    assert found[-2].reason == "too early"
    assert (found[1].before["priority"], found[1].after["priority"]) == (0, 5)
    assert (found[-1].before, found[-1].after["input_file_id"]) == (None, file.id)


async def trail(parts: House, kind: str = "") -> list[AuditEntry]:
    found = await parts.store.audit_chain(after=0, limit=100)
    return [record.entry for record in found if record.entry.action.startswith(kind)]


async def test_what_is_stored_and_deleted_is_in_the_audit_trail_and_a_resend_is_not(parts: House) -> None:
    order = NewBatch("t", ENDPOINT, "", DAY)
    for again in (False, True):
        await parts.batches.create_from(
            order, [jsonl(line())], filename="task.jsonl", dedupe="d", again=again, reason="nightly"
        )
    made, batch, twice, gone = await trail(parts)
    assert [made.action, batch.action, twice.action, gone.action] == [
        "file.create", "batch.create", "file.create", "file.delete",
    ]  # fmt: skip
    assert {made.reason, batch.reason, twice.reason} == {"nightly"}
    assert gone.target == twice.target != made.target
    assert gone.before == twice.after
    assert made.after["filename"] == "task.jsonl"
    assert "sent again" in gone.reason


async def test_an_upload_that_fails_late_leaves_its_deletion_in_the_trail_and_one_that_fails_early_nothing(
    parts: House,
) -> None:
    early, late = parts.batches.upload(), parts.batches.upload()
    await early.write(b"x")
    await early.abort()
    await late.write(b"x")
    await late.finish(tenant="t", filename="x", expires_after=None)
    await late.abort()
    await late.abort()
    assert [(entry.action, entry.target) for entry in await trail(parts)] == [
        ("file.create", f"file:{late.id}"),
        ("file.delete", f"file:{late.id}"),
    ]


async def test_what_is_refused_leaves_no_entry(parts: House) -> None:
    batch = await parts.started(1)
    before = len(await trail(parts))
    with pytest.raises(InvalidValue):
        await parts.batches.delete_file(batch.input_file_id, tenant="t")
    with pytest.raises(NotFound):
        await parts.batches.delete_file(batch.input_file_id, tenant="other")
    with pytest.raises(InvalidValue):
        await parts.batches.retry_failed(batch.id, tenant="t")
    assert len(await trail(parts)) == before


async def test_where_policy_asks_for_a_reason_only_who_has_no_place_for_one_may_give_none(parts: House) -> None:
    strict = Batches(
        store=parts.store, files=parts.files, clock=parts.clock, wake=parts.wake,
        retention=timedelta(days=1), file_bytes=1000, require_reason=True,
    )  # fmt: skip
    batch, other = await parts.started(1), await parts.file(jsonl(line()))
    order = NewBatch("t", ENDPOINT, other.id, DAY)
    uses: list[Callable[[Any], Awaitable[object]]] = [
        lambda reason: strict.pause(batch.id, tenant="t", by="ann", reason=reason),
        lambda reason: strict.resume(batch.id, tenant="t", reason=reason),
        lambda reason: strict.prioritise(batch.id, 3, tenant="t", reason=reason),
        lambda reason: strict.create(order, dedupe="x", again=False, reason=reason),
        lambda reason: strict.create_from(order, [b"x"], filename="x", dedupe="y", again=False, reason=reason),
        lambda reason: strict.upload().finish(tenant="t", filename="x", expires_after=None, reason=reason),
        lambda reason: strict.cancel(batch.id, tenant="t", reason=reason),
        lambda reason: strict.retry_failed(batch.id, tenant="t", reason=reason),
        lambda reason: strict.delete_file(other.id, tenant="t", reason=reason),
    ]
    before = len(await trail(parts))
    for use in uses:
        with pytest.raises(InvalidValue, match="required by policy"):
            await use(" ")
    assert len(await trail(parts)) == before
    for use in uses[:7]:
        await use("because")
    assert {entry.reason for entry in (await trail(parts))[before:]} == {"because"}
    nobody = await parts.started(1)
    assert (await strict.cancel(nobody.id, tenant="t", reason=None)).status is BatchStatus.CANCELLING


async def test_pause_and_priority_are_put_back_only_while_nobody_changed_them_since(parts: House) -> None:
    batch = await parts.started(1)
    at_first = steering_of(batch)
    paused = await parts.batches.pause(batch.id, tenant="t", by="ann", reason="costs")
    raised = await parts.batches.prioritise(batch.id, 7, tenant="t")
    with pytest.raises(NotFound):
        await parts.batches.put_back(batch.id, at_first, steering_of(paused), tenant="other", by="bob")
    back = await parts.batches.put_back(batch.id, at_first, steering_of(paused), tenant="t", by="bob", reason="undo")
    assert (back.pause, back.priority) == (None, 7)
    with pytest.raises(InvalidValue, match="since"):
        await parts.batches.put_back(batch.id, at_first, steering_of(paused), tenant="t", by="bob")
    low = await parts.batches.put_back(batch.id, steering_of(paused), steering_of(raised), tenant="t", by="bob")
    assert low.priority == 0
    again = await parts.batches.put_back(batch.id, steering_of(paused), at_first, tenant="t", by="bob", reason="undo")
    assert again.pause == BatchPause("bob", "undo", parts.clock.now())
    told = [(entry.action, entry.reason) for entry in await trail(parts, "batch")][-3:]
    assert told == [("batch.resume", "undo"), ("batch.priority", ""), ("batch.pause", "undo")]
    await parts.batches.cancel(batch.id, tenant="t")
    with pytest.raises(InvalidValue, match="cancel"):
        await parts.batches.put_back(batch.id, at_first, steering_of(again), tenant="t", by="bob")
