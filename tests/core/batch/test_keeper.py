import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from core.batch.keeper import AT_ONCE, Keeper
from core.batch.values import Batch, BatchStatus, ItemState
from core.batch.wake import Wake
from tests.batch_house import House, jsonl, line

pytestmark = pytest.mark.anyio
DEADLINE_S = 20.0


def keeper(parts: House) -> Keeper:
    return Keeper(store=parts.store, intake=parts.intake(), closer=parts.closer, wake=parts.wake)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not await condition():
        assert time.monotonic() < deadline, "this never came true"
        await asyncio.sleep(0.005)


async def reaches(parts: House, batch: Batch, status: BatchStatus) -> None:
    async def there() -> bool:
        return (await parts.store.batch(batch.id)).status is status

    await eventually(there)


async def test_batches_are_validated_run_to_their_end_and_closed(parts: House) -> None:
    found_at_start = [await parts.create(jsonl(line()), dedupe=str(n)) for n in range(AT_ONCE + 3)]
    service = keeper(parts)
    service.start()
    for batch in found_at_start:
        await reaches(parts, batch, BatchStatus.IN_PROGRESS)
    batch = await parts.create(jsonl(line()), dedupe="later")
    await reaches(parts, batch, BatchStatus.IN_PROGRESS)
    await parts.run(batch, ItemState.SUCCEEDED)
    parts.wake.notify()
    await reaches(parts, batch, BatchStatus.COMPLETED)
    await parts.batches.cancel(found_at_start[0].id, tenant="t")
    await reaches(parts, found_at_start[0], BatchStatus.CANCELLED)
    parts.clock.time += timedelta(hours=24)
    await reaches(parts, found_at_start[1], BatchStatus.EXPIRED)
    await service.stop()


async def test_a_batch_that_cannot_be_kept_stops_no_other(parts: House) -> None:
    broken = await parts.started(1, dedupe="1")
    await parts.run(broken, ItemState.SUCCEEDED)
    real = parts.files.truncate

    async def fail(file_id: str, size: int) -> None:
        if file_id == broken.output_file:
            raise OSError("the disk is gone")
        await real(file_id, size)

    parts.files.truncate = fail  # type: ignore[method-assign]
    service = keeper(parts)
    service.start()
    await reaches(parts, broken, BatchStatus.FINALIZING)
    good = await parts.create(jsonl(line()), dedupe="2")
    await reaches(parts, good, BatchStatus.IN_PROGRESS)
    parts.files.truncate = real  # type: ignore[method-assign]
    await reaches(parts, broken, BatchStatus.COMPLETED)
    await service.stop()


async def test_a_stop_in_the_middle_of_a_validation_loses_nothing(parts: House) -> None:
    batch = await parts.create(jsonl(*(line(f"id-{n}") for n in range(5000))))
    service = keeper(parts)
    service.start()

    async def begun() -> bool:
        return (await parts.store.batch(batch.id)).total > 0

    await eventually(begun)
    await service.stop()
    await service.stop()
    service.start()
    await reaches(parts, batch, BatchStatus.IN_PROGRESS)
    assert (await parts.store.batch(batch.id)).total == 5000
    await service.stop()


async def test_a_wake_up_that_came_while_busy_is_not_missed() -> None:
    wake = Wake()
    seen = wake.count
    wake.notify()
    assert await wake.wait(seen, 60) == seen + 1
    waiters = [asyncio.create_task(wake.wait(wake.count, 60)) for _ in range(3)]
    await asyncio.sleep(0)
    wake.notify()
    assert await asyncio.gather(*waiters) == [seen + 2] * 3
    assert await wake.wait(wake.count, 0.001) == seen + 2
