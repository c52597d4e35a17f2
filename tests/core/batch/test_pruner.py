import os
from datetime import timedelta
from pathlib import Path

import pytest

from core.batch.pruner import Pruned, Pruner
from core.batch.values import ItemState
from core.errors import NotFound
from tests.batch_house import START, House

pytestmark = pytest.mark.anyio
DAY = timedelta(days=1)


def pruner(parts: House) -> Pruner:
    return Pruner(store=parts.store, files=parts.files, retention=30 * DAY)


def age(folder: Path, *, seconds: float) -> None:
    for path in folder.glob("files/*/*"):
        os.utime(path, (seconds, seconds))


async def test_files_and_items_go_when_their_time_is_over(parts: House) -> None:
    batch = await parts.started(1200)
    await parts.run(batch, ItemState.SUCCEEDED)
    await parts.batches.cancel(batch.id, tenant="t")
    done = await parts.closer.settle(batch.id)
    assert await pruner(parts).run_once(START + 29 * DAY) == Pruned()
    assert await pruner(parts).run_once(START + 31 * DAY) == Pruned(files=3, items=1200)
    assert await parts.store.items(batch.id) == []
    assert (await parts.store.batch(batch.id)).completed == 1
    for file_id in (done.input_file_id, done.output_file_id, done.error_file_id):
        with pytest.raises(NotFound):
            await parts.store.file(str(file_id), tenant=None)
        assert await parts.files.size(str(file_id)) == 0
    assert await pruner(parts).run_once(START + 31 * DAY) == Pruned()


async def test_what_an_open_batch_needs_stays_however_old(parts: House, tmp_path: Path) -> None:
    batch = await parts.started(2)
    await parts.run(batch, ItemState.SUCCEEDED)
    age(tmp_path, seconds=0)
    assert await pruner(parts).run_once(START + 90 * DAY) == Pruned()
    assert await parts.files.size(batch.output_file) > 0


async def test_bytes_that_nobody_knows_go_after_a_day(parts: House, tmp_path: Path) -> None:
    upload = parts.batches.upload()
    await upload.write(b"x" * 300_000)
    kept = await parts.file(b"{}")
    age(tmp_path, seconds=START.timestamp())
    assert await pruner(parts).run_once(START + DAY) == Pruned()
    assert await pruner(parts).run_once(START + DAY + timedelta(seconds=1)) == Pruned(strays=1)
    assert await parts.files.size(upload.id) == 0
    assert await parts.files.size(kept.id) == 2
