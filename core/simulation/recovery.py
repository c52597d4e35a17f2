"""How fast a pool recovers from the loss of half its capacity, and from a cold start. Pure arithmetic."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from core.simulation.figures import Level, RunLog, judged

LOST_AT, BACK_AT = 1800.0, 3000.0
STEADY_FROM = 600.0
MINUTE, STRIDE = 60.0, 10.0
CALM_MINUTES = 3
NEAR = 4.0


@dataclass(frozen=True, slots=True)
class Trail:
    """One run in time: (arrival, promise broken) of each request, (end, tokens) of each batch item, and the limit."""

    requests: Sequence[tuple[float, bool]]
    items: Sequence[tuple[float, int]]
    levels: Sequence[Level]

    @classmethod
    def of(cls, log: RunLog) -> "Trail":
        """Return what of a run's log matters here."""
        requests = [(record.arrival.at, broken) for record, broken in judged(log.records, log.budgets, log.seconds)]
        return cls(requests, [(at, output) for at, output, _ in log.items], log.levels)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds (`None`: never within the run) and percentages; see the fields of control targets 8, 9 and 12.

    `calm_after` is when violations are back within 4 points of those without batch, for three minutes on end;
    `worst_minute` the highest share of violations in any minute of the loss; `throughput_after` when after the return
    of the capacity a minute brought 90 % of the tokens from before; `cold_start` when the middle run's limit first
    reached 90 % of its steady level.
    """

    calm_after: float | None
    worst_minute: float
    worst_minute_without_batch: float
    throughput_after: float | None
    cold_start: float | None


def recovery(law: Sequence[Trail], without_batch: Sequence[Trail]) -> Recovery:
    """Judge the runs of several seeds together."""

    def near(start: float) -> bool:
        minutes = (start + MINUTE * place for place in range(CALM_MINUTES))
        return all(violations(law, at) <= violations(without_batch, at) + NEAR for at in minutes)

    starts = _grid(LOST_AT, BACK_AT - MINUTE)
    before = tokens(law, STEADY_FROM, LOST_AT)
    end = law[0].levels[-1].at
    back = _first(_grid(BACK_AT, end - MINUTE), lambda at: tokens(law, at, at + MINUTE) >= 0.9 * before)
    return Recovery(
        calm_after=_since(_first(_grid(LOST_AT, BACK_AT - CALM_MINUTES * MINUTE), near), LOST_AT),
        worst_minute=max(violations(law, at) for at in starts),
        worst_minute_without_batch=max(violations(without_batch, at) for at in starts),
        throughput_after=_since(back, BACK_AT),
        cold_start=_cold_start(law),
    )


def violations(trails: Sequence[Trail], start: float) -> float:
    """Return the percentage of broken promises among the requests that arrived in the minute from `start`."""
    verdicts = [broken for trail in trails for at, broken in trail.requests if start <= at < start + MINUTE]
    return 100 * sum(verdicts) / len(verdicts) if verdicts else 0.0


def tokens(trails: Sequence[Trail], start: float, end: float) -> float:
    """Return the batch tokens per second and run of the items that ended from `start` to `end`."""
    total = sum(count for trail in trails for at, count in trail.items if start <= at < end)
    return total / (end - start) / len(trails)


def _cold_start(trails: Sequence[Trail]) -> float | None:
    """Return the middle run's time; each is held against its own steady level, as each is cut at its own times."""
    middle = median(math.inf if at is None else at for at in (_reached_steady(trail.levels) for trail in trails))
    return middle if math.isfinite(middle) else None


def _reached_steady(levels: Sequence[Level]) -> float | None:
    steady = [level.limit for level in levels if STEADY_FROM <= level.at < LOST_AT]
    bar = 0.9 * sum(steady) / len(steady)
    return next((level.at for level in levels if level.limit >= bar), None)


def _grid(start: float, end: float) -> list[float]:
    return [start + STRIDE * place for place in range(int((end - start) / STRIDE) + 1)]


def _first(times: Sequence[float], holds: Callable[[float], bool]) -> float | None:
    return next((time for time in times if holds(time)), None)


def _since(time: float | None, start: float) -> float | None:
    return None if time is None else time - start
