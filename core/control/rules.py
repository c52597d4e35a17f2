"""The rules of a schedule as values, and what makes one sound."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta

from core.control import wallclock
from core.errors import InvalidValue
from core.quotas import Budgets

MAX_RULES = 100
MAX_NAME = 64
MAX_TEXT = 500
MAX_SLOTS = 100_000
MAX_PRIORITY = 1000
MAX_ONE_OFF = timedelta(days=366)
MAX_BUDGETS = {"first_token_s": 3600.0, "per_token_ms": 60_000.0, "error_rate": 1.0}
YEARS = range(2000, 2200)


@dataclass(frozen=True, slots=True)
class Window:
    """A weekly rule: on `days` (0 is Monday) from local `start` to local `end`; `end` <= `start` means the next day.

    `zone` is an IANA name, `None` for the schedule's own. `pools` empty means every pool. `None` bounds and budgets
    leave the base's in force. Of several open windows the highest `priority` wins, then the earlier in the list.
    """

    name: str
    days: frozenset[int]
    start: time
    end: time
    floor: int | None = None
    ceiling: int | None = None
    budgets: Budgets | None = None
    priority: int = 0
    zone: str | None = None
    pools: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The name under which its bounds are in force."""
        return f"window:{self.name}"


@dataclass(frozen=True, slots=True)
class OneOff:
    """Bounds from one instant to another (aware); beats every weekly window. Of several, the one begun last wins."""

    name: str
    start: datetime
    end: datetime
    floor: int | None = None
    ceiling: int | None = None
    budgets: Budgets | None = None
    pools: tuple[str, ...] = ()
    reason: str = ""
    by: str = ""

    @property
    def source(self) -> str:
        """The name under which its bounds are in force."""
        return f"one_off:{self.name}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """All windows and one-offs, with the zone in which their times are local, and the stored version."""

    zone: str = "UTC"
    windows: tuple[Window, ...] = ()
    one_offs: tuple[OneOff, ...] = ()
    version: int = 1

    @property
    def rules(self) -> "tuple[Rule, ...]":
        """All one-offs and windows."""
        return (*self.one_offs, *self.windows)

    def path_of(self, rule: "Rule") -> str:
        """Return where the rule stands, as errors name it: `windows[0]`."""
        if isinstance(rule, Window):
            return f"windows[{self.windows.index(rule)}]"
        return f"one_offs[{self.one_offs.index(rule)}]"

    def zone_of(self, window: Window) -> str:
        """Return the name of the zone in which the window's times are local."""
        return window.zone or self.zone


Rule = Window | OneOff


def validate(schedule: Schedule) -> None:
    """Raise InvalidValue, with the field's path (`windows[0].floor`), for the first thing that is wrong.

    Bounds the number and size of everything, so that no schedule is dear to compute. Bounds above what a pool can give
    are sound: they are cut to it where they come in force. Whether pools exist is the caller's matter.
    """
    check_zone(schedule.zone, "zone")
    _check_rules(schedule.windows, "windows")
    _check_rules(schedule.one_offs, "one_offs")


def check_zone(name: object, field: str) -> None:
    """Raise InvalidValue unless `name` is an IANA zone known here."""
    if not isinstance(name, str) or name not in wallclock.zone_names():
        raise InvalidValue(field, f"{name!r:.80} is no known time zone; give an IANA name such as Europe/Berlin")


def check_whole(value: object, field: str, low: int, high: int) -> None:
    """Raise InvalidValue unless `value` is a whole number within [low, high]."""
    if type(value) is not int:
        raise InvalidValue(field, f"must be a whole number, not {value!r:.80}")
    if not low <= value <= high:
        raise InvalidValue(field, f"must be {low} to {high}, not {value!s:.80}")


def check_text(value: object, field: str, *, most: int = MAX_TEXT) -> None:
    """Raise InvalidValue unless `value` is a text of at most `most` printable characters."""
    if not isinstance(value, str):
        raise InvalidValue(field, f"must be a text, not {value!r:.80}")
    if len(value) > most:
        raise InvalidValue(field, f"has {len(value)} characters; at most {most} are allowed")
    if not value.isprintable():
        raise InvalidValue(field, "must be one line of printable characters")


