import asyncio
import time
from dataclasses import replace

import pytest

from core.batch.intake import ERRORS_KEPT
from core.batch.values import BatchStatus, ItemState, NewItem
from core.errors import NotFound
from tests.batch_house import House, jsonl, line

pytestmark = pytest.mark.anyio


async def test_a_good_file_becomes_items_and_the_batch_is_in_progress(parts: House) -> None:
    data = b"\xef\xbb\xbf" + jsonl(*(line(f"id-{n}") for n in range(503))).replace(b"\n", b"\r\n")
    batch = await parts.create(data)
    assert (batch.status, batch.total) == (BatchStatus.VALIDATING, 0)
    after = await parts.intake().run(batch)
    assert (after.status, after.total, after.pool, after.model) == (BatchStatus.IN_PROGRESS, 503, "default", "m")
    assert after.in_progress_at == parts.clock.now()
    rows = await parts.store.items(batch.id, limit=1000)
    assert [row.custom_id for row in rows] == [f"id-{n}" for n in range(503)]
    [item] = await parts.store.claim(
        batch.id, owner="w", now=parts.clock.now(), lease=parts.clock.now() - parts.clock.now(), limit=1
    )
    assert await parts.files.read(batch.input_file_id, item.offset, item.length) == data[3:].split(b"\r\n")[0]


async def test_one_bad_line_refuses_all_and_leaves_nothing_queued(parts: House) -> None:
    lines = [line(f"id-{n}") for n in range(505)]
    batch = await parts.create(jsonl(*lines, line("x", method="GET"), line("id-0")))
    after = await parts.intake().run(batch)
    assert (after.status, after.failed_at, after.total) == (BatchStatus.FAILED, parts.clock.now(), 0)
    found = [(error.code, error.line) for error in after.errors]
    assert found == [("invalid_method", 506), ("duplicate_custom_id", 507)]
    assert await parts.store.items(batch.id) == []
    assert (await parts.store.batch(batch.id)).total == 0


async def test_no_more_errors_are_kept_than_one_can_read(parts: House) -> None:
    batch = await parts.create(b"note\n" * (ERRORS_KEPT + 50))
    assert len((await parts.intake().run(batch)).errors) == ERRORS_KEPT


@pytest.mark.parametrize("data", [b"", b"\n\r\n  \n", b"\xef\xbb\xbf"])
async def test_an_empty_file_is_refused(parts: House, data: bytes) -> None:
    after = await parts.intake().run(await parts.create(data))
    assert [error.code for error in after.errors] == ["empty_file"]


async def test_one_line_more_than_allowed_is_refused(parts: House) -> None:
    batch = await parts.create(jsonl(*(line(f"id-{n}") for n in range(4))))
    after = await parts.intake(lines=3).run(batch)
    assert [(error.code, error.line) for error in after.errors] == [("too_many_lines", 4)]
    assert (await parts.intake(lines=4).run(await parts.create(jsonl(line()), dedupe="2"))).total == 1


async def test_an_unknown_model_is_told_with_its_line(parts: House) -> None:
    after = await parts.intake(route=lambda model: None).run(await parts.create(jsonl(line())))
    assert [(error.code, error.line, error.param) for error in after.errors] == [("model_not_found", 1, "body.model")]


async def test_an_input_file_that_is_gone_fails_the_batch(parts: House) -> None:
    batch = await parts.create(jsonl(line()))
    await parts.files.delete(batch.input_file_id)
    assert [error.code for error in (await parts.intake().run(batch)).errors] == ["file_not_found"]


async def test_a_batch_found_half_taken_is_taken_anew(parts: House) -> None:
    batch = await parts.create(jsonl(*(line(f"id-{n}") for n in range(3))))
    await parts.store.add_items(batch.id, [NewItem(n, f"old-{n}", 0, 1, "m", 1, None) for n in range(2)])
    after = await parts.intake().run(await parts.store.batch(batch.id))
    assert (after.status, after.total) == (BatchStatus.IN_PROGRESS, 3)
    assert [row.custom_id for row in await parts.store.items(batch.id)] == ["id-0", "id-1", "id-2"]


async def test_a_batch_cancelled_meanwhile_stays_so_and_has_no_items(parts: House) -> None:
    batch = await parts.create(jsonl(*(line(f"id-{n}") for n in range(3))))
    await parts.batches.cancel(batch.id, tenant="t")
    after = await parts.intake().run(batch)
    assert after.status is BatchStatus.CANCELLING
    settled = await parts.closer.settle(batch.id)
    assert (settled.status, settled.total, settled.error_file_id) == (BatchStatus.CANCELLED, 0, None)
    with pytest.raises(NotFound):
        await parts.store.file(batch.error_file, tenant=None)


async def test_a_change_by_a_person_meanwhile_is_kept(parts: House) -> None:
    batch = await parts.create(jsonl(line()))
    await parts.batches.prioritise(batch.id, 9, tenant="t")
    after = await parts.intake().run(batch)
    assert (after.status, after.priority) == (BatchStatus.IN_PROGRESS, 9)


async def test_a_large_file_is_taken_in_many_turns_so_that_all_else_goes_on(parts: House) -> None:
    batch = await parts.create(jsonl(*(line(f"id-{n}") for n in range(20_000))))
    turns, done = 0, False

    async def everything_else() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0.001)

    other = asyncio.create_task(everything_else())
    began = time.process_time()
    after = await parts.intake().run(batch)
    done = True
    await other
    assert after.total == 20_000
    # A share of the turns that a file this size needs at least, whatever the machine.
    assert turns > 20, time.process_time() - began


async def test_items_start_pending_and_validation_shows_no_count(parts: House) -> None:
    batch = await parts.started(2)
    rows = await parts.store.items(batch.id)
    assert {row.state for row in rows} == {ItemState.PENDING}
    assert replace(batch, version=0).left == 2
