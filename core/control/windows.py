"""Which bounds hold at an instant: weekly windows and one-offs, as a pure function of the clock.

A weekly window is open from the first instant at which its zone's clock has reached `start` on one of its days, up to
the first instant at which it has reached `end`. So a start that the clock skips is the first instant after the gap, a
time that it shows twice is the first of the two, and the same goes for ends.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import Literal

from core.control import wallclock
from core.control.rules import OneOff, Rule, Schedule, Window, validate
from core.quotas import Bounds

__all__ = [
    "Effective",
    "Occurrence",
    "OneOff",
    "Overlap",
    "Rule",
    "Schedule",
    "Transition",
    "Window",
    "bounds_at",
    "hours",
    "next_change",
    "open_window",
    "overlaps",
    "transitions",
    "validate",
]

_NEAR_DAYS = (0, -1, 1, -2)
_PLAIN_WEEK = datetime(2024, 1, 8, tzinfo=UTC)
_HORIZONS = (timedelta(days=9), timedelta(days=36))


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One time that a rule is open: from `start` up to, not including, `end` (UTC). Empty where the clock skips it.

    `day` and `zone` tell the local date on which a weekly window's start lies.
    """

    rule: Rule
    start: datetime
    end: datetime
    day: date | None = None
    zone: str = "UTC"

    @property
    def length(self) -> timedelta:
        """How long it lasts, in real time."""
        return self.end - self.start

    def covers(self, now: datetime) -> bool:
        """Tell whether the rule is open at `now`."""
        return self.start <= now < self.end


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two rules of one kind that are open at once, and which of them wins; `spans` tell when (UTC)."""

    winner: Rule
    loser: Rule
    spans: tuple[tuple[datetime, datetime], ...]
    zone: str = "UTC"

    @property
    def sentence(self) -> str:
        """Tell it to a person, in the schedule's zone."""
        first, more = self.spans[0], len(self.spans) - 1
        start, end = (at.astimezone(wallclock.zone(self.zone)) for at in first)
        when = f"{start:%a %H:%M} to {end:%H:%M}" if isinstance(self.winner, Window) else _dates(start, end)
        again = f" and {more} more {'time' if more == 1 else 'times'} a week" if more else ""
        return f"{self.winner.name} and {self.loser.name} overlap {when}{again}. {self.winner.name} wins ({self.why})."

    @property
    def why(self) -> str:
        """Tell what makes the winner win."""
        if isinstance(self.winner, Window) and isinstance(self.loser, Window):
            by_priority = self.winner.priority > self.loser.priority
            return f"priority {self.winner.priority}" if by_priority else "same priority, earlier in the list"
        return "it begins later" if self.winner.start != self.loser.start else "earlier in the list"


@dataclass(frozen=True, slots=True)
class Effective:
    """What a schedule puts in force: its source, and bounds of which `None` stands for the base's."""

    source: str = "base"
    floor: int | None = None
    ceiling: int | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """An edge of a rule: it opens (`start`), closes (`end`), or the clock skips it whole (`skipped`).

    `note` tells what a change of the clock does to it, `length` how long it is open, `before` and `after` what is in
    force just before and from `at` on, which another rule may decide.
    """

    at: datetime
    kind: Literal["start", "end", "skipped"]
    rule: Rule
    note: str
    length: timedelta
    before: Effective
    after: Effective

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.rule.name

    @property
    def source(self) -> str:
        """The rule's source, as in `Bounds.source`."""
        return self.rule.source


_Rank = tuple[int, float, int]
_Ranked = tuple[_Rank, Occurrence]


def bounds_at(schedule: Schedule, now: datetime, *, pool: str, base: Bounds) -> Bounds:
    """Return the bounds in force for `pool` at `now`: one-off before weekly window by priority before `base`.

    `until` is the end of the rule in force, `None` for the base. The floor never exceeds the ceiling.
    """
    open_now = open_window(schedule, now, pool=pool)
    if open_now is None:
        return replace(base, source="base", until=None)
    rule = open_now.rule
    ceiling = base.ceiling if rule.ceiling is None else rule.ceiling
    floor = base.floor if rule.floor is None else rule.floor
    return Bounds(min(floor, ceiling), ceiling, rule.budgets or base.budgets, rule.source, open_now.end)


def open_window(schedule: Schedule, now: datetime, *, pool: str | None = None) -> Occurrence | None:
    """Return the rule in force for `pool` at `now` (`None`: rules of any pool), with when it opened and closes."""
    one_offs = [rule for rule in schedule.one_offs if rule.start <= now < rule.end and _applies(rule, pool)]
    if one_offs:
        rule = max(one_offs, key=lambda one_off: one_off.start)
        return _whole(rule)
    return _open_weekly(schedule, now, pool)


