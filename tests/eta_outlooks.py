"""Pools whose throughput is known to the second, for tests of what is foreseen of them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import exp
from typing import Any

from core.batch.eta import Outlook
from core.batch.plan import Conditions
from core.batch.residuals import GivenEta, Ranges
from core.batch.throughput import Level, Measured, Throughput
from core.batch.values import Batch, BatchStatus
from core.batch.work import ANY, Load, Prior, Priors
from core.control.windows import Schedule, bounds_at
from core.quotas import PoolSettings

NOW = datetime(2026, 12, 9, 12, 0, tzinfo=UTC)  # a Wednesday
HOUR = timedelta(hours=1)
POOL = PoolSettings("default", slots=22, reserve=2, headroom=0, floor=1, ceiling=20)
KAPPA = 0.0
OUTPUT = 99.0
"""With 1 for the request itself a request is 100 units of work, and an hour's 36,000 are 10 a second."""


def hours(count: int = 24, *, until: datetime = NOW, per_hour: float = 3600.0, quota: float = 20.0) -> list[Measured]:
    """Return hours, up to the last whole one but two, in which `per_hour` requests went through at that quota."""
    load = Load(per_hour, 0.0, per_hour * OUTPUT)
    last = until - 3 * HOUR
    return [Measured(last - back * HOUR, "base", 3600.0, load, quota, quota) for back in range(count)]


def batch(total: int = 3600, **fields: Any) -> Batch:
    made = Batch(
        id="batch_1",
        tenant="news",
        key=None,
        pool="default",
        model="m",
        endpoint="/v1/chat/completions",
        input_file_id="file",
        window=timedelta(hours=24),
        created_at=NOW - timedelta(minutes=1),
        in_progress_at=NOW - timedelta(minutes=1),
        status=BatchStatus.IN_PROGRESS,
        total=total,
    )
    return replace(made, **fields)


def conditions(
    settings: PoolSettings = POOL, schedule: Schedule | None = None, *, now: datetime = NOW, **fields: Any
) -> Conditions:
    schedule = schedule or Schedule()
    bounds = bounds_at(schedule, now, pool=settings.name, base=settings.base_bounds())
    return Conditions(settings, schedule, bounds.ceiling, bounds, **fields)


def outlook(
    *,
    rows: Sequence[Measured] | None = None,
    given: Conditions | None = None,
    active: Sequence[Batch] = (),
    level: float = 1.0,
    seconds: float = 0.0,
    now: datetime = NOW,
    **fields: Any,
) -> Outlook:
    """Return the outlook of a pool that does one request a second at a quota of 20, if nothing else is said."""
    priors = Priors([(("default", ANY, ANY), Prior(1000, OUTPUT, seconds))])
    found = given or conditions(now=now)
    rows = hours(until=now) if rows is None else rows
    return Outlook(
        **{
            "as_of": now,
            "conditions": found,
            "throughput": Throughput(rows, zone=found.schedule.zone, kappa=KAPPA, now=now),
            "level": Level(level, now),
            "ranges": Ranges(),
            "priors": priors,
            "active": active,
            **fields,
        }
    )


def scored(
    residual: float, *, batch: str = "b", predicted: float = 3600.0, at: datetime = NOW, **fields: Any
) -> GivenEta:
    """Return an ETA whose batch took e^residual times as long as it said."""
    mid = at + timedelta(seconds=predicted)
    low, high = at + timedelta(seconds=0.6 * predicted), at + timedelta(seconds=2 * predicted)
    ended = at + timedelta(seconds=predicted * exp(residual))
    return GivenEta(batch, "news", "default", at, low, mid, high, 1.0, 0.0, 0.0, ended_at=ended, **fields)
