"""The dashboard's read model: what a pool does now and why, in words first. No HTTP, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import StrEnum

from core import wording
from core.control.windows import Schedule, bounds_at, next_change
from core.history import Sample
from core.lanes import Lane
from core.quotas import Bounds, Budgets, PoolSettings
from core.samples import Seen
from core.scheduling.dispatcher import PoolCounts

STALE_TICKS = 3


@dataclass(frozen=True, slots=True)
class Waits:
    """Queue waits of the last minute in one lane, in seconds; `None` where nobody was started."""

    p50_s: float | None = None
    p95_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The raw figures of one pool at one instant.

    `tick_age_s` is how long ago the controller last looked, `tick_s` how often it should. `bounds` are the ones in
    force, `limit` is C, `settling` counts batch in flight above the quota, `backed_off_s` is how long batch still waits
    because the provider asked for it, `file` is what the file would set.
    """

    at: datetime
    settings: PoolSettings
    bounds: Bounds
    counts: PoolCounts
    quota: int
    shadow_quota: int
    limit: float
    settling: int
    seen: Seen
    waits: Mapping[Lane, Waits]
    tick_age_s: float
    tick_s: float
    backed_off_s: float = 0.0
    file: PoolSettings | None = None

    @property
    def fresh(self) -> bool:
        """Tell whether the controller still looks at the pool: its last tick is less than three ticks old."""
        return self.tick_age_s < STALE_TICKS * self.tick_s


class VerdictState(StrEnum):
    """How interactive requests fare."""

    HEALTHY = "healthy"
    SLOW = "slow"
    FAILING = "failing"
    QUIET = "quiet"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The pool in words: a headline, the figures behind it, and who sets the batch quota."""

    state: VerdictState
    title: str
    figures: str
    batch: str


@dataclass(frozen=True, slots=True)
class Gauge:
    """The pool's slots and who holds them. Work that waits is never drawn: it holds no slot.

    `allowed` is how many slots batch may hold now, 0 while paused; `settling` how many it holds beyond that.
    """

    slots: int
    interactive: int
    batch: int
    allowed: int
    reserve: int
    settling: int

    @property
    def free(self) -> int:
        """The slots that nobody holds."""
        return max(0, self.slots - self.interactive - self.batch)

    @property
    def title(self) -> str:
        """Return the picture in one sentence."""
        return (
            f"{self.interactive} of {wording.slots(self.slots)} serve interactive requests, {self.batch} serve batch, "
            f"{self.free} are free. Batch may use up to {self.allowed}."
        )


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane's queue. Times in seconds; `oldest_s` is `None` while nothing waits."""

    lane: Lane
    in_flight: int
    queued: int
    oldest_s: float | None
    waits: Waits


@dataclass(frozen=True, slots=True)
class Promise:
    """One budget beside what was seen of it in the last minute, both as text; `share` is seen / budget."""

    name: str
    seen: str
    budget: str
    share: float | None

    @property
    def broken(self) -> bool:
        """Tell whether what was seen is over the budget."""
        return self.share is not None and self.share > 1


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting whose stored value is not the file's."""

    name: str
    stored: str
    file: str


@dataclass(frozen=True, slots=True)
class PoolView:
    """Everything the Overview shows of one pool."""

    name: str
    at: datetime
    version: int
    verdict: Verdict
    gauge: Gauge
    lanes: tuple[LaneView, LaneView]
    promises: tuple[Promise, ...]
    samples: int
    limit: float
    quota: int
    shadow_quota: int
    settings: PoolSettings
    bounds: Bounds
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class NextChange:
    """The next instant at which other bounds come into force, in words."""

    at: datetime
    sentence: str
    detail: str


