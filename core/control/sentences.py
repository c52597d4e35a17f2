"""One sentence or two for every reason: the numbers, what they are held against, and what happens next."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType

from core import wording
from core.control.decisions import Trigger
from core.control.limits import LimitConfig
from core.control.reasons import Reason
from core.quotas import Bounds, Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A pool as it stands at one instant, after whatever was done.

    `quota` is in force, `shadow_quota` what the controller alone would give. `demand` is interactive in flight and
    waiting. `mixed` tells that some models have budgets of their own, so that only shares of a budget can be named.
    """

    at: datetime
    now: float
    limit: float
    quota: int
    shadow_quota: int
    interactive: int = 0
    interactive_waiting: int = 0
    batch: int = 0
    backlog: int = 0
    bounds: Bounds
    hold: Hold | None = None
    paused: bool = False
    mixed: bool = False
    config: LimitConfig
    version: int = 0
    zone: tzinfo = UTC

    @property
    def demand(self) -> int:
        """Interactive requests in flight and waiting."""
        return self.interactive + self.interactive_waiting

    @property
    def in_flight(self) -> int:
        """All requests in flight."""
        return self.interactive + self.batch


@dataclass(frozen=True, slots=True)
class Facts:
    """What happened: the reason, what it moved (before, after), and the pool then.

    `epoch` is the monotonic second from which on arriving requests are judged (-inf: all; +inf: none yet), `wait`
    seconds to the next possible move, `cut_from` the level of the last cut, `was` the bounds before, `ended`
    the hold that expired, `saved` a limit kept before the start and `age` its age in seconds, `source` a batch's name
    and `failures` how many of its requests failed.
    """

    reason: Reason
    scene: Scene
    limit: tuple[float, float]
    quota: tuple[int, int]
    demand: tuple[int, int] = (0, 0)
    triggers: tuple[Trigger, ...] = ()
    epoch: float = -math.inf
    wait: float = 0.0
    slow_start: float = 0.0
    cut_from: float = 0.0
    was: Bounds | None = None
    ended: Hold | None = None
    saved: float | None = None
    age: float | None = None
    source: str = ""
    failures: int = 0
    by_name: Mapping[str, Trigger] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", MappingProxyType({trigger.name: trigger for trigger in self.triggers}))

    def trigger(self, reason: Reason) -> Trigger:
        """Return the trigger of that name; one without data if there is none."""
        return self.by_name.get(reason, Trigger(reason, None, 1.0))


def sentence(facts: Facts) -> str:
    """Return the text for people. Every reason has one."""
    return _SENTENCES[facts.reason](facts)


# Words


def level(value: float) -> str:
    """Return a level in slots with at most one decimal."""
    return wording.plain(round(value, 1))


def share(ratio: float | None) -> str:
    """Return a ratio as whole percent."""
    if ratio is None:
        return wording.NO_DATA
    return f"{ratio * 100:.0f} %" if ratio < 100 else "more than 100 times"


def _requests(n: int, kind: str = "") -> str:
    return f"{n} {kind + ' ' if kind else ''}request{'' if n == 1 else 's'}"


def _arrow(pair: tuple[float, float]) -> str:
    return f"{level(pair[0])} -> {level(pair[1])}"


def _limit(facts: Facts) -> str:
    before, after = facts.limit
    return f"Limit {_arrow(facts.limit)}" if level(before) != level(after) else f"Limit stays at {level(after)}"


def _quota(facts: Facts) -> str:
    scene, (before, after) = facts.scene, facts.quota
    if scene.hold is not None:
        return f"{_held(scene)}, so the quota stays; the controller would give {scene.shadow_quota}"
    if before == after:
        return f"Batch quota stays at {after}"
    drains = ", drains without aborts" if after < before and scene.batch > after else ""
    return f"Batch quota {before} -> {after}{drains}"


def _held(scene: Scene) -> str:
    hold = scene.hold
    if hold is None:
        return "Automatic"
    until = f"until {wording.moment(hold.until, scene.at, scene.zone)}" if hold.until else "without end"
    return f"Held at {hold.quota} by {hold.by} {until}"


