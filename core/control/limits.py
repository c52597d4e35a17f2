"""The law: how many requests a pool can bear in flight, learned from what interactive requests feel.

Arithmetic only: no clock, no I/O, no state outside `LimitState`. A limit turns signals into a number; the dispatcher
enforces it. C is the limit on the TOTAL in flight; `core.quotas` gives batch what C leaves beside interactive.

Multiplicative decrease by the worst trigger, additive increase while batch is what the limit stops, slow start below
the level that was safe last. After a cut nothing is judged until the load has drained and settled, and requests that
arrived before that never count. Lateness that batch cannot have caused, or that its first burst of prompts after a rest
causes, is no reason to cut.
"""

import math
from dataclasses import dataclass, replace
from typing import Protocol

from core.control.decisions import Trigger
from core.control.reasons import Action, Reason
from core.samples import Signals

NEVER = -math.inf
_SOFT_GROWTH = 0.25
_FAR_ABOVE = 1e6
_PROPORTIONAL_SHARE = 0.3
_RESUME_WITHIN = 3600.0
_RESUME_LIMIT = 0.7
_RESUME_SLOW_START = 0.9


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """The law's parameters. Times in seconds, levels in slots, ratios as observed / budget.

    Holds: slots >= 1; 0 <= floor <= slots; 0 < beta_lo <= beta_hi < 1; 0 < band <= 1; alpha > 0; growth > 1.
    Defaults are those measured in simulation; `error_rate` is the budget of the bounds in force.
    """

    slots: int = 64
    floor: int = 1
    alpha: float = 1.0
    error_rate: float = 0.02
    period: float = 5.0
    target: float = 0.95
    band: float = 0.9
    n_min: int = 20
    sparse_min: int = 3
    live_cut: float = 0.9
    beta_lo: float = 0.5
    beta_hi: float = 0.9
    beta_hard: float = 0.8
    growth: float = 1.25
    settle: float = 10.0
    drain_max: float = 60.0
    plateau: float = 0.1
    forget: float = 600.0
    error_min: int = 3
    idle_after: float = 30.0
    gap_ticks: float = 3.0

    def __post_init__(self) -> None:
        if not (self.slots >= 1 and 0 <= self.floor <= self.slots):
            raise ValueError(f"floor {self.floor} must be within 0 and slots {self.slots}, slots at least 1")
        if not (0 < self.beta_lo <= self.beta_hi < 1 and 0 < self.beta_hard < 1):
            raise ValueError("betas must be within 0 and 1, the low one first")
        if not (0 < self.band <= 1 and self.alpha > 0 and self.growth > 1):
            raise ValueError("band must be within 0 and 1, alpha above 0, growth above 1")


@dataclass(frozen=True, slots=True)
class LimitState:
    """What the law remembers. Instants are monotonic seconds, levels in slots.

    `slow_start` is the level below which growth is fast, `cut_from` the level in use at the last cut. Only requests
    that arrived at or after `epoch` are judged; it is +inf while a cut drains. `idle_since` is when batch ran out of
    work, `None` while it has some; `began` when it last got work after `idle_after` seconds without. `excused` is the
    beginning of a batch whose lateness was excused, as long as none has gone on long enough to be judged.
    """

    limit: float
    slow_start: float
    cut_from: float = 0.0
    cut_at: float = NEVER
    draining: bool = False
    cool_until: float = NEVER
    epoch: float = NEVER
    last: float = NEVER
    idle_since: float | None = None
    began: float = NEVER
    excused: float = NEVER


@dataclass(frozen=True, slots=True)
class Move:
    """What one tick did: the limit before and after, why, and every trigger with its threshold.

    `breached` names the triggers past their threshold. `next_at` is the earliest next move, in monotonic seconds.
    """

    action: Action
    reason: Reason
    before: float
    after: float
    next_at: float
    triggers: tuple[Trigger, ...] = ()
    breached: tuple[str, ...] = ()


class Limit(Protocol):
    """A rule that turns signals into a limit. Stateless: the state is passed in and handed back."""

    def start(self, config: LimitConfig, *, limit: float | None = None, age: float = math.inf) -> LimitState:
        """Return the state to begin with; `limit` is what was in force `age` seconds ago, `None` if unknown."""

    def update(self, state: LimitState, config: LimitConfig, signals: Signals) -> tuple[LimitState, Move]:
        """Return the state after one tick, and what was done. floor <= limit <= slots holds, whatever comes in."""


