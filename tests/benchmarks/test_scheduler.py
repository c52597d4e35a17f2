"""What the scheduler costs in process, and that a long queue does not make it dearer."""

import time
from collections.abc import Callable

import pytest

from core.lanes import Lane, Outcome
from core.quotas import PoolLimits
from core.scheduling.dispatcher import Dispatcher
from core.scheduling.limiter import Limiter
from core.scheduling.tickets import Ticket
from tests.benchmarks.table import measured

pytestmark = pytest.mark.benchmark
RUNS, TIMES = 15, 10_000


class Idle:
    """A clock that measures and never calls."""

    monotonic = staticmethod(time.monotonic)

    def cancel(self) -> None: ...

    def call_later(self, seconds: float, callback: Callable[..., object], *args: object) -> "Idle":
        return self


def per_call_us(act: Callable[[], None]) -> float:
    """Return what one call takes of the processor, the least of several runs: whatever else runs here only adds."""
    runs = []
    for _ in range(RUNS):
        start = time.thread_time()
        for _ in range(TIMES):
            act()
        runs.append(1e6 * (time.thread_time() - start) / TIMES)
    return min(runs)


def ticket(lane: Lane) -> Ticket:
    return Ticket(lane, time.monotonic(), lambda: None, lambda cause: None)


def dispatcher(limits: PoolLimits) -> Dispatcher:
    slots = Limiter(limits=limits)
    return Dispatcher(limits=limits, slots=slots, clock=Idle(), batch_queue=2_000_000)  # type: ignore[arg-type]  # no wall time is asked for


def test_acquire_and_release() -> None:
    limits = PoolLimits(64, 1, 1, 0, 63, limit=64.0, hold=0)
    slots = Limiter(limits=limits)

    def bare() -> None:
        lease = slots.acquire(Lane.INTERACTIVE, 0.0)
        assert lease is not None
        slots.release(lease, Outcome.SUCCESS)

    measured("slot: acquire and release", per_call_us(bare), unit="us", aim=1, must=5)
    own = dispatcher(limits)
    claim = ticket(Lane.INTERACTIVE)

    def through() -> None:
        own.submit(claim)
        own.release(claim, Outcome.SUCCESS)

    measured("dispatcher: acquire and release", per_call_us(through), unit="us", aim=1, must=5)
    for _ in range(10):
        own.submit(ticket(Lane.BATCH))
    short = per_call_us(through)
    measured("the same with 10 queued", short, unit="us", aim=1, must=5)
    for _ in range(1_000_000):
        own.submit(ticket(Lane.BATCH))
    measured("with 1,000,000 queued against 10", per_call_us(through) / short, unit="x", aim=1.2, must=1.5)
