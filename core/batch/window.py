"""The completion window of a batch: how a client writes it, and what it means. Pure."""

import re
from datetime import timedelta

from core.errors import InvalidValue

SHORTEST = timedelta(hours=1)
LONGEST = timedelta(days=14)
_WRITTEN = re.compile(r"([0-9]{1,4})([hd])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1)}


def window_of(given: object) -> timedelta:
    """Return the time that "24h" or "3d" means: 1 hour to 14 days. Raises InvalidValue."""
    match = _WRITTEN.fullmatch(given) if isinstance(given, str) else None
    window = int(match[1]) * _UNITS[match[2]] if match else timedelta()
    if not SHORTEST <= window <= LONGEST:
        raise InvalidValue("completion_window", f'must be from "1h" to "14d", such as "24h", not {given!r:.40}')
    return window