@dataclass(frozen=True, slots=True)
class FixedLimit:
    """A limit that never moves: `level` slots, cut to what the pool has. The yardstick for the law."""

    level: float

    def start(self, config: LimitConfig, *, limit: float | None = None, age: float = math.inf) -> LimitState:
        """Return the fixed level; what was saved does not matter."""
        return confined(LimitState(self.level, self.level), config)

    def update(self, state: LimitState, config: LimitConfig, signals: Signals) -> tuple[LimitState, Move]:
        """Hold."""
        after = confined(replace(state, limit=float(self.level), last=signals.now), config)
        return after, Move(Action.HOLD, Reason.FIXED, after.limit, after.limit, signals.now + config.period)


@dataclass(frozen=True, slots=True)
class AimdLimit:
    """The law of this product."""

    def start(self, config: LimitConfig, *, limit: float | None = None, age: float = math.inf) -> LimitState:
        """Begin at 0.7 of a limit less than an hour old, else at max(floor + 1, a quarter of the slots)."""
        if limit is not None and math.isfinite(limit) and 0 <= age < _RESUME_WITHIN:
            return confined(LimitState(_RESUME_LIMIT * limit, _RESUME_SLOW_START * limit), config)
        return confined(LimitState(max(config.floor + 1.0, config.slots / 4), float(config.slots)), config)

    def update(self, state: LimitState, config: LimitConfig, signals: Signals) -> tuple[LimitState, Move]:
        """Do one tick: the lowest proposal of all triggers wins; growth only where nothing speaks against it."""
        state = _noting_work(confined(state, config), config, signals)
        after, action, reason, breached = _step(state, config, signals)
        next_at = signals.now + config.settle if action is Action.CUT else max(after.cool_until, signals.now)
        if next_at <= signals.now:
            next_at = signals.now + config.period
        triggers = tuple(proposal.trigger for proposal in _proposals(state, config, signals))
        after = replace(after, last=signals.now)
        return after, Move(action, reason, state.limit, after.limit, next_at, triggers, breached)


def confined(state: LimitState, config: LimitConfig) -> LimitState:
    """Return `state` with its levels inside the pool's bounds; nothing else is forgotten."""
    low, high = float(config.floor), float(config.slots)
    return replace(state, limit=min(max(state.limit, low), high), slow_start=min(max(state.slow_start, low), high))


def continued(state: LimitState, config: LimitConfig, *, limit: float, now: float) -> LimitState:
    """Return the state after a hold is released at `limit`: growth is slow from there, old samples do not count."""
    level = replace(state, limit=float(limit), slow_start=float(limit), draining=False, epoch=now)
    return confined(level, config)


_Step = tuple[LimitState, Action, Reason, tuple[str, ...]]


def _hold(state: LimitState, reason: Reason) -> _Step:
    return state, Action.HOLD, reason, ()


def _step(state: LimitState, config: LimitConfig, signals: Signals) -> _Step:
    now = signals.now
    if now < state.last:
        return _hold(_re_anchored(state, config, now), Reason.CLOCK_BACK)
    if math.isfinite(state.last) and now - state.last > config.gap_ticks * config.period:
        return _hold(replace(state, epoch=now, draining=False, cool_until=now + config.settle), Reason.GAP)
    if state.draining:
        if not _drained(state, config, signals):
            return _hold(state, Reason.DRAINING)
        state = replace(state, draining=False, cool_until=now + config.settle, epoch=now)
    if now < state.cool_until:
        return _hold(state, Reason.SETTLING)
    if signals.batch and not _begins(state, config, signals):
        state = replace(state, excused=NEVER)
    breached = [proposal for proposal in _proposals(state, config, signals) if proposal.beta is not None]
    excuse = _excuse(state, config, signals)
    counted = [proposal for proposal in breached if proposal.hard] if excuse else breached
    if counted:
        return _cut(state, config, signals, counted)
    if breached and excuse:
        return _hold(replace(state, excused=state.began) if excuse is Reason.BATCH_BEGINS else state, excuse)
    reason = _against_growth(state, config, signals)
    return _hold(state, reason) if reason else _grow(state, config, signals)


def _re_anchored(state: LimitState, config: LimitConfig, now: float) -> LimitState:
    back = state.last - now
    return replace(
        state,
        cut_at=state.cut_at - back,
        cool_until=min(state.cool_until - back, now + config.drain_max),
        idle_since=None if state.idle_since is None else state.idle_since - back,
        began=state.began - back,
        excused=state.excused - back,
        epoch=state.epoch if math.isinf(state.epoch) else min(state.epoch, now),
    )


def _noting_work(state: LimitState, config: LimitConfig, signals: Signals) -> LimitState:
    """Note since when batch has no work, or that it has some again; after a rest, older requests do not count."""
    now, since = signals.now, state.idle_since
    if now < state.last:
        return state
    if signals.batch == 0 and signals.backlog == 0:
        return replace(state, idle_since=now) if since is None else state
    if since is None:
        return state
    working = replace(state, idle_since=None)
    return replace(working, began=now, epoch=now) if now - since >= config.idle_after else working


