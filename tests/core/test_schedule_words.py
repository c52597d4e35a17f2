"""What became of a rule, in words."""

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from core.control.windows import OneOff, Schedule, Window
from core.quotas import Budgets
from core.schedule_words import moved_rules, rule_told

PEAK = Window("Peak", frozenset({0, 4}), time(8), time(20), ceiling=4)
NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"end": time(21), "ceiling": None}, "end 20:00 -> 21:00, ceiling 4 -> as base"),
        ({"days": frozenset({6})}, "days Mon Fri -> Sun"),
        ({"zone": "Europe/Berlin"}, "zone as the schedule -> Europe/Berlin"),
        ({"pools": ("large",), "priority": 5}, "priority 0 -> 5, pools all -> large"),
        ({"budgets": Budgets(2.0, 50.0, 0.01)}, "budgets as base -> 2 s, 50 ms, 1 %"),
    ],
)
def test_a_changed_window_tells_each_field_that_moved(changes: dict[str, Any], says: str) -> None:
    assert rule_told(PEAK.source, PEAK, replace(PEAK, **changes)) == f"window Peak changed ({says})"


def test_a_one_off_tells_its_instants_in_utc() -> None:
    before = OneOff("Fair", NOON, NOON + timedelta(hours=2), ceiling=4)
    after = replace(before, end=NOON + timedelta(hours=3))
    assert rule_told(before.source, before, after) == (
        "one-off Fair changed (end 2027-01-01 14:00 UTC -> 2027-01-01 15:00 UTC)"
    )


def test_what_comes_and_goes_is_told_as_that() -> None:
    moved = moved_rules(Schedule(windows=(PEAK,)), Schedule(windows=(replace(PEAK, name="Night"),)))
    assert [rule_told(source, *pair) for source, pair in moved.items()] == [
        "window Peak removed",
        "window Night added",
    ]
