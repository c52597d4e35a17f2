"""What an operator may ask of a pool, and what comes of it. Pure: no clock, no I/O."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta, tzinfo

from core import wording
from core.control.rules import MAX_SLOTS, check_budgets, check_text, check_whole
from core.errors import InvalidValue
from core.quotas import Budgets, Hold, Pause, PoolSettings

UNTIL_WINDOW_ENDS = "until_window_ends"
FOREVER = "forever"
DEFAULT_FOR = "1h"
MAX_FOR = timedelta(days=30)
NUMBERS = ("slots", "reserve", "headroom", "floor", "ceiling")
_LABELS = {
    "budgets.first_token_s": "first-token budget",
    "budgets.per_token_ms": "per-token budget",
    "budgets.error_rate": "error budget",
}
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


@dataclass(frozen=True, slots=True)
class PoolPatch:
    """One change of a pool, as an operator gives it. `None` everywhere means: not given.

    `hold` is a quota in slots, kept for `hold_for`: "15m", "2h", "1d", "until_window_ends" or "forever" (not given: one
    hour). `auto` True releases a hold; `pause` stops and resumes batch; neither touches the other. `budgets` may give
    some of the budgets by name. `reason` is what the operator says about it.
    """

    hold: int | None = None
    hold_for: str | None = None
    auto: bool | None = None
    pause: bool | None = None
    slots: int | None = None
    reserve: int | None = None
    headroom: int | None = None
    floor: int | None = None
    ceiling: int | None = None
    budgets: Mapping[str, float] | None = None
    reason: str = ""

    @property
    def given(self) -> frozenset[str]:
        """The names of the fields that were given, `reason` aside."""
        return frozenset(
            each.name for each in fields(self) if each.name != "reason" and getattr(self, each.name) is not None
        )

    @property
    def bounds_given(self) -> frozenset[str]:
        """Those of floor, ceiling and budgets that were given."""
        return self.given & {"floor", "ceiling", "budgets"}


def apply_patch(
    settings: PoolSettings, patch: PoolPatch, *, by: str, now: datetime, window_end: Callable[[], datetime | None]
) -> PoolSettings:
    """Return `settings` as the patch makes them, sound in themselves. Raises InvalidValue that names the field.

    A ceiling that is all batch may have (slots - reserve) stays so when slots or reserve change. `window_end` tells
    when what is in force now ends, for holds until then. A hold whose time has passed is dropped.
    """
    _check_patch(patch)
    numbers = {name: value for name in NUMBERS if (value := getattr(patch, name)) is not None}
    changed = replace(
        settings,
        **numbers,
        budgets=_budgets(settings.budgets, patch.budgets or {}),
        hold=_hold(settings, patch, by=by, now=now, window_end=window_end),
        pause=_pause(settings, patch, by=by, now=now),
    )
    if patch.ceiling is None and settings.ceiling == settings.batch_max:
        changed = replace(changed, ceiling=max(0, changed.batch_max))
    check_settings(changed, given=patch.given)
    return changed


def check_settings(settings: PoolSettings, *, given: frozenset[str] = frozenset()) -> None:
    """Raise InvalidValue unless the settings are sound together; the field named is one of `given` where it can be."""
    check_whole(settings.slots, "slots", 1, MAX_SLOTS)
    for name in NUMBERS[1:]:
        check_whole(getattr(settings, name), name, 0, MAX_SLOTS)
    check_budgets(settings.budgets, "budgets")
    slots, reserve, most = settings.slots, settings.reserve, settings.batch_max
    together = " in the same change" if given & {"slots", "reserve"} else ""
    if reserve and reserve >= slots:
        fix = f"give a reserve of at most {slots - 1}{together}, or more slots"
        raise InvalidValue(_blame(given, "reserve", "slots"), f"reserve {reserve} takes all of {slots} slots: {fix}")
    if settings.headroom > slots:
        fix = f"give a headroom of at most {slots}{together}"
        raise InvalidValue(
            _blame(given, "headroom", "slots"), f"headroom {settings.headroom} is above slots {slots}: {fix}"
        )
    if settings.ceiling > most:
        fix = f"give a ceiling of at most {most}{together}"
        message = f"ceiling {settings.ceiling} is above slots - reserve = {slots} - {reserve} = {most}: {fix}"
        raise InvalidValue(_blame(given, "ceiling", "slots", "reserve"), message)
    if settings.floor > settings.ceiling:
        fix = f"give a floor of at most {settings.ceiling}{together}, or a higher ceiling"
        message = f"floor {settings.floor} is above ceiling {settings.ceiling}: {fix}"
        raise InvalidValue(_blame(given, "floor", "ceiling", "slots", "reserve"), message)
    if settings.hold is not None and not 0 <= settings.hold.quota <= most:
        fix = f"hold 0 to {most}" if "hold" in given else f"hold at most {most}, or release it,{together}"
        message = f"hold {settings.hold.quota} is outside 0 to slots - reserve = {slots} - {reserve} = {most}: {fix}"
        raise InvalidValue(_blame(given, "hold", "slots", "reserve"), message)


def duration(text: str, field: str = "for") -> timedelta:
    """Return the length that "15m", "2h" or "1d" means. Raises InvalidValue beyond 1 minute to 30 days."""
    match = re.fullmatch(r"([0-9]{1,5})([mhd])", text.strip())
    length = int(match[1]) * _UNITS[match[2]] if match else timedelta(0)
    if not _UNITS["m"] <= length <= MAX_FOR:
        choices = f'"15m", "2h", "1d" (at most {MAX_FOR.days} days), "{UNTIL_WINDOW_ENDS}" or "{FOREVER}"'
        raise InvalidValue(field, f"must be {choices}, not {text!r:.40}")
    return length


def changes(before: PoolSettings, after: PoolSettings, patch: PoolPatch) -> dict[str, tuple[object, object]]:
    """Return (before, after) by name of all that the patch gave, and of what changed with it."""
    found: dict[str, tuple[object, object]] = {}
    if "hold" in patch.given or "auto" in patch.given:
        found["hold"] = (before.hold.quota if before.hold else None, after.hold.quota if after.hold else None)
    if "pause" in patch.given:
        found["pause"] = (before.pause is not None, after.pause is not None)
    for name in NUMBERS:
        pair = getattr(before, name), getattr(after, name)
        if name in patch.given or pair[0] != pair[1]:
            found[name] = pair
    for name in patch.budgets or {}:
        found[f"budgets.{name}"] = (getattr(before.budgets, name), getattr(after.budgets, name))
    return found


def sentence(
    before: PoolSettings, after: PoolSettings, patch: PoolPatch, *, by: str, now: datetime, zone: tzinfo
) -> str:
    """Tell the change to a person: "Held at 4 until 15:00 by ann: drain before the release."."""
    parts = [*_hold_words(before, after, patch, now, zone), *_pause_words(before, patch, now, zone)]
    for name, (old, new) in changes(before, after, patch).items():
        if name not in ("hold", "pause"):
            label, was, now_is = _LABELS.get(name, name), _told(name, old), _told(name, new)
            parts.append(f"{label} stays {now_is}" if old == new else f"{label} {was} -> {now_is}")
    return signed("; ".join(parts), by=by, reason=patch.reason)


def _told(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if name == "budgets.error_rate":
        return f"{wording.plain(value * 100)} %"
    return f"{wording.plain(value)} {name.rpartition('_')[2]}"


def signed(what: str, *, by: str, reason: str) -> str:
    """Return a sentence that says what was done, by whom, and the reason given."""
    why = f": {reason.strip().rstrip('.')}" if reason.strip() else ""
    return f"{what[:1].upper()}{what[1:]} by {by}{why}."


def _check_patch(patch: PoolPatch) -> None:
    check_text(patch.reason, "reason")
    if not patch.given:
        names = "hold, auto, pause, slots, reserve, headroom, floor, ceiling, budgets"
        raise InvalidValue("body", f"changes nothing: give at least one of {names}")
    if patch.auto is False:
        raise InvalidValue("auto", "can only be true, which releases a hold; to hold, give hold")
    if patch.auto and patch.hold is not None:
        raise InvalidValue("auto", "excludes hold: give one of them")
    if patch.hold_for is not None and patch.hold is None:
        raise InvalidValue("for", "says how long a hold lasts: give hold with it")
    for name in ("hold", *NUMBERS):
        if (value := getattr(patch, name)) is not None:
            check_whole(value, name, 0, MAX_SLOTS)


def _hold(
    settings: PoolSettings, patch: PoolPatch, *, by: str, now: datetime, window_end: Callable[[], datetime | None]
) -> Hold | None:
    if patch.hold is not None:
        until = _until(DEFAULT_FOR if patch.hold_for is None else patch.hold_for, now, window_end)
        return Hold(patch.hold, until, by, patch.reason, now)
    stands = settings.hold is not None and settings.hold.active(now)
    return settings.hold if stands and not patch.auto else None


def _until(text: str, now: datetime, window_end: Callable[[], datetime | None]) -> datetime | None:
    if text == FOREVER:
        return None
    if text != UNTIL_WINDOW_ENDS:
        return now + duration(text)
    end = window_end()
    if end is None:
        raise InvalidValue("for", f'no window is in force and none follows: give a time such as "1h", or "{FOREVER}"')
    return end


def _pause(settings: PoolSettings, patch: PoolPatch, *, by: str, now: datetime) -> Pause | None:
    if patch.pause is None:
        return settings.pause
    if not patch.pause:
        return None
    return Pause(by, patch.reason, settings.pause.since if settings.pause else now)


def _budgets(budgets: Budgets, given: Mapping[str, float]) -> Budgets:
    for name in given:
        if name not in Budgets.__dataclass_fields__:
            raise InvalidValue(f"budgets.{name:.40}", "is no budget; there are first_token_s, per_token_ms, error_rate")
    return replace(budgets, **given)


def _blame(given: frozenset[str], *fields: str) -> str:
    return next((field for field in fields if field in given), fields[0])


def _hold_words(before: PoolSettings, after: PoolSettings, patch: PoolPatch, now: datetime, zone: tzinfo) -> list[str]:
    if after.hold is not None and patch.hold is not None:
        until = after.hold.until
        return [f"held at {after.hold.quota} {f'until {wording.moment(until, now, zone)}' if until else 'for ever'}"]
    if not patch.auto:
        return []
    stood = before.hold is not None and before.hold.active(now)
    return [f"released from {before.hold.quota}" if before.hold and stood else "left to the controller, as before"]


def _pause_words(before: PoolSettings, patch: PoolPatch, now: datetime, zone: tzinfo) -> list[str]:
    if patch.pause is None:
        return []
    if before.pause is None:
        return ["batch paused"] if patch.pause else ["batch not paused, as before"]
    since = f"by {before.pause.by} since {wording.moment(before.pause.since, now, zone)}"
    return [f"batch paused still ({since})"] if patch.pause else [f"batch (paused {since}) resumed"]
