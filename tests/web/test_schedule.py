"""The Schedule page: editing windows and one-offs, preview, overlaps, deleting."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from core.control.windows import OneOff, Schedule
from tests.web.pages import Site, fields, site, text

pytestmark = pytest.mark.anyio


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as running:
        yield running


async def save(home: Site, kind: str = "window", *, stored: str = "", **typed: Any) -> httpx2.Response:
    """Fill the editor of a new rule, or of a stored one, and send it."""
    form = await home.form(f"/schedule?edit={kind}&name={stored}", "schedule-form")
    return await home.post("/ui/schedule/save", form | {"reason": "because"} | typed)


async def saved(home: Site, kind: str = "window", **typed: Any) -> str:
    answer = await save(home, kind, **typed)
    assert answer.status_code == 303, text(answer.text, "editor")
    return await home.get(answer.headers["location"])


async def test_an_empty_schedule_says_what_to_do(home: Site) -> None:
    page = text(await home.get("/schedule"))
    assert "No windows yet. Add one" in page
    assert "default : base settings in force, batch gets 1 to 7 slots." in page


async def test_a_window_over_midnight_is_stored_and_shown(home: Site) -> None:
    page = await saved(home, **night())
    (window,) = home.runtime.schedule.windows
    assert (window.name, window.start, window.end) == ("Night", time(22), time(6))
    assert (window.days, window.floor, window.ceiling, window.budgets) == (frozenset({5, 6}), None, 6, None)
    assert "Sat, Sun 22:00 to 06:00 the next day" in text(page)
    assert "Night saved." in text(page)


def night(**changes: Any) -> dict[str, Any]:
    typed = {"start": "22:00", "end": "06:00", "days": ["5", "6"], "ceiling": "6", "priority": "5"}
    return {"name": "Night"} | typed | changes


async def test_editing_keeps_what_is_not_touched(home: Site) -> None:
    await saved(home, **night(first_token_s="0.8", per_token_ms="60", error_percent="1"))
    await saved(home, stored="Night", ceiling="4")
    (window,) = home.runtime.schedule.windows
    assert (window.ceiling, window.priority, window.days) == (4, 5, frozenset({5, 6}))
    assert window.budgets is not None
    assert window.budgets.error_rate == 0.01


async def test_a_one_off_is_read_in_the_schedules_zone(home: Site) -> None:
    await saved(home, "zone", zone="Europe/Berlin")
    await saved(home, "one_off", name="Holiday", start="2027-07-01T12:00", end="2027-07-03T06:00", ceiling="7")
    (one_off,) = home.runtime.schedule.one_offs
    assert one_off.start.isoformat() == "2027-07-01T12:00:00+02:00"
    assert "Thu 1 Jul 2027 12:00 to Sat 3 Jul 2027 06:00" in text(await home.get("/schedule"))
    form = await home.form("/schedule?edit=one_off&name=Holiday", "schedule-form")
    assert form["start"] == "2027-07-01T12:00"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", " "), ("name", "x" * 100), ("days", []), ("days", ["7", "x"]), ("start", "25:00"), ("end", ""),
        ("floor", "-1"), ("ceiling", "x"), ("priority", "5000"), ("first_token_s", "1"), ("start", "22:00:30"),
        ("reason", " "),
    ],
)  # fmt: skip
async def test_a_wrong_value_is_refused_beside_its_field(home: Site, field: str, value: Any) -> None:
    answer = await save(home, **night(**{field: value}))
    assert answer.status_code == 422
    shown = "per_token_ms" if field == "first_token_s" else field
    assert f'id="{shown}-problem"' in answer.text
    assert home.runtime.schedule.windows == ()


async def test_two_windows_of_one_name_are_refused(home: Site) -> None:
    await saved(home, **night())
    answer = await save(home, **night(name="night"))
    assert answer.status_code == 422
    assert 'id="name-problem"' in answer.text


async def test_an_unknown_zone_is_refused_and_kept_in_the_field(home: Site) -> None:
    answer = await save(home, "zone", zone="Mars/Olympus")
    assert answer.status_code == 422
    assert fields(answer.text, "schedule-form")["zone"] == "Mars/Olympus"
    assert home.runtime.schedule.zone == "UTC"


async def test_a_schedule_changed_meanwhile_is_a_conflict_that_keeps_what_was_typed(home: Site) -> None:
    form = await home.form("/schedule?edit=window", "schedule-form") | night() | {"reason": "mine"}
    await saved(home, **night(name="Other"))
    answer = await home.post("/ui/schedule/save", form)
    assert answer.status_code == 409
    assert "was changed while you were editing" in text(answer.text, "editor")
    kept = fields(answer.text, "schedule-form")
    assert (kept["name"], kept["reason"], kept["days"]) == ("Night", "mine", ["5", "6"])
    assert (await home.post("/ui/schedule/save", kept)).status_code == 303
    assert [window.name for window in home.runtime.schedule.windows] == ["Other", "Night"]


async def test_overlaps_are_told_with_who_wins(home: Site) -> None:
    await saved(home, **night(name="Peak", start="08:00", end="20:00", days=["4"], priority="10"))
    page = await saved(home, **night(name="Freeze", start="16:00", end="18:00", days=["4"], priority="20"))
    assert "Freeze and Peak overlap Fri 16:00 to 18:00. Freeze wins (priority 20)." in text(page)


async def test_the_next_changes_tell_what_the_clock_does(home: Site) -> None:
    await saved(home, "zone", zone="Europe/Berlin")
    page = text(await saved(home, **night(days=["0", "1", "2", "3", "4", "5", "6"])))
    assert "Night starts: batch 1 to 7 → 1 to 6." in page
    assert "lasts 7 h (clock goes forward)" in page
    assert "ends after 9 h (clock goes back)" in page


async def test_the_preview_shows_the_week_without_saving_it(home: Site) -> None:
    form = await home.form("/schedule?edit=window", "schedule-form") | night()
    answer = await home.client.get("/ui/schedule/preview", params=form)
    assert "22:00 to 24:00 Night 1 to 6" in text(answer.text)
    assert "This week as it would be" in text(answer.text)
    page = await home.client.get("/schedule", params=form | {"preview": "1"})
    assert "This week as it would be" in page.text
    assert fields(page.text, "schedule-form")["name"] == "Night"
    assert home.runtime.schedule.windows == ()


async def test_the_preview_of_nonsense_says_what_is_wrong(home: Site) -> None:
    answer = await home.client.get("/ui/schedule/preview", params={"kind": "window", "start": "x"})
    assert answer.status_code == 200
    assert "start: Give a time such as 22:00." in text(answer.text)


async def test_deleting_asks_first_and_can_be_undone(home: Site) -> None:
    await saved(home, **night())
    question = await home.get("/schedule/delete?kind=window&name=Night")
    assert "Delete Night" in text(question)
    form = fields(question, "/ui/schedule/delete") | {"reason": "over"}
    assert (await home.post("/ui/schedule/delete", form | {"confirm": ""})).status_code == 422
    assert len(home.runtime.schedule.windows) == 1
    answer = await home.post("/ui/schedule/delete", form)
    assert answer.status_code == 303
    assert home.runtime.schedule.windows == ()
    page = await home.get(answer.headers["location"])
    await home.post("/ui/undo", fields(page, "/ui/undo"))
    assert [window.name for window in home.runtime.schedule.windows] == ["Night"]


async def test_deleting_from_an_old_page_is_a_conflict(home: Site) -> None:
    await saved(home, **night())
    form = fields(await home.get("/schedule/delete?kind=window&name=Night"), "/ui/schedule/delete")
    await saved(home, stored="Night", ceiling="2")
    answer = await home.post("/ui/schedule/delete", form | {"reason": "over"})
    assert answer.status_code == 409
    assert len(home.runtime.schedule.windows) == 1


async def test_what_does_not_exist_is_not_found(home: Site) -> None:
    await home.get("/schedule?edit=window&name=nope", 404)
    await home.get("/schedule/delete?kind=window&name=nope", 404)
    await home.get("/schedule?pool=nope", 404)
    assert (await home.post("/ui/schedule/save", {"kind": "cron"})).status_code == 404
    assert "editor" not in await home.get("/schedule?edit=cron")


async def test_no_cron_text_is_offered(home: Site) -> None:
    """R80: weekday 0 is Monday in one scheduler and Sunday in crontab; days are chosen by name."""
    page = await home.get("/schedule?edit=window")
    assert "cron" not in page.lower()
    assert all(name in text(page, "editor") for name in ("Mon", "Sun"))


async def test_editing_a_one_off_keeps_the_second_of_two_equal_clock_times_and_who_made_it(home: Site) -> None:
    second = datetime(2027, 10, 31, 1, 30, 15, tzinfo=UTC)
    rule = OneOff("Night", second, second + timedelta(hours=5), ceiling=4, by="ann")
    await home.runtime.operations.change_schedule(Schedule("Europe/Berlin", (), (rule,)), by="ann", based_on=None)
    await home.runtime.reload()
    assert (await save(home, "one_off", stored="Night", ceiling="3")).status_code == 303
    (now_is,) = home.runtime.schedule.one_offs
    assert (now_is.start, now_is.end, now_is.by) == (rule.start, rule.end, "ann")
    assert (await save(home, "one_off", stored="Night", start="2027-10-31T02:30")).status_code == 303
    assert home.runtime.schedule.one_offs[0].end == rule.end


async def test_a_one_off_that_begins_at_a_skipped_clock_time_begins_after_the_gap(home: Site) -> None:
    await saved(home, "zone", zone="Europe/Berlin")
    await saved(home, "one_off", name="Gap", start="2027-03-28T02:30", end="2027-03-28T06:00", ceiling="3")
    assert home.runtime.schedule.one_offs[0].start == datetime(2027, 3, 28, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "address",
    [
        "/schedule?preview=1&kind=window&days=%C2%B2",
        "/schedule?preview=1&kind=window&original=gone&name=a&start=01:00&end=02:00&days=1",
        "/schedule?preview=1&kind=one_off&name=a&start=0001-01-01T00:00&end=9999-12-31T23:59",
        "/schedule?preview=1&kind=one_off&name=a&start=2027-01-01T00:00%2B05:00&end=2027-01-02T00:00",
    ],
)
async def test_whatever_is_previewed_is_answered_with_what_is_wrong(home: Site, address: str) -> None:
    assert "note bad" in await home.get(address)


async def test_a_rule_that_is_gone_is_told_whatever_else_is_wrong(home: Site) -> None:
    form = await home.form("/schedule?edit=window", "schedule-form") | {"original": "gone", "name": "a", "reason": ""}
    answer = await home.post("/ui/schedule/save", form)
    assert answer.status_code == 422
    assert "no window is named" in answer.text
