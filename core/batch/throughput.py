"""How much batch work a pool usually does, by hour of the week, and how that moves with the quota. Pure.

Only time counts in which batch had more to do than it could. What was done is taken apart into the pool's `ability`
(work a second at an endless quota) and what the quota q left of it: q / (q + k).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from core.batch.work import Load
from core.control import wallclock

FEWEST_ITEMS = 30
"""Finished requests without which nothing is estimated."""
FEWEST_SECONDS = 10.0
WEEKLY = 0.7
"""What a week counts against the week after it."""
DECAY = timedelta(hours=2)
"""The time in which what is special about the last hour fades to 1/e."""

_STRENGTHS = (7200.0, 3600.0, 1800.0)  # seconds of data that weigh as much as the coarser level: window, day, week
_LEVEL_ITEMS = 20.0
_LEVEL_BOUNDS = (0.02, 10.0)
_KS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0)  # of the mean quota
_DEFAULT_K = 1.0
_VARIED = 0.1
_BINDING = 0.95
_ENOUGH_OLDER_S = 6 * 3600.0
_ODD = 2.0
_ODD_COUNTS = 0.2

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """What batch did in a stretch of time (at most an hour from `start`) in which it had more to do than it could.

    `source` is the source of the bounds then in force, `seconds` the time that counted, `quota` and `ceiling` their
    means over it, in slots.
    """

    start: datetime
    source: str
    seconds: float
    load: Load
    quota: float
    ceiling: float

    def rate(self, kappa: float) -> float:
        """Return the work per second."""
        return self.load.work(kappa) / self.seconds if self.seconds > 0 else 0.0

    def __add__(self, other: "Measured") -> "Measured":
        seconds = self.seconds + other.seconds
        share = other.seconds / seconds if seconds else 0.0
        return Measured(
            self.start,
            self.source,
            seconds,
            self.load + other.load,
            self.quota + share * (other.quota - self.quota),
            self.ceiling + share * (other.ceiling - self.ceiling),
        )


@dataclass(frozen=True, slots=True)
class Usual:
    """What to expect of a pool at some time: its ability, and the quota and ceiling that it had at such times."""

    ability: float
    quota: float
    ceiling: float

    def under(self, floor: float, ceiling: float) -> float:
        """Return the quota to expect under bounds: the usual one as far as they let it, in slots.

        Where the ceiling is what usually stops it, another ceiling makes another quota.
        """
        if self.quota >= _BINDING * self.ceiling:
            return ceiling
        return max(floor, min(ceiling, self.quota))


@dataclass(slots=True)
class _Sums:
    weight: float = 0.0
    ability: float = 0.0
    quota: float = 0.0
    ceiling: float = 0.0

    def add(self, weight: float, usual: Usual) -> None:
        self.weight += weight
        self.ability += weight * usual.ability
        self.quota += weight * usual.quota
        self.ceiling += weight * usual.ceiling

    def under(self, parent: Usual, strength: float) -> Usual:
        """Return the means, as if `strength` of weight had been like `parent` before."""
        whole = self.weight + strength
        return Usual(
            (self.ability + strength * parent.ability) / whole,
            (self.quota + strength * parent.quota) / whole,
            (self.ceiling + strength * parent.ceiling) / whole,
        )


class Throughput:
    """One pool's throughput, learned from `rows`; `zone` is that in which hours of the week are local."""

    def __init__(self, rows: Iterable[Measured], *, zone: str, kappa: float, now: datetime) -> None:
        self.kappa = kappa
        used = [row for row in rows if row.seconds > 0 and row.quota > 0]
        self.items = sum(row.load.items for row in used)
        self.seconds = sum(row.seconds for row in used)
        self.mean_work = max(1.0, sum(row.load.work(kappa) for row in used) / max(1.0, self.items))
        self.weeks = max(((now - row.start) / timedelta(weeks=1) for row in used), default=0.0)
        self._zone = wallclock.zone(zone)
        self._k = _fitted_k(used, kappa)
        self._cells: dict[Key, _Sums] = {}
        self._known: dict[Key, Usual] = {}
        self._learn(_settled(used, now), now)

    @property
    def enough(self) -> bool:
        """Tell whether there is data enough to estimate from."""
        return self.items >= FEWEST_ITEMS and self.seconds >= FEWEST_SECONDS

    def share(self, quota: float) -> float:
        """Return what a quota leaves of the pool's ability, 0 to 1; rises with the quota."""
        return quota / (quota + self._k) if quota > 0 else 0.0

    def usual(self, at: datetime, source: str) -> Usual:
        """Return what to expect at an instant at which the bounds come from `source`."""
        local = at.astimezone(self._zone)
        key = (local.weekday(), local.hour, source)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._shrunk(_keys(local, source))
        return found

    def rate(self, row: Measured) -> float:
        """Return the work per second that was to be expected of a stretch, given its ceiling."""
        usual = self.usual(row.start, row.source)
        return usual.ability * self.share(usual.under(min(1.0, row.ceiling), row.ceiling))

    def _learn(self, rows: Sequence[Measured], now: datetime) -> None:
        seen = [Usual(row.rate(self.kappa) / self.share(row.quota), row.quota, row.ceiling) for row in rows]
        ages = [max(0.0, (now - row.start) / timedelta(weeks=1)) for row in rows]
        weights = [row.seconds * WEEKLY**age for row, age in zip(rows, ages, strict=True)]
        self._fill(rows, seen, weights)
        # A second time, with what was out of the ordinary (an outage, say) counting little.
        odd = [self._is_odd(row, usual) for row, usual in zip(rows, seen, strict=True)]
        if any(odd) and sum(odd) < len(odd) / 4:
            lighter = [weight * (_ODD_COUNTS if is_odd else 1) for weight, is_odd in zip(weights, odd, strict=True)]
            self._fill(rows, seen, lighter)

    def _fill(self, rows: Sequence[Measured], seen: Sequence[Usual], weights: Sequence[float]) -> None:
        self._cells, self._known = {}, {}
        for row, usual, weight in zip(rows, seen, weights, strict=True):
            for key in _keys(row.start.astimezone(self._zone), row.source):
                self._cells.setdefault(key, _Sums()).add(weight, usual)

    def _is_odd(self, row: Measured, seen: Usual) -> bool:
        expected = self.usual(row.start, row.source).ability
        return not expected / _ODD <= seen.ability <= expected * _ODD

    def _shrunk(self, keys: Sequence[Key]) -> Usual:
        whole, *finer = keys
        found = self._cells.get(whole, _Sums()).under(Usual(0.0, 0.0, 0.0), 1e-9)
        for key, strength in zip(finer, _STRENGTHS, strict=True):
            cell = self._cells.get(key)
            if cell is not None:
                found = cell.under(found, strength)
        return found


