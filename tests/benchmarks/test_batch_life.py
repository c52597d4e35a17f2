"""The whole life of a durable batch: what the store costs beside its requests, and a large file from end to end."""

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import pytest

from core.batch.attempts import ItemSender
from core.batch.service import NewBatch
from core.batch.values import Batch, BatchStatus, ClaimedItem
from core.config import Settings
from core.lanes import Outcome
from core.runtime import Runtime
from tests.batch_house import ENDPOINT, jsonl, line
from tests.benchmarks import rig
from tests.benchmarks.rig import Target, load
from tests.benchmarks.table import measured
from web.serving import rest_the_collector, run_to_end

pytestmark = pytest.mark.benchmark

AT_ONCE = 48
ITEMS = 10_000
ROUNDS = 3
LINES = 100_000
LINES_A_PIECE = 500
BODY = {"model": "stub", "messages": [{"role": "user", "content": "x" * 850}]}
BOUNDARY = b"a-file-of-lines"
DEADLINE_S = 600.0


def pieces(lines: int) -> Iterator[bytes]:
    """Yield a file of so many lines of 1 KB, some lines at once."""
    for start in range(0, lines, LINES_A_PIECE):
        yield jsonl(*(line(f"id-{n}", body=BODY) for n in range(start, min(lines, start + LINES_A_PIECE))))


# With durability and without


async def durable_s(runtime: Runtime, data: bytes) -> float:
    """Return the seconds from a file to its last result, in the store and on disk."""
    began = time.perf_counter()
    upload = runtime.batches.upload()
    await upload.write(data)
    file = await upload.finish(tenant="t", filename="in.jsonl", expires_after=None)
    batch = await runtime.batches.create(NewBatch("t", ENDPOINT, file.id, "24h"), dedupe=file.id, again=False)
    while not batch.ended:
        await asyncio.sleep(0.1)
        batch = await runtime.store.batch(batch.id)
    assert (batch.status, batch.completed) == (BatchStatus.COMPLETED, ITEMS), batch.errors
    return time.perf_counter() - began


async def straight_s(runtime: Runtime, data: bytes, batch: Batch) -> float:
    """Return the seconds that the same lines take by the same sender and gateway, when nothing of them is stored."""
    sender, pool = ItemSender(clock=runtime.clock), runtime.pools["default"]
    lines = enumerate(data.splitlines())

    async def send() -> None:
        for index, text in lines:
            item = ClaimedItem(batch.id, index, f"id-{index}", 0, len(text), "stub", 0)
            answer = await sender.send(item, batch, pool, text, begun=lambda exchange: None)
            assert answer.attempt.outcome is Outcome.SUCCESS

    began = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return time.perf_counter() - began


async def against_straight(port: int, folder: Path) -> None:
    data = b"".join(pieces(ITEMS))
    slots: dict[str, Any] = {"slots": AT_ONCE + 1, "floor": AT_ONCE, "ceiling": AT_ONCE}
    runtime = Runtime(settings=Settings(upstream=f"http://127.0.0.1:{port}/v1", data=folder, **slots))
    await runtime.start()
    rest_the_collector()
    try:
        now = runtime.clock.now()
        bare = Batch("batch_0", "t", None, "default", "stub", ENDPOINT, "", now - now, now)
        rounds = [(await straight_s(runtime, data, bare), await durable_s(runtime, data)) for _ in range(ROUNDS)]
    finally:
        await runtime.stop()
    straight, durable = median(each[0] for each in rounds), median(each[1] for each in rounds)
    measured("items per second, in one process, nothing stored", ITEMS / straight, unit="/s")
    measured("items per second, in one process, durable", ITEMS / durable, unit="/s")
    measured("durable against the bare sender and gateway", straight / durable, unit="x")


def test_durable_items_against_the_bare_sender_and_gateway(stub: Target) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_to_end(against_straight(stub.port, Path(folder)))


def sent(target: Target) -> tuple[float, float]:
    """Return batch requests per second, and microseconds of processor for each, when a client sends them."""
    before = target.cpu_s()
    told = load(target, kind="requests", connections=AT_ONCE, seconds=3.0, body=BODY | {"service_tier": "flex"})
    return told["rate"], 1e6 * (target.cpu_s() - before) / told["requests"]