def _seconds(value: float) -> str:
    return f"{wording.plain(round(value, 1)) or '0'} s" if value < 60 else wording.seconds(value)


def _of_budget(facts: Facts, trigger: Trigger, budget: float, unit: Callable[[float], str]) -> str:
    """Return "is 84 ms, budget 75 ms (112 %)"; the share alone where models differ in their budgets."""
    if trigger.value is None:
        return "is not known"
    if facts.scene.mixed:
        return f"is at {share(trigger.value)} of the models' budgets"
    return f"is {unit(trigger.value * budget)}, budget {unit(budget)} ({share(trigger.value)})"


# Cuts


def _cut(cause: Callable[[Facts], str], then: Callable[[Facts], str]) -> Callable[[Facts], str]:
    return lambda facts: f"{_limit(facts)}: {cause(facts)}. {_quota(facts)}; {then(facts)}."


def _after_calm(facts: Facts) -> str:
    return f"next check after {_seconds(facts.scene.config.settle)} of calm"


def _probing(facts: Facts) -> str:
    minutes = wording.seconds(facts.scene.config.forget)
    return f"probing near {level(facts.cut_from)} again slowly for {minutes}"


def _refused(facts: Facts) -> str:
    n = facts.trigger(Reason.PROVIDER_429).n
    return f"the provider refused {_requests(n)} at {facts.scene.in_flight} in flight"


def _failed(facts: Facts) -> str:
    trigger = facts.trigger(Reason.ERRORS)
    failed = round((trigger.value or 0.0) * trigger.n)
    rate, budget = wording.percent(trigger.value), wording.percent(trigger.threshold)
    return f"{failed} of {_requests(trigger.n, 'interactive')} failed ({rate}), budget {budget}"


def _batch_failed(facts: Facts) -> str:
    trigger = facts.trigger(Reason.BATCH_ERRORS)
    return f"{_requests(trigger.n, 'batch')} failed since the last check; {trigger.threshold:.0f} are enough to cut"


def _first_token(facts: Facts) -> str:
    trigger = facts.trigger(Reason.FIRST_TOKEN)
    state = _of_budget(facts, trigger, facts.scene.bounds.budgets.first_token_s, wording.seconds)
    return f"p95 time to first token of {_requests(trigger.n, 'interactive')} {state}"


def _per_token(facts: Facts) -> str:
    trigger = facts.trigger(Reason.PER_TOKEN)
    state = _of_budget(facts, trigger, facts.scene.bounds.budgets.per_token_ms, wording.milliseconds)
    return f"p95 time per token of {_requests(trigger.n, 'interactive')} {state}"


def _live(facts: Facts) -> str:
    trigger = facts.trigger(Reason.LIVE_TOKENS)
    state = _of_budget(facts, trigger, facts.scene.bounds.budgets.per_token_ms, wording.milliseconds)
    return f"the live time between tokens of all streams {state}; cuts above {share(trigger.threshold)}"


def _queueing(facts: Facts) -> str:
    trigger = facts.trigger(Reason.BACKEND_QUEUE)
    n = round(trigger.value or 0.0)
    return f"{n} of {_requests(trigger.n, 'batch')} in flight queue in the server, long without a first token"


# Growth


def _calm(facts: Facts) -> str:
    known = [t for name in _RATIOS if (t := facts.by_name.get(name)) is not None and t.value is not None]
    if not known:
        return "no interactive request is in sight"
    worst = max(known, key=lambda t: t.value or 0.0)
    return f"{_RATIOS[worst.name]} at {share(worst.value)} of its budget"


def _grow(how: Callable[[Facts], str]) -> Callable[[Facts], str]:
    return lambda facts: f"{_limit(facts)}{how(facts)}: batch has work and {_calm(facts)}. {_quota(facts)}."


def _fast(facts: Facts) -> str:
    return f", fast up to {level(facts.slow_start)}"


def _slowly(facts: Facts) -> str:
    return f", slowly near {level(facts.cut_from)}, the level of the last cut"


# Holds


