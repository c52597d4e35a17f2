"""The chart of the Overview as numbers for the template: everything is drawn on the server, as SVG.

Lines live in a stretched box of WIDTH x HEIGHT units; marks and labels stand at percentages, so that no screen width
distorts them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from core import wording
from core.control.decisions import Decision
from core.history import Sample
from core.schedule_words import tells_no_figures

WIDTH, HEIGHT = 1000, 240
POINTS = 300
QUOTA_STEPS = 90
SPANS = {"5m": timedelta(minutes=5), "15m": timedelta(minutes=15), "2h": timedelta(hours=2)}
SPAN_WORDS = {"5m": "5 minutes", "15m": "15 minutes", "2h": "2 hours"}
_HEADROOM = 1.15
_GAP = timedelta(seconds=30)
_ROWS = 15
_TICKS = 4
_LOWEST = 96.0


@dataclass(frozen=True, slots=True)
class Mark:
    """One decision on the chart, at percentages of the picture; `kind` is cut, grow, person or window."""

    id: str
    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the chart's table, all text."""

    at: str
    p95: str
    limit: str
    quota: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart ready to be drawn. `latency` and `quota` are path data; labels run from top to bottom, left to right."""

    title: str
    latency: str
    limit: str
    quota: str
    target_y: float
    marks: tuple[Mark, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    bottom: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class _Scale:
    start: datetime
    end: datetime
    most_s: float
    most_slots: float

    def x(self, at: datetime) -> float:
        return (at - self.start) / (self.end - self.start)

    def y_s(self, value: float) -> float:
        return 1 - min(1.0, value / self.most_s)

    def y_slots(self, value: float) -> float:
        return 1 - min(1.0, value / self.most_slots)


def kind_of(decision: Decision) -> str:
    """Return how a decision is drawn: cut, grow, person, window, or hold (in the list only)."""
    if decision.actor == "operator":
        return "person"
    if decision.actor in {"schedule", "restart"}:
        return "window"
    return decision.action if decision.action in {"cut", "grow"} else "hold"


def anchor(decision: Decision) -> str:
    """Return the id by which the chart's mark and the list's row find each other."""
    return f"d{decision.at.timestamp() * 1000:.0f}"


def chart(
    samples: Sequence[Sample], decisions: Sequence[Decision], *, span: str, now: datetime, zone: tzinfo
) -> Chart | None:
    """Return the chart of the last `span` (a key of SPANS), or `None` while there are fewer than two samples."""
    if len(samples) < 2:
        return None
    scale = _scale(samples, now - SPANS[span], now)
    points = samples[:: max(1, len(samples) // POINTS)]
    return Chart(
        title=_title(samples, span),
        latency=_line([(s.at, scale.y_s(s.p95_s) if s.p95_s is not None else None) for s in points], scale),
        limit=_steps([(s.at, scale.y_slots(s.limit)) for s in points], scale),
        quota=_steps([(at, scale.y_slots(quota)) for at, quota in _means(samples, SPANS[span] / QUOTA_STEPS)], scale),
        target_y=round(scale.y_s(samples[-1].budget_s) * 100, 2),
        marks=_marks(decisions, samples, scale, zone),
        left=tuple(f"{scale.most_s * part:.3g} s" for part in (1, 0.5, 0)),
        right=tuple(f"{scale.most_slots * part:.0f}" for part in (1, 0.5, 0)),
        bottom=_times(scale, zone),
        rows=_rows(samples, zone),
    )


def _means(samples: Sequence[Sample], width: timedelta) -> list[tuple[datetime, float]]:
    """Return the mean quota of each stretch of `width`.

    The quota gives way to every interactive request and comes back after it, many times a minute: drawn as it is, it
    would be a block of colour.
    """
    stretches: list[list[Sample]] = []
    for sample in samples:
        if not stretches or sample.at - stretches[-1][0].at >= width:
            stretches.append([])
        stretches[-1].append(sample)
    means = [(part[0].at, sum(sample.quota for sample in part) / len(part)) for part in stretches]
    return [*means, (samples[-1].at, means[-1][1])]


def _scale(samples: Sequence[Sample], start: datetime, end: datetime) -> _Scale:
    latencies = [sample.p95_s for sample in samples if sample.p95_s is not None]
    most_s = _round_up(max([*latencies, samples[-1].budget_s]) * _HEADROOM)
    most_slots = max(max(sample.limit, sample.quota, 1) for sample in samples) * _HEADROOM
    return _Scale(start, end, most_s, 2 * math.ceil(most_slots / 2))


def _round_up(value: float) -> float:
    """Return the next number that reads well on an axis, as does its half: 1, 1.2, 1.6, 2, 3, 4, 6, 8 times 10^n."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * power >= value * (1 - 1e-9))


