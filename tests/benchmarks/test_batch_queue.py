"""What the durable queue costs: intake of a large file, claim and finish of its items."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import pytest

from core.batch.service import NewBatch
from core.batch.values import Batch, BatchStatus, ItemEnd, ItemState
from tests.batch_house import ENDPOINT, LEASE, House, house, jsonl, line
from tests.benchmarks.table import NOTES, measured
from tests.postgres import Missing, fresh_database, postgres

pytestmark = [pytest.mark.benchmark, pytest.mark.anyio]

LINES = 100_000
AT_ONCE = 256
PAUSE_S = 0.002
KB = "x" * 850


def resident_mb() -> float:
    with Path("/proc/self/status").open() as status:
        return next(int(row.split()[1]) / 1024 for row in status if row.startswith("VmRSS"))


def pieces(lines: int, text: str) -> Iterator[bytes]:
    """Yield the file, a thousand lines at once."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    for start in range(0, lines, 1000):
        yield jsonl(*(line(f"id-{n}", body=body) for n in range(start, min(lines, start + 1000))))


@contextmanager
def late() -> Iterator[list[float]]:
    """Note again and again, meanwhile, by how many seconds the event loop is late."""
    found = list[float]()
    watch = asyncio.create_task(_watch(found))
    try:
        yield found
    finally:
        watch.cancel()


async def _watch(found: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(PAUSE_S)
        found.append(time.perf_counter() - began - PAUSE_S)


def p99_ms(found: list[float]) -> float:
    return 1000 * quantiles(found, n=100)[-1]


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as built:
        built.batches.file_bytes = 2**31
        yield built


async def created(parts: House, lines: int, text: str = "hi") -> Batch:
    """Return a batch of so many lines before its intake."""
    upload = parts.batches.upload()
    for piece in pieces(lines, text):
        await upload.write(piece)
    file = await upload.finish(tenant="t", filename="in.jsonl", expires_after=None)
    return await parts.batches.create(NewBatch("t", ENDPOINT, file.id, "24h"), dedupe=file.id, again=False)


async def taken(parts: House, batch: Batch) -> Batch:
    """Return a batch after its intake."""
    after = await parts.intake(lines=2_000_000).run(batch)
    assert after.status is BatchStatus.IN_PROGRESS
    return after


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
    await taken(parts, await created(parts, 1000))
    batch = await created(parts, LINES, KB)
    before, began = resident_mb(), time.perf_counter()
    with late() as found:
        await taken(parts, batch)
    measured("intake of 100,000 lines of 1 KB", time.perf_counter() - began, unit="s", aim=5, must=10)
    measured("intake: memory growth", resident_mb() - before, unit="MB", aim=50, must=150)
    measured("intake: loop lag p99", p99_ms(found), unit="ms", aim=5, must=10)


async def claims(parts: House, database: str, *, aim: float, must: float) -> None:
    """Measure claim and finish in a backlog of 100,000."""
    batch = await taken(parts, await created(parts, LINES))
    with late() as found:
        _, seconds = await cycles(parts, batch, 100)
    what = f"claim + finish, 100,000 queued, {database}"
    measured(what, 100 * AT_ONCE / seconds, unit="/s", aim=aim, must=must, at_least=True)
    measured(f"claim + finish, {database}: loop lag p99", p99_ms(found), unit="ms", aim=2, must=10)


async def test_items_are_claimed_and_finished_on_sqlite(parts: House) -> None:
    await claims(parts, "SQLite", aim=20_000, must=10_000)


async def test_items_are_claimed_and_finished_on_postgresql(tmp_path: Path) -> None:
    try:
        with postgres() as server:
            async with fresh_database(server) as url, house(tmp_path, url) as parts:
                parts.batches.file_bytes = 2**31
                await claims(parts, "PostgreSQL", aim=10_000, must=5_000)
    except Missing as missing:
        NOTES.append(str(missing))


async def test_a_claim_costs_the_same_however_many_are_queued(parts: House) -> None:
    few = await taken(parts, await created(parts, 10_000))
    many = await taken(parts, await created(parts, 1_000_000))
    small, _ = await cycles(parts, few, 30)
    large, _ = await cycles(parts, many, 30)
    measured("claim at 1,000,000 queued against 10,000", median(large) / median(small), unit="x", aim=1.3, must=2)
