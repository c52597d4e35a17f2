"""The tuning form: what it applies, what it refuses, what it keeps of what was typed."""

from collections.abc import AsyncIterator
from datetime import time, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from core.control.windows import Schedule, Window
from core.operations import PoolPatch
from core.quotas import Budgets
from tests.web.pages import Site, fields, site, text

pytestmark = pytest.mark.anyio

ALWAYS = Window("Peak", frozenset(range(7)), time(0), time(0), floor=1, ceiling=4)


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as running:
        yield running


@pytest.fixture
async def at_peak(home: Site) -> Site:
    """A window is in force that opened at midnight and closes at the next."""
    await home.runtime.operations.change_schedule(Schedule(windows=(ALWAYS,)), by="ann", based_on=None)
    await home.runtime.reload()
    return home


async def other(home: Site, **patch: Any) -> None:
    """Let somebody else change the pool."""
    await home.runtime.operations.change_pool("default", PoolPatch(**patch), by="bob", based_on=None)


async def test_a_hold_is_applied_at_once_and_told(home: Site) -> None:
    page = await home.tune(mode="hold", quota="3", **{"for": "15m"}, reason="drain")
    hold = home.settings().hold
    assert (hold.quota, hold.reason) == (3, "drain")
    assert hold.until - hold.since == timedelta(minutes=15)
    assert home.runtime.pools["default"].dispatcher.quota() == 3
    assert "batch held at 3 until" in text(page, "tuning")
    assert "Batch is held at 3" in text(page, "live")


@pytest.mark.parametrize(("choice", "ends"), [("1h", timedelta(hours=1)), ("forever", None)])
async def test_a_hold_lasts_as_long_as_was_chosen(home: Site, choice: str, ends: timedelta | None) -> None:
    await home.tune(mode="hold", quota="2", **{"for": choice})
    hold = home.settings().hold
    assert (hold.until and hold.until - hold.since) == ends


async def test_a_hold_until_the_window_ends_without_any_window_is_refused_beside_the_choice(home: Site) -> None:
    page = await home.tune(422, mode="hold", quota="2", **{"for": "until_window_ends"})
    assert 'id="for-problem"' in page
    assert home.settings().hold is None


async def test_a_hold_until_the_window_ends_ends_with_it(at_peak: Site) -> None:
    await at_peak.tune(mode="hold", quota="2", **{"for": "until_window_ends"})
    bounds = at_peak.runtime.pools["default"].controller.bounds
    assert at_peak.settings().hold.until == bounds.until


async def test_undo_brings_the_controller_back(home: Site) -> None:
    page = await home.tune(mode="hold", quota="3")
    answer = await home.post("/ui/undo", fields(page, "/ui/undo"))
    assert answer.status_code == 303
    assert home.settings().hold is None
    again = await home.post("/ui/undo", fields(page, "/ui/undo"))
    assert again.status_code == 410


async def test_undo_brings_an_earlier_hold_back_with_its_end(home: Site) -> None:
    await home.tune(mode="hold", quota="3", **{"for": "1h"})
    before = home.settings().hold
    page = await home.tune(mode="auto")
    assert home.settings().hold is None
    await home.post("/ui/undo", fields(page, "/ui/undo"))
    hold = home.settings().hold
    assert hold.quota == 3
    assert abs(hold.until - before.until) <= timedelta(minutes=1)


async def test_undo_leaves_alone_what_somebody_changed_since(home: Site) -> None:
    page = await home.tune(mode="hold", quota="3")
    await other(home, hold=5)
    await home.runtime.reload()
    answer = await home.post("/ui/undo", fields(page, "/ui/undo"))
    assert answer.status_code == 409
    assert home.settings().hold.quota == 5


async def test_keeping_a_hold_changes_its_quota_and_not_its_end(home: Site) -> None:
    await home.tune(mode="hold", quota="3", **{"for": "1h"})
    before = home.settings().hold
    form = await home.form("/", "tuning-form")
    assert (form["mode"], form["quota"], form["for"]) == ("hold", "3", "keep")
    await home.tune(quota="4")
    assert home.settings().hold.quota == 4
    assert abs(home.settings().hold.until - before.until) <= timedelta(minutes=1)


