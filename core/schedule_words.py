"""What a change of the schedule did to its rules, in words."""

from dataclasses import fields
from datetime import UTC, datetime, time

from core import wording
from core.control.decisions import Decision
from core.control.windows import Rule, Schedule
from core.quotas import Budgets

_SAID = frozenset({"days", "start", "end", "zone", "floor", "ceiling", "budgets", "priority", "pools"})
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def moved_rules(before: Schedule, after: Schedule) -> dict[str, tuple[Rule | None, Rule | None]]:
    """Return (before, after) of each rule that was added, changed or removed, by its source."""
    old = {rule.source: rule for rule in before.rules}
    new = {rule.source: rule for rule in after.rules}
    return {name: (old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)}


def tells_no_figures(decision: Decision) -> bool:
    """Tell whether a decision records a change of the rules alone: what it does to a pool's quota is told apart."""
    return decision.actor == "operator" and decision.reason == "schedule"


def rule_told(source: str, before: Rule | None, after: Rule | None) -> str:
    """Tell what became of one rule: "window Peak changed (end 20:00 -> 21:00, ceiling 4 -> as base)"."""
    name = wording.source(source)
    if before is None or after is None:
        return f"{name} {'removed' if after is None else 'added'}"
    pairs = [(each.name, getattr(before, each.name), getattr(after, each.name)) for each in fields(before)]
    moved = [
        f"{field} {_plain(field, old)} -> {_plain(field, new)}"
        for field, old, new in pairs
        if field in _SAID and old != new
    ]
    return f"{name} changed" + (f" ({', '.join(moved)})" if moved else "")


def _plain(field: str, value: object) -> str:
    if value is None:
        return "as the schedule" if field == "zone" else "as base"
    if isinstance(value, Budgets):
        error = wording.plain(value.error_rate * 100)
        return f"{wording.plain(value.first_token_s)} s, {wording.plain(value.per_token_ms)} ms, {error} %"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    if isinstance(value, time):
        return f"{value:%H:%M}"
    if isinstance(value, frozenset):
        return " ".join(_DAYS[day] for day in sorted(value))
    return ", ".join(value) or "all" if isinstance(value, tuple) else str(value)
