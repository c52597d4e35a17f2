"""What the bench measured in each arm, and how that stands against its targets. Pure arithmetic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from core.simulation.figures import percentile
from core.simulation.load import Shot

MOST_SLOWER = 1.5
"""Interactive's p95 to the first token under the flood, as a multiple of the one without."""
LEAST_SHARE = 0.8
"""Batch's throughput, as a share of the one at the best fixed quota."""


@dataclass(frozen=True, slots=True)
class Times:
    """Percentiles in seconds; `None` where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Server:
    """What the simulated server saw: its highest concurrency, and how many calls came above the slots."""

    max_in_flight: int
    over_slots: int


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of the trace. `quota` is the fixed one that stood, `None` elsewhere.

    A call that was not answered when the run ended counts in the percentiles with the time it had waited, and among
    the errors.
    """

    name: str
    quota: int | None
    calls: int
    first_token: Times
    total: Times
    errors: Mapping[str, int]
    batch_items_per_s: float
    batch_tokens_per_s: float
    batch_errors: int
    server: Server | None


@dataclass(frozen=True, slots=True)
class Target:
    """One target beside what was measured; `met` is `None` where it could not be judged."""

    name: str
    text: str
    measured: float | None
    bound: float
    at_most: bool

    @property
    def met(self) -> bool | None:
        """Tell whether the target is met."""
        if self.measured is None:
            return None
        return self.measured <= self.bound if self.at_most else self.measured >= self.bound


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a run that counts, in the clock's seconds; what came before is warm-up."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start

    def holds(self, at: float | None) -> bool:
        """Tell whether an instant lies within."""
        return at is not None and self.start <= at < self.end


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its calls, the `span` that counts, and when it ended, in the clock's seconds."""

    name: str
    chat: Sequence[Shot]
    batch: Sequence[Shot]
    span: Span
    ended: float
    quota: int | None = None
    server: Server | None = None

    def arm(self, seconds: float | None = None) -> Arm:
        """Return what the run came to, or the first `seconds` of it: chat due, and batch ended, within the span."""
        span = self.span if seconds is None else Span(self.span.start, self.span.start + seconds)
        counted = [shot for shot in self.chat if span.holds(shot.due)]
        done = [shot for shot in self.batch if span.holds(shot.ended)]
        good = [shot for shot in done if shot.error is None]
        ended = self.ended
        return Arm(
            name=self.name,
            quota=self.quota,
            calls=len(counted),
            first_token=_times(_waited(shot.due, shot.first, ended) for shot in counted if _waits(shot, shot.first)),
            total=_times(_waited(shot.due, shot.ended, ended) for shot in counted if _waits(shot, shot.ended)),
            errors=_errors(counted),
            batch_items_per_s=len(good) / span.seconds,
            batch_tokens_per_s=sum(shot.tokens for shot in good) / span.seconds,
            batch_errors=len(done) - len(good),
            server=self.server,
        )


def _waits(shot: Shot, until: float | None) -> bool:
    """Tell whether a call says anything of a time: it reached that point, or it was cut off while it still waited."""
    return shot.error is None and (until is not None or shot.ended is None)


def _waited(due: float, until: float | None, ended: float) -> float:
    return (ended if until is None else until) - due


def _times(values: Iterable[float]) -> Times:
    known = list(values)
    return Times(percentile(known, 0.5), percentile(known, 0.95), percentile(known, 0.99))


def _errors(shots: Iterable[Shot]) -> dict[str, int]:
    errors: dict[str, int] = {}
    for shot in shots:
        word = "unanswered" if shot.ended is None else shot.error
        if word is not None:
            errors[word] = errors.get(word, 0) + 1
    return errors


def best_fixed(scan: Iterable[Arm], *, p95_at_most: float | None) -> Arm | None:
    """Return the fixed quota with the most batch among those that keep the p95; `None` where none does."""
    if p95_at_most is None:
        return None
    keeping = [arm for arm in scan if arm.first_token.p95 is not None and arm.first_token.p95 <= p95_at_most]
    return max(keeping, key=lambda arm: arm.batch_tokens_per_s, default=None)


def targets(*, alone: Run, through: Run, scan: Sequence[Run], slots: int) -> list[Target]:
    """Return the bench's targets, judged. Against fixed quotas the same part of the trace is compared."""
    slower = _ratio(through.arm().first_token.p95, alone.arm().first_token.p95)
    share, quota = _against_fixed(alone, through, scan)
    beside = "any fixed quota" if quota is None else f"the best fixed quota that keeps this p95 ({quota})"
    servers = [run.server for run in (through, *scan) if run.server is not None]
    return [
        Target("first_token", "interactive p95 to the first token, against alone", slower, MOST_SLOWER, at_most=True),
        Target("batch", f"batch tokens/s, against {beside}", share, LEAST_SHARE, at_most=False),
        Target("slots", "highest concurrency at the server", _highest(servers), slots, at_most=True),
        Target("over_slots", "calls above the slots", _over(servers), 0, at_most=True),
    ]


def _against_fixed(alone: Run, through: Run, scan: Sequence[Run]) -> tuple[float | None, int | None]:
    """Return batch's throughput as a share of the one at the best fixed quota, and that quota."""
    if not scan:
        return None, None
    seconds = scan[0].span.seconds
    p95 = alone.arm(seconds).first_token.p95
    best = best_fixed([run.arm() for run in scan], p95_at_most=None if p95 is None else MOST_SLOWER * p95)
    if best is None:
        return None, None
    return _ratio(through.arm(seconds).batch_tokens_per_s, best.batch_tokens_per_s), best.quota


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def _highest(servers: Sequence[Server]) -> float | None:
    return max((float(server.max_in_flight) for server in servers), default=None)


def _over(servers: Sequence[Server]) -> float | None:
    return float(sum(server.over_slots for server in servers)) if servers else None