async def test_floor_ceiling_and_budgets_change_the_base_where_it_is_in_force(home: Site) -> None:
    await home.tune(floor="2", ceiling="5", first_token_s="0,8", error_percent="1.5")
    settings = home.settings()
    assert (settings.floor, settings.ceiling) == (2, 5)
    assert settings.budgets == Budgets(0.8, 75.0, 0.015)


async def test_in_a_window_changed_bounds_become_a_one_off_until_it_ends(at_peak: Site) -> None:
    page = await at_peak.get("/")
    assert "Window Peak is in force" in text(page, "tuning")
    assert "changes window Peak" in text(page, "tuning")
    await at_peak.tune(ceiling="2")
    schedule = at_peak.runtime.schedule
    assert schedule.windows == (ALWAYS,)
    (one_off,) = schedule.one_offs
    assert (one_off.ceiling, one_off.pools, one_off.reason) == (2, ("default",), "because")
    bounds = at_peak.runtime.pools["default"].controller.bounds
    assert (bounds.ceiling, bounds.source) == (2, one_off.source)
    assert at_peak.settings().ceiling == 7


async def test_in_a_window_the_window_itself_may_be_changed(at_peak: Site) -> None:
    await at_peak.tune(ceiling="2", scope="source")
    (window,) = at_peak.runtime.schedule.windows
    assert (window.ceiling, window.floor, window.budgets) == (2, 1, None)
    assert at_peak.runtime.schedule.one_offs == ()


async def test_hold_and_bounds_can_be_changed_together_and_undone_together(at_peak: Site) -> None:
    page = await at_peak.tune(mode="hold", quota="1", ceiling="3", scope="source")
    assert at_peak.settings().hold.quota == 1
    assert at_peak.runtime.schedule.windows[0].ceiling == 3
    await at_peak.post("/ui/undo", fields(page, "/ui/undo"))
    assert at_peak.settings().hold is None
    assert at_peak.runtime.schedule.windows == (ALWAYS,)


async def test_two_tabs_the_second_gets_409_with_all_three_values_and_may_apply_again(home: Site) -> None:
    """grafana/grafana#718: a silent overwrite of somebody else's change."""
    first = await home.form("/", "tuning-form") | {"reason": "first"}
    second = dict(first) | {"ceiling": "4", "reason": "second"}
    assert (await home.post("/ui/tuning", first | {"ceiling": "6"})).status_code == 303
    answer = await home.post("/ui/tuning", second)
    assert answer.status_code == 409
    assert "Ceiling 7 6 4" in text(answer.text, "tuning")
    kept = fields(answer.text, "tuning-form")
    assert (kept["ceiling"], kept["reason"]) == ("4", "second")
    assert home.settings().ceiling == 6
    assert (await home.post("/ui/tuning", kept)).status_code == 303
    assert home.settings().ceiling == 4


async def test_a_conflict_over_holds_names_them(home: Site) -> None:
    mine = await home.form("/", "tuning-form") | {"mode": "hold", "quota": "2", "reason": "mine"}
    await other(home, hold=5)
    answer = await home.post("/ui/tuning", mine, htmx=True)
    assert answer.status_code == 409
    assert "<html" not in answer.text
    assert "Who sets it the controller a hold a hold" in text(answer.text)
    assert "Held quota — 5 2" in text(answer.text)
    assert fields(answer.text, "tuning-form")["quota"] == "2"


async def test_a_move_of_the_controller_is_no_conflict(home: Site) -> None:
    mine = await home.form("/", "tuning-form") | {"ceiling": "5", "reason": "mine"}
    home.runtime.pools["default"].controller.tick()
    assert (await home.post("/ui/tuning", mine)).status_code == 303


