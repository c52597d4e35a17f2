"""When a batch will be done: a range of clock times, what it rests on, and whether that is in time. Pure.

The work of the batch and of what stands before it, put through the pool's plan; see `work`, `sharing`, `throughput`,
`plan` and `residuals` for the parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

from core.batch import eta_words as words
from core.batch.arrivals import Expected
from core.batch.plan import Conditions, Plan
from core.batch.residuals import AT_SUBMISSION, FEWEST, GivenEta, Ranges
from core.batch.sharing import Ahead, Claim, ahead_of
from core.batch.throughput import Level, Throughput
from core.batch.values import Batch, BatchStatus, Eta, EtaState, Risk
from core.batch.work import ANY, Load, Prior, Priors, remaining
from core.control import wallclock
from core.quotas import Bounds

_WRITING = timedelta(minutes=1)
_LATER = 1.2
_ROUNDS = 6
_AGREED_S = 1.0
_AFTER_THE_LAST = 0.5
"""How much of an item's time passes, on average, after the fluid picture says that the last one is done."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Requests that ended in the last hour, and the minutes in which they did."""

    items: int = 0
    minutes: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a batch will be done, whatever a person is told of it; low <= mid <= high, none before `as_of`."""

    low: datetime
    mid: datetime
    high: datetime
    ahead: Ahead


@dataclass(frozen=True, slots=True)
class DeadlineRisk:
    """Whether a batch will be done within its window; where it is not sure, the quota held until then that makes it so.

    `quota` is `None` where none is needed, and where none would do (`risk` tells which).
    """

    risk: Risk
    deadline: datetime
    quota: int | None
    sentence: str


@dataclass(frozen=True, eq=False)
class Outlook:
    """One pool as of one instant, and all that is known to tell when its batches will be done.

    `active` are its batches that are not ended; `weights` the tenants' shares, 1 where not named;
    `arrivals` tells what they will bring.
    """

    as_of: datetime
    conditions: Conditions
    throughput: Throughput
    level: Level
    ranges: Ranges
    priors: Priors
    active: Sequence[Batch]
    weights: Mapping[str, float] = field(default_factory=dict)
    arrivals: Expected | None = None
    recent: Recent = Recent()

    @cached_property
    def plan(self) -> Plan:
        """How fast the pool will work."""
        return Plan(conditions=self.conditions, throughput=self.throughput, level=self.level, now=self.as_of)

    @cached_property
    def claims(self) -> Sequence[Claim]:
        """What the active batches want, as far as they may run."""
        return [self.claim(batch) for batch in self.active if _runs(batch)]

    @property
    def zone(self) -> ZoneInfo:
        """The schedule's zone, in which people are told times."""
        return wallclock.zone(self.conditions.schedule.zone)

    def prior(self, batch: Batch) -> Prior:
        """Return what a batch's requests are expected to be like."""
        return self.priors.of(batch.pool, batch.tenant, batch.model)

    def claim(self, batch: Batch) -> Claim:
        """Return what a batch wants of the pool."""
        rank = (-batch.priority, batch.expires_at.timestamp(), batch.created_at.timestamp())
        return Claim(batch.id, batch.tenant, rank, remaining(batch, self.prior(batch)))

    def ahead(self, batch: Batch, *, seconds: float = 0.0) -> Ahead:
        """Return what the pool does until the batch is done, if that takes so many seconds."""
        coming = self.arrivals.within(seconds) if self.arrivals else None
        return ahead_of(
            self.claim(batch), self.claims, weights=self.weights, kappa=self.throughput.kappa, coming=coming
        )


def forecast(batch: Batch, outlook: Outlook, *, plan: Plan | None = None) -> Forecast | None:
    """Return when a batch will be done, if nobody stops it; `None` where no time can be told.

    That is with too little data, and where the schedule never lets it run.
    """
    if batch.status in words.ENDING:
        return _closing(batch, outlook)
    if not outlook.throughput.enough:
        return None
    plan = plan or outlook.plan
    start = plan.starts_at()
    ahead, fluid = _fluid(batch, outlook, plan)
    if fluid is None or start is None:
        return None
    seconds = outlook.prior(batch).seconds
    mid = max(fluid, start + timedelta(seconds=_least_seconds(batch, seconds)))
    mid += timedelta(seconds=_AFTER_THE_LAST * seconds)
    return _ranged(batch, mid, outlook, ahead, start)


