"""Entries of the audit trail as people, spreadsheets and scripts read them. Pure."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from core import wording
from core.people.audit import AuditEntry, AuditRecord, canonical

COLUMNS = (
    "number",
    "at",
    "actor",
    "action",
    "target",
    "before",
    "after",
    "reason",
    "way",
    "previous",
    "hash",
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""With what a text begins that a spreadsheet may take for a formula; the wide ones where it is set to East Asia."""
_NOT_TOLD = frozenset({"version"})
_TOLD_WHOLE = frozenset({"hold", "pause"})
_SHORT = 3

Moment = Callable[[datetime], str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that an entry changed, in words; `whole` is "added" or "removed" for a named thing as such."""

    name: str
    before: str
    after: str
    whole: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.whole}" if self.whole else f"{self.name} {self.before} → {self.after}"


def differences(entry: AuditEntry, zone: tzinfo = UTC) -> list[Difference]:
    """Return what differs between before and after, field by field; versions aside. Times are told in `zone`."""
    return list(_differences(entry.before, entry.after, "", lambda at: wording.moment(at, entry.at, zone)))


def moved(entry: AuditEntry, zone: tzinfo = UTC) -> str:
    """Return in one line what changed: "ceiling 28 → 24"; "" where the action says it all."""
    found = differences(entry, zone)
    more = f" and {len(found) - _SHORT} more" if len(found) > _SHORT else ""
    return ", ".join(map(str, found[:_SHORT])) + more


def action_words(entry: AuditEntry) -> str:
    """Return what was done to what: "default settings", "schedule change", "sign-in failed ann"."""
    kind, _, name = entry.target.partition(":")
    what, _, how = entry.action.partition(".")
    if what == kind:
        return f"{kind} {name} {how}" if name else f"{kind} {how}"
    return " ".join(part for part in (what, how, name or kind) if part)


def as_json(record: AuditRecord) -> dict[str, Any]:
    """Return a record as the API tells it."""
    entry = record.entry
    return {
        "number": record.number,
        "at": _instant(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "before": entry.before,
        "after": entry.after,
        "reason": entry.reason,
        "way": entry.way,
        "previous": record.previous,
        "hash": record.hash,
    }


def csv_line(cells: Iterable[object]) -> str:
    """Return one line of CSV in which no text can be taken for a formula by a spreadsheet."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(_harmless(cell) for cell in cells)
    return out.getvalue()


def as_csv(records: Iterable[AuditRecord]) -> Iterator[str]:
    """Yield records as lines of CSV, without the head; `before` and `after` are JSON texts."""
    for record in records:
        told = as_json(record)
        texts = {"before": canonical(told["before"]), "after": canonical(told["after"])}
        yield csv_line((told | texts)[name] for name in COLUMNS)


def _harmless(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _differences(before: Any, after: Any, path: str, moment: Moment) -> Iterator[Difference]:
    """Yield what differs below `path`; a hold and a pause are told whole."""
    if before == after or path in _NOT_TOLD:
        return
    old, new = _named(before), _named(after)
    if path in _TOLD_WHOLE or (old is None and new is None):
        yield Difference(path, _word(before, moment), _word(after, moment))
    elif path and (before is None or after is None) and not isinstance(before or after, list):
        yield Difference(path, _word(before, moment), _word(after, moment), "added" if before is None else "removed")
    else:
        old, new = old or {}, new or {}
        for name in {**old, **new}:
            inner = f"{path}.{name}" if path else name
            yield from _differences(old.get(name), new.get(name), inner, moment)


def _named(value: Any) -> dict[str, Any] | None:
    """Return the fields of an object, or a list's things by their names; `None` for what has neither."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
        return {each["name"]: each for each in value}
    return None


def _word(value: Any, moment: Moment) -> str:
    if value is None or value == []:
        return wording.NO_DATA
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return wording.plain(value)
    if isinstance(value, dict) and "quota" in value:
        until = value.get("until")
        return f"{value['quota']} until {moment(datetime.fromisoformat(until))}" if until else f"{value['quota']}"
    if isinstance(value, dict) and "since" in value:
        return f"by {value['by']}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_word(held, moment)}" for name, held in value.items() if held is not None)
    return ", ".join(_word(each, moment) for each in value) if isinstance(value, list) else str(value)