def _clock_back(facts: Facts) -> str:
    return f"Not moving: the clock went back. {_limit(facts)}; the next check is in {_seconds(facts.wait)}."


def _gap(facts: Facts) -> str:
    config = facts.scene.config
    longer = _seconds(config.gap_ticks * config.period)
    return f"Not moving: no check ran for more than {longer}. Older samples are dropped; {_after_calm(facts)}."


def _draining(facts: Facts) -> str:
    now = f"{facts.scene.in_flight} in flight, limit {level(facts.limit[1])}"
    return f"Not moving: the last cut still drains ({now}); {_after_calm(facts)}."


def _settling(facts: Facts) -> str:
    return f"Not moving: the server settles after a change; next check in {_seconds(facts.wait)}."


def _late(facts: Facts) -> str:
    known = [t for name in _RATIOS if (t := facts.by_name.get(name)) is not None and t.value is not None]
    if not known:
        return "interactive requests are late"
    worst = max(known, key=lambda t: (t.value or 0.0) / t.threshold)
    return f"{_RATIOS[worst.name]} is at {share(worst.value)} of its budget"


def _no_batch(facts: Facts) -> str:
    return f"Not cutting: {_late(facts)}, but no batch is in flight: a lower limit would relieve nobody."


def _batch_begins(facts: Facts) -> str:
    judged = _seconds(facts.scene.config.settle)
    cause = f"batch has just begun after a rest, its first prompts all at once; it is judged after {judged}"
    return f"Not cutting: {_late(facts)}, but {cause}."


def _not_binding(facts: Facts) -> str:
    scene = facts.scene
    uses = f"batch uses {scene.batch} of {wording.slots(scene.quota)}"
    if scene.paused:
        return "Not raising: batch is paused."
    if scene.hold is not None:
        return f"Not raising: {_held(scene)}; the controller would give {scene.shadow_quota}."
    if not scene.backlog:
        return f"Not raising: {uses}, the queue is empty."
    if scene.quota >= scene.bounds.ceiling:
        where = wording.source(scene.bounds.source)
        return f"Not raising: {uses}; the ceiling of {scene.bounds.ceiling} ({where}) is what stops batch."
    return f"Not raising: {uses}; something other than the limit stops batch."


def _dead_band(facts: Facts) -> str:
    config = facts.scene.config
    known = [facts.trigger(Reason.FIRST_TOKEN), facts.trigger(Reason.PER_TOKEN)]
    worst = max((t for t in known if t.n >= config.n_min), key=lambda t: t.value or 0.0, default=known[0])
    grows, cuts = share(config.band * config.target), share(config.target)
    name = _RATIOS[worst.name]
    return f"Not moving: {name} at {share(worst.value)} of its budget; grows below {grows}, cuts above {cuts}."


def _dead_band_live(facts: Facts) -> str:
    config, value = facts.scene.config, facts.trigger(Reason.LIVE_TOKENS).value
    grows, cuts = share(config.band * config.live_cut), share(config.live_cut)
    name = _RATIOS[Reason.LIVE_TOKENS]
    return f"Not moving: {name} at {share(value)} of its budget; grows below {grows}, cuts above {cuts}."


def _few_samples(facts: Facts) -> str:
    config = facts.scene.config
    known = [facts.trigger(Reason.FIRST_TOKEN), facts.trigger(Reason.PER_TOKEN)]
    worst = max(known, key=lambda t: t.value or 0.0)
    seen = f"{_RATIOS[worst.name]} at {share(worst.value)} of its budget, but over only {_requests(worst.n)}"
    return f"Not moving: {seen}. A cut needs {config.n_min}, or {config.sparse_min} of which most are late."


def _no_signal(facts: Facts) -> str:
    after = _seconds(facts.scene.config.idle_after)
    return f"Not raising: no data since the last interactive request. Grows after {after} without one."


def _at_slots(facts: Facts) -> str:
    return f"Not raising: the limit is at {level(facts.limit[1])}, all the pool has."


def _fixed(facts: Facts) -> str:
    return f"The limit is fixed at {level(facts.limit[1])}."


