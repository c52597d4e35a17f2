"""One week of a schedule as a picture: the rules as written, and what wins. Percentages for the template."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from itertools import pairwise

from core import wording
from core.control.windows import Schedule, Transition, bounds_at, transitions
from core.quotas import Bounds

_DAY = timedelta(days=1)
_LOOK_BACK = timedelta(days=8)
COLOURS = 6


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time with the bounds, or the rule, that holds in it."""

    start: datetime
    end: datetime
    source: str
    floor: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar within a day: from `x` over `width` percent, in `lane` from the top; `text` is what fits in it.

    `colour` is the name of a class.
    """

    x: float
    width: float
    lane: int
    colour: str
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class DayRow:
    """One day: the rules as written, the result below them, and all of it in one sentence."""

    label: str
    today: bool
    now: float | None
    rules: tuple[Bar, ...]
    result: tuple[Bar, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Legend:
    """One rule with its colour."""

    name: str
    colour: str
    bounds: str


@dataclass(frozen=True, slots=True)
class Week:
    """Seven days from Monday. `lanes` is how many rules stand above each other at most."""

    days: tuple[DayRow, ...]
    lanes: int
    legend: tuple[Legend, ...]
    title: str


def week(schedule: Schedule, *, now: datetime, zone: tzinfo, pool: str, base: Bounds) -> Week:
    """Return the week of `now` as it is for `pool`, whose bounds without any rule are `base`."""
    local = now.astimezone(zone).date()
    days = [local - timedelta(days=local.weekday()) + timedelta(days=n) for n in range(7)]
    start, end = _midnight(days[0], zone), _midnight(days[-1] + _DAY, zone)
    edges = transitions(schedule, start - _LOOK_BACK, (end - start + _LOOK_BACK) / _DAY, pool, base=base)
    rules, results = _rule_spans(edges, base), _result_spans(schedule, edges, start, end, pool, base)
    colours = _colours(schedule)
    lanes = {source: lane for lane, source in enumerate(dict.fromkeys(span.source for span in rules))}
    rows = tuple(_day(day, rules, results, lanes, colours, now, zone) for day in days)
    return Week(rows, max(1, len(lanes)), _legend(schedule, colours, base), f"Week of {_date(days[0])}, pool {pool}")


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time(), zone)


def _rule_spans(edges: Iterable[Transition], base: Bounds) -> list[Span]:
    return [
        Span(
            edge.at,
            edge.at + edge.length,
            edge.source,
            base.floor if edge.rule.floor is None else edge.rule.floor,
            base.ceiling if edge.rule.ceiling is None else edge.rule.ceiling,
        )
        for edge in edges
        if edge.kind == "start"
    ]


def _result_spans(
    schedule: Schedule, edges: Sequence[Transition], start: datetime, end: datetime, pool: str, base: Bounds
) -> list[Span]:
    cuts = [start, *dict.fromkeys(edge.at for edge in edges if start < edge.at < end), end]
    spans: list[Span] = []
    for at, until in pairwise(cuts):
        bounds = bounds_at(schedule, at, pool=pool, base=base)
        if spans and spans[-1].source == bounds.source:
            at = spans.pop().start
        spans.append(Span(at, until, bounds.source, bounds.floor, bounds.ceiling))
    return spans


def _colours(schedule: Schedule) -> dict[str, str]:
    weekly = {f"window:{window.name}": f"w{index % COLOURS}" for index, window in enumerate(schedule.windows)}
    return {"base": "w-base", **{f"one_off:{one_off.name}": "w-once" for one_off in schedule.one_offs}, **weekly}


def _legend(schedule: Schedule, colours: dict[str, str], base: Bounds) -> tuple[Legend, ...]:
    named = [
        Legend(window.name, colours[f"window:{window.name}"], _range(window.floor, window.ceiling, base))
        for window in schedule.windows
    ]
    once = [Legend("One-off", "w-once", "")] if schedule.one_offs else []
    return (*named, *once, Legend("Base settings", "w-base", _range(None, None, base)))


def _range(floor: int | None, ceiling: int | None, base: Bounds) -> str:
    return f"{base.floor if floor is None else floor} to {base.ceiling if ceiling is None else ceiling}"


def _day(
    day: date,
    rules: Sequence[Span],
    results: Sequence[Span],
    lanes: dict[str, int],
    colours: dict[str, str],
    now: datetime,
    zone: tzinfo,
) -> DayRow:
    today = now.astimezone(zone).date() == day
    shown = [(span, *_within(span, day, zone)) for span in results if _touches(span, day, zone)]
    return DayRow(
        label=f"{day:%a} {day.day} {day:%b}",
        today=today,
        now=_share(now.astimezone(zone)) if today else None,
        rules=tuple(_bar(span, day, zone, lanes[span.source], colours) for span in rules if _touches(span, day, zone)),
        result=tuple(_bar(span, day, zone, 0, colours) for span, _, _ in shown),
        sentence="; ".join(f"{_clock(a)} to {_clock(b)} {_named(span)}" for span, a, b in shown),
    )


def _touches(span: Span, day: date, zone: tzinfo) -> bool:
    return span.start < _midnight(day + _DAY, zone) and span.end > _midnight(day, zone)


def _within(span: Span, day: date, zone: tzinfo) -> tuple[float, float]:
    """Return where the span begins and ends within the day, in percent of the wall clock's 24 hours."""
    start = 0.0 if span.start <= _midnight(day, zone) else _share(span.start.astimezone(zone))
    end = 100.0 if span.end >= _midnight(day + _DAY, zone) else _share(span.end.astimezone(zone))
    return start, max(start, end)


def _share(local: datetime) -> float:
    return round((local.hour * 60 + local.minute) / 14.4, 3)


def _clock(share: float) -> str:
    hour, minute = divmod(round(share * 14.4), 60)
    return f"{hour:02}:{minute:02}"


def _bar(span: Span, day: date, zone: tzinfo, lane: int, colours: dict[str, str]) -> Bar:
    start, end = _within(span, day, zone)
    width = round(end - start, 3)
    return Bar(start, width, lane, colours.get(span.source, "w-once"), _named(span), _fitting(span, width))


def _fitting(span: Span, width: float) -> str:
    """Return as much of the label as a bar of that width holds without being cut: about one letter a percent."""
    name, bounds = span.source.partition(":")[2] or "Base", f"{span.floor}–{span.ceiling}"
    whole = f"{name} {bounds}"
    return whole if len(whole) < width else bounds if len(bounds) < width else ""


def _named(span: Span) -> str:
    name = span.source.partition(":")[2] or "Base settings"
    return f"{name} {span.floor} to {span.ceiling}"


def _date(day: date) -> str:
    return f"{day.day} {day:%B %Y}"


def days_text(days: frozenset[int]) -> str:
    """Return weekdays (0 is Monday) in words: "every day", "Mon–Fri", "Sat, Sun"."""
    names = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    ordered = sorted(days)
    if len(ordered) == 7:
        return "every day"
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{names[ordered[0]]}–{names[ordered[-1]]}"
    return ", ".join(names[day] for day in ordered)


def budgets_text(first_token_s: float, per_token_ms: float, error_rate: float) -> str:
    """Return budgets as one line."""
    return f"{first_token_s:g} s, {per_token_ms:g} ms per token, {wording.percent(error_rate)}"
