"""Measures what a pool's batch lane gets done while it has more to do than it may. Pure."""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from core.batch.plan import Conditions
from core.batch.throughput import Measured
from core.batch.work import Load, Prior

STRETCH = timedelta(minutes=5)
LAST_HOUR = timedelta(hours=1)
GAP = timedelta(minutes=1)
"""Between two samples: after a longer time nobody knows what happened meanwhile."""

_SHORTEST_S = 30.0
_SHORTEST_OPEN_S = 10.0


@dataclass(slots=True)
class _Open:
    start: datetime
    source: str
    seconds: float = 0.0
    load: Load = field(default_factory=Load)
    quota_seconds: float = 0.0
    ceiling_seconds: float = 0.0

    def closed(self) -> Measured:
        quota, ceiling = self.quota_seconds / self.seconds, self.ceiling_seconds / self.seconds
        return Measured(self.start, self.source, self.seconds, self.load, quota, ceiling)


class Meter:
    """Takes what ended and, every few seconds, how the pool stands; gives stretches of at most 5 minutes.

    A stretch holds only time in which batch had backlog and a quota above 0. Its first requests take a while until
    they end: what passes until then, about the mean time of a request, counts for nothing.
    """

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._ended = Load()
        self._at: datetime | None = None
        self._busy_since: datetime | None = None
        self._recent: deque[Measured] = deque()

    def observe(self, load: Load) -> None:
        """Note requests that ended."""
        self._ended += load

    def sample(self, now: datetime, conditions: Conditions, prior: Prior, *, backlog: bool) -> Measured | None:
        """Note how the pool stands; return the stretch that this ended, if one is worth keeping."""
        ended, self._ended = self._ended, Load()
        before, self._at = self._at, now
        busy = backlog and conditions.quota > 0 and conditions.settings.pause is None
        lost = before is None or not timedelta(0) <= now - before <= GAP
        if not busy or lost:
            self._busy_since = now if busy else None
            return self._close()
        if self._busy_since is None:
            self._busy_since = now
        if not prior.items or now - self._busy_since < timedelta(seconds=prior.seconds) or before is None:
            return self._close()
        closed = self._close() if self._over(before, conditions) else None
        self._count(before, (now - before).total_seconds(), ended, conditions)
        return closed

    @property
    def open(self) -> Measured | None:
        """The stretch that is not over, if it lasts long enough to tell anything."""
        stretch = self._open
        return stretch.closed() if stretch is not None and stretch.seconds >= _SHORTEST_OPEN_S else None

    def recent(self, now: datetime) -> list[Measured]:
        """Return the stretches of the last hour, with the one that is open."""
        while self._recent and self._recent[0].start < now - LAST_HOUR:
            self._recent.popleft()
        stretch = self.open
        return [*self._recent, stretch] if stretch is not None else list(self._recent)

    def _over(self, now: datetime, conditions: Conditions) -> bool:
        stretch = self._open
        if stretch is None:
            return False
        other_hour = now.replace(minute=0, second=0, microsecond=0) > stretch.start
        return other_hour or now - stretch.start >= STRETCH or stretch.source != conditions.bounds.source

    def _count(self, start: datetime, seconds: float, ended: Load, conditions: Conditions) -> None:
        if self._open is None:
            self._open = _Open(start, conditions.bounds.source)
        self._open.seconds += seconds
        self._open.load += ended
        self._open.quota_seconds += seconds * conditions.quota
        self._open.ceiling_seconds += seconds * conditions.bounds.ceiling

    def _close(self) -> Measured | None:
        stretch, self._open = self._open, None
        if stretch is None or stretch.seconds < _SHORTEST_S:
            return None
        closed = stretch.closed()
        self._recent.append(closed)
        return closed