def _poisoned(facts: Facts) -> str:
    failed = f"{_requests(facts.failures)} of {facts.source or 'one batch'} failed and no others did"
    return f"Not cutting: {failed}, so the fault is with that work. {_limit(facts)}."


# What came otherwise


def _interactive_changed(facts: Facts) -> str:
    demand = f"interactive went {facts.demand[0]} -> {facts.demand[1]}"
    moved = f"Quota {facts.quota[0]} -> {facts.quota[1]}"
    return f"{moved} because {demand}; limit unchanged at {level(facts.limit[1])}."


def _bounds(facts: Facts) -> str:
    now, was = facts.scene.bounds, facts.was
    before = f" (before {was.floor} and {was.ceiling})" if was else ""
    return f"floor {now.floor}, ceiling {now.ceiling}{before}. {_quota(facts)}."


def _named(source: str) -> str:
    name = wording.source(source)
    return name[:1].upper() + name[1:]


def _window_opened(facts: Facts) -> str:
    return f"{_named(facts.scene.bounds.source)} began: {_bounds(facts)}"


def _window_closed(facts: Facts) -> str:
    ended = _named(facts.was.source) if facts.was else "The window"
    return f"{ended} ended, base settings hold again: {_bounds(facts)}"


def _hold_expired(facts: Facts) -> str:
    hold = facts.ended
    what = f"The hold at {hold.quota} by {hold.by}" if hold else "The hold"
    return f"{what} ended; the controller goes on from there. {_limit(facts)}. {_quota(facts)}."


def _resumed(facts: Facts) -> str:
    saved = f"the limit was {level(facts.saved or 0.0)} {wording.seconds(facts.age)} ago"
    return f"Started with limit {level(facts.limit[1])}: {saved}, and a start is careful. Batch quota {facts.quota[1]}."


def _cold_start(facts: Facts) -> str:
    slots = f"limit {level(facts.limit[1])} of {wording.slots(facts.scene.config.slots)}"
    return f"Started with {slots}: nothing recent is known. Rises fast while all is calm."


_RATIOS: dict[str, str] = {
    Reason.FIRST_TOKEN: "p95 of the first token",
    Reason.PER_TOKEN: "p95 per token",
    Reason.LIVE_TOKENS: "the live time between tokens",
}

_SENTENCES: dict[Reason, Callable[[Facts], str]] = {
    Reason.PROVIDER_429: _cut(_refused, _probing),
    Reason.ERRORS: _cut(_failed, _after_calm),
    Reason.BATCH_ERRORS: _cut(_batch_failed, _after_calm),
    Reason.FIRST_TOKEN: _cut(_first_token, _after_calm),
    Reason.PER_TOKEN: _cut(_per_token, _after_calm),
    Reason.LIVE_TOKENS: _cut(_live, _after_calm),
    Reason.BACKEND_QUEUE: _cut(_queueing, _after_calm),
    Reason.SLOW_START: _grow(_fast),
    Reason.ADDITIVE: _grow(lambda facts: ""),
    Reason.PLATEAU: _grow(_slowly),
    Reason.CLOCK_BACK: _clock_back,
    Reason.GAP: _gap,
    Reason.DRAINING: _draining,
    Reason.SETTLING: _settling,
    Reason.NO_BATCH: _no_batch,
    Reason.BATCH_BEGINS: _batch_begins,
    Reason.NOT_BINDING: _not_binding,
    Reason.DEAD_BAND: _dead_band,
    Reason.DEAD_BAND_LIVE: _dead_band_live,
    Reason.FEW_SAMPLES: _few_samples,
    Reason.NO_SIGNAL: _no_signal,
    Reason.AT_SLOTS: _at_slots,
    Reason.FIXED: _fixed,
    Reason.POISONED_BATCH: _poisoned,
    Reason.INTERACTIVE_CHANGED: _interactive_changed,
    Reason.WINDOW_OPENED: _window_opened,
    Reason.WINDOW_CLOSED: _window_closed,
    Reason.HOLD_EXPIRED: _hold_expired,
    Reason.RESUMED: _resumed,
    Reason.COLD_START: _cold_start,
}