def _line(points: Sequence[tuple[datetime, float | None]], scale: _Scale) -> str:
    """Return path data that breaks where there is no data: a gap is not a straight line."""
    parts: list[str] = []
    before: datetime | None = None
    for at, y in points:
        if y is None:
            before = None
            continue
        command = "L" if before is not None and at - before <= _GAP else "M"
        parts.append(f"{command}{scale.x(at) * WIDTH:.0f} {y * HEIGHT:.1f}")
        before = at
    return "".join(parts)


def _steps(points: Sequence[tuple[datetime, float]], scale: _Scale) -> str:
    parts: list[str] = []
    last_at, last_y = None, ""
    for at, value in points:
        x, y = f"{scale.x(at) * WIDTH:.0f}", f"{value * HEIGHT:.1f}"
        if last_at is None or at - last_at > _GAP:
            parts.append(f"M{x} {y}")
        elif y != last_y:
            parts.append(f"H{x}V{y}")
        last_at, last_y = at, y
    if last_at is not None:
        parts.append(f"H{scale.x(last_at) * WIDTH:.0f}")
    return "".join(parts)


def _marks(decisions: Sequence[Decision], samples: Sequence[Sample], scale: _Scale, zone: tzinfo) -> tuple[Mark, ...]:
    return tuple(
        Mark(
            id=anchor(decision),
            x=round(scale.x(decision.at) * 100, 2),
            y=round(min(_LOWEST, scale.y_slots(_level(decision, samples)) * 100), 2),
            kind=kind_of(decision),
            title=f"{wording.clock(decision.at, zone)}: {decision.sentence}",
        )
        for decision in decisions
        if scale.start <= decision.at <= scale.end and kind_of(decision) != "hold"
    )


def _level(decision: Decision, samples: Sequence[Sample]) -> float:
    """Return the slots at which a decision is marked: the controller moves the limit, a person the quota.

    A change of the schedule is marked on the quota as it was then.
    """
    if tells_no_figures(decision):
        return next((each.quota for each in reversed(samples) if each.at <= decision.at), samples[0].quota)
    return decision.quota[1] if decision.actor == "operator" else decision.limit[1]


def _times(scale: _Scale, zone: tzinfo) -> tuple[str, ...]:
    step = (scale.end - scale.start) / _TICKS
    return tuple(f"{(scale.start + step * n).astimezone(zone):%H:%M}" for n in range(_TICKS + 1))


def _rows(samples: Sequence[Sample], zone: tzinfo) -> tuple[Row, ...]:
    chosen = list(reversed(samples))[:: max(1, len(samples) // _ROWS)][:_ROWS]
    return tuple(
        Row(wording.clock(s.at, zone), wording.seconds(s.p95_s), f"{s.limit:.1f}", str(s.quota)) for s in chosen
    )


def _title(samples: Sequence[Sample], span: str) -> str:
    known = [sample.p95_s for sample in samples if sample.p95_s is not None]
    seen = (
        f"between {wording.seconds(min(known))} and {wording.seconds(max(known))}"
        if known
        else "without data: no interactive requests"
    )
    return (
        f"Interactive p95 to the first token over the last {SPAN_WORDS[span]}, {seen}, against a budget of "
        f"{samples[-1].budget_s:g} s; the learned limit, now {samples[-1].limit:.1f} slots; and the batch quota, "
        f"now {samples[-1].quota}."
    )
