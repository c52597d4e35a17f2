"""What a stream costs: processor per chunk, delay of a chunk among many streams, memory while it is open."""

import resource
from statistics import median
from typing import Any

import pytest

from tests.benchmarks import rig, table
from tests.benchmarks.rig import Target, held_streams, load
from tests.benchmarks.table import measured

pytestmark = pytest.mark.benchmark
GAP = 0.05
GAP_OF_HELD = 20.0
MANY = 9000
BUSY_MS = 3.0


def cpu_per_chunk(target: Target) -> float:
    before = target.cpu_s()
    told = load(target, kind="streams", streams=200, chunks=100, gap=GAP)
    return 1e6 * (target.cpu_s() - before) / told["chunks"]


def test_processor_per_chunk_at_20_a_second(tidegate: Target, anchor: Target) -> None:
    rounds = [(cpu_per_chunk(anchor), cpu_per_chunk(tidegate)) for _ in range(3)]
    theirs, ours = (median(column) for column in zip(*rounds, strict=True))
    measured(f"processor per chunk at 20/s, {anchor.name}", theirs, unit="us")
    measured("processor per chunk at 20/s, Tidegate", ours, unit="us")
    bounds: dict[str, Any] = {"aim": 3, "must": 4} if anchor.name == "nginx" else {}
    measured(f"processor per chunk against {anchor.name}", ours / theirs, unit="x", **bounds)


def test_delay_of_chunks_in_1000_streams(stub: Target, tidegate: Target, anchor: Target) -> None:
    targets = {"straight": stub, anchor.name: anchor, "Tidegate": tidegate}
    straight_ms = 0.0
    for name, target in targets.items():
        before = target.cpu_s()
        told = load(target, kind="streams", streams=1000, chunks=160, gap=GAP)
        cpu = (target.cpu_s() - before) / (160 * GAP)
        if name == "straight":
            straight_ms = 1000 * told["p99"]
            if straight_ms > BUSY_MS:
                table.NOTES.append(f"delays of chunks are not judged: straight ones already took {straight_ms:.0f} ms")
        judged = name == "Tidegate" and straight_ms <= BUSY_MS
        bounds: dict[str, Any] = {"aim": 3, "must": 10} if judged else {}
        measured(f"1,000 streams at 20/s: p99 delay of a chunk, {name}", 1000 * told["p99"], unit="ms", **bounds)
        if name != "straight":
            measured(f"1,000 streams at 20/s: share of a core, {name}", 100 * cpu, unit="%")


def test_memory_of_open_streams() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    streams = min(MANY, (hard - 500) // 2)
    if streams < MANY:
        table.NOTES.append(f"only {streams:,} streams were opened: the limit of open files is {hard:,}")
    try:
        with rig.stub() as stub, rig.tidegate(stub.port) as target:
            load(target, kind="requests", connections=64, seconds=1.0)
            empty = target.memory_bytes()
            with held_streams(target, 1000, GAP_OF_HELD):
                one_thousand = target.memory_bytes()
            with held_streams(target, streams, GAP_OF_HELD):
                all_open = target.memory_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    measured("memory per open stream, of 1,000", (one_thousand - empty) / 1000 / 1024, unit="KB", aim=25, must=35)
    measured(f"memory with {streams:,} open streams", all_open / 1e6, unit="MB", aim=250, must=350)