async def test_a_window_that_opened_meanwhile_is_a_conflict_for_bounds_alone(home: Site) -> None:
    mine = await home.form("/", "tuning-form") | {"reason": "mine"}
    await home.runtime.operations.change_schedule(Schedule(windows=(ALWAYS,)), by="ann", based_on=None)
    answer = await home.post("/ui/tuning", mine | {"ceiling": "5"})
    assert answer.status_code == 409
    assert "Window Peak came into force" in text(answer.text)
    assert (await home.post("/ui/tuning", mine | {"mode": "hold", "quota": "2"})).status_code == 303


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quota", "8"), ("quota", "-1"), ("quota", "x"), ("quota", ""), ("quota", "9" * 400), ("quota", "٣"),
        ("ceiling", "8"), ("ceiling", "1e3"), ("floor", "7.5"), ("first_token_s", "0"), ("first_token_s", "nan"),
        ("per_token_ms", "inf"), ("error_percent", "101"), ("error_percent", "-1"), ("for", "9y"),
    ],
)  # fmt: skip
async def test_a_wrong_value_is_refused_beside_its_field_and_kept(home: Site, field: str, value: str) -> None:
    page = await home.tune(422, mode="hold", **{field: value})
    assert f'id="{field}-problem"' in page
    if field != "for":
        assert fields(page, "tuning-form")[field] == value
    assert home.settings().version == 1


async def test_a_floor_above_the_ceiling_is_refused(home: Site) -> None:
    page = await home.tune(422, floor="5", ceiling="3")
    assert "Not above the ceiling." in text(page, "floor-problem")


async def test_a_reason_is_required_by_the_server(home: Site) -> None:
    page = await home.tune(422, ceiling="3", reason="  ")
    assert "Give a reason" in text(page, "reason-problem")


async def test_a_form_that_changes_nothing_is_told_so(home: Site) -> None:
    assert "Nothing here differs" in text(await home.tune(422), "tuning")


@pytest.mark.parametrize("version", ["", "0", "x", "-1", "99", "1" * 50])
async def test_a_form_with_a_wrong_version_changes_nothing(home: Site, version: str) -> None:
    await home.tune(409, ceiling="3", version=version)
    assert home.settings().version == 1


async def test_pausing_leaves_the_hold_and_the_hold_leaves_the_pause(home: Site) -> None:
    await home.tune(mode="hold", quota="3")
    pause = fields(await home.get("/"), "/ui/pause")
    answer = await home.post("/ui/pause", pause | {"action": "pause", "reason": "disk full"})
    assert answer.status_code == 303
    assert home.settings().hold.quota == 3
    assert home.settings().pause.reason == "disk full"
    page = await home.tune(quota="2")
    assert home.settings().pause is not None
    assert "Batch is paused by operator" in text(page, "live")
    resume = fields(page, "/ui/pause") | {"action": "resume", "reason": "mended"}
    await home.post("/ui/pause", resume)
    assert home.settings().pause is None
    assert home.settings().hold.quota == 2


async def test_a_pause_needs_a_reason_and_the_present_version(home: Site) -> None:
    pause = fields(await home.get("/"), "/ui/pause") | {"action": "pause"}
    assert (await home.post("/ui/pause", pause)).status_code == 422
    await other(home, ceiling=5)
    answer = await home.post("/ui/pause", pause | {"reason": "typed"})
    assert answer.status_code == 409
    assert fields(answer.text, "/ui/pause")["reason"] == "typed"
    assert home.settings().pause is None


async def test_htmx_gets_the_form_alone_with_undo(home: Site) -> None:
    form = await home.form("/", "tuning-form") | {"ceiling": "5", "reason": "x"}
    answer = await home.post("/ui/tuning", form, htmx=True)
    assert answer.status_code == 200
    assert answer.text.lstrip().startswith('<div id="tuning"')
    assert "Applied" in text(answer.text)
    assert fields(answer.text, "/ui/undo")["token"]
    assert fields(answer.text, "tuning-form")["version"] == "2"


