"""What people ask for in texts or JSON, as values: for API, pages and commands alike. All raise InvalidValue."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from core.errors import InvalidValue
from core.lanes import Lane
from core.people.identity import Role
from core.people.keys import NewKey
from core.people.names import check_lane, check_role
from core.people.roster import AccountPatch
from core.people.teams import TenantPatch
from core.people.tenants import DEFAULT, Limits

NEVER = "never"
KEY_FIELDS = frozenset({"tenant", "name", "role", "lane", "lanes", "models", "cidrs", "expires"})
TENANT_FIELDS = frozenset({"weight", "batch_slots", "lanes", *Limits.__slots__})
LONGEST_TEXT = 4096
_LENGTH = re.compile(r"([0-9]{1,6})\s*(m|h|d|w)")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_LONGEST = timedelta(days=3650)


def length(field: str, text: str) -> timedelta:
    """Return the length that "0", "90m", "24h", "30d" or "2w" means."""
    match = _LENGTH.fullmatch(text.strip().lower())
    found = timedelta(0) if match is None else int(match[1]) * _UNITS[match[2]]
    if (match is None and text.strip() != "0") or found > _LONGEST:
        raise InvalidValue(field, "must be a length such as 24h or 30d")
    return found


def expiry(field: str, text: str, now: datetime) -> datetime | None:
    """Return when what is made `now` ends: after a length, on a day (UTC, at its start), at an instant, or never."""
    text = text.strip()
    if text in ("", NEVER):
        return None
    if _LENGTH.fullmatch(text.lower()):
        return now + length(field, text)
    try:
        if len(text) == len("2027-01-31"):
            return datetime.combine(date.fromisoformat(text), time(), UTC)
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidValue(field, "must be a length such as 90d, a day such as 2027-01-31, or never") from None


def new_key(given: Mapping[str, Any], now: datetime) -> NewKey:
    """Return the key asked for; what is missing or empty takes its default."""
    _check_known(given, KEY_FIELDS)
    lane = text("lane", given)
    return NewKey(
        tenant=text("tenant", given) or DEFAULT,
        name=text("name", given),
        role=check_role("role", text("role", given) or Role.MEMBER),
        lane=check_lane("lane", lane) if lane else None,
        lanes=lanes("lanes", given),
        models=texts("models", given) or ("*",),
        cidrs=texts("cidrs", given),
        expires_at=expiry("expires", text("expires", given), now),
    )


def tenant_patch(given: Mapping[str, Any]) -> TenantPatch:
    """Return what is to change of a tenant; `null` or an empty text takes a limit away."""
    _check_known(given, TENANT_FIELDS)
    patch: dict[str, Any] = {}
    for name in given:
        if name == "lanes":
            patch[name] = lanes(name, given)
        elif name == "weight":
            patch[name] = _number(name, given[name])
        else:
            patch[name] = _whole(name, given[name])
    return TenantPatch(patch)


def account_patch(given: Mapping[str, Any]) -> AccountPatch:
    """Return what is to change of an account."""
    _check_known(given, frozenset({"role", "tenant", "disabled"}))
    disabled = given.get("disabled")
    if disabled is not None and not isinstance(disabled, bool):
        raise InvalidValue("disabled", "must be true or false")
    role, tenant = text("role", given), text("tenant", given)
    return AccountPatch(check_role("role", role) if role else None, tenant or None, disabled)


def text(field: str, given: Mapping[str, Any]) -> str:
    """Return a text without blanks around it, "" where it is missing."""
    value = given.get(field)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or "\0" in value:
        raise InvalidValue(field, f"must be a text of at most {LONGEST_TEXT} characters")
    return value.strip()


def texts(field: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a list of texts; one text may hold several, parted by commas."""
    value = given.get(field)
    parts = value.split(",") if isinstance(value, str) else value if value is not None else []
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) and len(part) < 500 for part in parts):
        raise InvalidValue(field, "must be a list of texts")
    return tuple(part.strip() for part in parts if part.strip())


def lanes(field: str, given: Mapping[str, Any]) -> tuple[Lane, ...]:
    """Return a list of lanes."""
    return tuple(check_lane(field, name) for name in texts(field, given))


def _check_known(given: Mapping[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(given.keys() - known)
    if unknown:
        raise InvalidValue(unknown[0][:60], f"is unknown; known are {', '.join(sorted(known))}")


def _whole(field: str, value: object) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 18:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidValue(field, "must be a whole number, or empty for no limit")


def _number(field: str, value: object) -> float:
    try:
        found = float(value.replace(",", ".")) if isinstance(value, str) else value
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise InvalidValue(field, "must be a number")
    return float(found)
