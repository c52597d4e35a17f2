"""Changes of pools and of the schedule as entries of the audit trail, and what it takes to put one back. Pure.

Only what the entry changed is put back: what others changed since stays as it is.
"""

from dataclasses import replace
from datetime import datetime
from math import ceil
from typing import Any

import msgspec

from core.changes import FOREVER, NUMBERS, PoolPatch
from core.control.rules import MAX_TEXT, Rule, Schedule
from core.errors import InvalidValue
from core.people.audit import AuditEntry, AuditRecord
from core.quotas import Hold, PoolSettings

POOL_TARGET = "pool:"
SCHEDULE_TARGET = "schedule"


def pool_entry(
    before: PoolSettings, after: PoolSettings, *, kind: str, at: datetime, by: str, reason: str, way: str
) -> AuditEntry:
    """Return the entry of a pool that becomes `after` as its next version; `kind` is hold, release, pause, ..."""
    return AuditEntry(
        at=at,
        actor=by,
        action=f"pool.{kind}",
        target=f"{POOL_TARGET}{before.name}",
        before=_plain(before),
        after=_plain(replace(after, version=before.version + 1)),
        reason=reason.strip(),
        way=way,
    )


def schedule_entry(before: Schedule, after: Schedule, *, at: datetime, by: str, reason: str, way: str) -> AuditEntry:
    """Return the entry of the schedule that becomes `after` as its next version."""
    return AuditEntry(
        at=at,
        actor=by,
        action="schedule.change",
        target=SCHEDULE_TARGET,
        before=_plain(before),
        after=_plain(replace(after, version=before.version + 1)),
        reason=reason.strip(),
        way=way,
    )


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value, order="sorted")


def pool_of(entry: AuditEntry) -> str | None:
    """Return the pool whose settings the entry changed, `None` where it changed something else."""
    return entry.target.removeprefix(POOL_TARGET) if _is_change(entry, "pool.") else None


def is_schedule_change(entry: AuditEntry) -> bool:
    """Tell whether the entry changed the schedule."""
    return _is_change(entry, "schedule.")


def may_revert(entry: AuditEntry) -> bool:
    """Tell whether what the entry changed can be put back."""
    return pool_of(entry) is not None or is_schedule_change(entry)


def reason(record: AuditRecord, given: str) -> str:
    """Return the reason of a change that reverts `record`."""
    told = f"reverts entry {record.number}"
    return f"{told}: {given.strip()}"[:MAX_TEXT] if given.strip() else told


def pool_patch(record: AuditRecord, present: PoolSettings, *, now: datetime, given: str) -> PoolPatch:
    """Return the change of a pool that puts back what `record` changed; `given` is the reason.

    A hold comes back for the time that it still had, or goes; a pause comes back as one of who reverts. Raises
    InvalidValue where there is nothing to put back.
    """
    before, after = record.entry.before, record.entry.after
    numbers = {name: before[name] for name in NUMBERS if before[name] != after[name]}
    budgets = {name: value for name, value in before["budgets"].items() if value != after["budgets"][name]}
    patch = PoolPatch(**numbers, budgets=budgets or None, reason=reason(record, given))
    if before["hold"] != after["hold"]:
        patch = _with_hold(patch, msgspec.convert(before["hold"], Hold | None), present, now)
    if (before["pause"] is None) != (after["pause"] is None):
        patch = replace(patch, pause=before["pause"] is not None)
    if not patch.given:
        raise _nothing(record)
    return patch


def schedule(record: AuditRecord, present: Schedule) -> Schedule:
    """Return the present schedule with the rules, and the zone, that `record` changed put back.

    Raises InvalidValue where there is nothing to put back.
    """
    before = msgspec.convert(record.entry.before, Schedule)
    after = msgspec.convert(record.entry.after, Schedule)
    old = {rule.source: rule for rule in before.rules}
    new = {rule.source: rule for rule in after.rules}
    moved = {source for source in {*old, *new} if old.get(source) != new.get(source)}
    reverted = replace(
        present,
        zone=before.zone if before.zone != after.zone else present.zone,
        windows=_put_back(present.windows, before.windows, moved),
        one_offs=_put_back(present.one_offs, before.one_offs, moved),
    )
    if reverted == present:
        raise _nothing(record)
    return reverted


def _is_change(entry: AuditEntry, actions: str) -> bool:
    return not entry.automatic and entry.action.startswith(actions) and None not in (entry.before, entry.after)


def _with_hold(patch: PoolPatch, hold: Hold | None, present: PoolSettings, now: datetime) -> PoolPatch:
    if hold is not None and hold.active(now):
        return replace(patch, hold=hold.quota, hold_for=_left(hold, now))
    stands = present.hold is not None and present.hold.active(now)
    return replace(patch, auto=True) if stands else patch


def _left(hold: Hold, now: datetime) -> str:
    """Return how long a hold still stands, as operations take it; whole minutes, rounded up."""
    if hold.until is None:
        return FOREVER
    return f"{max(1, ceil((hold.until - now).total_seconds() / 60))}m"


def _put_back(present: tuple[Any, ...], before: tuple[Any, ...], moved: set[str]) -> tuple[Any, ...]:
    """Return the rules with those that moved as they were: in their place, at the end, or gone."""
    old: dict[str, Rule] = {rule.source: rule for rule in before if rule.source in moved}
    kept = [old.pop(rule.source, None) if rule.source in moved else rule for rule in present]
    return (*(rule for rule in kept if rule is not None), *old.values())


def _nothing(record: AuditRecord) -> InvalidValue:
    return InvalidValue("entry", f"{record.number} changed nothing that is still as it left it: there is nothing to do")