def pool_view(reading: Reading, zone: tzinfo) -> PoolView:
    """Return what the Overview shows of `reading`; clock times are in `zone`."""
    settings = reading.settings
    return PoolView(
        name=settings.name,
        at=reading.at,
        version=settings.version,
        verdict=verdict(reading, zone),
        gauge=_gauge(reading),
        lanes=_lanes(reading),
        promises=promises(reading.seen, reading.bounds.budgets),
        samples=reading.seen.samples,
        limit=reading.limit,
        quota=reading.quota,
        shadow_quota=reading.shadow_quota,
        settings=settings,
        bounds=reading.bounds,
        differences=differences(settings, reading.file) if reading.file else (),
    )


def verdict(reading: Reading, zone: tzinfo) -> Verdict:
    """Return the pool in words. Where the controller's figures are old nothing is claimed and nothing advised."""
    batch = batch_sentence(reading, zone)
    if not reading.fresh:
        age = wording.seconds(reading.tick_age_s)
        figures = f"The controller last looked {age} ago, so these figures may be old."
        return Verdict(VerdictState.UNKNOWN, "Interactive: unknown", figures, batch)
    if reading.seen.samples == 0:
        return _without_samples(reading, batch)
    state, title = _judged(promises(reading.seen, reading.bounds.budgets))
    return Verdict(state, title, _figures(reading.seen, reading.bounds.budgets), batch)


def _judged(seen: tuple[Promise, ...]) -> tuple[VerdictState, str]:
    first, token, errors = seen
    if errors.broken:
        return VerdictState.FAILING, "Interactive is failing"
    if first.broken or token.broken:
        return VerdictState.SLOW, "Interactive is slow"
    return VerdictState.HEALTHY, "Interactive is healthy"


def _without_samples(reading: Reading, batch: str) -> Verdict:
    waiting = reading.counts.interactive + reading.counts.interactive_waiting
    if waiting:
        figures = f"{waiting} interactive in flight or waiting, none finished in the last minute."
        return Verdict(VerdictState.UNKNOWN, "Interactive: no answer yet", figures, batch)
    return Verdict(VerdictState.QUIET, "Interactive is quiet", "No interactive requests in the last minute.", batch)


def _figures(seen: Seen, budgets: Budgets) -> str:
    first = f"{wording.seconds(seen.first_token_p95_s)} p95 to the first token against {budgets.first_token_s:g} s."
    token = f"{wording.milliseconds(seen.per_token_p95_ms)} per token against {budgets.per_token_ms:g} ms."
    parts = [first] if seen.first_token_p95_s is not None else []
    parts += [token] if seen.per_token_p95_ms is not None else []
    return " ".join([*parts, f"{wording.percent(seen.error_rate)} errors."])


def batch_sentence(reading: Reading, zone: tzinfo) -> str:
    """Return who decides how much batch may use, in one or two sentences."""
    settings = reading.settings
    hold = _hold_sentence(reading, zone)
    if settings.pause:
        since = wording.moment(settings.pause.since, reading.at, zone)
        paused = f"Batch is paused by {settings.pause.by} since {since}"
        return f"{paused}: {settings.pause.reason}." if settings.pause.reason else f"{paused}."
    if reading.backed_off_s > 0:
        return f"Batch waits {wording.seconds(reading.backed_off_s)} more, as the model server asked (Retry-After)."
    if hold:
        return hold
    return f"The controller lets batch use {wording.slots(reading.quota)}."


def _hold_sentence(reading: Reading, zone: tzinfo) -> str | None:
    hold = reading.settings.hold
    if hold is None or not hold.active(reading.at):
        return None
    until = f"until {wording.moment(hold.until, reading.at, zone)}" if hold.until else "until somebody ends it"
    because = f" ({hold.reason})" if hold.reason else ""
    allow = f"The controller would allow {reading.shadow_quota}."
    return f"Batch is held at {hold.quota} {until} by {hold.by}{because}. {allow}"


