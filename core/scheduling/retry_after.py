"""The Retry-After header, in both of its forms."""

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MOST_SECONDS = 3600.0


def retry_after_seconds(value: str, now: datetime) -> float | None:
    """Return the seconds that a Retry-After of `value` asks for at `now`, at most an hour; `None` if it says nothing.

    Takes a number of seconds or an HTTP date. Nothing, a negative number, a date in the past and nonsense are `None`.
    """
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value, now)
    if not math.isfinite(seconds) or seconds <= 0:
        return None
    return min(seconds, MOST_SECONDS)


def _seconds_until(value: str, now: datetime) -> float:
    try:
        instant = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return math.nan
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return (instant - now).total_seconds()
