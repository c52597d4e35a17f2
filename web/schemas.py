"""The operator API's JSON: values to JSON, and JSON to values with errors that name the field."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time
from typing import Any

from core.control.decisions import Decision
from core.control.windows import Effective, OneOff, Overlap, Schedule, Transition, Window
from core.errors import InvalidValue
from core.lanes import Lane
from core.operations import PoolPatch
from core.overview import Reading
from core.quotas import Bounds, Budgets, Hold, Pause
from core.schedule_words import tells_no_figures

Json = dict[str, Any]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FIGURES = ("interactive", "interactive_waiting", "batch", "backlog")
_FULL_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_BUDGETS = ("first_token_s", "per_token_ms", "error_rate")
_BY_DAY = {**{name: day for day, name in enumerate(DAYS)}, **{name: day for day, name in enumerate(_FULL_DAYS)}}


def pool_json(reading: Reading) -> Json:
    """Return a pool as the API shows it. What has no data is null."""
    settings, now = reading.settings, reading.at
    hold = settings.hold if settings.hold is not None and settings.hold.active(now) else None
    return {
        "name": settings.name,
        "slots": settings.slots,
        "reserve": settings.reserve,
        "headroom": settings.headroom,
        "floor": settings.floor,
        "ceiling": settings.ceiling,
        "effective": effective_json(reading.bounds),
        "mode": "hold" if hold else "auto",
        "paused": _pause_json(settings.pause),
        "hold": _hold_json(hold),
        "limit": number(reading.limit, 2),
        "quota": reading.quota,
        "shadow_quota": reading.shadow_quota,
        "settling": reading.settling,
        "window": source_name(reading.bounds.source),
        "budgets": budgets_json(settings.budgets),
        "seen": {
            "first_token_p95_s": number(reading.seen.first_token_p95_s),
            "per_token_p95_ms": number(reading.seen.per_token_p95_ms),
            "total_p95_s": number(reading.seen.total_p95_s),
            "error_rate": number(reading.seen.error_rate),
            "samples": reading.seen.samples,
        },
        "lanes": {lane.value: _lane_json(reading, lane) for lane in Lane},
        "version": settings.version,
    }


def effective_json(bounds: Bounds) -> Json:
    """Return the bounds in force, where they come from, and until when."""
    return {
        "floor": bounds.floor,
        "ceiling": bounds.ceiling,
        "budgets": budgets_json(bounds.budgets),
        "source": bounds.source,
        "until": instant(bounds.until),
    }


def budgets_json(budgets: Budgets) -> Json:
    """Return the three budgets."""
    return {name: getattr(budgets, name) for name in _BUDGETS}


def decision_json(decision: Decision) -> Json:
    """Return one row of the decision log. A change of the schedule alone has no figures: they are null."""
    none = dict.fromkeys(_FIGURES) | {name: [None, None] for name in ("limit", "quota", "bounds")}
    return _whole_decision_json(decision) | (none if tells_no_figures(decision) else {})


def _whole_decision_json(decision: Decision) -> Json:
    return {
        "at": instant(decision.at),
        "pool": decision.pool,
        "actor": decision.actor,
        "action": decision.action,
        "reason": decision.reason,
        "sentence": decision.sentence,
        "limit": [number(value, 2) for value in decision.limit],
        "quota": list(decision.quota),
        "triggers": [
            {"name": each.name, "value": number(each.value), "threshold": number(each.threshold), "n": each.n}
            for each in decision.triggers
        ],
        "by": decision.by,
        "note": decision.note,
        "interactive": decision.interactive,
        "interactive_waiting": decision.interactive_waiting,
        "batch": decision.batch,
        "backlog": decision.backlog,
        "epoch": instant(decision.epoch),
        "next_move_at": instant(decision.next_move_at),
        "window": decision.window,
        "bounds": list(decision.bounds),
        "config_version": decision.config_version,
        "shadow": decision.shadow,
        "changes": {name: list(pair) for name, pair in decision.changes.items()},
    }


def schedule_json(schedule: Schedule) -> Json:
    """Return the schedule; `schedule_of` reads it back."""
    return {
        "zone": schedule.zone,
        "windows": [_window_json(window) for window in schedule.windows],
        "one_offs": [_one_off_json(one_off) for one_off in schedule.one_offs],
        "version": schedule.version,
    }


def transition_json(row: Transition, zone: Any) -> Json:
    """Return one edge of the schedule, with its clock time in `zone`."""
    return {
        "at": instant(row.at),
        "local": row.at.astimezone(zone).isoformat(),
        "kind": row.kind,
        "name": row.name,
        "source": row.source,
        "note": row.note,
        "length_s": row.length.total_seconds(),
        "before": _in_force_json(row.before),
        "after": _in_force_json(row.after),
    }


def overlap_json(overlap: Overlap) -> Json:
    """Return two rules that are open at once, and which of them wins."""
    return {"winner": overlap.winner.name, "loser": overlap.loser.name, "sentence": overlap.sentence}


def source_name(source: str) -> str | None:
    """Return the name of the window or one-off that a `Bounds.source` names, `None` for the base."""
    return source.partition(":")[2] or None


def instant(at: datetime | None) -> str | None:
    """Return an instant in RFC 3339, in UTC."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def number(value: float | None, digits: int = 6) -> float | None:
    """Return a rounded number; what is no finite number is `None`."""
    return round(value, digits) if value is not None and math.isfinite(value) else None