def _excuse(state: LimitState, config: LimitConfig, signals: Signals) -> Reason | None:
    """Return why late requests say nothing against the limit now, `None` where they do.

    Without batch in flight a lower limit relieves nobody, and the level in use is interactive's own: a cut from it
    would take from the next batch what its forerunner had. When batch begins after a rest, its prompts come all at
    once: that is over in seconds, and the level in use is still far from the limit that would be judged. It is excused
    once: else batch that comes in bursts too short to be judged would never be cut, however late it made the others.
    """
    if signals.batch == 0:
        return Reason.NO_BATCH
    fresh = state.excused in (NEVER, state.began)
    return Reason.BATCH_BEGINS if fresh and _begins(state, config, signals) else None


def _begins(state: LimitState, config: LimitConfig, signals: Signals) -> bool:
    return signals.now - state.began < config.settle


def _used(signals: Signals) -> int:
    return signals.interactive + signals.batch


def _drained(state: LimitState, config: LimitConfig, signals: Signals) -> bool:
    in_time = signals.now - state.cut_at <= config.drain_max
    return not in_time or _used(signals) <= state.limit + 1 or signals.batch <= config.floor


# Triggers


@dataclass(frozen=True, slots=True)
class _Proposal:
    """One trigger, and the share of the level in use that it would cut to: `None` where it is not breached."""

    trigger: Trigger
    beta: float | None
    reason: Reason
    hard: bool = False


def _level(state: LimitState, config: LimitConfig, signals: Signals) -> float:
    """Return the level that a cut starts from: what is in use, but never more than the limit."""
    return max(float(config.floor), min(state.limit, float(_used(signals))))


def _known(value: float | None) -> float | None:
    """Return a ratio that can be stored and compared: no NaN, nothing infinite."""
    return None if value is None or math.isnan(value) else min(value, _FAR_ABOVE)


def _proposals(state: LimitState, config: LimitConfig, signals: Signals) -> tuple[_Proposal, ...]:
    return (
        _refusals(config, signals),
        _errors(config, signals),
        _batch_errors(config, signals),
        _ratio(config, Reason.FIRST_TOKEN, signals.first, signals.first_mid, signals.first_n, signals.first_over),
        _ratio(config, Reason.PER_TOKEN, signals.token, signals.token_mid, signals.token_n, signals.token_over),
        _live(config, signals),
        _queue(state, config, signals),
    )


def _refusals(config: LimitConfig, signals: Signals) -> _Proposal:
    beta = config.beta_hard if signals.refused > 0 else None
    trigger = Trigger(Reason.PROVIDER_429, float(signals.refused), 1.0, signals.refused)
    return _Proposal(trigger, beta, Reason.PROVIDER_429, hard=True)


def _errors(config: LimitConfig, signals: Signals) -> _Proposal:
    rate = signals.errors / signals.samples if signals.samples else None
    over = rate is not None and signals.errors >= config.error_min and rate > config.error_rate
    trigger = Trigger(Reason.ERRORS, rate, config.error_rate, signals.samples)
    return _Proposal(trigger, config.beta_hard if over else None, Reason.ERRORS, hard=True)


def _batch_errors(config: LimitConfig, signals: Signals) -> _Proposal:
    beta = config.beta_hard if signals.hard >= config.error_min else None
    trigger = Trigger(Reason.BATCH_ERRORS, float(signals.hard), float(config.error_min), signals.hard)
    return _Proposal(trigger, beta, Reason.BATCH_ERRORS, hard=True)


def _ratio(config: LimitConfig, reason: Reason, p95: float | None, mid: float | None, n: int, over: int) -> _Proposal:
    """Judge a p95 over enough samples; over fewer, only where most of them are late, and then their median."""
    value = _known(p95)
    worst = value
    if n < config.n_min:
        most_late = n >= config.sparse_min and 2 * over > n
        typical = _known(mid)
        worst = (value if typical is None else typical) if most_late else None
    beta = _share(config.target, worst)
    return _Proposal(Trigger(reason, value, config.target, n), beta, reason)


def _live(config: LimitConfig, signals: Signals) -> _Proposal:
    live = _known(signals.live)
    beta = _share(config.live_cut, live) if signals.batch > 0 else None
    return _Proposal(Trigger(Reason.LIVE_TOKENS, live, config.live_cut, _used(signals)), beta, Reason.LIVE_TOKENS)


def _queue(state: LimitState, config: LimitConfig, signals: Signals) -> _Proposal:
    trigger = Trigger(Reason.BACKEND_QUEUE, float(signals.queued), 1.0, signals.batch)
    if signals.queued <= 0 or signals.batch <= config.floor:
        return _Proposal(trigger, None, Reason.BACKEND_QUEUE)
    level = _level(state, config, signals)
    beta = config.beta_hi * max(0, _used(signals) - signals.queued) / level if level > 0 else 1.0
    return _Proposal(trigger, beta, Reason.BACKEND_QUEUE)


