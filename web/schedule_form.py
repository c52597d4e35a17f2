"""The editor of windows and one-offs: what it starts with, what was typed, the schedule that comes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta

from core import wording
from core.control import wallclock
from core.control.windows import OneOff, Rule, Schedule, Window
from core.errors import InvalidValue, NotFound
from core.quotas import Budgets
from web.contexts import Choice
from web.schedule_contexts import Day, Editor

KINDS = ("window", "one_off", "zone")
DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_NOUN = {"window": "window", "one_off": "one-off", "zone": "the zone"}
_BUDGETS = (("first_token_s", 1.0), ("per_token_ms", 1.0), ("error_percent", 100.0))


@dataclass(frozen=True, slots=True)
class Typed:
    """An editor as it was sent: single values, and the lists of days and pools."""

    values: Mapping[str, str]
    days: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What is edited: window, one_off or zone."""
        return self.values.get("kind", "")

    @property
    def original(self) -> str:
        """The name under which it is stored now, "" for a new one."""
        return self.values.get("original", "")


def rule_named(schedule: Schedule, kind: str, name: str) -> Rule:
    """Return the stored window or one-off. Raises NotFound."""
    for rule in _rules(schedule, kind):
        if rule.name == name:
            return rule
    raise NotFound(_NOUN.get(kind, "rule"), name)


def without(schedule: Schedule, kind: str, name: str) -> Schedule:
    """Return the schedule without the named rule. Raises NotFound."""
    gone = rule_named(schedule, kind, name)
    return _with_rules(schedule, kind, [rule for rule in _rules(schedule, kind) if rule is not gone])


def changed(schedule: Schedule, typed: Typed) -> Schedule:
    """Return the schedule with what was typed put in. Raises InvalidValue naming the field, NotFound."""
    if typed.kind == "zone":
        return replace(schedule, zone=typed.values.get("zone", "").strip())
    rule = _window(typed) if typed.kind == "window" else _one_off(typed, schedule.zone)
    rules: list[Rule] = list(_rules(schedule, typed.kind))
    if typed.original:
        stored = rule_named(schedule, typed.kind, typed.original)
        if isinstance(rule, Window) and isinstance(stored, Window):
            rule = replace(rule, zone=stored.zone)
        if isinstance(rule, OneOff) and isinstance(stored, OneOff):
            rule = _with_untouched(rule, stored, typed, schedule.zone)
        rules[rules.index(stored)] = rule
    else:
        rules.append(rule)
    return _with_rules(schedule, typed.kind, rules)


def field_of(error: InvalidValue) -> str:
    """Return the editor's field for `windows[0].budgets.error_rate` and the like."""
    name = error.field.rpartition(".")[2].partition("[")[0]
    return {"error_rate": "error_percent", "windows": "name", "one_offs": "name"}.get(name, name)


def _rules(schedule: Schedule, kind: str) -> Sequence[Rule]:
    return schedule.windows if kind == "window" else schedule.one_offs


def _with_rules(schedule: Schedule, kind: str, rules: Sequence[Rule]) -> Schedule:
    if kind == "window":
        return replace(schedule, windows=tuple(rule for rule in rules if isinstance(rule, Window)))
    return replace(schedule, one_offs=tuple(rule for rule in rules if isinstance(rule, OneOff)))


def _window(typed: Typed) -> Window:
    days = frozenset(int(day) for day in typed.days if day in {"0", "1", "2", "3", "4", "5", "6"})
    return Window(
        name=typed.values.get("name", "").strip(),
        days=days,
        start=_time(typed, "start"),
        end=_time(typed, "end"),
        floor=_whole(typed, "floor"),
        ceiling=_whole(typed, "ceiling"),
        budgets=_budgets(typed),
        priority=_whole(typed, "priority") or 0,
        pools=typed.pools,
    )


def _one_off(typed: Typed, zone: str) -> OneOff:
    return OneOff(
        name=typed.values.get("name", "").strip(),
        start=_instant(typed, "start", zone),
        end=_instant(typed, "end", zone),
        floor=_whole(typed, "floor"),
        ceiling=_whole(typed, "ceiling"),
        budgets=_budgets(typed),
        pools=typed.pools,
        reason=typed.values.get("reason", "").strip(),
    )


def _time(typed: Typed, name: str) -> time:
    try:
        return time.fromisoformat(typed.values.get(name, ""))
    except ValueError:
        raise InvalidValue(name, "Give a time such as 22:00.") from None


def _instant(typed: Typed, name: str, zone: str) -> datetime:
    try:
        local = datetime.fromisoformat(typed.values.get(name, ""))
        if local.tzinfo is None:
            return wallclock.instant(local.date(), local.time(), zone).astimezone(wallclock.zone(zone))
    except (ValueError, OverflowError):
        pass
    raise InvalidValue(name, "Give a day and a time.")


