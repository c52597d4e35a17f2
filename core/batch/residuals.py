"""How wrong past ETAs were, and so how wide a range must be that holds 9 times in 10. Pure.

Empirical quantiles of log(actual / predicted remaining time), of ETAs given at submission and of later ones, per
horizon. The ETAs of one batch err together, so a batch counts as one residual, however many ETAs it had; quantiles are
those of split conformal prediction ((n + 1)(1 - tail) of n; Vovk 2005), drawn towards what was known before as long as
there are few batches. Their tails are steered by what happened (adaptive conformal inference, Gibbs and Candès 2021).

Measured on 8 seeds of `tests/eta_world.py`, 28 days each, and left out: tails that also grow above 5 %, faster at first
(a step of 0.5 / n: held 84 %, in weeks in which these rules hold 89 to 94 %); forgetting all after 4 or 6 misses in a
row, as after a change (85 %); a step of 0.02 (94 to 95 % with four teams, for wider ranges).
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from statistics import median

FEWEST = 30
"""Residuals before which the range is a rule of thumb."""
RULE_OF_THUMB = (0.6, 2.0)
HORIZONS_S = (1800.0, 7200.0, 21600.0, 57600.0)
AT_SUBMISSION = 0.05
"""The share of a batch until which it is as it was at its submission: its own items have told little of it."""
KEPT = 400
"""Batches that count, per horizon."""
LATEST = 20
"""ETAs of a tenant that its score is made of."""

_TAIL = 0.05
_STEP = 0.005
_PRIOR_BATCHES = 10.0
"""Batches that weigh as much as what was known before them: the first week held 90 to 93 %; with 15, 92 to 94 %."""


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


class _Kind:
    """The residuals of one kind of ETA, batch by batch, and the tails that its ranges now leave out."""

    def __init__(self) -> None:
        self._batches: deque[list[float]] = deque(maxlen=KEPT)
        self._tails = [_TAIL, _TAIL]
        self._quantiles: tuple[float, float] | None = None

    def learn(self, given: Sequence[GivenEta]) -> None:
        """Take those ETAs of one batch that are of this kind."""
        self._batches.append([each.residual for each in given])
        self._quantiles = None
        ends = [(each, each.ended_at) for each in given if each.calibrated and each.ended_at is not None]
        if ends:
            self._steer(0, sum(at < each.low for each, at in ends) / len(ends))
            self._steer(1, sum(at > each.high for each, at in ends) / len(ends))

    def drawn(self, low: float, high: float) -> tuple[float, float]:
        """Return the quantiles at both tails, drawn towards what is known otherwise, the more the fewer batches."""
        if not self._batches:
            return low, high
        share = len(self._batches) / (len(self._batches) + _PRIOR_BATCHES)
        lowest, highest = self._own()
        return low + share * (lowest - low), high + share * (highest - high)

    def _own(self) -> tuple[float, float]:
        if self._quantiles is None:
            weighed = sorted((each, 1 / len(batch)) for batch in self._batches for each in batch)
            least, most = ((len(self._batches) + 1) * (1 - tail) for tail in self._tails)
            self._quantiles = _reached(weighed[::-1], least), _reached(weighed, most)
        return self._quantiles

    def _steer(self, side: int, missed: float) -> None:
        """Widen after misses, and back to the plain tail, no further: ranges drawn to wider ones hold too often."""
        self._tails[side] = min(_TAIL, max(0.0, self._tails[side] + _STEP * (_TAIL - missed)))


class Ranges:
    """Learns from the ETAs of batches that were completed, in the order in which they were."""

    def __init__(self, scored: Sequence[GivenEta] = ()) -> None:
        self.count = 0
        horizons = range(len(HORIZONS_S) + 1)
        self._kinds = {fresh: ([_Kind() for _ in horizons], _Kind()) for fresh in (False, True)}
        for _, given in groupby(scored, key=lambda each: each.batch):
            self.learn(list(given))

    def learn(self, given: Sequence[GivenEta]) -> None:
        """Take the ETAs of one batch that was completed."""
        self.count += len(given)
        for fresh, (horizons, all_of_it) in self._kinds.items():
            theirs = [each for each in given if each.first == fresh]
            if theirs:
                all_of_it.learn(theirs)
            for index, horizon in enumerate(horizons):
                here = [each for each in theirs if _index(each.predicted_s) == index]
                if here:
                    horizon.learn(here)

    @property
    def calibrated(self) -> bool:
        """Tell whether ranges rest on residuals."""
        return self.count >= FEWEST

    def factors(self, seconds: float, *, fresh: bool) -> tuple[float, float]:
        """Return by what to multiply a predicted remaining time for p5 (at most 1) and p95 (at least 1).

        `fresh` tells that a batch is as it was at its submission. A horizon that was hardly seen gets the range of all,
        and where little was seen at all, something like the rule of thumb.
        """
        if not self.calibrated:
            return RULE_OF_THUMB
        horizons, all_of_it = self._kinds[fresh]
        low, high = horizons[_index(seconds)].drawn(*all_of_it.drawn(*map(math.log, RULE_OF_THUMB)))
        return math.exp(min(0.0, low)), math.exp(max(0.0, high))


def _index(seconds: float) -> int:
    return sum(seconds >= edge for edge in HORIZONS_S)


def _reached(weighed: Sequence[tuple[float, float]], weight: float) -> float:
    """Return the first value up to which that much weight lies; the last one where there is less in all."""
    summed = 0.0
    for value, own in weighed:
        summed += own
        if summed >= weight - 1e-9:
            return value
    return weighed[-1][0]


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