@dataclass(frozen=True, slots=True)
class Level:
    """How the last hour compared with what was to be expected of it; fades with 2 hours."""

    ratio: float
    since: datetime

    def at(self, instant: datetime) -> float:
        """Return by what to multiply the expected throughput at an instant; above 0."""
        age = max(timedelta(0), instant - self.since)
        return float(self.ratio ** math.exp(-(age / DECAY)))


def level(recent: Iterable[Measured], throughput: Throughput, now: datetime) -> Level:
    """Return the level of the stretches of the last hour; the fewer requests they saw, the nearer to 1."""
    expected = done = items = 0.0
    for row in recent:
        wanted = throughput.rate(row) * row.seconds
        expected += wanted
        done += row.load.work(throughput.kappa)
        # An hour in which nothing came back saw as much as the requests that should have.
        items += max(row.load.items, wanted / throughput.mean_work)
    if expected <= 0:
        return Level(1.0, now)
    lowest, highest = _LEVEL_BOUNDS
    ratio = max(lowest, min(highest, done / expected))
    return Level(float(ratio ** (items / (items + _LEVEL_ITEMS))), now)


def _settled(rows: Sequence[Measured], now: datetime) -> Sequence[Measured]:
    """Leave out the last hours, where there is enough without them: `level` holds them against the rest."""
    older = [row for row in rows if row.start <= now - DECAY]
    return older if sum(row.seconds for row in older) >= _ENOUGH_OLDER_S else rows


def _keys(local: datetime, source: str) -> tuple[Key, ...]:
    """Return the levels from the coarsest: all, schedule window, hour of day x weekend, hour of week."""
    weekend = local.weekday() >= 5
    return (), ("window", source), ("day", weekend, local.hour), ("week", local.weekday(), local.hour)


def _fitted_k(rows: Sequence[Measured], kappa: float) -> float:
    """Return the quota at which half of the ability is used, in slots: that under which the abilities vary least.

    Where the quota hardly varied, nothing can be told: half is used at the mean quota.
    """
    points = [(row.quota, rate) for row in rows if (rate := row.rate(kappa)) > 0]
    if not points:
        return 1.0
    mean = sum(quota for quota, _ in points) / len(points)
    if len(points) < 12 or _spread([math.log(quota) for quota, _ in points]) < _VARIED:
        return _DEFAULT_K * mean
    return min(_KS, key=lambda k: _spread([math.log(rate * (q + k * mean) / q) for q, rate in points])) * mean


def _spread(values: Sequence[float]) -> float:
    """Return the median distance from the median, which no outage moves."""
    middle = median(values)
    return median(abs(value - middle) for value in values)
