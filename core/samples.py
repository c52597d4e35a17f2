"""What the gateway observes of each request, and the signals that the controller and the pages read from it."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from core.gauges import SHORT_ANSWER, BatchFailures, LiveGap, Mark, Promises, Sample, percentile
from core.lanes import Lane, Outcome
from core.quotas import Budgets

WINDOW = 60.0
"""Seconds over which a p95 or an error rate is taken."""
LONG_WINDOW = 300.0
"""Seconds over which the last samples are taken where `WINDOW` holds fewer than enough."""
ENOUGH = 20
"""Samples from which a p95 means something."""

_MAX_SAMPLES = 2048
_FAILED = frozenset({Outcome.TIMEOUT, Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_TRUNCATED})


@dataclass(slots=True, eq=False)
class Observation:
    """One request in flight, written by the gateway as it goes (monotonic seconds throughout).

    `arrived` is when it reached Tidegate (the queue wait counts), `started` when its slot was granted, `first` and
    `last` when the first and latest piece of content came, `tokens` how many content pieces came so far. `streamed`
    tells whether the answer comes as a stream (only then is `first` a first token); `has_tokens` is False for
    endpoints without generated tokens (embeddings). `source` names the batch, or the tenant of a synchronous call.
    """

    lane: Lane
    model: str
    arrived: float
    streamed: bool
    has_tokens: bool = True
    source: str = ""
    started: float | None = None
    first: float | None = None
    last: float | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Signals:
    """The inputs of one controller tick, as in the control law's table; ratios are observed / budget.

    `first` and `token` are p95s (the worst, where fewer than 20 samples exist) over `_n` samples, `_mid` their medians,
    `_over` how many of them are above the target. `poisoned` names the only batch whose requests failed, `poisoned_n`
    times since the last tick, while nothing else did; such failures are not in `hard`.
    """

    now: float
    interactive: int = 0
    interactive_waiting: int = 0
    batch: int = 0
    backlog: int = 0
    bound: bool = False
    first: float | None = None
    first_n: int = 0
    first_over: int = 0
    first_mid: float | None = None
    token: float | None = None
    token_n: int = 0
    token_over: int = 0
    token_mid: float | None = None
    live: float | None = None
    queued: int = 0
    refused: int = 0
    errors: int = 0
    samples: int = 0
    hard: int = 0
    idle_for: float = 0.0
    poisoned: str | None = None
    poisoned_n: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What interactive requests felt in the last minute; `None` where there is no data, never NaN or infinite.

    Seconds, milliseconds for `per_token_p95_ms`, a share for `error_rate`; `samples` counts requests that ended.
    """

    first_token_p95_s: float | None = None
    per_token_p95_ms: float | None = None
    total_p95_s: float | None = None
    error_rate: float | None = None
    samples: int = 0


class _End(NamedTuple):
    """One interactive request that ended: in how many seconds, or failed."""

    at: float
    arrived: float
    seconds: float
    failed: bool


