"""The measures behind the signals: ratios against budgets, the live gap between tokens, batch failures. No I/O."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from core.quotas import Budgets

SHORT_ANSWER = 8
"""Tokens up to which an answer is too short to tell a time per token."""

_LEARNING = 0.05
_LIVE_SHARE = 0.5
_LIVE_AT_FIRST = 0.5


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the nearest-rank percentile, `None` of nothing. The p95 of fewer than 20 values is the greatest."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


class Sample(NamedTuple):
    """`seconds` measured at `at`, to be held against `firsts` first-token budgets and `tokens` per-token budgets."""

    at: float
    arrived: float
    model: str
    seconds: float
    firsts: int
    tokens: float


class Mark:
    """How far a stream was read: the latest piece's time and how many pieces; `recorded` once its first token was."""

    __slots__ = ("last", "recorded", "tokens")

    def __init__(self) -> None:
        self.recorded = False
        self.last = 0.0
        self.tokens = 0


class Promises:
    """The budgets by model, as one call gave them."""

    __slots__ = ("_base", "_by_model")

    def __init__(self, base: Budgets, by_model: Mapping[str, Budgets]) -> None:
        self._base = base
        self._by_model = by_model

    def of(self, model: str) -> Budgets:
        """Return the budgets of a model."""
        return self._by_model.get(model, self._base)

    def ratio(self, sample: Sample) -> float:
        """Return observed / budget."""
        budgets = self.of(sample.model)
        budget = sample.firsts * budgets.first_token_s + sample.tokens * budgets.per_token_ms / 1000
        return sample.seconds / budget if budget > 0 else math.inf


class LiveGap:
    """The mean time between tokens over all streams since the last tick, against the per-token budget."""

    def __init__(self) -> None:
        self.tokens_per_piece = 1.0
        self._value = _LIVE_AT_FIRST
        self._ticked = -math.inf
        self._moved: dict[str, tuple[float, int]] = {}

    def learn(self, pieces: int, tokens: int) -> None:
        """Learn from one answer how many tokens a content piece holds: engines may send several at once."""
        if pieces > SHORT_ANSWER:
            seen = min(max(tokens / pieces, 0.25), 16.0)
            self.tokens_per_piece += _LEARNING * (seen - self.tokens_per_piece)

    def read(self, mark: Mark, model: str, first: float, last: float, tokens: int) -> None:
        """Take in what came of one stream since it was read last: `tokens` pieces from `first` to `last` so far."""
        if tokens < mark.tokens:  # it was pulled back and began anew
            mark.tokens = 0
        since, before = (mark.last, mark.tokens) if mark.tokens else (first, 1)
        if tokens > before:
            seconds, pieces = self._moved.get(model, (0.0, 0))
            self._moved[model] = (seconds + last - since, pieces + tokens - before)
        mark.last, mark.tokens = last, tokens

    def tick(self, now: float, streams: list[tuple[float, str]], promises: Promises) -> float | None:
        """Return the ratio, smoothed over ticks; `None` where nothing streams.

        It begins as if tokens had come at twice the pace that is promised: a first tick alone, of one answer's slow
        beginning, would cut a limit that has yet to grow.

        `streams` holds the time of the latest piece, and the model, of each stream being decoded.
        """
        ratio = self._ratio(promises)
        if ratio is None:
            ratio = self._stalled(now, streams, promises)
        self._moved.clear()
        self._ticked = now
        if ratio is None:
            return None
        self._value += _LIVE_SHARE * (ratio - self._value)
        return self._value

    def _ratio(self, promises: Promises) -> float | None:
        seconds = sum(s for s, _ in self._moved.values())
        budget = sum(promises.of(model).per_token_ms / 1000 * n for model, (_, n) in self._moved.items())
        return seconds / (budget * self.tokens_per_piece) if budget > 0 else None

    def _stalled(self, now: float, streams: list[tuple[float, str]], promises: Promises) -> float | None:
        """Return a lower bound from the time since the last token, where no stream moved for a whole tick.

        One stream alone is no proof: its client may read slowly.
        """
        if len(streams) < 2:
            return None
        newest, model = max(streams)
        budget = promises.of(model).per_token_ms / 1000
        return (now - newest) / budget if newest <= self._ticked and budget > 0 else None


class BatchFailures:
    """Batch requests that failed since the last tick.

    Failed connections always count. Time-outs and 5xx count only from two sources on, or beside interactive errors: a
    poisoned batch must not throttle the pool.
    """

    def __init__(self) -> None:
        self._connections = 0
        self._answers = 0
        self._sources: set[str] = set()

    def note(self, source: str, *, connection: bool) -> None:
        """Count one failure."""
        if connection:
            self._connections += 1
            return
        self._answers += 1
        if len(self._sources) < 2:
            self._sources.add(source)

    def take(self, *, interactive_errs: bool) -> tuple[int, str | None, int]:
        """Return the failures that count, and the one poisoned source with its failures; begin anew."""
        connections, answers, sources = self._connections, self._answers, self._sources
        self._connections, self._answers, self._sources = 0, 0, set()
        if not answers or len(sources) > 1 or interactive_errs:
            return connections + answers, None, 0
        return connections, next(iter(sources)), answers
