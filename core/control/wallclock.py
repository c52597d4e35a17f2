"""Wall-clock times as instants, on days when the clock changes too."""

from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones


class Reading(Enum):
    """How often a zone's clock shows a wall time on one day."""

    ONCE = "once"
    NEVER = "never"
    TWICE = "twice"


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Return every IANA zone name known here, but for those whose meaning is the machine's."""
    return frozenset(available_timezones()) - {"localtime", "Factory"}


@lru_cache(maxsize=1024)
def zone(name: str) -> ZoneInfo:
    """Return the zone, kept for good."""
    return ZoneInfo(name)


def instant(day: date, wall: time, zone_name: str) -> datetime:
    """Return the first instant, in UTC, at which the zone's clock has reached `wall` on `day`.

    A time that the clock skips becomes the first instant after the gap; one that it shows twice, the first of the two.
    Never goes back as (day, wall) goes forward.
    """
    return _resolve(day, wall, zone_name)[0]


def reading(day: date, wall: time, zone_name: str) -> Reading:
    """Tell whether the clock shows `wall` on `day` once, never or twice."""
    return _resolve(day, wall, zone_name)[1]


@lru_cache(maxsize=65536)
def _resolve(day: date, wall: time, zone_name: str) -> tuple[datetime, Reading]:
    local = datetime.combine(day, wall, zone(zone_name))
    earlier, later = _offset(local), _offset(local.replace(fold=1))
    naive = local.replace(tzinfo=UTC)
    if earlier == later:
        return naive - earlier, Reading.ONCE
    if earlier > later:
        return naive - earlier, Reading.TWICE
    return _change(naive - later, naive - earlier, zone(zone_name)), Reading.NEVER


def _offset(local: datetime) -> timedelta:
    offset = local.utcoffset()
    assert offset is not None
    return offset


def _change(before: datetime, after: datetime, where: ZoneInfo) -> datetime:
    """Return the first whole second in (before, after] at which the zone's offset is no longer that of `before`."""
    offset = _offset(before.astimezone(where))
    low, high = 0, int((after - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if _offset((before + timedelta(seconds=middle)).astimezone(where)) == offset:
            low = middle
        else:
            high = middle
    return before + timedelta(seconds=high)
