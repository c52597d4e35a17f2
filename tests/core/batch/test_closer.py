import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from core.batch.values import Batch, BatchStatus, ItemState
from core.errors import InvalidValue, NotFound
from tests.batch_house import LEASE, House

pytestmark = pytest.mark.anyio
GOOD, BAD = ItemState.SUCCEEDED, ItemState.FAILED


async def test_the_last_item_completes_a_batch_with_its_two_files(parts: House) -> None:
    batch = await parts.started(3, output_expires_after=timedelta(hours=2))
    await parts.run(batch, GOOD, BAD)
    assert not parts.closer.due(await parts.store.batch(batch.id))
    assert (await parts.closer.settle(batch.id)).status is BatchStatus.IN_PROGRESS
    await parts.run(batch, GOOD)
    assert parts.closer.due(await parts.store.batch(batch.id))
    after = await parts.closer.settle(batch.id)
    assert (after.status, after.completed, after.failed) == (BatchStatus.COMPLETED, 2, 1)
    assert after.finalizing_at is not None
    assert [each["custom_id"] for each in await parts.lines_of(after.output_file_id)] == ["id-0", "id-2"]
    [failed] = await parts.lines_of(after.error_file_id)
    assert (failed["custom_id"], failed["response"]["status_code"], failed["error"]) == ("id-1", 400, None)
    file = await parts.store.file(str(after.output_file_id), tenant="t")
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.expires_at == parts.clock.now() + timedelta(hours=2)
    assert parts.ended == [after]


async def test_a_batch_whose_lines_all_fail_is_completed_without_an_output_file(parts: House) -> None:
    """R58 ProjectTech4DevAI/kaapi-backend#723: all lines fail, "completed" with no output file, user sees nothing."""
    batch = await parts.started(2)
    await parts.run(batch, BAD, BAD)
    after = await parts.closer.settle(batch.id)
    assert (after.status, after.output_file_id, after.completed, after.failed) == (BatchStatus.COMPLETED, None, 0, 2)
    assert len(await parts.lines_of(after.error_file_id)) == 2


async def test_a_batch_whose_lines_all_succeed_has_no_error_file(parts: House) -> None:
    batch = await parts.started(1)
    await parts.run(batch, GOOD)
    after = await parts.closer.settle(batch.id)
    assert (after.error_file_id, after.output_file_id) == (None, batch.output_file)
    with pytest.raises(NotFound):
        await parts.store.file(batch.error_file, tenant=None)


async def test_an_expired_batch_keeps_what_is_done(parts: House) -> None:
    """R60 warmbly/warmbly PR#333, bespokelabsai/curator#226: finished results of an expired batch are thrown away."""
    batch = await parts.started(5, completion_window="1h")
    await parts.run(batch, GOOD, BAD)
    running = await parts.store.claim(batch.id, owner="w", now=parts.clock.now(), lease=LEASE, limit=1)
    parts.clock.time += timedelta(hours=1)
    midway = await parts.closer.settle(batch.id)
    assert (midway.status, midway.left, midway.running) == (BatchStatus.IN_PROGRESS, 1, 1)
    assert len(running) == 1
    await parts.store.give_back(owner="w", before=None)
    after = await parts.closer.settle(batch.id)
    assert (after.status, after.expired_at) == (BatchStatus.EXPIRED, parts.clock.now())
    assert (after.total, after.completed, after.failed) == (5, 1, 4)
    output, errors = await parts.lines_of(after.output_file_id), await parts.lines_of(after.error_file_id)
    assert sorted(each["custom_id"] for each in (*output, *errors)) == [f"id-{n}" for n in range(5)]
    assert [each["error"] and each["error"]["code"] for each in errors] == [None, *["batch_expired"] * 3]


async def test_a_batch_done_at_the_last_moment_is_completed_not_expired(parts: House) -> None:
    batch = await parts.started(1, completion_window="1h")
    await parts.run(batch, GOOD)
    parts.clock.time += timedelta(hours=2)
    assert (await parts.closer.settle(batch.id)).status is BatchStatus.COMPLETED