def _share(threshold: float, value: float | None) -> float | None:
    return threshold / value if value is not None and value > threshold else None


def _cut(state: LimitState, config: LimitConfig, signals: Signals, breached: list[_Proposal]) -> _Step:
    worst = min(breached, key=_beta)
    beta = min(max(_beta(worst), config.beta_lo), config.beta_hi)
    level = _level(state, config, signals)
    limit = min(state.limit, max(float(config.floor), level * beta))
    lenient = any(proposal.hard for proposal in breached) and beta >= config.beta_hard
    cut = replace(
        state,
        limit=limit,
        slow_start=max(limit, 0.9 * level) if lenient else limit,
        cut_from=level,
        cut_at=signals.now,
        draining=True,
        epoch=math.inf,
        excused=NEVER,
    )
    return cut, Action.CUT, worst.reason, tuple(proposal.trigger.name for proposal in breached)


def _beta(proposal: _Proposal) -> float:
    return 1.0 if proposal.beta is None else proposal.beta


# Growth


def _full_ratio(config: LimitConfig, signals: Signals) -> float | None:
    """Return the worse of the two p95 ratios that rest on enough samples; `None` where neither does."""
    pairs = ((signals.first, signals.first_n), (signals.token, signals.token_n))
    return max((v for p95, n in pairs if n >= config.n_min and (v := _known(p95)) is not None), default=None)


def _sparse(signals: Signals) -> tuple[int, float, bool]:
    """Return how many samples the better known signal has, the worst ratio, and whether most of any signal are late."""
    ratios = [v for p95 in (signals.first, signals.token) if (v := _known(p95)) is not None]
    late = 2 * signals.first_over > signals.first_n or 2 * signals.token_over > signals.token_n
    return max(signals.first_n, signals.token_n), max(ratios, default=0.0), late


def _against_growth(state: LimitState, config: LimitConfig, signals: Signals) -> Reason | None:
    """Return why the limit must not rise now, `None` where it may."""
    live, ratio = _known(signals.live), _full_ratio(config, signals)
    if not signals.bound:
        return Reason.NOT_BINDING
    if ratio is not None and ratio >= config.band * config.target:
        return Reason.DEAD_BAND
    if live is not None and live >= config.band * config.live_cut:
        return Reason.DEAD_BAND_LIVE
    if ratio is None and signals.idle_for < config.idle_after:
        reason = _against_blind_growth(config, signals, live)
        if reason:
            return reason
    return Reason.AT_SLOTS if state.limit >= config.slots else None


def _against_blind_growth(config: LimitConfig, signals: Signals, live: float | None) -> Reason | None:
    n, worst, late = _sparse(signals)
    if live is not None:
        return Reason.FEW_SAMPLES if late else None
    if n == 0:
        return Reason.NO_SIGNAL
    return Reason.FEW_SAMPLES if worst >= config.band * config.target else None


def _pace(config: LimitConfig, signals: Signals) -> float:
    """Return 1, or less where all that is known are a few interactive samples: their share of enough."""
    informed = _full_ratio(config, signals) is not None or _known(signals.live) is not None
    if informed or signals.idle_for >= config.idle_after:
        return 1.0
    return min(1.0, _sparse(signals)[0] / config.n_min)


def _grow(state: LimitState, config: LimitConfig, signals: Signals) -> _Step:
    limit, alpha = state.limit, config.alpha
    if limit < state.slow_start:
        reason = Reason.SLOW_START
        gain = min(max(limit * config.growth, limit + alpha), max(state.slow_start, limit + alpha)) - limit
    else:
        gain, reason = _additive(state, config, signals)
    after = min(float(config.slots), limit + gain * _pace(config, signals))
    return replace(state, limit=after), Action.GROW, reason, ()


def _additive(state: LimitState, config: LimitConfig, signals: Signals) -> tuple[float, Reason]:
    ratio, live = _full_ratio(config, signals) or 0.0, _known(signals.live) or 0.0
    worst = max(ratio / config.target, live / config.live_cut)
    share = (config.band - worst) / (_PROPORTIONAL_SHARE * config.band)
    share = max(_SOFT_GROWTH, min(1.0, share))
    recent = state.cut_from > 0 and signals.now - state.cut_at < config.forget
    if recent and abs(state.limit - state.cut_from) <= config.plateau * state.cut_from:
        return config.alpha * min(share, _SOFT_GROWTH), Reason.PLATEAU
    return config.alpha * share, Reason.ADDITIVE
