"""Numbers and instants as people read them. "—" stands for no data; times are clock times in a zone of their own."""

from datetime import datetime, tzinfo

NO_DATA = "—"


def seconds(value: float | None) -> str:
    """Return a duration in words: 0.04 s, 3.2 s, 41 s, 3 min 32 s, 2 h 5 min, 3 d 4 h."""
    if value is None:
        return NO_DATA
    if value < 10:
        return f"{value:.2f} s"
    if value < 60:
        return f"{value:.0f} s"
    return _in_two_units(round(value))


def _in_two_units(whole: int) -> str:
    for unit, size, smaller, smaller_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def milliseconds(value: float | None) -> str:
    """Return milliseconds without a fraction, with one below 10."""
    if value is None:
        return NO_DATA
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"


def percent(share: float | None) -> str:
    """Return a share of 1 as percent with one decimal."""
    return NO_DATA if share is None else f"{share * 100:.1f} %"


def count(value: float | None) -> str:
    """Return a whole number with thousands set apart."""
    return NO_DATA if value is None else f"{value:,.0f}"


def plain(value: float) -> str:
    """Return a number as one types it: no trailing zeros, no exponent."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def slots(number: int) -> str:
    """Return "1 slot", "4 slots"."""
    return "1 slot" if number == 1 else f"{number} slots"


def clock(at: datetime | None, zone: tzinfo) -> str:
    """Return the clock time to the second."""
    return NO_DATA if at is None else f"{at.astimezone(zone):%H:%M:%S}"


def moment(at: datetime | None, now: datetime, zone: tzinfo) -> str:
    """Return the clock time to the minute, with the day where it is not the day of `now`."""
    if at is None:
        return NO_DATA
    local, today = at.astimezone(zone), now.astimezone(zone)
    if local.date() == today.date():
        return f"{local:%H:%M}"
    year = "" if local.year == today.year else f" {local.year}"
    return f"{local:%a} {local.day} {local:%b}{year} {local:%H:%M}"


def sentence_case(text: str) -> str:
    """Return the text with its first letter large and the rest as it is."""
    return text[:1].upper() + text[1:]


def source(name: str) -> str:
    """Return where bounds come from, in words: "base settings", "window Peak", "one-off holiday"."""
    kind, _, of = name.partition(":")
    return {"window": f"window {of}", "one_off": f"one-off {of}"}.get(kind, "base settings")