def patch_of(body: object) -> PoolPatch:
    """Return the change of a pool that a PATCH body asks for. Raises InvalidValue."""
    fields = _Object(body, "")
    patch = PoolPatch(
        hold=fields.whole("hold", null='give "auto": true to release a hold'),
        hold_for=fields.text("for"),
        auto=fields.truth("auto"),
        pause=fields.truth("pause"),
        slots=fields.whole("slots"),
        reserve=fields.whole("reserve"),
        headroom=fields.whole("headroom"),
        floor=fields.whole("floor"),
        ceiling=fields.whole("ceiling"),
        budgets=_some_budgets(fields),
        reason=fields.text("reason") or "",
    )
    fields.end()
    return patch


def schedule_of(body: object) -> Schedule:
    """Return the schedule that a PUT body holds; its `version`, if given, is not read. Raises InvalidValue.

    Its `reason` is a matter of `reason_of`. Whether the rules are sound is checked by `core.control.windows.validate`.
    """
    fields = _Object(body, "")
    fields.skip("version")
    fields.skip("reason")
    schedule = Schedule(
        zone=fields.required("zone", fields.text("zone")),
        windows=tuple(_window_of(each) for each in fields.objects("windows")),
        one_offs=tuple(_one_off_of(each) for each in fields.objects("one_offs")),
    )
    fields.end()
    return schedule


def reason_of(body: object) -> str:
    """Return the reason that a body gives, "" where it gives none. Raises InvalidValue."""
    return _Object(body, "").text("reason") or ""


def instant_of(text: str, field: str) -> datetime:
    """Return the instant that an RFC 3339 text names. Raises InvalidValue."""
    message = f"must be an instant with its offset, such as 2027-01-01T12:00:00Z, not {text!r:.60}"
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(field, message) from None
    if at.utcoffset() is None or "T" not in text.upper():
        raise InvalidValue(field, message)
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise InvalidValue(field, message) from None