async def test_a_cancelled_batch_keeps_its_counts_and_partial_results(parts: House) -> None:
    """R63 llm-d/llm-d-batch-gateway PR#125, PR#127: cancel ends as completed with counts 0/0/0."""
    batch = await parts.started(2500)
    await parts.run(batch, GOOD, BAD, GOOD)
    await parts.batches.cancel(batch.id, tenant="t")
    after = await parts.closer.settle(batch.id)
    assert (after.status, after.total, after.completed, after.failed) == (BatchStatus.CANCELLED, 2500, 2, 2498)
    assert len(await parts.lines_of(after.output_file_id)) == 2
    errors = await parts.lines_of(after.error_file_id)
    assert [each["custom_id"] for each in errors] == ["id-1", *(f"id-{n}" for n in range(3, 2500))]
    assert {each["error"]["code"] for each in errors if each["error"]} == {"batch_cancelled"}


async def test_a_batch_that_is_cancelled_waits_for_what_runs(parts: House) -> None:
    batch = await parts.started(2)
    await parts.store.claim(batch.id, owner="w", now=parts.clock.now(), lease=LEASE, limit=1)
    await parts.batches.cancel(batch.id, tenant="t")
    assert (await parts.closer.settle(batch.id)).status is BatchStatus.CANCELLING
    await parts.store.give_back(owner="w", before=None)
    assert (await parts.closer.settle(batch.id)).status is BatchStatus.CANCELLED


async def test_a_cancel_that_meets_the_finish_always_ends(parts: House) -> None:
    """R61 llm-d/llm-d-batch-gateway#146: cancel that meets the finish leaves "cancelling" for ever."""
    for turn in range(40):
        batch = await parts.started(3, dedupe=str(turn))

        async def cancel(batch: Batch = batch, turns: int = turn) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            with suppress(InvalidValue):  # completed before
                await parts.batches.cancel(batch.id, tenant="t")

        async def finish(batch: Batch = batch) -> None:
            with suppress(ValueError):  # cancelled before it could be claimed
                await parts.run(batch, GOOD)

        await parts.run(batch, GOOD, GOOD)
        await asyncio.gather(cancel(), finish(), parts.closer.settle(batch.id))
        await parts.store.give_back(owner="w", before=None)
        await parts.closer.settle(batch.id)
        after = await parts.closer.settle(batch.id)
        assert after.status in (BatchStatus.COMPLETED, BatchStatus.CANCELLED)
        assert after.completed + after.failed == 3


async def test_what_a_crash_left_half_closed_is_closed_once(parts: House) -> None:
    batch = await parts.started(4)
    await parts.run(batch, GOOD, BAD)
    await parts.batches.cancel(batch.id, tenant="t")
    stored = await parts.store.batch(batch.id)
    await parts.store.end_rest(batch.id, ItemState.CANCELLED, limit=1)
    await parts.files.append(batch.error_file, b'{"half": "a li')
    await parts.files.append(batch.output_file, b"more than was committed")
    after = await parts.closer.settle(batch.id)
    assert after.status is BatchStatus.CANCELLED
    assert len(await parts.lines_of(after.output_file_id)) == 1
    assert [each["custom_id"] for each in await parts.lines_of(after.error_file_id)] == ["id-1", "id-2", "id-3"]
    assert (await parts.files.size(batch.output_file)) == stored.output_size


async def test_settling_many_times_at_once_changes_a_batch_once(parts: House) -> None:
    batch = await parts.started(1)
    await parts.run(batch, BAD)
    results = await asyncio.gather(*(parts.closer.settle(batch.id) for _ in range(5)))
    assert {each.status for each in results} == {BatchStatus.COMPLETED}
    assert len(parts.ended) == 1
    assert len(await parts.lines_of(batch.error_file)) == 1