def _with_untouched(rule: OneOff, stored: OneOff, typed: Typed, zone: str) -> OneOff:
    """Return the rule with the stored instants that the editor still shows, and with who made it.

    The editor shows whole minutes of the zone's clock, which passes some of them twice in the autumn night.
    """
    same_start = typed.values.get("start") == _local(stored.start, zone)
    same_end = typed.values.get("end") == _local(stored.end, zone)
    return replace(
        rule,
        start=stored.start if same_start else rule.start,
        end=stored.end if same_end else rule.end,
        by=stored.by,
    )


def _local(at: datetime, zone: str) -> str:
    return f"{at.astimezone(wallclock.zone(zone)):%Y-%m-%dT%H:%M}"


def _whole(typed: Typed, name: str) -> int | None:
    text = typed.values.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidValue(name, "Give a whole number, or nothing.") from None


def _budgets(typed: Typed) -> Budgets | None:
    """Return the budgets typed; all three or none, since they replace the base's as one."""
    texts = {name: typed.values.get(name, "").strip() for name, _ in _BUDGETS}
    if not any(texts.values()):
        return None
    numbers = [_number(name, texts[name]) / divisor for name, divisor in _BUDGETS]
    return Budgets(*numbers)


def _number(name: str, text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        raise InvalidValue(name, "Give all three budgets, or none.") from None


def editor(
    kind: str,
    schedule: Schedule,
    *,
    pools: Sequence[str],
    now: datetime,
    name: str = "",
    typed: Typed | None = None,
    errors: Mapping[str, str] | None = None,
    conflict: str = "",
) -> Editor:
    """Return the editor of the rule `name` ("": a new one), or of what was typed. Raises NotFound."""
    original = typed.original if typed else name
    rule = rule_named(schedule, kind, original) if original and not typed else None
    return Editor(
        kind=kind,
        original=original,
        heading=f"Change {original}" if original else f"Add a {_NOUN[kind]}" if kind != "zone" else "Change the zone",
        values=dict(_blank(kind, schedule, now) | (_stored(rule, schedule) if rule else {}))
        | (dict(typed.values) if typed else {}),
        days=_days(kind, rule, typed),
        pools=_pools(pools, rule, typed),
        zones=tuple(sorted(wallclock.zone_names())) if kind == "zone" else (),
        errors=dict(errors or {}),
        version=schedule.version,
        conflict=conflict,
    )


def _blank(kind: str, schedule: Schedule, now: datetime) -> dict[str, str]:
    local = now.astimezone(wallclock.zone(schedule.zone)).replace(minute=0) + timedelta(hours=1)
    once = kind == "one_off"
    return {
        "name": "",
        "zone": schedule.zone,
        "start": f"{local:%Y-%m-%dT%H:%M}" if once else "22:00",
        "end": f"{local + timedelta(hours=2):%Y-%m-%dT%H:%M}" if once else "06:00",
        "priority": "0",
        "floor": "",
        "ceiling": "",
        "first_token_s": "",
        "per_token_ms": "",
        "error_percent": "",
        "reason": "",
    }


def _stored(rule: Rule, schedule: Schedule) -> dict[str, str]:
    if isinstance(rule, Window):
        when = {"start": f"{rule.start:%H:%M}", "end": f"{rule.end:%H:%M}", "priority": str(rule.priority)}
    else:
        when = {"start": _local(rule.start, schedule.zone), "end": _local(rule.end, schedule.zone)}
    return {
        "name": rule.name,
        **when,
        "floor": _text(rule.floor),
        "ceiling": _text(rule.ceiling),
        **_typed(rule.budgets),
    }


def _typed(budgets: Budgets | None) -> dict[str, str]:
    if budgets is None:
        return {}
    return {
        "first_token_s": wording.plain(budgets.first_token_s),
        "per_token_ms": wording.plain(budgets.per_token_ms),
        "error_percent": wording.plain(budgets.error_rate * 100),
    }


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _days(kind: str, rule: Rule | None, typed: Typed | None) -> tuple[Day, ...]:
    if kind != "window":
        return ()
    if typed:
        chosen = {number for number in range(len(DAY_NAMES)) if str(number) in typed.days}
    else:
        chosen = set(rule.days) if isinstance(rule, Window) else set(range(7))
    return tuple(Day(number, name, number in chosen) for number, name in enumerate(DAY_NAMES))


def _pools(pools: Sequence[str], rule: Rule | None, typed: Typed | None) -> tuple[Choice, ...]:
    chosen = typed.pools if typed else rule.pools if rule else ()
    return tuple(Choice(name, name, name in chosen) for name in pools)