class _Object:
    """A JSON object that is read field by field; what was not read by the end is unknown, and refused."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            raise InvalidValue(path or "body", f"must be an object, not {value!r:.60}")
        self._fields = dict(value)
        self._path = path

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def skip(self, name: str) -> None:
        self._fields.pop(name, None)

    def end(self) -> None:
        if self._fields:
            raise InvalidValue(self.path(f"{next(iter(self._fields))!s:.60}"), "is no field of this object")

    def required(self, name: str, value: Any) -> Any:
        if value is None:
            raise InvalidValue(self.path(name), "is missing; give it")
        return value

    def whole(self, name: str, *, null: str | None = None) -> int | None:
        if null is not None and name in self._fields and self._fields[name] is None:
            raise InvalidValue(self.path(name), f"must be a whole number, not null; {null}")
        value = self._fields.pop(name, None)
        if value is not None and type(value) is not int:
            raise InvalidValue(self.path(name), f"must be a whole number, not {value!r:.60}")
        return value

    def number(self, name: str) -> float | None:
        value = self._fields.pop(name, None)
        if value is not None and type(value) not in (int, float):
            raise InvalidValue(self.path(name), f"must be a number, not {value!r:.60}")
        return None if value is None else float(value)

    def text(self, name: str) -> str | None:
        value = self._fields.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise InvalidValue(self.path(name), f"must be a text, not {value!r:.60}")
        return value

    def truth(self, name: str) -> bool | None:
        value = self._fields.pop(name, None)
        if value is not None and not isinstance(value, bool):
            raise InvalidValue(self.path(name), f"must be true or false, not {value!r:.60}")
        return value

    def list(self, name: str) -> Sequence[object]:
        value = self._fields.pop(name, None)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise InvalidValue(self.path(name), f"must be a list, not {value!r:.60}")
        return value

    def objects(self, name: str) -> "Sequence[_Object]":
        return [_Object(each, f"{self.path(name)}[{index}]") for index, each in enumerate(self.list(name))]

    def object(self, name: str) -> "_Object | None":
        value = self._fields.pop(name, None)
        return None if value is None else _Object(value, self.path(name))


def _some_budgets(fields: _Object) -> dict[str, float] | None:
    given = fields.object("budgets")
    if given is None:
        return None
    found = {name: value for name in _BUDGETS if (value := given.number(name)) is not None}
    given.end()
    if not found:
        raise InvalidValue("budgets", f"gives none of {', '.join(_BUDGETS)}")
    return found


def _all_budgets(fields: _Object) -> Budgets | None:
    given = fields.object("budgets")
    if given is None:
        return None
    budgets = Budgets(**{name: given.required(name, given.number(name)) for name in _BUDGETS})
    given.end()
    return budgets


def _window_of(fields: _Object) -> Window:
    window = Window(
        name=fields.required("name", fields.text("name")),
        days=frozenset(_day(each, fields.path("days")) for each in fields.list("days")),
        start=_time(fields, "start"),
        end=_time(fields, "end"),
        floor=fields.whole("floor"),
        ceiling=fields.whole("ceiling"),
        budgets=_all_budgets(fields),
        priority=fields.whole("priority") or 0,
        zone=fields.text("zone"),
        pools=_names(fields, "pools"),
    )
    fields.end()
    return window


def _one_off_of(fields: _Object) -> OneOff:
    one_off = OneOff(
        name=fields.required("name", fields.text("name")),
        start=instant_of(fields.required("start", fields.text("start")), fields.path("start")),
        end=instant_of(fields.required("end", fields.text("end")), fields.path("end")),
        floor=fields.whole("floor"),
        ceiling=fields.whole("ceiling"),
        budgets=_all_budgets(fields),
        pools=_names(fields, "pools"),
        reason=fields.text("reason") or "",
        by=fields.text("by") or "",
    )
    fields.end()
    return one_off


def _day(value: object, field: str) -> int:
    """Read a day by its name. A number is refused: whether 0 is Sunday or Monday depends on whom one asks."""
    day = _BY_DAY.get(value.strip().lower()) if isinstance(value, str) else None
    if day is None:
        raise InvalidValue(field, f"must be names such as mon or Monday (no numbers), not {value!r:.60}")
    return day


def _time(fields: _Object, name: str) -> time:
    text = fields.required(name, fields.text(name))
    match = re.fullmatch(r"([01][0-9]|2[0-4]):([0-5][0-9])(?::00)?", text)
    if match is None or (match[1] == "24" and (match[2] != "00" or name == "start")):
        raise InvalidValue(fields.path(name), f"must be a 24 h clock time such as 22:00, not {text!r:.60}")
    return time(int(match[1]) % 24, int(match[2]))


def _names(fields: _Object, name: str) -> tuple[str, ...]:
    names = fields.list(name)
    for each in names:
        if not isinstance(each, str):
            raise InvalidValue(fields.path(name), f"must be names of pools, not {each!r:.60}")
    return tuple(str(each) for each in names)


def _window_json(window: Window) -> Json:
    return {
        "name": window.name,
        "days": [DAYS[day] for day in sorted(window.days)],
        "start": f"{window.start:%H:%M}",
        "end": f"{window.end:%H:%M}",
        "floor": window.floor,
        "ceiling": window.ceiling,
        "budgets": budgets_json(window.budgets) if window.budgets else None,
        "priority": window.priority,
        "zone": window.zone,
        "pools": list(window.pools),
    }


def _one_off_json(one_off: OneOff) -> Json:
    return {
        "name": one_off.name,
        "start": instant(one_off.start),
        "end": instant(one_off.end),
        "floor": one_off.floor,
        "ceiling": one_off.ceiling,
        "budgets": budgets_json(one_off.budgets) if one_off.budgets else None,
        "pools": list(one_off.pools),
        "reason": one_off.reason,
        "by": one_off.by,
    }


def _in_force_json(effective: Effective) -> Json:
    return {"source": effective.source, "floor": effective.floor, "ceiling": effective.ceiling}


def _pause_json(pause: Pause | None) -> Json | None:
    if pause is None:
        return None
    return {"by": pause.by, "reason": pause.reason, "since": instant(pause.since)}


def _hold_json(hold: Hold | None) -> Json | None:
    if hold is None:
        return None
    return {"quota": hold.quota, "until": instant(hold.until), "by": hold.by, "reason": hold.reason}


def _lane_json(reading: Reading, lane: Lane) -> Json:
    counts, waits = reading.counts, reading.waits[lane]
    interactive = lane is Lane.INTERACTIVE
    return {
        "in_flight": counts.interactive if interactive else counts.batch,
        "queued": counts.interactive_waiting if interactive else counts.backlog,
        "oldest_wait_s": number(counts.interactive_oldest_s if interactive else counts.batch_oldest_s, 3),
        "wait_p50_s": number(waits.p50_s),
        "wait_p95_s": number(waits.p95_s),
    }
