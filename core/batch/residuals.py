"""How wrong past ETAs were, and so how wide a range must be that holds 9 times in 10. Pure.

Empirical quantiles of log(actual / predicted remaining time) per horizon. Their levels are steered by what happened
(adaptive conformal inference, Gibbs and Candès 2021): a range that was missed too often widens.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

FEWEST = 30
"""Residuals before which the range is a rule of thumb."""
RULE_OF_THUMB = (0.6, 2.0)
HORIZONS_S = (1800.0, 7200.0, 21600.0, 57600.0)
KEPT = 400
"""Residuals that count, per horizon."""
LATEST = 20
"""ETAs of a tenant that its score is made of."""

_TAIL = 0.05
_STEP = 0.005
_TAIL_BOUNDS = (0.002, 0.2)
_WIDER_ELSEWHERE = 1.5
_FEWEST_BATCHES = 12
_FEW_BATCHES = 10.0


@dataclass(frozen=True, slots=True)
class GivenEta:
    """An ETA that was given for a batch: at which instant, what it said, and for how much work until then.

    `first` marks the one given when the batch began; `calibrated` one whose range came from residuals. `ended_at` is
    when the batch was completed, `None` as long as it is not.
    """

    batch: str
    tenant: str
    pool: str
    at: datetime
    low: datetime
    mid: datetime
    high: datetime
    items: float
    input_tokens: float
    output_tokens: float
    first: bool = False
    calibrated: bool = False
    ended_at: datetime | None = None

    @property
    def predicted_s(self) -> float:
        """The seconds that it foresaw, at least 1."""
        return max(1.0, (self.mid - self.at).total_seconds())

    @property
    def actual_s(self) -> float:
        """The seconds that it took, at least 1. Only for a batch that ended."""
        return max(1.0, ((self.ended_at or self.at) - self.at).total_seconds())

    @property
    def residual(self) -> float:
        """The logarithm of actual / predicted: above 0 means later than said."""
        return math.log(self.actual_s / self.predicted_s)

    @property
    def error(self) -> float:
        """How far off it was, as a share of the time that it took."""
        return abs(self.predicted_s / self.actual_s - 1)

    @property
    def held(self) -> bool:
        """Tell whether the batch ended within the range (to the second)."""
        low, actual, high = ((at - self.at).total_seconds() for at in (self.low, self.ended_at or self.at, self.high))
        return low - 1 <= actual <= high + 1


class _Horizon:
    """The residuals of one horizon, and the tails that its ranges now leave out."""

    def __init__(self) -> None:
        self.residuals: deque[float] = deque(maxlen=KEPT)
        self.batches: deque[str] = deque(maxlen=KEPT)
        self.tails = [_TAIL, _TAIL]
        self._sorted: list[float] | None = None

    def learn(self, given: GivenEta) -> None:
        self.residuals.append(given.residual)
        self.batches.append(given.batch)
        self._sorted = None
        if given.calibrated and given.ended_at is not None:
            self._steer(0, missed=given.ended_at < given.low)
            self._steer(1, missed=given.ended_at > given.high)

    @property
    def enough(self) -> bool:
        """Tell whether it was seen often enough, and in enough batches: those of one err together."""
        return len(self.residuals) >= FEWEST and len(set(self.batches)) >= _FEWEST_BATCHES

    @property
    def sorted(self) -> list[float]:
        if self._sorted is None:
            self._sorted = sorted(self.residuals)
        return self._sorted

    def quantiles(self) -> tuple[float, float]:
        """Return the quantiles at both tails, the wider the fewer batches they come from."""
        wider = 1 + _FEW_BATCHES / max(1, len(set(self.batches)))
        return wider * _quantile(self.sorted, self.tails[0]), wider * _quantile(self.sorted, 1 - self.tails[1])

    def _steer(self, side: int, *, missed: bool) -> None:
        least, most = _TAIL_BOUNDS
        self.tails[side] = min(most, max(least, self.tails[side] + _STEP * (_TAIL - missed)))


class Ranges:
    """Learns from the ETAs of batches that were completed, in the order in which they were."""

    def __init__(self, scored: Sequence[GivenEta] = ()) -> None:
        self.count = 0
        self._horizons = [_Horizon() for _ in range(len(HORIZONS_S) + 1)]
        self._all = _Horizon()
        for given in scored:
            self.learn(given)

    def learn(self, given: GivenEta) -> None:
        """Take an ETA of a batch that was completed."""
        self.count += 1
        self._all.learn(given)
        self._horizons[_index(given.predicted_s)].learn(given)

    @property
    def calibrated(self) -> bool:
        """Tell whether ranges rest on residuals."""
        return self.count >= FEWEST

    def factors(self, seconds: float) -> tuple[float, float]:
        """Return by what to multiply a predicted remaining time for p5 (at most 1) and p95 (at least 1).

        A horizon that was hardly seen gets the range of all, widened.
        """
        if not self.calibrated:
            return RULE_OF_THUMB
        own = self._horizons[_index(seconds)]
        low, high = own.quantiles() if own.residuals else (0.0, 0.0)
        if not own.enough:
            lowest, highest = self._all.quantiles()
            low, high = min(low, _WIDER_ELSEWHERE * lowest), max(high, _WIDER_ELSEWHERE * highest)
        return math.exp(min(0.0, low)), math.exp(max(0.0, high))


def _index(seconds: float) -> int:
    return sum(seconds >= edge for edge in HORIZONS_S)


def _quantile(values: Sequence[float], level: float) -> float:
    """Return a quantile of sorted values, interpolated as if one value more lay outside on each side."""
    place = level * (len(values) + 1) - 1
    lower = max(0, min(len(values) - 1, math.floor(place)))
    upper = min(len(values) - 1, lower + 1)
    return values[lower] + max(0.0, min(1.0, place - lower)) * (values[upper] - values[lower])


@dataclass(frozen=True, slots=True)
class Score:
    """How good `n` ETAs were: their median error (a share of the time that it took), and how often the range held."""

    n: int
    median_error: float | None
    held: float | None


@dataclass(frozen=True, slots=True)
class Scores:
    """The score of all ETAs, of those given at submission, and of each tenant's last 20 given at submission."""

    overall: Score
    at_submission: Score
    tenants: Mapping[str, Score]


def score(given: Sequence[GivenEta]) -> Score:
    """Return the score of ETAs of batches that were completed."""
    if not given:
        return Score(0, None, None)
    return Score(len(given), median(each.error for each in given), sum(each.held for each in given) / len(given))


def scores(given: Sequence[GivenEta]) -> Scores:
    """Return all scores; `given` in the order in which the batches were completed."""
    first = [each for each in given if each.first]
    tenants = {each.tenant for each in first}
    latest = {name: [each for each in first if each.tenant == name][-LATEST:] for name in sorted(tenants)}
    return Scores(score(given), score(first), {name: score(theirs) for name, theirs in latest.items()})
