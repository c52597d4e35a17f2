"""How fast a pool will work from now on: its usual throughput under the quotas that the schedule has for it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from core.batch.throughput import Level, Throughput, Usual
from core.control.windows import Schedule, bounds_at, transitions
from core.quotas import Bounds, Hold, PoolSettings, clamp_bounds

HORIZON = timedelta(days=15)
"""How far the schedule is looked at; later weeks are like the last week of it."""
FARTHEST = timedelta(days=3650)

_WEEK = timedelta(days=7)
_HOUR = timedelta(hours=1)
_FINE = timedelta(minutes=10)
_FINE_SPAN = timedelta(hours=3)


@dataclass(frozen=True, slots=True)
class Conditions:
    """A pool as it stands: what operators set, the schedule, and the seconds that its upstream asked to be left alone.

    `quota` and `bounds` are those in force now.
    """

    settings: PoolSettings
    schedule: Schedule
    quota: int
    bounds: Bounds
    backed_off_s: float = 0.0

    def hold(self, now: datetime) -> Hold | None:
        """Return the hold in force, if any."""
        hold = self.settings.hold
        return hold if hold is not None and hold.active(now) else None


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time in which the pool works at one `rate`, in work a second, under one quota and bounds.

    `ability` is what it would do at an endless quota.
    """

    start: datetime
    end: datetime
    ability: float
    quota: float
    bounds: Bounds
    rate: float

    @property
    def work(self) -> float:
        """All that is done in it."""
        return self.rate * (self.end - self.start).total_seconds()


class Plan:
    """The pool's work from `now` on, hour by hour. Computed as far as somebody asks, and then kept.

    `hold` stands for a quota set by hand until an instant, in place of the one that is stored.
    """

    def __init__(
        self,
        *,
        conditions: Conditions,
        throughput: Throughput,
        level: Level,
        now: datetime,
        hold: tuple[int, datetime] | None = None,
    ) -> None:
        stored = conditions.hold(now)
        self.now = now
        self._conditions = conditions
        self._throughput = throughput
        self._level = level
        self._hold: tuple[int, datetime | None] | None = hold or ((stored.quota, stored.until) if stored else None)
        self._segments: list[Segment] = []
        self._coming = self._segments_ahead()

    def held(self, quota: int, until: datetime) -> "Plan":
        """Return the plan as it would be if an operator held the quota until an instant."""
        return Plan(
            conditions=self._conditions,
            throughput=self._throughput,
            level=self._level,
            now=self.now,
            hold=(quota, until),
        )

    def finish(self, work: float) -> datetime | None:
        """Return when that much will be done; `None` where the schedule never lets it. Later for more work."""
        for segment in self.segments():
            if work <= segment.work:
                return _within(segment, work)
            work -= segment.work
        return self._after_horizon(work)

    def starts_at(self) -> datetime | None:
        """Return the first instant at which batch may work; `None` where the schedule never lets it."""
        return next((segment.start for segment in self.segments() if segment.rate > 0), None)

    def segments(self) -> Iterator[Segment]:
        """Yield what is ahead, in order, up to the horizon."""
        yield from self._segments
        for segment in self._coming:
            self._segments.append(segment)
            yield segment

    def _after_horizon(self, work: float) -> datetime | None:
        """Go on with the last week of the horizon, over and over."""
        end = self.now + HORIZON
        week = [segment for segment in self._segments if segment.start >= end - _WEEK]
        weekly = sum(segment.work for segment in week)
        if weekly <= 0:
            return None
        weeks = min(int(work // weekly), FARTHEST // _WEEK)
        work -= weeks * weekly
        for segment in week:
            if work <= segment.work:
                return _within(segment, work) + (weeks + 1) * _WEEK
            work -= segment.work
        return end + (weeks + 1) * _WEEK

    def _segments_ahead(self) -> Iterator[Segment]:
        pool, base = self._conditions.settings.name, self._conditions.settings.base_bounds()
        schedule, most = self._conditions.schedule, self._conditions.settings.batch_max
        changes = {edge.at for edge in transitions(schedule, self.now, HORIZON.days, pool)}
        edges = self._edges(changes)
        bounds = clamp_bounds(bounds_at(schedule, self.now, pool=pool, base=base), most)
        for start, end in pairwise(edges):
            if start in changes:
                bounds = clamp_bounds(bounds_at(schedule, start, pool=pool, base=base), most)
            yield self._segment(start, end, bounds)

    def _edges(self, changes: set[datetime]) -> list[datetime]:
        """Return every instant at which the rate may change, beside those at which the bounds do."""
        end = self.now + HORIZON
        hour = self.now.replace(minute=0, second=0, microsecond=0)
        edges = changes | {hour + count * _HOUR for count in range(1, HORIZON // _HOUR + 2)}
        edges |= {self.now + count * _FINE for count in range(1, _FINE_SPAN // _FINE + 1)}
        edges |= {self._free_at(), end - _WEEK}
        if self._hold is not None and self._hold[1] is not None:
            edges.add(self._hold[1])
        return [self.now, *sorted(edge for edge in edges if self.now < edge < end), end]

    def _free_at(self) -> datetime:
        """Return when the upstream takes batch again."""
        return self.now + timedelta(seconds=self._conditions.backed_off_s)

    def _segment(self, start: datetime, end: datetime, bounds: Bounds) -> Segment:
        usual = self._throughput.usual(start, bounds.source)
        ability = usual.ability * self._level.at(start + (end - start) / 2)
        quota = self._quota(start, usual, bounds)
        rate = ability * self._throughput.share(quota) if start >= self._free_at() else 0.0
        return Segment(start, end, ability, quota, bounds, rate)

    def _quota(self, at: datetime, usual: Usual, bounds: Bounds) -> float:
        """Return the quota to expect: a held one, or what is usual at such times as far as the bounds let it."""
        if self._hold is not None and (self._hold[1] is None or at < self._hold[1]):
            return min(self._hold[0], self._conditions.settings.batch_max)
        return usual.under(bounds.floor, bounds.ceiling)


def _within(segment: Segment, work: float) -> datetime:
    seconds = work / segment.rate if segment.rate > 0 else 0.0
    return min(segment.end, segment.start + timedelta(seconds=seconds))