def check_budgets(budgets: Budgets, field: str) -> None:
    """Raise InvalidValue unless every budget is a finite number in its range."""
    for name, most in MAX_BUDGETS.items():
        value = getattr(budgets, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidValue(f"{field}.{name}", f"must be a finite number, not {value!r:.80}")
        least = "0 or more" if name == "error_rate" else "above 0"
        if not 0 <= value <= most or (value == 0 and name != "error_rate"):
            raise InvalidValue(f"{field}.{name}", f"must be {least} and at most {most:g}, not {value:g}")


def _check_rules(rules: Sequence[Rule], field: str) -> None:
    if len(rules) > MAX_RULES:
        raise InvalidValue(field, f"has {len(rules)} entries; at most {MAX_RULES} are allowed")
    names: set[str] = set()
    for index, rule in enumerate(rules):
        _check_rule(rule, f"{field}[{index}]")
        if rule.name.casefold() in names:
            raise InvalidValue(f"{field}[{index}].name", f"{rule.name!r} is given twice; names must differ")
        names.add(rule.name.casefold())


def _check_rule(rule: Rule, path: str) -> None:
    check_text(rule.name, f"{path}.name", most=MAX_NAME)
    if not rule.name or rule.name != rule.name.strip():
        raise InvalidValue(f"{path}.name", "must not be empty, nor begin or end with a blank")
    for field, value in (("floor", rule.floor), ("ceiling", rule.ceiling)):
        if value is not None:
            check_whole(value, f"{path}.{field}", 0, MAX_SLOTS)
    if rule.floor is not None and rule.ceiling is not None and rule.floor > rule.ceiling:
        raise InvalidValue(f"{path}.floor", f"{rule.floor} is above the ceiling {rule.ceiling}; lower it")
    if rule.budgets is not None:
        check_budgets(rule.budgets, f"{path}.budgets")
    _check_pools(rule.pools, f"{path}.pools")
    if isinstance(rule, Window):
        _check_window(rule, path)
    else:
        _check_one_off(rule, path)


def _check_pools(pools: Collection[str], path: str) -> None:
    if len(pools) > MAX_RULES:
        raise InvalidValue(path, f"has {len(pools)} entries; at most {MAX_RULES} are allowed")
    for pool in pools:
        check_text(pool, path, most=MAX_NAME)


def _check_window(window: Window, path: str) -> None:
    if not window.days:
        raise InvalidValue(f"{path}.days", "must name at least one day")
    for day in window.days:
        check_whole(day, f"{path}.days", 0, 6)
    _check_times(window, path)
    check_whole(window.priority, f"{path}.priority", -MAX_PRIORITY, MAX_PRIORITY)
    if window.zone is not None:
        check_zone(window.zone, f"{path}.zone")


def _check_times(window: Window, path: str) -> None:
    for field, at in (("start", window.start), ("end", window.end)):
        if not isinstance(at, time) or at.tzinfo is not None or at.second or at.microsecond or at.fold:
            raise InvalidValue(f"{path}.{field}", "must be a local time of whole minutes, such as 22:00")


def _check_one_off(one_off: OneOff, path: str) -> None:
    for field, at in (("start", one_off.start), ("end", one_off.end)):
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise InvalidValue(f"{path}.{field}", "must be an instant with its offset, such as 2027-01-01T12:00:00Z")
        if at.year not in YEARS:
            raise InvalidValue(f"{path}.{field}", f"must lie in the years {YEARS.start} to {YEARS.stop - 1}")
    if one_off.end <= one_off.start:
        raise InvalidValue(f"{path}.end", "must lie after the start")
    if one_off.end - one_off.start > MAX_ONE_OFF:
        raise InvalidValue(
            f"{path}.end", f"must lie within {MAX_ONE_OFF.days} days of the start; change the base instead"
        )
    check_text(one_off.reason, f"{path}.reason")
    check_text(one_off.by, f"{path}.by")
