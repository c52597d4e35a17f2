"""A batch that this process runs: what is under way, and when it may start its next item. No I/O."""

import heapq
import math

from core.batch.retry import Breaker
from core.batch.values import Batch
from core.scheduling.exchange import Exchange

LOOK_AGAIN_S = 2.0
"""Seconds after which the store is asked again for items that others may have given back."""
SHORTEST_LOOK_S = 0.02
CLOCKS_APART_S = 0.005
"""What the wall clock, by which the store goes, may be behind this process's own within seconds."""


class BatchRun:
    """One batch in progress. Times are monotonic seconds.

    `running` holds each item that was claimed and has not ended, with its exchange once that was made. `unstored`
    counts items that ended and are not stored yet, `left` those without a final state, as far as is known here.
    `closing` tells that nothing more may start: the batch is cancelled, or its time is over.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.running: dict[int, Exchange | None] = {}
        self.left = batch.left
        self.unstored = 0
        self.planned = 0
        self.closing = False
        self.breaker = Breaker()
        self.last_success = -math.inf
        self._last_start = -math.inf
        self._dry_until = -math.inf
        self._dues: list[float] = []

    @property
    def idle(self) -> bool:
        """Tell whether nothing of it is under way here."""
        return not (self.running or self.unstored or self.planned)

    @property
    def rank(self) -> tuple[float, ...]:
        """Its place among its tenant's batches: higher priority first, then the earlier deadline."""
        return -self.batch.priority, self.batch.expires_at.timestamp()

    def adopt(self, batch: Batch) -> None:
        """Take in the batch as it is stored now. Whatever a person changed may have made items ready."""
        if batch.version != self.batch.version:
            self._dry_until = -math.inf
        self.batch = batch
        self.left = batch.left

    def opens_at(self, now: float) -> float:
        """Return when the next item may start: `now`, later, or infinity where something else must happen first."""
        if self.closing or self.batch.pause is not None:
            return math.inf
        most = 1 if self.breaker.probing else self.batch.max_concurrency
        if most is not None and len(self.running) + self.planned >= most:
            return math.inf
        return max(now + self.breaker.closed_for(now), self._interval_over(now), self._dry_until, now)

    def _interval_over(self, now: float) -> float:
        """Return when the batch's own interval since its latest start is over."""
        interval = self.batch.interval_s
        if interval <= 0:
            return now
        starts = [exchange.started if exchange else None for exchange in self.running.values()]
        if self.planned or None in starts:
            return now + max(SHORTEST_LOOK_S, interval / 20)
        return max([self._last_start, *(start for start in starts if start is not None)]) + interval

    def ended(self, index: int) -> None:
        """Note that an item's attempt ended; its end is not stored yet."""
        exchange = self.running.pop(index)
        if exchange is not None and exchange.started is not None:
            self._last_start = max(self._last_start, exchange.started)
        self.unstored += 1

    def claimed(self, planned: int, indexes: list[int], now: float) -> None:
        """Note which items were claimed of so many that were planned; fewer mean that no more are ready now."""
        self.planned -= planned
        for index in indexes:
            self.running[index] = None
        while self._dues and self._dues[0] <= now:
            heapq.heappop(self._dues)
        if len(indexes) < planned:
            due = self._dues[0] if self._dues else math.inf
            known = len(self.running) + len(self._dues)
            self._dry_until = due if self.batch.left <= known else min(due, now + LOOK_AGAIN_S)

    def unclaimed(self, planned: int) -> None:
        """Note that so many planned items could not be claimed at all."""
        self.planned -= planned

    def comes_back(self, at: float) -> None:
        """Note that an item goes back to the queue until `at`."""
        heapq.heappush(self._dues, at + CLOCKS_APART_S)

    def stored(self, ends: int, *, back: bool) -> None:
        """Note that so many ends were stored, and whether one of them goes back, so that it can be claimed in time."""
        self.unstored -= ends
        if back:
            self._dry_until = min(self._dry_until, self._dues[0] if self._dues else -math.inf)
