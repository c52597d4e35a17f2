"""What the process costs beside requests: start, idling, metrics, open dashboards."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import httpx2
import pytest

from tests.benchmarks import rig
from tests.benchmarks.rig import Target, load
from tests.benchmarks.table import measured

pytestmark = pytest.mark.benchmark


def busy_share(target: Target, seconds: float) -> float:
    """Return the percentage of a core that a process uses while we look on."""
    before, start = target.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return 100 * (target.cpu_s() - before) / (time.monotonic() - start)


def test_start_to_ready(stub: Target) -> None:
    took = []
    for _ in range(3):
        start = time.monotonic()
        with rig.tidegate(stub.port):
            took.append(time.monotonic() - start)
    measured("start to ready", median(took), unit="s", aim=2, must=3)


def test_idling(stub: Target) -> None:
    with rig.tidegate(stub.port) as target:
        time.sleep(2)
        measured("idle: share of a core", busy_share(target, 20), unit="%", aim=0.5, must=1)
        measured("idle: memory", target.memory_bytes() / 1e6, unit="MB", aim=100, must=120)


def test_metrics(tidegate: Target) -> None:
    load(tidegate, kind="requests", connections=8, seconds=1.0)
    load(tidegate, kind="streams", streams=20, chunks=20, gap=0.01)
    with httpx2.Client() as client:
        url = f"http://127.0.0.1:{tidegate.port}/metrics"
        client.get(url)
        before, times = tidegate.cpu_s(), 100
        lines = [client.get(url).text.count("\n") for _ in range(times)][-1]
    cost = 1000 * (tidegate.cpu_s() - before) / times
    measured(f"/metrics, {lines} lines: processor", cost, unit="ms", aim=5, must=15)


@contextmanager
def dashboards(target: Target, number: int) -> Iterator[None]:
    """Keep so many live pages open; nothing reads them but the kernel's buffers."""
    with ExitStack() as stack:
        for _ in range(number):
            page = stack.enter_context(socket.create_connection(("127.0.0.1", target.port)))
            page.sendall(b"GET /ui/stream?page=overview&pool=default HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert page.recv(12) == b"HTTP/1.1 200"
        yield


def test_50_live_dashboards(stub: Target) -> None:
    with rig.tidegate(stub.port) as target:
        time.sleep(2)
        idle = busy_share(target, 8)
        with dashboards(target, 50):
            time.sleep(1)
            measured("50 live dashboards: share of a core", busy_share(target, 15) - idle, unit="%", aim=3, must=5)
