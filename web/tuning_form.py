"""The tuning form: what it starts with, what was typed, what that would do. Values alone, no requests."""

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import quote

from core import wording
from core.overview import Reading
from core.quotas import Bounds, Budgets, Hold, PoolLimits, batch_quota
from web.contexts import Change, Choice, Conflict, Note, Preview

LABELS = {
    "mode": "Who sets it",
    "quota": "Held quota",
    "floor": "Floor",
    "ceiling": "Ceiling",
    "first_token_s": "First token, s",
    "per_token_ms": "Per token, ms",
    "error_percent": "Errors, %",
}
BOUND_FIELDS = ("floor", "ceiling", "first_token_s", "per_token_ms", "error_percent")
HOLD_FIELDS = ("mode", "quota", "for")
FOR = {
    "15m": "15 minutes",
    "1h": "1 hour",
    "until_window_ends": "the rest of the present window",
    "forever": "ever, until somebody ends it",
}
KEEP = "keep"
MAX_REASON = 200
_MODES = {"auto": "the controller", "hold": "a hold"}


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was asked for. `hold` is a quota in slots or `None` for automatic; `keep` leaves a hold's end as it is."""

    hold: int | None
    hold_for: str
    floor: int
    ceiling: int
    budgets: Budgets
    scope: str
    reason: str

    def bounds(self) -> tuple[int, int, Budgets]:
        """Return floor, ceiling and budgets."""
        return self.floor, self.ceiling, self.budgets


def present(reading: Reading) -> dict[str, str]:
    """Return the values in force, as the form shows them."""
    hold, bounds = reading.settings.hold, reading.bounds
    held = hold is not None and hold.active(reading.at)
    return {
        "mode": "hold" if held else "auto",
        "quota": str(hold.quota if hold and held else reading.quota),
        "for": KEEP if held else "1h",
        "floor": str(bounds.floor),
        "ceiling": str(bounds.ceiling),
        "first_token_s": wording.plain(bounds.budgets.first_token_s),
        "per_token_ms": wording.plain(bounds.budgets.per_token_ms),
        "error_percent": wording.plain(bounds.budgets.error_rate * 100),
    }


def parse(values: Mapping[str, str], reading: Reading) -> tuple[Tuned | None, dict[str, str]]:
    """Return what was asked for, or `None` with what is wrong by field.

    What was left as the form showed it (`was_...`) means whatever is in force now.
    """
    errors: dict[str, str] = {}
    now = present(reading)
    touched = _touched(values, now)
    values = {**values, **{name: now[name] for name in (*BOUND_FIELDS, *HOLD_FIELDS) if name not in touched}}
    most = reading.settings.batch_max
    hold = None
    if values.get("mode") == "hold":
        hold = _whole(values, "quota", most, errors)
        if values.get("for", "1h") not in {*FOR, KEEP}:
            errors["for"] = "Choose how long."
    bounds = {
        name: _whole(values, name, math.inf if values.get(name) == now[name] else most, errors)
        for name in ("floor", "ceiling")
    }
    if not errors and bounds["floor"] > bounds["ceiling"]:
        errors["floor"] = "Not above the ceiling."
    budgets = _budgets(values, errors)
    if errors:
        return None, errors
    reason = " ".join(values.get("reason", "").split())[:MAX_REASON]
    scope = values.get("scope", "one_off")
    return Tuned(hold, values.get("for", "1h"), bounds["floor"], bounds["ceiling"], budgets, scope, reason), {}


def tells_what_it_showed(values: Mapping[str, str]) -> bool:
    """Tell whether the form says what each field was when it was opened."""
    return all(f"was_{name}" in values for name in (*BOUND_FIELDS, *HOLD_FIELDS))


def clashes(values: Mapping[str, str], reading: Reading) -> bool:
    """Tell whether somebody changed what was changed in the form, too, since it was opened. A hold counts as one."""
    now = present(reading)
    was = _was(values, now)
    touched = _touched(values, now)
    hold_moved = _hold_told(was) != _hold_told(now)
    return (bool(touched & set(HOLD_FIELDS)) and hold_moved) or any(
        was[name] != now[name] for name in touched & set(BOUND_FIELDS)
    )


