import csv
import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from core.people.audit import AuditEntry, AuditHead, canonical, chained
from core.people.telling import COLUMNS, action_words, as_csv, as_json, csv_line, differences, moved

NOW = datetime(2026, 12, 9, 12, 30, 15, 123456, tzinfo=UTC)
ENTRY = AuditEntry(NOW, "ann", "pool.settings", "pool:default", {"ceiling": 7}, {"ceiling": 4}, "GPU 3 out")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"ceiling": 7, "version": 1}, {"ceiling": 4, "version": 2}, "ceiling 7 → 4"),
        ({"budgets": {"first_token_s": 1.0}}, {"budgets": {"first_token_s": 0.5}}, "budgets.first_token_s 1 → 0.5"),
        ({"hold": None}, {"hold": {"quota": 12, "until": None, "by": "ann"}}, "hold — → 12"),
        (
            {"hold": {"quota": 2, "until": "2026-12-09T13:00:00Z"}},
            {"hold": None},
            "hold 2 until 13:00 → —",
        ),
        ({"pause": None}, {"pause": {"by": "ann", "since": "x", "reason": ""}}, "pause — → by ann"),
        ({"limit": 15.0, "quota": 9}, {"limit": 9.75, "quota": 5}, "limit 15 → 9.75, quota 9 → 5"),
        (None, {"weight": 3, "lanes": ["batch", "x"]}, "weight — → 3, lanes — → batch, x"),
        ({"on": True}, {"on": False}, "on yes → no"),
        (None, None, ""),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 2, "b": 2, "c": 2, "d": 2}, "a 1 → 2, b 1 → 2, c 1 → 2 and 1 more"),
    ],
)
def test_what_moved_is_told_in_one_line(before: Any, after: Any, told: str) -> None:
    assert moved(replace(ENTRY, before=before, after=after)) == told


def test_rules_of_a_schedule_are_told_by_their_names() -> None:
    before = {"windows": [{"name": "Peak", "ceiling": 4}, {"name": "Night", "ceiling": 6}], "one_offs": []}
    after = {"windows": [{"name": "Night", "ceiling": 6}, {"name": "Peak", "ceiling": 2}], "one_offs": []}
    found = differences(replace(ENTRY, before=before, after=after))
    assert [(each.name, each.before, each.after) for each in found] == [("windows.Peak.ceiling", "4", "2")]


def test_a_rule_that_came_or_went_is_told_as_such_and_in_full_by_its_difference() -> None:
    night = {"name": "Night", "days": [5, 6], "ceiling": 6, "floor": None}
    entry = replace(ENTRY, before={"windows": []}, after={"windows": [night]})
    assert moved(entry) == "windows.Night added"
    assert differences(entry)[0].after == "name Night, days 5, 6, ceiling 6"
    assert moved(replace(entry, before=entry.after, after=entry.before)) == "windows.Night removed"


def test_times_are_told_in_a_zone_with_the_day_where_it_is_another() -> None:
    entry = replace(ENTRY, before={"hold": None}, after={"hold": {"quota": 2, "until": "2026-12-10T23:30:00Z"}})
    assert moved(entry) == "hold — → 2 until Thu 10 Dec 23:30"
    assert moved(entry, timezone(timedelta(hours=1))) == "hold — → 2 until Fri 11 Dec 00:30"


@pytest.mark.parametrize(
    ("action", "target", "told"),
    [
        ("pool.settings", "pool:default", "pool default settings"),
        ("schedule.change", "schedule", "schedule change"),
        ("limit.cut", "pool:default", "limit cut default"),
        ("sign-in.failed", "account:ann", "sign-in failed ann"),
        ("sign-in", "account:ann", "sign-in ann"),
    ],
)
def test_an_action_is_told_in_words(action: str, target: str, told: str) -> None:
    assert action_words(replace(ENTRY, action=action, target=target)) == told


def test_csv_is_read_back_by_a_csv_reader_with_its_json() -> None:
    records = chained([ENTRY, replace(ENTRY, reason='a "b", c\nd', before=None)], AuditHead())
    rows = list(csv.reader(io.StringIO(csv_line(COLUMNS) + "".join(as_csv(records)), newline="")))
    assert tuple(rows[0]) == COLUMNS
    assert rows[1][:5] == ["1", "2026-12-09T12:30:15.123456Z", "ann", "pool.settings", "pool:default"]
    assert rows[1][5] == canonical({"ceiling": 7})
    assert rows[2][7] == 'a "b", c\nd'
    assert rows[2][-1] == records[1].hash == as_json(records[1])["hash"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "＋1", "－1", "＠A"])
def test_no_cell_is_a_formula_to_a_spreadsheet(text: str) -> None:
    assert next(csv.reader(io.StringIO(csv_line([text]), newline=""))) == [f"'{text}"]


def test_numbers_stay_numbers_in_csv() -> None:
    assert csv_line([-1.5, 3, "x"]) == "-1.5,3,x\r\n"
