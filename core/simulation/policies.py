"""Other ways to set the quota, for comparison: fixed ones, and AIMD on one signal. All act through the dispatcher."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from core.quotas import PoolLimits
from core.scheduling.dispatcher import Dispatcher
from core.simulation.clients import Record
from core.simulation.figures import percentile


class Policy(Protocol):
    """Moves a pool's limits; told of interactive requests as they get their first token (if they stream) and end."""

    def first(self, record: Record, now: float) -> None:
        """A first token came."""

    def done(self, record: Record, now: float) -> None:
        """A request ended, well or not."""

    def tick(self, now: float) -> None:
        """Five seconds passed."""


def total_limits(limits: PoolLimits, total: float) -> PoolLimits:
    """Return limits under which batch gets `total` less the interactive demand, between 0 and all it may have."""
    return replace(limits, limit=total, floor=0, ceiling=limits.batch_max, headroom=0, hold=None, room_for_peak=False)


def quota_limits(limits: PoolLimits, quota: int) -> PoolLimits:
    """Return limits under which batch gets `quota`, whatever interactive does."""
    return replace(limits, hold=quota)


class Fixed:
    """Limits that never move."""

    def __init__(self, dispatcher: Dispatcher, limits: PoolLimits) -> None:
        dispatcher.apply(limits)

    def first(self, record: Record, now: float) -> None:
        """Do nothing."""

    def done(self, record: Record, now: float) -> None:
        """Do nothing."""

    def tick(self, now: float) -> None:
        """Do nothing."""


class Law:
    """The product's own controller."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick

    def first(self, record: Record, now: float) -> None:
        """Do nothing: the gateway samples for itself."""

    def done(self, record: Record, now: float) -> None:
        """Do nothing: the gateway samples for itself."""

    def tick(self, now: float) -> None:
        """Let the controller tick."""
        self._tick()


@dataclass(frozen=True, slots=True)
class AimdSettings:
    """AIMD on the p95 of one signal, `first_token` or `total` (s), of the last `window` seconds, on a total limit.

    Every `period` seconds it adds `add` slots, or multiplies by `cut` where the p95 is above `target` or more than
    `errors` of the requests failed; after a cut it makes no other for `cooldown` seconds. A client that does not
    stream shows no first token: its total time stands in, as it would in the field.
    """

    signal: str
    target: float
    add: float
    cut: float
    window: float
    period: float
    cooldown: float = 15.0
    errors: float = 0.02
    fewest: int = 5
    start: float = 8.0


@dataclass(slots=True)
class _Recent:
    """Values of the last seconds."""

    horizon: float
    values: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, now: float, value: float) -> None:
        self.values.append((now, value))

    def at(self, now: float) -> list[float]:
        while self.values and self.values[0][0] < now - self.horizon:
            self.values.popleft()
        return [value for _, value in self.values]


class Aimd:
    """Textbook AIMD with feed-forward: batch gets the level less the interactive demand."""

    def __init__(self, dispatcher: Dispatcher, limits: PoolLimits, settings: AimdSettings) -> None:
        self._dispatcher = dispatcher
        self._limits = limits
        self._settings = settings
        self._level = settings.start
        self._seconds = _Recent(settings.window)
        self._failed = _Recent(settings.window)
        self._moved = -settings.period
        self._calm_from = 0.0
        self._apply()

    def first(self, record: Record, now: float) -> None:
        """Take a first token's time where that is the signal."""
        if self._settings.signal == "first_token" and record.first_token_s is not None:
            self._seconds.add(now, record.first_token_s)

    def done(self, record: Record, now: float) -> None:
        """Take a total time where that is the signal, or all that the client sees."""
        self._failed.add(now, float(record.failed))
        if record.failed:
            return
        if self._settings.signal == "total" or not record.arrival.streamed:
            self._seconds.add(now, record.total_s)

    def tick(self, now: float) -> None:
        """Add or cut, once per period."""
        settings = self._settings
        if now - self._moved < settings.period - 1e-6:
            return
        self._moved = now
        if self._bad(now):
            if now >= self._calm_from:
                self._level = max(1.0, self._level * settings.cut)
                self._calm_from = now + settings.cooldown
        else:
            self._level = min(float(self._limits.slots), self._level + settings.add)
        self._apply()

    def _bad(self, now: float) -> bool:
        seconds, failed = self._seconds.at(now), self._failed.at(now)
        p95 = percentile(seconds, 0.95)
        slow = p95 is not None and len(seconds) >= self._settings.fewest and p95 > self._settings.target
        return slow or (len(failed) >= self._settings.fewest and sum(failed) > self._settings.errors * len(failed))

    def _apply(self) -> None:
        self._dispatcher.apply(replace(total_limits(self._limits, self._level), floor=1))
