"""What people are told beside an ETA: short sentences, clock times in the schedule's zone. Pure."""

from datetime import datetime, tzinfo
from typing import Protocol

from core import wording
from core.batch.sharing import Ahead
from core.batch.throughput import FEWEST_ITEMS
from core.batch.values import Batch, BatchPause, BatchStatus, Risk
from core.quotas import Bounds, Pause

CHECKING = "The input file is still being checked."
ENDING = {
    BatchStatus.FINALIZING: "results are being written",
    BatchStatus.CANCELLING: "running requests are being ended",
}


class Range(Protocol):
    """A range of instants."""

    @property
    def low(self) -> datetime:
        """Its begin."""

    @property
    def high(self) -> datetime:
        """Its end."""


class Found(Range, Protocol):
    """A range with its middle."""

    @property
    def mid(self) -> datetime:
        """The middle."""


def learning(items: float) -> str:
    """Tell that there is too little data."""
    if items >= FEWEST_ITEMS:
        return "Not enough yet to say: how fast the pool works is still being measured."
    return f"Not enough finished requests yet to say; {round(items)} of {FEWEST_ITEMS}."


def ended(batch: Batch, now: datetime, zone: tzinfo) -> str:
    """Tell when a batch ended."""
    return f"{batch.status.value.capitalize()} at {wording.moment(batch.ended_at, now, zone)}."


def paused(what: str, pause: Pause | BatchPause) -> str:
    """Tell who paused the pool or batch."""
    return f"{what} is paused by {pause.by}" + (f": {pause.reason}" if pause.reason else "")


def held(until: datetime | None, then: Found | None, now: datetime, zone: tzinfo) -> str:
    """Tell of a hold at 0, and what follows it."""
    if until is None:
        return "held at 0 until somebody releases it"
    return f"held at 0 until {wording.moment(until, now, zone)}" + _then(then, now, zone)


def closed(bounds: Bounds, then: Found | None, now: datetime, zone: tzinfo) -> str:
    """Tell of bounds that leave no slot, and what follows them."""
    closed_by = f"{wording.source(bounds.source)} leaves batch no slot"
    if bounds.until is None:
        return closed_by
    return f"{closed_by} until {wording.moment(bounds.until, now, zone)}" + _then(then, now, zone)


def backed_off(seconds: float) -> str:
    """Tell that the upstream wants to be left alone."""
    return f"upstream asked to wait {wording.seconds(max(1.0, seconds))}"


def ahead(found: Ahead) -> str | None:
    """Tell what stands before a batch; `None` where nothing does."""
    parts = []
    if found.batches:
        parts.append(f"{_count(found.batches, 'batch', 'batches')}, {_count(found.items, 'request')} ahead")
    if found.teams:
        parts.append(f"shares the pool with {_count(found.teams, 'other team')}")
    return "; ".join(parts) or None


def basis(items: int, minutes: int, weeks: float, next_bounds: Bounds | None, at: datetime | None, zone: tzinfo) -> str:
    """Tell what an estimate rests on; `next_bounds` are those that come in force at `at`, before the batch is done."""
    parts = []
    if items:
        parts.append(f"{_count(items, 'request')} in the last {minutes} min")
    if weeks >= 1:
        parts.append(f"the usual load of these hours over {_count(int(weeks), 'week')}")
    elif not items:
        parts.append("earlier requests")
    if next_bounds is not None and at is not None:
        parts.append(f"the schedule ({wording.slots(next_bounds.ceiling)} at most from {at.astimezone(zone):%H:%M})")
    return f"Based on {_listed(parts)}."


def rule_of_thumb(scored: int, fewest: int) -> str:
    """Tell that the range is not measured yet."""
    return f"The range is a rule of thumb until {fewest} ETAs have been checked; {scored} so far."


def later(first: Range, cause: str, now: datetime, zone: tzinfo) -> str:
    """Tell that a batch will be done later than was said at first."""
    said = f"{wording.moment(first.low, now, zone)} to {wording.moment(first.high, now, zone)}"
    return f"Later than expected: at first {said} was said" + (f"; {cause}." if cause else ".")


def slower(ratio: float) -> str:
    """Tell that the pool does less than it usually would, `ratio` of it."""
    return f"the pool now does {ratio * 100:.0f} % of its usual work"


def longer(ratio: float) -> str:
    """Tell that answers are longer than they usually are, by `ratio`."""
    return f"answers are {(ratio - 1) * 100:.0f} % longer than usual"


MORE_AHEAD = "other batches came before it"


def risk(risk: Risk, deadline: datetime, quota: int | None, now: datetime, zone: tzinfo) -> str:
    """Tell how a deadline stands, and the quota that mends it."""
    when = wording.moment(deadline, now, zone)
    if risk is Risk.ON_TIME:
        return f"Deadline {when}: on time."
    state = "at risk" if risk is Risk.AT_RISK else "will miss it"
    mend = "no quota would be enough" if quota is None else f"would need a quota of {quota} until then"
    return f"Deadline {when}: {state}; {mend}."


def _then(then: Found | None, now: datetime, zone: tzinfo) -> str:
    if then is None:
        return ""
    low, mid, high = (wording.moment(at, now, zone) for at in (then.low, then.mid, then.high))
    return f", then about {mid} ({low} to {high})"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _listed(parts: list[str]) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
