"""Workers over the real stores, on both databases, with a real clock."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.batch.closer import Closer
from core.batch.keeper import Keeper
from core.batch.states import move
from core.batch.values import Batch, BatchStatus, NewItem
from core.batch.wake import Wake
from core.batch.worker import BatchWorker
from core.clock import SystemClock
from core.config import PoolConfig, pool_settings
from core.control.windows import Schedule
from core.pools import Pool
from core.ports import UpstreamRequest
from core.runtime import build_pool
from core.storage.files import DiskFiles
from core.storage.store import SqlStore
from tests.fakes import Script, ScriptedUpstream, streamed, whole

pytestmark = pytest.mark.anyio
DAY = timedelta(days=1)
CONFIG = PoolConfig(base_url="http://upstream/v1", slots=8, floor=3, ceiling=3)


def name_of(request: UpstreamRequest) -> str:
    body: dict[str, Any] = msgspec.json.decode(request.body)
    return str(body["user"])


def pool(upstream: ScriptedUpstream) -> Pool:
    settings = pool_settings(CONFIG)
    return build_pool(
        CONFIG,
        settings=settings,
        schedule=Schedule(),
        clock=upstream.clock,
        upstream=upstream,
        emit=lambda decision: None,
    )


async def add(store: SqlStore, files: DiskFiles, name: str, lines: int) -> Batch:
    batch = Batch(
        id=name,
        tenant="t",
        key=None,
        pool="default",
        model="m",
        endpoint="/v1/chat/completions",
        input_file_id=f"file-{name}",
        window=DAY,
        created_at=datetime.now(UTC),
    )
    await store.create(batch)
    items = []
    for index in range(lines):
        line = msgspec.json.encode({"custom_id": f"{name}-{index}", "body": {"user": f"{name}-{index}"}})
        offset = await files.append(batch.input_file_id, line + b"\n")
        items.append(NewItem(index, f"{name}-{index}", offset, len(line), "m", 10, None))
    await store.add_items(name, items)
    return await store.update(move(await store.batch(name), BatchStatus.IN_PROGRESS, batch.created_at))


async def ended(store: SqlStore, name: str) -> Batch:
    async with asyncio.timeout(60):
        while not (batch := await store.batch(name)).ended:
            await asyncio.sleep(0.02)
    return batch


def worker(
    store: SqlStore, files: DiskFiles, upstream: ScriptedUpstream, wake: Wake, owner: str, **options: Any
) -> BatchWorker:
    given = {"pools": {"default": pool(upstream)}, "emit": lambda decision: None, "grace_s": 0.0, **options}
    return BatchWorker(store=store, files=files, clock=upstream.clock, wake=wake, owner=owner, **given)


async def test_two_workers_send_each_line_of_500_once(store: SqlStore, tmp_path: Path) -> None:
    """R65 BerriAI/litellm#19301."""
    files, wake = DiskFiles(folder=tmp_path / "files"), Wake()
    upstream = ScriptedUpstream(SystemClock(), lambda request, n: streamed(2, first=0.001, gap=0.001))
    workers = [worker(store, files, upstream, wake, owner, alone=False) for owner in ("one", "two")]
    await add(store, files, "b", 500)
    for each in workers:
        each.start()
    closer = Closer(store=store, files=files, clock=upstream.clock, retention=DAY)
    keeper = Keeper(store=store, intake=None, closer=closer, wake=wake)  # nothing is to be validated here
    keeper.start()
    try:
        batch = await ended(store, "b")
    finally:
        for each in [*workers, keeper]:
            await each.stop()
    assert (batch.completed, batch.failed) == (500, 0)
    assert Counter(map(name_of, upstream.requests)) == Counter({f"b-{n}": 1 for n in range(500)})


async def test_what_is_retried_cancelled_and_given_back_is_so_in_the_real_store_too(
    store: SqlStore, tmp_path: Path
) -> None:
    def answer(request: UpstreamRequest, n: int) -> Script:
        if name_of(request) == "b-1" and n < 4:
            return whole(0.0, status=409, body=b'{"error":{"message":"later"}}')
        return streamed(2, first=0.001, gap=0.001 if n < 10 else 60.0)

    files, wake = DiskFiles(folder=tmp_path / "files"), Wake()
    upstream = ScriptedUpstream(SystemClock(), answer)
    first = worker(store, files, upstream, wake, "first")
    await add(store, files, "b", 30)
    first.start()
    async with asyncio.timeout(60):
        while len(upstream.requests) < 11 or (await store.batch("b")).completed < 8:
            await asyncio.sleep(0.02)
    await first.stop()
    left = await store.batch("b")
    assert left.running == 0
    assert upstream.in_flight == 0
    rows = {row.custom_id: row for row in await store.items("b")}
    assert rows["b-1"].attempts == 1
    assert sum(row.attempts for row in rows.values()) == left.completed + (rows["b-1"].state == "pending")
    before = len(upstream.requests)
    second = worker(store, files, upstream, wake, "second")
    second.start()
    async with asyncio.timeout(60):
        while len(upstream.requests) < before + 3:
            await asyncio.sleep(0.02)
    await store.update(move(await store.batch("b"), BatchStatus.CANCELLING, datetime.now(UTC)))
    closer = Closer(store=store, files=files, clock=upstream.clock, retention=DAY)
    keeper = Keeper(store=store, intake=None, closer=closer, wake=wake)  # nothing is to be validated here
    keeper.start()
    batch = await ended(store, "b")
    await second.stop()
    await keeper.stop()
    assert (batch.status, batch.completed + batch.failed) == (BatchStatus.CANCELLED, 30)
    assert upstream.in_flight == 0
    assert batch.error_file_id is not None
    lines = (await files.read(batch.error_file_id, 0, 10**6)).splitlines()
    assert len(lines) == batch.failed
