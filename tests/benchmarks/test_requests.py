"""What one request costs and how much later its answer comes, beside the anchor's."""

from statistics import median
from typing import Any

import pytest

from tests.benchmarks.rig import Target, load
from tests.benchmarks.table import NOTES, measured

pytestmark = pytest.mark.benchmark
ROUNDS = 5


def cpu_per_request(target: Target) -> tuple[float, float]:
    """Return microseconds of processor per request, and requests per second, at full load."""
    before = target.cpu_s()
    told = load(target, kind="requests", connections=64, seconds=3.0)
    return 1e6 * (target.cpu_s() - before) / told["requests"], told["rate"]


def test_processor_per_request(tidegate: Target, anchor: Target) -> None:
    load(tidegate, kind="requests", connections=64, seconds=1.0)
    rounds = [(cpu_per_request(anchor), cpu_per_request(tidegate)) for _ in range(ROUNDS)]
    theirs, ours = median(a[0] for a, _ in rounds), median(t[0] for _, t in rounds)
    measured(f"processor per request, {anchor.name}", theirs, unit="us")
    measured("processor per request, Tidegate", ours, unit="us")
    measured("requests per second, Tidegate, one worker", median(t[1] for _, t in rounds))
    against_nginx: dict[str, Any] = {"aim": 7, "must": 10} if anchor.name == "nginx" else {}
    measured(f"processor per request against {anchor.name}", ours / theirs, unit="x", **against_nginx)


def test_added_delay_at_a_steady_rate(stub: Target, tidegate: Target, anchor: Target) -> None:
    targets = {"straight": stub, "anchor": anchor, "ours": tidegate}
    told: dict[str, list[dict[str, float]]] = {name: [] for name in targets}
    for _ in range(3):
        for name, target in targets.items():
            told[name].append(load(target, kind="requests", connections=32, seconds=4.0, rate=300))
    for share, aim, must in (("p50", 4, 6), ("p99", 4, 8)):
        took = {name: median(run[share] for run in runs) for name, runs in told.items()}
        ours, theirs = took["ours"] - took["straight"], took["anchor"] - took["straight"]
        measured(f"added {share} at 300/s, {anchor.name}", 1e6 * theirs, unit="us")
        measured(f"added {share} at 300/s, Tidegate", 1e6 * ours, unit="us")
        if min(ours, theirs) <= 0:
            NOTES.append(f"added {share} at 300/s: other work on this machine drowned it; no ratio can be told")
            continue
        bounds: dict[str, Any] = {"aim": aim, "must": must} if anchor.name == "nginx" else {}
        measured(f"added {share} at 300/s against {anchor.name}", ours / theirs, unit="x", **bounds)