def next_change(schedule: Schedule, now: datetime, pool: str | None = None) -> datetime | None:
    """Return the next instant after `now` at which another rule comes in force for `pool`; `None` if that never is.

    Without `pool`: the next edge of any rule, in force or not.
    """
    for horizon in _HORIZONS:
        for at, _, before, after in _sweep(_occurrences(schedule, pool, now, now + horizon)):
            if at > now + horizon:
                break
            if at > now and (pool is None or _source(before) != _source(after)):
                return at
    edges = sorted(at for rule in schedule.one_offs if _applies(rule, pool) for at in (rule.start, rule.end))
    return next((at for at in edges if at > now and _changes(schedule, at, pool)), None)


def transitions(
    schedule: Schedule, start: datetime, days: float, pool: str | None = None, *, base: Bounds | None = None
) -> list[Transition]:
    """Return every edge from `start` on within `days` days, by time; ends come before starts.

    `pool` leaves out rules of other pools. With `base`, what is in force is given as numbers throughout.
    """
    found: list[Transition] = []
    for at, edges, before, after in _sweep(_occurrences(schedule, pool, start, start + timedelta(days=days))):
        if start <= at < start + timedelta(days=days):
            now, then = _effective(before, base), _effective(after, base)
            found += [
                Transition(at, kind, occurrence.rule, _note(kind, occurrence), occurrence.length, now, then)
                for kind, occurrence in edges
            ]
    return found


def overlaps(schedule: Schedule, start: datetime | None = None) -> list[Overlap]:
    """Return every two windows open at once in the week from `start`, and every two one-offs whenever they are.

    Only rules that share a pool count. Without `start`: a week in which no clock changes.
    """
    start = start or _PLAIN_WEEK
    ranked = _occurrences(schedule, None, start, start + timedelta(days=7))
    weekly = [each for each in ranked if each[1].day is not None and start <= each[1].start < start + timedelta(days=7)]
    whole = [((0, -rule.start.timestamp(), index), _whole(rule)) for index, rule in enumerate(schedule.one_offs)]
    return [*_overlapping(whole, schedule.zone), *_overlapping(weekly, schedule.zone)]


def _overlapping(ranked: list[_Ranked], zone: str) -> Iterator[Overlap]:
    spans: dict[tuple[_Rank, _Rank], list[tuple[datetime, datetime]]] = {}
    rules = {rank: occurrence.rule for rank, occurrence in ranked}
    open_now: list[_Ranked] = []
    for rank, here in sorted(ranked, key=lambda each: each[1].start):
        open_now = [each for each in open_now if each[1].end > here.start]
        for other_rank, other in open_now:
            if here.end > here.start and _share_a_pool(here.rule, other.rule):
                pair = (min(rank, other_rank), max(rank, other_rank))
                spans.setdefault(pair, []).append((here.start, min(here.end, other.end)))
        open_now.append((rank, here))
    for (winner, loser), when in spans.items():
        yield Overlap(rules[winner], rules[loser], tuple(when), zone)


def _share_a_pool(one: Rule, other: Rule) -> bool:
    return not one.pools or not other.pools or not set(one.pools).isdisjoint(other.pools)


def _dates(start: datetime, end: datetime) -> str:
    return f"from {start.day} {start:%b %Y %H:%M} to {end.day} {end:%b %Y %H:%M}"


def _changes(schedule: Schedule, at: datetime, pool: str | None) -> bool:
    if pool is None:
        return True
    before = open_window(schedule, at - timedelta.resolution, pool=pool)
    return _source(before) != _source(open_window(schedule, at, pool=pool))


def _whole(rule: OneOff) -> Occurrence:
    return Occurrence(rule, rule.start.astimezone(UTC), rule.end.astimezone(UTC))


def _applies(rule: Rule, pool: str | None) -> bool:
    return pool is None or not rule.pools or pool in rule.pools


def _open_weekly(schedule: Schedule, now: datetime, pool: str | None) -> Occurrence | None:
    best: Occurrence | None = None
    priority = 0
    today: dict[str, date] = {}
    for window in schedule.windows:
        if (best is not None and window.priority <= priority) or not _applies(window, pool):
            continue
        zone = schedule.zone_of(window)
        if zone not in today:
            today[zone] = now.astimezone(wallclock.zone(zone)).date()
        for occurrence in _on_days(window, zone, (today[zone] + timedelta(days=near) for near in _NEAR_DAYS)):
            if occurrence.covers(now):
                best, priority = occurrence, window.priority
                break
    return best


def _on_days(window: Window, zone: str, days: Iterable[date]) -> Iterator[Occurrence]:
    overnight = timedelta(days=1 if window.end <= window.start else 0)
    for day in days:
        if day.weekday() in window.days:
            start = wallclock.instant(day, window.start, zone)
            end = wallclock.instant(day + overnight, window.end, zone)
            yield Occurrence(window, start, end, day, zone)


