from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from core.clock import SystemClock
from core.history import COARSE, FINE_SPAN, History, Ring, Sample

START = datetime(2026, 11, 2, 9, tzinfo=UTC)


def sample(second: float, p95: float | None = 0.5) -> Sample:
    at = START + timedelta(seconds=second)
    return Sample(at, p95_s=p95, budget_s=1.0, limit=8.0, quota=4, interactive=2, batch=3)


def test_the_last_quarter_hour_is_kept_by_the_second() -> None:
    ring = Ring()
    for second in range(2000):
        ring.add(sample(second))
    recent = ring.since(START + timedelta(seconds=1999) - FINE_SPAN + timedelta(seconds=1))
    assert len(recent) == 900
    assert [b.at - a.at for a, b in pairwise(recent)] == [timedelta(seconds=1)] * 899


def test_older_samples_are_kept_in_buckets_of_ten_seconds_without_overlap() -> None:
    ring = Ring()
    for second in range(3600):
        ring.add(sample(second))
    everything = ring.since(START)
    assert [sample.at for sample in everything] == sorted({sample.at for sample in everything})
    assert everything[1].at - everything[0].at == COARSE


def test_memory_is_bounded_whatever_the_uptime() -> None:
    ring = Ring()
    for second in range(20_000):
        ring.add(sample(second))
    assert len(ring) <= 900 + 720 + 10
    assert ring.since(START)[0].at >= START + timedelta(seconds=20_000 - 7200 - 10)


def test_a_short_peak_survives_in_its_bucket() -> None:
    ring = Ring()
    for second in range(1000):
        ring.add(sample(second, p95=9.0 if second == 13 else None))
    old = [each for each in ring.since(START) if each.at < START + timedelta(seconds=30)]
    assert max(each.p95_s or 0 for each in old) == 9.0


def test_a_bucket_without_data_has_none() -> None:
    ring = Ring()
    for second in range(1000):
        ring.add(sample(second, p95=None))
    assert ring.since(START)[0].p95_s is None


def test_a_pool_that_is_gone_is_forgotten() -> None:
    pools = {"a": sample(0), "b": sample(0)}
    history = History(clock=SystemClock(), read=lambda: pools)
    history.sample()
    del pools["b"]
    history.sample()
    assert len(history.since("a", START)) == 2
    assert history.since("b", START) == ()


@pytest.mark.anyio
async def test_the_service_samples_by_itself() -> None:
    class Ticks(SystemClock):
        left = 3

        async def sleep(self, seconds: float) -> None:
            assert seconds == 1.0
            self.left -= 1
            if not self.left:
                raise RuntimeError("enough")

    history = History(clock=Ticks(), read=lambda: {"a": sample(0)})
    with pytest.raises(RuntimeError, match="enough"):
        await history.run()
    assert len(history.since("a", START)) == 3