def durable(target: Target, client: httpx2.Client) -> tuple[float, float]:
    """Return the same of durable items, from the first byte of their file to the last result."""
    before, began = target.cpu_s(), time.monotonic()
    batch = until(client, submitted(client, ITEMS), "completed", "failed")
    rate = ITEMS / (time.monotonic() - began)
    assert batch["request_counts"]["completed"] == ITEMS, batch
    return rate, 1e6 * (target.cpu_s() - before) / ITEMS


def test_durable_items_against_the_same_bodies_sent_as_requests(stub: Target) -> None:
    lane = {"TIDEGATE_SLOTS": str(AT_ONCE + 1), "TIDEGATE_FLOOR": str(AT_ONCE), "TIDEGATE_CEILING": str(AT_ONCE)}
    with rig.tidegate(stub.port, **lane) as target, client_of(target) as client:
        rounds = [(*sent(target), *durable(target, client)) for _ in range(ROUNDS)]
    rate, cost, durable_rate, durable_cost = (median(column) for column in zip(*rounds, strict=True))
    measured("batch requests per second, sent one by one", rate, unit="/s")
    measured("durable items per second, from the file's first byte", durable_rate, unit="/s")
    measured("rate of durable items against requests", durable_rate / rate, unit="x", must=0.5, at_least=True)
    measured("processor of durable items against requests", durable_cost / cost, unit="x", must=2)


# A large file


class Peak:
    """The most memory that a process holds while the context lasts, beyond what it held before, in MB."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before = self._most = target.memory_bytes()
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look)

    def __enter__(self) -> "Peak":
        self._watch.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._watch.join()

    @property
    def growth_mb(self) -> float:
        return (self._most - self._before) / 2**20

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self._most = max(self._most, self._target.memory_bytes())


def form(lines: int) -> Iterator[bytes]:
    """Yield the form of an upload as it comes from a client that does not know its length."""
    part = b'--%b\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n'
    head = part % (BOUNDARY, b"purpose", b"") + b"batch\r\n" + part % (BOUNDARY, b"file", b'; filename="in.jsonl"')
    return chain([head], pieces(lines), [b"\r\n--%b--\r\n" % BOUNDARY])


@contextmanager
def client_of(target: Target) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{target.port}/v1", timeout=60) as client:
        yield client


def submitted(client: httpx2.Client, lines: int) -> dict[str, Any]:
    kind = {"content-type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    file = client.post("/files", content=form(lines), headers=kind).raise_for_status().json()
    order = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
    batch: dict[str, Any] = client.post("/batches", json=order).raise_for_status().json()
    return batch


def until(client: httpx2.Client, batch: dict[str, Any], *statuses: str) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_S
    while batch["status"] not in statuses:
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
        batch = client.get(f"/batches/{batch['id']}").raise_for_status().json()
    return batch


def test_the_whole_life_of_a_large_file(stub: Target) -> None:
    settings = {"TIDEGATE_SLOTS": "64", "TIDEGATE_BATCH_LINES": str(LINES)}
    with rig.tidegate(stub.port, **settings) as target, client_of(target) as client, Peak(target) as peak:
        began = time.monotonic()
        batch = until(client, submitted(client, LINES), "in_progress", "completed", "failed")
        accepted = time.monotonic()
        batch = until(client, batch, "completed", "failed")
        ended = time.monotonic()
        assert batch["request_counts"]["completed"] == LINES, batch
        with client.stream("GET", f"/files/{batch['output_file_id']}/content") as results:
            assert sum(piece.count(b"\n") for piece in results.iter_bytes()) == LINES
    measured("100,000 lines of 1 KB: first byte to accepted", accepted - began, unit="s", aim=5, must=10)
    measured("100,000 lines of 1 KB: accepted to completed", ended - accepted, unit="s")
    measured("100,000 lines of 1 KB: memory growth, whole life", peak.growth_mb, unit="MB", aim=75, must=150)
