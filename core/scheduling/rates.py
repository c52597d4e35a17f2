"""Rates: token buckets for batch's optional limits per second and per minute, averages, and recent waits. Pure."""

from collections import deque


class TokenBucket:
    """Allows `rate` units a second on average and `burst` at once.

    What a start costs may be learned only afterwards: `take` may push the level below zero, and the next start then
    waits until it is above again.
    """

    def __init__(self, *, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at: float | None = None

    def wait(self, now: float) -> float:
        """Return the seconds until something may start; 0 means now."""
        self._refill(now)
        return max(0.0, (self._needed() - self._level) / self._rate)

    def take(self, units: float, now: float) -> None:
        """Spend `units`."""
        self._refill(now)
        self._level -= units

    def _needed(self) -> float:
        return min(1.0, self._burst)

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._level = min(self._burst, self._level + max(0.0, now - self._at) * self._rate)
        self._at = now


class Ewma:
    """An exponentially weighted mean; `None` until the first value."""

    def __init__(self, weight: float) -> None:
        self.value: float | None = None
        self._weight = weight

    def add(self, value: float) -> None:
        """Let `value` count with the weight given at the start; the first value is taken whole."""
        self.value = value if self.value is None else self.value + self._weight * (value - self.value)


class RecentWaits:
    """The waits of the last `horizon` seconds, at most `most` of them."""

    def __init__(self, *, horizon: float = 60.0, most: int = 2048) -> None:
        self._horizon = horizon
        self._waits: deque[tuple[float, float]] = deque(maxlen=most)

    def add(self, wait: float, now: float) -> None:
        """Note a wait of `wait` seconds that ended at `now`."""
        self._waits.append((now, wait))

    def percentiles(self, now: float) -> tuple[float | None, float | None]:
        """Return p50 and p95 in seconds, `None` where nothing waited lately (a start at once counts as 0)."""
        waits = self._waits
        while waits and waits[0][0] < now - self._horizon:
            waits.popleft()
        if not waits:
            return None, None
        ordered = sorted(wait for _, wait in waits)
        last = len(ordered) - 1
        return ordered[round(last * 0.5)], ordered[round(last * 0.95)]


class RecentPeak:
    """The highest value seen in the last `horizon` seconds; O(1) amortised (a falling queue of maxima)."""

    def __init__(self, *, horizon: float) -> None:
        self._horizon = horizon
        self._maxima: deque[tuple[float, int]] = deque()

    def add(self, value: int, now: float) -> None:
        """Note `value` at `now`."""
        maxima = self._maxima
        while maxima and maxima[-1][1] <= value:
            maxima.pop()
        maxima.append((now, value))

    def value(self, now: float) -> int:
        """Return the peak, 0 where nothing was noted."""
        maxima = self._maxima
        while maxima and maxima[0][0] < now - self._horizon:
            maxima.popleft()
        return maxima[0][1] if maxima else 0