def _touched(values: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Return the fields that differ from what the form showed. Mode, quota and end of a hold go together."""
    was = _was(values, now)
    bounds = {name for name in BOUND_FIELDS if values.get(name) != was[name]}
    same_hold = all(values.get(name, was[name]) == was[name] for name in HOLD_FIELDS)
    automatic = values.get("mode", was["mode"]) == was["mode"] == "auto"
    return bounds if same_hold or automatic else bounds | set(HOLD_FIELDS)


def _was(values: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    return {name: values.get(f"was_{name}", now[name]) for name in (*BOUND_FIELDS, *HOLD_FIELDS)}


def _hold_told(values: Mapping[str, str]) -> tuple[str, str]:
    return values["mode"], values["quota"] if values["mode"] == "hold" else ""


def _whole(values: Mapping[str, str], name: str, most: float, errors: dict[str, str]) -> int:
    text = values.get(name, "").strip()
    if text.isascii() and text.isdigit() and len(text) < 8 and int(text) <= most:
        return int(text)
    errors[name] = "Give a whole number." if most == math.inf else f"Give a whole number from 0 to {most:g}."
    return 0


def _budgets(values: Mapping[str, str], errors: dict[str, str]) -> Budgets:
    first = _number(values, "first_token_s", 0, 3600, errors)
    token = _number(values, "per_token_ms", 0, 60_000, errors)
    for name, value in (("first_token_s", first), ("per_token_ms", token)):
        if value == 0:
            errors.setdefault(name, "Give a number above 0.")
    return Budgets(first, token, _number(values, "error_percent", 0, 100, errors) / 100)


def _number(values: Mapping[str, str], name: str, least: float, most: float, errors: dict[str, str]) -> float:
    try:
        value = float(values.get(name, "").replace(",", "."))
    except ValueError:
        value = math.nan
    if least <= value <= most:
        return value
    errors[name] = f"Give a number from {least:g} to {most:g}."
    return 0.0


def conflicts(values: Mapping[str, str], reading: Reading) -> tuple[Conflict, ...]:
    """Return, for each field that moved since the form was opened, what it was, what it is now, and what was typed."""
    now = present(reading)
    before = {name: values[f"was_{name}"] for name in LABELS if f"was_{name}" in values}
    rows = [Conflict(LABELS[name], *(_told(name, of) for of in (before, now, values))) for name in before]
    return tuple(row for row in rows if row.was != row.theirs or row.was != row.yours)


def _told(name: str, values: Mapping[str, str]) -> str:
    """Return a field in words; a held quota means something only where a hold is set."""
    if name == "quota" and values.get("mode") != "hold":
        return wording.NO_DATA
    value = values.get(name, "")
    return _MODES.get(value, value)


def scopes(bounds: Bounds, until: str, chosen: str) -> tuple[Choice, ...]:
    """Return where changed bounds may go: into a one-off (the default), or into the window in force."""
    kind, _, name = bounds.source.partition(":")
    if kind != "window":
        return ()
    once = Choice("one_off", f"one-off until {name} ends at {until}", chosen != "source")
    return once, Choice("source", f"changes window {name}, every time it opens", chosen == "source")


def untils(held: str, chosen: str) -> tuple[Choice, ...]:
    """Return how long a hold may last; `held` tells until when the present one stands ("": there is none)."""
    kept = [Choice(KEEP, held, chosen in {"", KEEP})] if held else []
    fallback = "" if held else "1h"
    return (*kept, *(Choice(value, label, value == (chosen or fallback)) for value, label in FOR.items()))


def hold_for(tuned: Tuned, reading: Reading) -> str:
    """Return how long the hold asked for lasts, as operations take it; `keep` is what is left of the present one."""
    hold = reading.settings.hold
    return left(hold, reading.at) if tuned.hold_for == KEEP and hold else tuned.hold_for


def left(hold: Hold, now: datetime) -> str:
    """Return how long a hold still stands, as operations take it; whole minutes, rounded up."""
    if hold.until is None:
        return "forever"
    return f"{max(1, math.ceil((hold.until - now).total_seconds() / 60))}m"


def unchanged(tuned: Tuned, reading: Reading) -> bool:
    """Tell whether nothing asked for differs from what is in force."""
    return not hold_moves(tuned, reading) and not bounds_move(tuned, reading)


def hold_moves(tuned: Tuned, reading: Reading) -> bool:
    """Tell whether a hold begins, ends, or changes."""
    hold = reading.settings.hold
    stands = hold is not None and hold.active(reading.at)
    if tuned.hold is None:
        return stands
    return not stands or hold is None or hold.quota != tuned.hold or tuned.hold_for != KEEP


def bounds_move(tuned: Tuned, reading: Reading) -> bool:
    """Tell whether floor, ceiling or a budget differs from what is in force."""
    bounds = reading.bounds
    return tuned.bounds() != (bounds.floor, bounds.ceiling, bounds.budgets)


def preview(tuned: Tuned, reading: Reading, *, base_url: str) -> Preview:
    """Return what `tuned` would do if it were applied now."""
    return Preview(
        changes=_changes(tuned, reading),
        notes=tuple(_notes(tuned, reading)),
        curl=_curl(tuned, reading, base_url),
    )


def unreadable(errors: Mapping[str, str]) -> Preview:
    """Return the preview of a form that cannot be applied."""
    return Preview(notes=tuple(Note(f"{LABELS.get(name, name)}: {text}", "bad") for name, text in errors.items()))


def _limits(reading: Reading) -> PoolLimits:
    settings, bounds = reading.settings, reading.bounds
    limits = PoolLimits(
        settings.slots, settings.reserve, settings.headroom, bounds.floor, bounds.ceiling, reading.limit
    )
    hold = settings.hold
    return replace(limits, hold=hold.quota) if hold and hold.active(reading.at) else limits


def _quota_after(tuned: Tuned, reading: Reading) -> int:
    """Return the quota that comes of it; who releases a hold goes on from the held value, within the bounds."""
    before = _limits(reading)
    demand = reading.counts.interactive + reading.counts.interactive_waiting
    limits = replace(before, floor=tuned.floor, ceiling=tuned.ceiling, hold=tuned.hold)
    if before.hold is not None and tuned.hold is None:
        limits = replace(limits, limit=float(before.hold + demand + limits.headroom))
    return batch_quota(limits, demand)


def _changes(tuned: Tuned, reading: Reading) -> tuple[Change, ...]:
    now = present(reading)
    after = {
        "mode": "hold" if tuned.hold is not None else "auto",
        "floor": str(tuned.floor),
        "ceiling": str(tuned.ceiling),
        "first_token_s": wording.plain(tuned.budgets.first_token_s),
        "per_token_ms": wording.plain(tuned.budgets.per_token_ms),
        "error_percent": wording.plain(tuned.budgets.error_rate * 100),
    }
    moved = [
        Change(LABELS[name], _MODES.get(now[name], now[name]), _MODES.get(text, text))
        for name, text in after.items()
        if now[name] != text
    ]
    quota = _quota_after(tuned, reading)
    difference = f" ({quota - reading.quota:+d})" if quota != reading.quota else ""
    return (Change("Batch quota", str(reading.quota), f"{quota}{difference}"), *moved)


def _notes(tuned: Tuned, reading: Reading) -> list[Note]:
    counts, quota = reading.counts, _quota_after(tuned, reading)
    notes = [Note(_running(counts.batch, quota))]
    free = reading.settings.slots - counts.interactive
    if reading.settings.pause:
        notes.append(Note("Batch stays paused: this changes what it may use once it is resumed.", "warn"))
    elif quota == 0 and counts.backlog:
        notes.append(Note(f"Batch stops; {wording.count(counts.backlog)} waiting requests stay in the queue.", "warn"))
    if tuned.hold is not None and tuned.hold > free:
        text = f"Interactive uses {counts.interactive} of {wording.slots(reading.settings.slots)} now and goes first."
        notes.append(Note(f"{text} Batch gets {max(0, free)} until that falls.", "warn"))
    if tuned.hold is not None and not tuned.floor <= tuned.hold <= tuned.ceiling:
        notes.append(Note(f"Outside {tuned.floor} to {tuned.ceiling}, which a hold may be.", "warn"))
    if not reading.fresh:
        notes.append(Note(f"Based on data {wording.seconds(reading.tick_age_s)} old.", "warn"))
    return notes


def _running(running: int, quota: int) -> str:
    if running <= quota:
        return f"Applies at once. {running} batch requests run now."
    return f"Applies at once. {running} batch requests run now; {running - quota} finish first, none is cut."


def _curl(tuned: Tuned, reading: Reading, base_url: str) -> str:
    body = _body(tuned, reading)
    if not body:
        return ""
    body["reason"] = tuned.reason or "..."
    command = [
        "curl -X PATCH",
        shlex.quote(f"{base_url}/api/pools/{quote(reading.settings.name)}"),
        "-H " + shlex.quote(f'If-Match: "{reading.settings.version}"'),
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(json.dumps(body))}",
    ]
    return " ".join(command)


def _body(tuned: Tuned, reading: Reading) -> dict[str, object]:
    """Return the same as a PATCH of the pool; bounds of a window or one-off are in the schedule, not there."""
    body: dict[str, object] = {}
    if tuned.hold is None and hold_moves(tuned, reading):
        body["auto"] = True
    elif tuned.hold is not None and hold_moves(tuned, reading):
        body |= {"hold": tuned.hold, "for": hold_for(tuned, reading)}
    if reading.bounds.source == "base" and bounds_move(tuned, reading):
        budgets = tuned.budgets
        body |= {"floor": tuned.floor, "ceiling": tuned.ceiling}
        body["budgets"] = {
            "first_token_s": budgets.first_token_s,
            "per_token_ms": budgets.per_token_ms,
            "error_rate": budgets.error_rate,
        }
    return body