def eta(batch: Batch, outlook: Outlook, *, first: GivenEta | None = None) -> Eta:
    """Return what to tell of a batch; `first` is the first ETA that was given for it.

    Times are there only with the state `estimated`; low <= mid <= high, and none of them lies before `as_of`.
    """
    now = outlook.as_of
    if batch.ended:
        return Eta(EtaState.DONE, now, basis=words.ended(batch, now, outlook.zone))
    if batch.status is BatchStatus.VALIDATING:
        return Eta(EtaState.LEARNING, now, basis=words.CHECKING)
    found = forecast(batch, outlook)
    basis = _basis(batch, outlook, found, first)
    risk = _risk(batch, found) if found else None
    stopped = _stopped(batch, outlook, found)
    if stopped is not None:
        return Eta(EtaState.PAUSED, now, basis=basis, waiting_for=stopped, risk=risk)
    waiting_for = _waiting_for(batch, outlook, found)
    if found is None:
        return Eta(EtaState.LEARNING, now, basis=basis, waiting_for=waiting_for)
    return Eta(EtaState.ESTIMATED, now, found.low, found.mid, found.high, basis, waiting_for, risk)


def fresh(batch: Batch) -> bool:
    """Tell whether a batch is as it was at its submission, for all that its own items can tell."""
    return batch.completed + batch.failed <= AT_SUBMISSION * batch.total


def may_start(batch: Batch, outlook: Outlook) -> bool:
    """Tell whether items of a batch may start now, be it one at a time."""
    return batch.status is BatchStatus.IN_PROGRESS and _stopped(batch, outlook, None) is None


def deadline_risk(batch: Batch, outlook: Outlook) -> DeadlineRisk | None:
    """Return whether a batch will be done within its window, and what would mend it; `None` where no time is told."""
    found = forecast(batch, outlook)
    if batch.ended or found is None:
        return None
    risk, deadline = _risk(batch, found), batch.expires_at
    quota = None if risk is Risk.ON_TIME else _quota_that_mends(batch, outlook)
    sentence = words.risk(risk, deadline, quota, outlook.as_of, outlook.zone)
    return DeadlineRisk(risk, deadline, quota, sentence)


def _fluid(batch: Batch, outlook: Outlook, plan: Plan) -> tuple[Ahead, datetime | None]:
    """Return what the pool does until a batch is done, and when that is.

    The longer it takes, the more others bring meanwhile: from nothing upwards until the two agree.
    """
    seconds, ahead, done = 0.0, outlook.ahead(batch), None
    for _ in range(_ROUNDS):
        ahead = outlook.ahead(batch, seconds=seconds)
        done = plan.finish(ahead.total.work(outlook.throughput.kappa))
        before, seconds = seconds, (done - plan.now).total_seconds() if done else 0.0
        if seconds - before < _AGREED_S:
            break
    return ahead, done


def _closing(batch: Batch, outlook: Outlook) -> Forecast:
    """Return when a batch of which nothing starts any more will be done: as soon as what runs has ended."""
    now = outlook.as_of
    mid = now + timedelta(seconds=outlook.prior(batch).seconds if batch.running else 0.0)
    return Forecast(now, mid, mid + _WRITING, Ahead(Load()))


def _ranged(batch: Batch, mid: datetime, outlook: Outlook, ahead: Ahead, start: datetime) -> Forecast:
    """Put the range around a mid. Time that passes before the pool may work at all is certain and is not scaled."""
    now = outlook.as_of
    start = min(max(start, now), mid)
    low, high = outlook.ranges.factors((mid - now).total_seconds(), fresh=fresh(batch))
    return Forecast(start + low * (mid - start), mid, start + high * (mid - start), ahead)


def _least_seconds(batch: Batch, seconds: float) -> float:
    """Return the seconds that a batch needs by its own limits on its starts, however free the pool is."""
    pending = max(0, batch.left - batch.running)
    by_width = batch.left * seconds / batch.max_concurrency if batch.max_concurrency else 0.0
    return max(by_width, pending * batch.interval_s)


