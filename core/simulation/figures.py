"""What a simulated run came to: violations, times, throughput, how the limit moved. Pure arithmetic."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from core.quotas import Budgets
from core.simulation.clients import Record

WARM_UP = 300.0
"""Seconds at the start that do not count."""


@dataclass(frozen=True, slots=True)
class Level:
    """The limit and the quota at one tick."""

    at: float
    limit: float
    quota: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, or the mean of several. Shares in percent, times in seconds (`per_token_p95_ms`: ms), rates per second.

    `moves` and `reversals` of the limit are per minute, `swing` is the mean distance between its turning points, in
    slots. `wasted` is the share of all generated tokens that aborts threw away. `None` where there is no data.
    """

    interactive: float
    violations: float
    errors: float
    first_token_p50: float | None
    first_token_p95: float | None
    first_token_p99: float | None
    per_token_p95_ms: float | None
    total_p95: float | None
    total_p99: float | None
    bad_windows: float
    batch_tokens: float
    batch_items: float
    limit: float
    quota: float
    moves: float
    reversals: float
    swing: float
    aborts: float
    wasted: float
    refused_interactive: float
    refused_batch: float


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the percentile, interpolated between neighbours; `None` of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def violates(record: Record, budgets: Budgets, now: float) -> bool | None:
    """Tell whether a request broke its promise, counting one that waits too long as broken; `None`: too early."""
    first = record.first_token_s
    if not record.done:
        return True if first is None and now - record.arrival.at > budgets.first_token_s else None
    if record.failed or first is None or first > budgets.first_token_s:
        return True
    per_token = record.per_token_s
    return per_token is not None and per_token * 1000 > budgets.per_token_ms


def judged(records: Iterable[Record], budgets: Budgets, now: float) -> list[tuple[Record, bool]]:
    """Return the requests of which can be said whether they broke their promise, with that."""
    verdicts = ((record, violates(record, budgets, now)) for record in records)
    return [(record, verdict) for record, verdict in verdicts if verdict is not None]


def turns(levels: Sequence[Level]) -> tuple[int, int, float]:
    """Return how often the limit moved (whole slots), how often it turned round, and the mean swing between turns."""
    moves = sum(int(a.limit) != int(b.limit) for a, b in pairwise(levels))
    swings: list[float] = []
    direction = 0
    turned_at = levels[0].limit if levels else 0.0
    for a, b in pairwise(levels):
        now = (b.limit > a.limit) - (b.limit < a.limit)
        if now and direction and now != direction:
            swings.append(abs(a.limit - turned_at))
            turned_at = a.limit
        direction = now or direction
    return moves, len(swings), _mean(swings)


def bad_windows(verdicts: Iterable[tuple[Record, bool]], *, seconds: float = 300.0, fewest: int = 20) -> float:
    """Return the share of windows, of those with enough requests, in which more than a tenth broke their promise."""
    windows: dict[int, list[bool]] = {}
    for record, broken in verdicts:
        windows.setdefault(int(record.arrival.at // seconds), []).append(broken)
    full = [window for window in windows.values() if len(window) >= fewest]
    return _share(sum(sum(window) > 0.1 * len(window) for window in full), len(full))


def mean(figures: Sequence[Figures]) -> Figures:
    """Return the mean of each figure over several runs (of those that have it)."""
    columns: dict[str, float | None] = {}
    for name in asdict(figures[0]):
        known = [value for value in (getattr(run, name) for run in figures) if value is not None]
        columns[name] = _mean(known) if known else None
    return Figures(**columns)  # type: ignore[arg-type]  # the fields by their own names


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _share(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class RunLog:
    """All that one run left behind; `items` as `BatchSource.finished`, `seconds` its length."""

    seconds: float
    budgets: Budgets
    records: Sequence[Record]
    items: Sequence[tuple[float, int, int]]
    levels: Sequence[Level]
    aborts: int
    generated_tokens: int
    wasted_tokens: int
    refused_interactive: int
    refused_batch: int

    def figures(self) -> Figures:
        """Return what the run came to, its warm-up left out."""
        since = min(WARM_UP, self.seconds / 10)
        span = self.seconds - since
        verdicts = judged((r for r in self.records if r.arrival.at >= since), self.budgets, self.seconds)
        good = [record for record, _ in verdicts if record.done and not record.failed]
        first = [value for record in good if (value := record.first_token_s) is not None]
        per_token = [1000 * value for record in good if (value := record.per_token_s) is not None]
        total = [record.total_s for record in good]
        items = [item for item in self.items if item[0] >= since]
        levels = [level for level in self.levels if level.at >= since]
        moves, reversals, swing = turns(levels)
        return Figures(
            interactive=len(verdicts),
            violations=_share(sum(broken for _, broken in verdicts), len(verdicts)),
            errors=_share(sum(record.failed for record, _ in verdicts), len(verdicts)),
            first_token_p50=percentile(first, 0.5),
            first_token_p95=percentile(first, 0.95),
            first_token_p99=percentile(first, 0.99),
            per_token_p95_ms=percentile(per_token, 0.95),
            total_p95=percentile(total, 0.95),
            total_p99=percentile(total, 0.99),
            bad_windows=bad_windows(verdicts),
            batch_tokens=sum(output for _, output, _ in items) / span,
            batch_items=len(items),
            limit=_mean([level.limit for level in levels]),
            quota=_mean([level.quota for level in levels]),
            moves=60 * moves / span,
            reversals=60 * reversals / span,
            swing=swing,
            aborts=self.aborts,
            wasted=_share(self.wasted_tokens, self.generated_tokens + self.wasted_tokens),
            refused_interactive=self.refused_interactive,
            refused_batch=self.refused_batch,
        )
