"""What a durable batch costs before and beside its requests: intake of a large file, claim and finish of its items."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles

import pytest

from core.batch.service import NewBatch
from core.batch.values import Batch, BatchStatus, ItemEnd, ItemState
from tests.batch_house import ENDPOINT, LEASE, House, house, jsonl, line
from tests.benchmarks.table import measured

pytestmark = [pytest.mark.benchmark, pytest.mark.anyio]

LINES = 100_000
AT_ONCE = 256
PAUSE_S = 0.002
KB = "x" * 850


def resident_mb() -> float:
    with Path("/proc/self/status").open() as status:
        return next(int(row.split()[1]) / 1024 for row in status if row.startswith("VmRSS"))


def pieces(lines: int, text: str) -> Iterator[bytes]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    for start in range(0, lines, 1000):
        yield jsonl(*(line(f"id-{n}", body=body) for n in range(start, min(lines, start + 1000))))


async def lags(found: list[float]) -> None:
    """Note again and again by how much the event loop is late."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(PAUSE_S)
        found.append(time.perf_counter() - began - PAUSE_S)


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as built:
        built.batches.file_bytes = 2**31
        yield built


async def taken(parts: House, lines: int, text: str = "hi") -> tuple[Batch, float]:
    """Return a batch of so many lines after its intake, and how many seconds that took."""
    upload = parts.batches.upload()
    for piece in pieces(lines, text):
        await upload.write(piece)
    file = await upload.finish(tenant="t", filename="in.jsonl", expires_after=None)
    order = NewBatch("t", ENDPOINT, file.id, timedelta(hours=24))
    batch = await parts.batches.create(order, dedupe=file.id, again=False)
    began = time.perf_counter()
    after = await parts.intake(lines=2_000_000).run(batch)
    seconds = time.perf_counter() - began
    assert (after.status, after.total) == (BatchStatus.IN_PROGRESS, lines)
    return after, seconds


async def cycles(parts: House, batch: Batch, times: int) -> tuple[list[float], float]:
    """Claim and finish so many times; return the seconds of each claim, and of all together."""
    claims = []
    began = time.perf_counter()
    for _ in range(times):
        start = time.perf_counter()
        items = await parts.store.claim(batch.id, owner="w", now=parts.clock.now(), lease=LEASE, limit=AT_ONCE)
        claims.append(time.perf_counter() - start)
        ends = [ItemEnd(batch.id, item.index, ItemState.SUCCEEDED, 0, 9, 200) for item in items]
        await parts.store.finish(ends, owner="w", sizes={batch.id: (9, 0)})
    return claims, time.perf_counter() - began


async def test_a_large_file_is_taken(parts: House) -> None:
    await taken(parts, 1000)
    before, late = resident_mb(), list[float]()
    watch = asyncio.create_task(lags(late))
    _, seconds = await taken(parts, LINES, KB)
    watch.cancel()
    measured("intake of 100,000 lines of 1 KB", seconds, unit="s", aim=5, must=10)
    measured("intake: memory growth", resident_mb() - before, unit="MB", aim=50, must=150)
    measured("intake: loop lag p99", 1000 * quantiles(late, n=100)[-1], unit="ms", aim=5, must=10)


async def test_items_are_claimed_and_finished(parts: House) -> None:
    batch, _ = await taken(parts, LINES)
    late = list[float]()
    watch = asyncio.create_task(lags(late))
    _, seconds = await cycles(parts, batch, 100)
    watch.cancel()
    measured(
        "claim + finish, 100,000 queued", 100 * AT_ONCE / seconds, unit="/s", aim=20_000, must=10_000, at_least=True
    )
    measured("claim + finish: loop lag p99", 1000 * quantiles(late, n=100)[-1], unit="ms", aim=2, must=10)


async def test_a_claim_costs_the_same_however_many_are_queued(parts: House) -> None:
    few, _ = await taken(parts, 10_000)
    many, _ = await taken(parts, 1_000_000)
    small, _ = await cycles(parts, few, 30)
    large, _ = await cycles(parts, many, 30)
    measured("claim at 1,000,000 queued against 10,000", median(large) / median(small), unit="x", aim=1.3, must=2)