def _gauge(reading: Reading) -> Gauge:
    return Gauge(
        slots=reading.settings.slots,
        interactive=reading.counts.interactive,
        batch=reading.counts.batch,
        allowed=0 if reading.settings.pause else reading.quota,
        reserve=reading.settings.reserve,
        settling=reading.settling,
    )


def _lanes(reading: Reading) -> tuple[LaneView, LaneView]:
    counts = reading.counts
    waits = {lane: reading.waits.get(lane, Waits()) for lane in Lane}
    interactive_oldest = counts.interactive_oldest_s if counts.interactive_waiting else None
    batch_oldest = counts.batch_oldest_s if counts.backlog else None
    return (
        LaneView(
            Lane.INTERACTIVE,
            counts.interactive,
            counts.interactive_waiting,
            interactive_oldest,
            waits[Lane.INTERACTIVE],
        ),
        LaneView(Lane.BATCH, counts.batch, counts.backlog, batch_oldest, waits[Lane.BATCH]),
    )


def promises(seen: Seen, budgets: Budgets) -> tuple[Promise, Promise, Promise]:
    """Return the three budgets beside what was seen: first token, per token, errors."""
    return (
        Promise(
            "First token, p95",
            wording.seconds(seen.first_token_p95_s),
            f"{budgets.first_token_s:g} s",
            _share(seen.first_token_p95_s, budgets.first_token_s),
        ),
        Promise(
            "Per token, p95",
            wording.milliseconds(seen.per_token_p95_ms),
            f"{budgets.per_token_ms:g} ms",
            _share(seen.per_token_p95_ms, budgets.per_token_ms),
        ),
        Promise(
            "Errors",
            wording.percent(seen.error_rate),
            wording.percent(budgets.error_rate),
            _share(seen.error_rate, budgets.error_rate),
        ),
    )


def _share(value: float | None, budget: float) -> float | None:
    if value is None:
        return None
    if budget == 0:
        return 0.0 if value == 0 else float("inf")
    return value / budget


def differences(stored: PoolSettings, file: PoolSettings) -> tuple[Difference, ...]:
    """Return the settings that were changed here and are not what the file says."""
    here, there = _listed(stored), _listed(file)
    return tuple(Difference(name, here[name], there[name]) for name in here if here[name] != there[name])


def _listed(settings: PoolSettings) -> dict[str, str]:
    return {
        "slots": str(settings.slots),
        "reserve": str(settings.reserve),
        "headroom": str(settings.headroom),
        "floor": str(settings.floor),
        "ceiling": str(settings.ceiling),
        "first token": f"{settings.budgets.first_token_s:g} s",
        "per token": f"{settings.budgets.per_token_ms:g} ms",
        "errors": wording.percent(settings.budgets.error_rate),
    }


def sample(reading: Reading) -> Sample:
    """Return what the chart keeps of `reading`."""
    return Sample(
        at=reading.at,
        p95_s=reading.seen.first_token_p95_s,
        budget_s=reading.bounds.budgets.first_token_s,
        limit=reading.limit,
        quota=reading.quota,
        interactive=reading.counts.interactive,
        batch=reading.counts.batch,
    )


def upcoming(schedule: Schedule, now: datetime, settings: PoolSettings, zone: tzinfo) -> NextChange | None:
    """Return the next change of the bounds in force, or `None` where none is planned."""
    at = next_change(schedule, now, settings.name)
    if at is None:
        return None
    before = bounds_at(schedule, now, pool=settings.name, base=settings.base_bounds())
    after = bounds_at(schedule, at, pool=settings.name, base=settings.base_bounds())
    when = f"at {wording.moment(at, now, zone)}, in {wording.seconds((at - now).total_seconds())}"
    return NextChange(at, f"{_event(before, after)} {when}", f"Batch then gets {after.floor} to {after.ceiling} slots.")


def _event(before: Bounds, after: Bounds) -> str:
    if after.source == "base":
        return f"{wording.sentence_case(wording.source(before.source))} ends"
    return f"{after.source.partition(':')[2]} starts"