def _occurrences(schedule: Schedule, pool: str | None, first: datetime, last: datetime) -> list[_Ranked]:
    """Return all that touch [first, last], each with its rank: of those open at once the lowest wins."""
    found: list[_Ranked] = []
    for index, one_off in enumerate(schedule.one_offs):
        if _applies(one_off, pool) and one_off.end >= first and one_off.start <= last:
            found.append(((0, -one_off.start.timestamp(), index), _whole(one_off)))
    for index, window in enumerate(schedule.windows):
        if _applies(window, pool):
            rank = (1, -float(window.priority), index)
            found += [(rank, each) for each in _within(window, schedule.zone_of(window), first, last)]
    return found


def _within(window: Window, zone: str, first: datetime, last: datetime) -> Iterator[Occurrence]:
    day = first.astimezone(wallclock.zone(zone)).date() + timedelta(days=min(_NEAR_DAYS))
    end = last.astimezone(wallclock.zone(zone)).date() + timedelta(days=max(_NEAR_DAYS))
    days = (day + timedelta(days=count) for count in range((end - day).days + 1))
    for occurrence in _on_days(window, zone, days):
        if occurrence.start <= last and occurrence.end >= first:
            yield occurrence


_Edge = tuple[Literal["start", "end", "skipped"], Occurrence]


def _sweep(
    ranked: list[_Ranked],
) -> Iterator[tuple[datetime, list[_Edge], Occurrence | None, Occurrence | None]]:
    """Yield each instant at which something opens or closes: its edges, and what is in force before and after it."""
    edges: list[tuple[datetime, int, _Rank, _Edge]] = []
    for rank, occurrence in ranked:
        if occurrence.start >= occurrence.end:
            edges.append((occurrence.start, 1, rank, ("skipped", occurrence)))
        else:
            edges.append((occurrence.end, 0, rank, ("end", occurrence)))
            edges.append((occurrence.start, 2, rank, ("start", occurrence)))
    edges.sort(key=lambda edge: edge[:3])
    active: dict[_Rank, Occurrence] = {}
    before: Occurrence | None = None
    for at, group in groupby(edges, key=lambda edge: edge[0]):
        here = list(group)
        for _, _, rank, (kind, occurrence) in here:
            if kind == "start":
                active[rank] = occurrence
            elif kind == "end":
                active.pop(rank, None)
        after = active[min(active)] if active else None
        yield at, [edge for _, _, _, edge in here], before, after
        before = after


def _source(occurrence: Occurrence | None) -> str:
    return "base" if occurrence is None else occurrence.rule.source


def _effective(occurrence: Occurrence | None, base: Bounds | None) -> Effective:
    floor = base.floor if base else None
    ceiling = base.ceiling if base else None
    if occurrence is None:
        return Effective("base", floor, ceiling)
    rule = occurrence.rule
    floor = floor if rule.floor is None else rule.floor
    ceiling = ceiling if rule.ceiling is None else rule.ceiling
    if floor is not None and ceiling is not None:
        floor = min(floor, ceiling)
    return Effective(rule.source, floor, ceiling)


def _note(kind: str, occurrence: Occurrence) -> str:
    """Return what a change of the clock does to this edge, "" where it does nothing."""
    rule = occurrence.rule
    if occurrence.day is None or isinstance(rule, OneOff):
        return ""
    if kind == "skipped":
        return f"clock skips {rule.start:%H:%M} to {rule.end:%H:%M}, not open on this day"
    overnight = timedelta(days=1 if rule.end <= rule.start else 0)
    on_clock = datetime.combine(occurrence.day + overnight, rule.end) - datetime.combine(occurrence.day, rule.start)
    if kind == "start":
        return _joined(_shift(occurrence.day, rule.start, occurrence, "starts"), _lasts("lasts", on_clock, occurrence))
    day = occurrence.day + overnight
    return _joined(_shift(day, rule.end, occurrence, "ends"), _lasts("ends after", on_clock, occurrence))


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _shift(day: date, wall: time, occurrence: Occurrence, verb: str) -> str:
    reading = wallclock.reading(day, wall, occurrence.zone)
    if reading is wallclock.Reading.NEVER:
        at = occurrence.start if verb == "starts" else occurrence.end
        return f"clock skips {wall:%H:%M}, {verb} at {at.astimezone(wallclock.zone(occurrence.zone)):%H:%M}"
    if reading is wallclock.Reading.TWICE:
        return f"clock shows {wall:%H:%M} twice, {verb} at the first"
    return ""


def _lasts(verb: str, on_clock: timedelta, occurrence: Occurrence) -> str:
    if occurrence.length == on_clock:
        return ""
    which = "forward" if occurrence.length < on_clock else "back"
    return f"{verb} {hours(occurrence.length)} (clock goes {which})"


def hours(length: timedelta) -> str:
    """Return a length in hours and minutes: "9 h", "8 h 30 min", "45 min"."""
    whole, minutes = divmod(round(length.total_seconds() / 60), 60)
    return " ".join(part for part in (f"{whole} h" if whole else "", f"{minutes} min" if minutes else "") if part)