async def test_the_preview_says_what_the_number_means_now(home: Site) -> None:
    told = text(await home.get("/ui/tuning/preview?pool=default&mode=hold&quota=0&floor=1&ceiling=7"
                               "&first_token_s=1&per_token_ms=75&error_percent=2&for=1h"))  # fmt: skip
    assert "Batch quota" in told
    assert "Applies at once." in told
    assert "Outside 1 to 7, which a hold may be." in told


async def test_the_preview_of_nonsense_says_what_is_wrong(home: Site) -> None:
    told = text(await home.get("/ui/tuning/preview?pool=default&mode=hold&quota=x"))
    assert "Held quota: Give a whole number from 0 to 7." in told
    assert "no pool named" in text(await home.get("/ui/tuning/preview?pool=nope", 404))


async def test_the_command_is_quoted_for_the_shell(home: Site) -> None:
    form = await home.form("/", "tuning-form") | {"mode": "hold", "quota": "2", "reason": "it's $(rm) `x`"}
    answer = await home.client.get("/ui/tuning/preview", params=form)
    told = text(answer.text)
    assert "curl -X PATCH http://127.0.0.1/api/pools/default" in told
    assert """'If-Match: "1"'""" in told
    assert """'{"hold": 2, "for": "1h", "reason": "it'"'"'s $(rm) `x`"}'""" in told


async def test_clicking_one_three_one_one_ends_at_one(home: Site) -> None:
    """R29 MassTransit/MassTransit#1671: limit 1, 3, 1 stays at 3; setting the same value hangs."""
    for quota in ("1", "3", "1"):
        await home.tune(mode="hold", quota=quota, **{"for": "1h"})
    await home.tune(mode="hold", quota="1", **{"for": "1h"})
    assert home.runtime.pools["default"].dispatcher.quota() == 1


async def test_only_a_change_of_the_same_setting_is_a_conflict(home: Site) -> None:
    """grafana/grafana#102457: false alarms make people override whatever there is."""
    mine = await home.form("/", "tuning-form") | {"ceiling": "5", "reason": "mine"}
    await other(home, hold=2, hold_for="forever")
    await other(home, pause=True, reason="night")
    await other(home, floor=2)
    assert (await home.post("/ui/tuning", mine)).status_code == 303
    settings = home.settings()
    assert (settings.floor, settings.ceiling, settings.pause.reason) == (2, 5, "night")
    assert (settings.hold.quota, settings.hold.until) == (2, None)


async def test_a_hold_set_meanwhile_is_not_released_by_a_form_that_was_automatic(home: Site) -> None:
    mine = await home.form("/", "tuning-form") | {"mode": "auto", "quota": "6", "reason": "mine"}
    await other(home, hold=2)
    assert "Nothing here differs" in (await home.post("/ui/tuning", mine)).text
    assert home.settings().hold.quota == 2


async def test_a_form_that_does_not_tell_what_it_showed_conflicts_with_every_change(home: Site) -> None:
    form = await home.form("/", "tuning-form") | {"ceiling": "5", "reason": "mine"}
    bare = {name: value for name, value in form.items() if not name.startswith("was_")}
    await other(home, floor=2)
    assert (await home.post("/ui/tuning", bare)).status_code == 409
    assert home.settings().ceiling == 7


async def test_the_preview_of_a_release_goes_on_from_the_held_quota(home: Site) -> None:
    await other(home, hold=5)
    await home.runtime.reload()
    page = await home.get("/ui/tuning/preview?" + urlencode(await home.form("/", "tuning-form") | {"mode": "auto"}))
    assert "Batch quota 5 5" in text(page)
    await home.tune(mode="auto")
    assert home.runtime.pools["default"].dispatcher.quota() == 5


async def test_the_command_keeps_the_end_of_a_hold_as_the_form_does(home: Site) -> None:
    await other(home, hold=2, hold_for="forever")
    await home.runtime.reload()
    page = await home.get("/ui/tuning/preview?" + urlencode(await home.form("/", "tuning-form") | {"quota": "3"}))
    assert '"for": "forever"' in text(page)