class SampleBoard:
    """One pool's observations: what is in flight, and what the last minutes brought. Bounded in time and number.

    The gateway opens an observation when a request arrives, writes to it as the answer comes, and closes it once.
    `signals` is for the controller alone, once per tick, because it takes what came since the last call.
    """

    def __init__(self) -> None:
        self._open: dict[Observation, Mark] = {}
        self._firsts: deque[Sample] = deque(maxlen=_MAX_SAMPLES)
        self._gone: deque[Sample] = deque(maxlen=_MAX_SAMPLES)
        self._tokens: deque[Sample] = deque(maxlen=_MAX_SAMPLES)
        self._ends: deque[_End] = deque(maxlen=_MAX_SAMPLES)
        self._live = LiveGap()
        self._failures = BatchFailures()
        self._refused = 0
        self._last_interactive = -math.inf

    def open(self, obs: Observation, now: float) -> None:
        """Note that a request arrived."""
        self._open[obs] = Mark()
        if obs.lane is Lane.INTERACTIVE:
            self._last_interactive = now

    def close(
        self,
        obs: Observation,
        outcome: Outcome,
        now: float,
        *,
        output_tokens: int | None,
        connection_failed: bool = False,
        counts: bool = True,
    ) -> None:
        """Note that a request ended; a second call for the same one does nothing.

        `output_tokens` is what the answer's usage says, `None` if it does not. `counts` is False for an answer that
        says nothing about the server's speed: a 4xx.
        """
        mark = self._open.pop(obs, None)
        if mark is None:
            return
        if obs.streamed:
            self._read(obs, mark)
            if output_tokens is not None:
                self._live.learn(obs.tokens, output_tokens)
        if not counts:
            return
        failed = connection_failed or outcome in _FAILED
        if obs.lane is Lane.INTERACTIVE:
            self._close_interactive(obs, mark, outcome, now, output_tokens, failed)
        elif failed:
            self._failures.note(obs.source, connection=connection_failed)

    def refused(self, now: float) -> None:
        """Note a 429 from the provider, to either lane."""
        self._refused += 1

    def signals(
        self,
        now: float,
        *,
        epoch: float,
        budgets: Budgets,
        model_budgets: Mapping[str, Budgets],
        interactive: int,
        interactive_waiting: int,
        batch: int,
        backlog: int,
        bound: bool,
        queued: int,
        target: float = 0.95,
    ) -> Signals:
        """Return the inputs of this tick. Only requests that arrived at or after `epoch` are judged."""
        promises = Promises(budgets, model_budgets)
        self._settle(now)
        first = self._first_ratios(now, epoch, promises)
        token = [promises.ratio(sample) for sample in _latest(self._tokens, now, epoch)]
        ends = [end for end in self._ends if end.at >= now - WINDOW and end.arrived >= epoch]
        errors = sum(end.failed for end in ends)
        hard, poisoned, poisoned_n = self._failures.take(interactive_errs=errors > 0)
        refused, self._refused = self._refused, 0
        return Signals(
            now=now,
            interactive=interactive,
            interactive_waiting=interactive_waiting,
            batch=batch,
            backlog=backlog,
            bound=bound,
            first=percentile(first, 0.95),
            first_n=len(first),
            first_over=sum(ratio > target for ratio in first),
            first_mid=percentile(first, 0.5),
            token=percentile(token, 0.95),
            token_n=len(token),
            token_over=sum(ratio > target for ratio in token),
            token_mid=percentile(token, 0.5),
            live=self._live_ratio(now, promises),
            queued=queued,
            refused=refused,
            errors=errors,
            samples=len(ends),
            hard=hard,
            idle_for=max(0.0, now - self._last_interactive),
            poisoned=poisoned,
            poisoned_n=poisoned_n,
        )

    def seen(self, now: float, budgets: Budgets, model_budgets: Mapping[str, Budgets]) -> Seen:
        """Return what interactive requests felt in the last minute, for people."""
        self._settle(now)
        since = now - WINDOW
        waiting = self._late(now, -math.inf, Promises(budgets, model_budgets))
        firsts = [s.seconds for s in self._firsts if s.at >= since] + [s.seconds for s in waiting]
        gaps = [s.seconds / s.tokens * 1000 for s in self._tokens if s.at >= since and not s.firsts]
        ends = [end for end in self._ends if end.at >= since]
        return Seen(
            first_token_p95_s=_finite(percentile(firsts, 0.95)),
            per_token_p95_ms=_finite(percentile(gaps, 0.95)),
            total_p95_s=_finite(percentile((end.seconds for end in ends if not end.failed), 0.95)),
            error_rate=sum(end.failed for end in ends) / len(ends) if ends else None,
            samples=len(ends),
        )

    # Writing

    def _close_interactive(
        self, obs: Observation, mark: Mark, outcome: Outcome, now: float, output_tokens: int | None, failed: bool
    ) -> None:
        self._record_first(obs, mark)
        left = outcome in (Outcome.CLIENT_DISCONNECT, Outcome.CANCELLED, Outcome.TIMEOUT)
        if left and obs.streamed and obs.first is None:
            self._gone.append(Sample(now, obs.arrived, obs.model, now - obs.arrived, 1, 0.0))
        if failed or outcome is Outcome.SUCCESS:
            self._ends.append(_End(now, obs.arrived, now - obs.arrived, failed))
        if outcome is Outcome.SUCCESS and not failed:
            self._record_tokens(obs, now, output_tokens)

    def _record_first(self, obs: Observation, mark: Mark) -> None:
        if obs.first is None or mark.recorded or not (obs.streamed and obs.has_tokens):
            return
        mark.recorded = True
        self._firsts.append(Sample(obs.first, obs.arrived, obs.model, obs.first - obs.arrived, 1, 0.0))

    def _record_tokens(self, obs: Observation, now: float, output_tokens: int | None) -> None:
        if not obs.has_tokens:
            self._tokens.append(Sample(now, obs.arrived, obs.model, now - obs.arrived, 1, 0.0))
        elif not obs.streamed:
            if output_tokens is not None:
                self._tokens.append(Sample(now, obs.arrived, obs.model, now - obs.arrived, 1, float(output_tokens)))
        elif obs.first is not None and obs.last is not None and obs.tokens > 1:
            out = obs.tokens * self._live.tokens_per_piece if output_tokens is None else output_tokens
            if out > SHORT_ANSWER:
                self._tokens.append(Sample(now, obs.arrived, obs.model, obs.last - obs.first, 0, out - 1.0))

    # Reading

    def _settle(self, now: float) -> None:
        """Record the first tokens that came since, and forget what is too old to matter."""
        for obs, mark in self._open.items():
            if obs.lane is Lane.INTERACTIVE:
                self._record_first(obs, mark)
        for samples in (self._firsts, self._gone, self._tokens, self._ends):
            while samples and samples[0].at < now - LONG_WINDOW:
                samples.popleft()

    def _live_ratio(self, now: float, promises: Promises) -> float | None:
        for obs, mark in self._open.items():
            if obs.streamed:
                self._read(obs, mark)
        streams = [(obs.last, obs.model) for obs in self._open if obs.streamed and obs.last is not None]
        return self._live.tick(now, streams, promises)

    def _read(self, obs: Observation, mark: Mark) -> None:
        if obs.first is not None and obs.last is not None:
            self._live.read(mark, obs.model, obs.first, obs.last, obs.tokens)

    def _first_ratios(self, now: float, epoch: float, promises: Promises) -> list[float]:
        known = [*_latest(self._firsts, now, epoch), *self._late(now, epoch, promises)]
        return [promises.ratio(sample) for sample in known]

    def _late(self, now: float, epoch: float, promises: Promises) -> list[Sample]:
        """Return those past their budget without a first token: still waiting (their age), or gone in vain."""
        waiting = [
            Sample(now, obs.arrived, obs.model, now - obs.arrived, 1, 0.0)
            for obs in self._open
            if obs.lane is Lane.INTERACTIVE and obs.streamed and obs.has_tokens and obs.first is None
        ]
        gone = [sample for sample in self._gone if sample.at >= now - WINDOW]
        return [s for s in waiting + gone if s.arrived >= epoch and promises.ratio(s) > 1]


def _latest(samples: deque[Sample], now: float, epoch: float) -> list[Sample]:
    """Return the samples of the last minute, or if they are too few the last 20 of the last five minutes."""
    known = [s for s in samples if s.arrived >= epoch and s.at >= now - LONG_WINDOW]
    fresh = [s for s in known if s.at >= now - WINDOW]
    return fresh if len(fresh) >= ENOUGH else known[-ENOUGH:]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