def _runs(batch: Batch) -> bool:
    """Tell whether a batch takes part in the race for the pool."""
    return batch.status is BatchStatus.IN_PROGRESS and batch.pause is None


def _risk(batch: Batch, found: Forecast) -> Risk:
    if found.high <= batch.expires_at:
        return Risk.ON_TIME
    return Risk.AT_RISK if found.mid <= batch.expires_at else Risk.WILL_MISS


def _quota_that_mends(batch: Batch, outlook: Outlook) -> int | None:
    """Return the least quota that, held from now to the deadline, lets p95 lie before it; `None` where none does."""
    too_low, enough = 0, outlook.conditions.settings.batch_max
    if batch.pause is not None or not _on_time(batch, outlook, enough):
        return None
    while enough - too_low > 1:
        middle = (too_low + enough) // 2
        if _on_time(batch, outlook, middle):
            enough = middle
        else:
            too_low = middle
    return enough


def _on_time(batch: Batch, outlook: Outlook, quota: int) -> bool:
    if batch.expires_at <= outlook.as_of:
        return False
    found = forecast(batch, outlook, plan=outlook.plan.held(quota, batch.expires_at))
    return found is not None and found.high <= batch.expires_at


# Words


def _stopped(batch: Batch, outlook: Outlook, found: Forecast | None) -> str | None:
    """Return what keeps every item of a batch from starting, and what follows; `None` where nothing does."""
    now, settings = outlook.as_of, outlook.conditions.settings
    if batch.status is not BatchStatus.IN_PROGRESS:
        return None
    if batch.pause is not None:
        return words.paused("batch", batch.pause)
    if settings.pause is not None:
        return words.paused(f"pool {settings.name}", settings.pause)
    hold, bounds = outlook.conditions.hold(now), outlook.conditions.bounds
    if hold is not None:
        return words.held(hold.until, found, now, outlook.zone) if hold.quota <= 0 else None
    return words.closed(bounds, found, now, outlook.zone) if bounds.ceiling <= 0 else None


def _waiting_for(batch: Batch, outlook: Outlook, found: Forecast | None) -> str | None:
    if batch.status is not BatchStatus.IN_PROGRESS:
        return words.ENDING.get(batch.status)
    if outlook.conditions.backed_off_s > 0:
        return words.backed_off(outlook.conditions.backed_off_s)
    return words.ahead(found.ahead if found else outlook.ahead(batch))


def _basis(batch: Batch, outlook: Outlook, found: Forecast | None, first: GivenEta | None) -> str:
    if not outlook.throughput.enough:
        seen = outlook.priors.at((outlook.conditions.settings.name, ANY, ANY)).items
        return words.learning(outlook.throughput.items or seen)
    if found is None:
        return ""
    parts = []
    if first is not None and found.mid > first.high:
        parts.append(words.later(first, _cause(batch, outlook, found, first), outlook.as_of, outlook.zone))
    recent, weeks = outlook.recent, outlook.throughput.weeks
    bounds, at = _next_bounds(outlook, found)
    parts.append(words.basis(recent.items, recent.minutes, weeks, bounds, at, outlook.zone))
    if not outlook.ranges.calibrated:
        parts.append(words.rule_of_thumb(outlook.ranges.count, FEWEST))
    return " ".join(parts)


def _next_bounds(outlook: Outlook, found: Forecast) -> tuple[Bounds | None, datetime | None]:
    """Return the next other ceiling before the batch is done, and when it comes in force."""
    for segment in outlook.plan.segments():
        if segment.start >= found.mid:
            break
        if segment.bounds.ceiling != outlook.conditions.bounds.ceiling:
            return segment.bounds, segment.start
    return None, None


def _cause(batch: Batch, outlook: Outlook, found: Forecast, first: GivenEta) -> str:
    """Return why a batch takes longer than was said at first, as far as that can be seen."""
    if outlook.level.ratio < 1 / _LATER:
        return words.slower(outlook.level.ratio)
    done = batch.completed + batch.failed
    usual = outlook.prior(batch).output_tokens
    if done >= FEWEST and batch.usage.output_tokens > _LATER * usual * done > 0:
        return words.longer(batch.usage.output_tokens / (usual * done))
    return words.MORE_AHEAD if found.ahead.total.items > first.items else ""
