from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from core.changes import PoolPatch
from core.control.windows import OneOff, Schedule, Window
from core.errors import InvalidValue
from core.people.audit import CONTROLLER, AuditEntry, AuditHead, AuditRecord, chained
from core.people.entries import may_revert, pool_entry, pool_of, pool_patch, reason, schedule, schedule_entry
from core.quotas import Budgets, Hold, Pause, PoolSettings

NOW = datetime(2026, 12, 9, 12, tzinfo=UTC)
POOL = PoolSettings("default", slots=8, reserve=1, headroom=1, floor=1, ceiling=7)
PEAK = Window("Peak", frozenset(range(5)), time(7), time(15), ceiling=4)
NIGHT = Window("Night", frozenset(range(7)), time(22), time(6), ceiling=6)
SCHEDULE = Schedule("UTC", (PEAK, NIGHT))


def stored(entry: AuditEntry) -> AuditRecord:
    """As it comes back from a database: plain JSON."""
    return chained([entry], AuditHead(11))[0]


def pool_record(before: PoolSettings, after: PoolSettings) -> AuditRecord:
    return stored(pool_entry(before, after, kind="settings", at=NOW, by="ann", reason=" why ", way="browser"))


def schedule_record(before: Schedule, after: Schedule) -> AuditRecord:
    return stored(schedule_entry(before, after, at=NOW, by="ann", reason="", way="browser"))


def test_an_entry_tells_the_whole_pool_before_and_after_with_their_versions() -> None:
    entry = pool_record(POOL, replace(POOL, ceiling=4)).entry
    assert (entry.target, entry.action, entry.actor, entry.reason) == ("pool:default", "pool.settings", "ann", "why")
    assert (entry.before["ceiling"], entry.before["version"]) == (7, 1)
    assert (entry.after["ceiling"], entry.after["version"]) == (4, 2)
    assert pool_of(entry) == "default"


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        ({"ceiling": 4}, {"ceiling": 7}),
        ({"ceiling": 4, "floor": 3, "slots": 12}, {"ceiling": 7, "floor": 1, "slots": 8}),
        ({"budgets": Budgets(2.0, 75.0, 0.1)}, {"budgets": {"first_token_s": 1.0, "error_rate": 0.02}}),
        ({"pause": Pause("ann", "", NOW)}, {"pause": False}),
    ],
)
def test_only_what_the_entry_changed_is_put_back(after: dict[str, Any], wanted: dict[str, Any]) -> None:
    patch = pool_patch(pool_record(POOL, replace(POOL, **after)), POOL, now=NOW, given="")
    assert patch == PoolPatch(**wanted, reason="reverts entry 12")


def test_a_hold_comes_back_for_the_time_it_still_had_or_goes() -> None:
    hour, ever = Hold(3, NOW + timedelta(minutes=59.5), "ann", "", NOW), Hold(2, None, "ann", "", NOW)
    held = replace(POOL, hold=hour)

    def patch(before: Hold | None, after: Hold | None, present: PoolSettings) -> PoolPatch:
        record = pool_record(replace(POOL, hold=before), replace(POOL, hold=after))
        return pool_patch(record, present, now=NOW, given="")

    assert patch(hour, None, POOL) == PoolPatch(hold=3, hold_for="60m", reason="reverts entry 12")
    assert patch(ever, hour, held) == PoolPatch(hold=2, hold_for="forever", reason="reverts entry 12")
    assert patch(None, hour, held) == PoolPatch(auto=True, reason="reverts entry 12")
    with pytest.raises(InvalidValue, match="nothing to do"):
        patch(None, hour, POOL)
    over = replace(hour, until=NOW - timedelta(minutes=1))
    assert patch(over, ever, replace(POOL, hold=ever)) == PoolPatch(auto=True, reason="reverts entry 12")


def test_a_pause_comes_back() -> None:
    record = pool_record(replace(POOL, pause=Pause("ann", "", NOW)), POOL)
    assert pool_patch(record, POOL, now=NOW, given="too early").pause is True


def test_rules_come_back_where_they_stood_and_what_others_changed_since_stays() -> None:
    lower = replace(PEAK, ceiling=2)
    record = schedule_record(SCHEDULE, replace(SCHEDULE, windows=(lower, NIGHT)))
    present = Schedule("UTC", (lower, replace(NIGHT, ceiling=1)), version=9)
    assert schedule(record, present) == replace(present, windows=(PEAK, replace(NIGHT, ceiling=1)))


def test_rules_that_were_added_go_and_removed_ones_come_back() -> None:
    feast = OneOff("Feast", NOW, NOW + timedelta(days=2), ceiling=7)
    after = Schedule("Europe/Berlin", (NIGHT,), (feast,), version=2)
    record = schedule_record(SCHEDULE, after)
    assert schedule(record, after) == Schedule("UTC", (NIGHT, PEAK), (), version=2)


def test_what_is_already_as_before_is_not_put_back_again() -> None:
    record = schedule_record(SCHEDULE, replace(SCHEDULE, windows=(NIGHT,)))
    with pytest.raises(InvalidValue, match="nothing to do"):
        schedule(record, SCHEDULE)


def test_only_changes_of_pools_and_schedule_by_people_can_be_put_back() -> None:
    entry = pool_record(POOL, replace(POOL, ceiling=4)).entry
    assert may_revert(entry)
    assert may_revert(schedule_record(SCHEDULE, Schedule()).entry)
    assert not may_revert(replace(entry, way=CONTROLLER))
    assert not may_revert(replace(entry, action="key.revoke"))
    assert not may_revert(replace(entry, before=None))


def test_the_reason_names_the_entry_and_stays_bounded() -> None:
    record = pool_record(POOL, POOL)
    assert reason(record, " too low ") == "reverts entry 12: too low"
    assert len(reason(record, "x" * 600)) == 500
