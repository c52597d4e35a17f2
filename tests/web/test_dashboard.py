"""The pages over a running system, used as a browser without JavaScript does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import time, timedelta
from pathlib import Path

import pytest

from core.config import PoolConfig
from core.control.decisions import Decision, Trigger
from core.control.windows import Schedule, Window
from core.samples import Seen
from tests.web.pages import NOBODY, Site, Tags, links, site, text
from web.schemas import decision_json

pytestmark = pytest.mark.anyio


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as running:
        yield running


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Site]:
    pools = (
        PoolConfig(name="gpt-large", base_url=NOBODY, slots=8, models=("gpt*",)),
        PoolConfig(name="embed", base_url=NOBODY, slots=4, models=("embed*",)),
    )
    async with site(tmp_path, pools=pools) as running:
        yield running


async def test_a_fresh_start_shows_dashes_and_no_nan(home: Site) -> None:
    """R95 linkerd/linkerd2 PR#750: NaN percentiles with no traffic."""
    page = await home.get("/")
    assert text(page, "live").count("—") >= 6
    assert "Interactive is quiet" in text(page)
    assert "nan" not in text(page).lower().split()
    assert "None" not in text(page, "live")


async def test_the_navigation_shows_only_pages_that_exist(home: Site) -> None:
    page = await home.get("/")
    nav = [given["href"] for tag, given in Tags(page).tags if tag == "a" and given["href"].startswith("/")]
    for address in dict.fromkeys(nav):
        assert (await home.client.get(address)).status_code == 200, address
    assert {"/", "/schedule", "/decisions"} <= set(nav)


async def test_every_link_of_every_page_leads_somewhere(two: Site) -> None:
    seen: set[str] = set()
    todo = {"/", "/schedule", "/decisions", "/schedule?edit=window", "/schedule?edit=one_off", "/schedule?edit=zone"}
    while todo:
        address = todo.pop()
        seen.add(address)
        todo |= {link.partition("#")[0] for link in links(await two.get(address)) if link.startswith("/")} - seen
    assert len(seen) > 10


async def test_nothing_that_changes_anything_is_in_a_live_part(two: Site) -> None:
    """sidekiq/sidekiq#6768: a live update moved a button under the pointer and a production queue was deleted."""
    await two.tune(pool="gpt-large", ceiling="3")
    for address in ("/", "/schedule", "/decisions"):
        page = await two.get(address)
        for part in ("live", "chart"):
            tags = Tags(page, part).tags
            assert not [tag for tag, _ in tags if tag in {"button", "form", "input", "select"}]
            assert not [given for _, given in tags if any(name.startswith("hx-") for name in given)]
            assert all(not given.get("href", "").startswith("/ui/") for tag, given in tags if tag == "a")


async def test_unsafe_routes_are_posts_below_ui_and_refuse_reading(home: Site) -> None:
    for path in ("/ui/tuning", "/ui/pause", "/ui/undo", "/ui/schedule/save", "/ui/schedule/delete"):
        assert (await home.client.get(path)).status_code == 405
        assert (await home.client.post(path, data={})).status_code == 403


async def test_unknown_pools_and_pages_are_not_found(home: Site) -> None:
    assert "no pool named" in text(await home.get("/?pool=nope", 404))
    assert "no pool named" in text(await home.get("/decisions?pool=nope", 404))
    assert await home.get("/ui/stream?page=nope", 404)
    assert await home.get("/ui/stream?page=overview&pool=nope", 404)
    assert await home.get("/ui/live?page=overview&span=9y", 404)
    await home.get("/?range=9y")


async def test_several_pools_have_a_row_each_and_a_page_each(two: Site) -> None:
    page = await two.get("/")
    assert {"/?pool=gpt-large", "/?pool=embed"} <= links(page)
    assert 'value="embed"' not in page
    assert 'name="pool" value="embed"' in await two.get("/?pool=embed")
    assert "4 in all" in text(await two.get("/?pool=embed"), "live")


async def test_one_pool_has_no_list_of_pools(home: Site) -> None:
    assert "Pools" not in text(await home.get("/"), "live")


async def test_a_setting_that_differs_from_the_file_is_named(home: Site) -> None:
    assert "Differs from" not in await home.get("/")
    page = await home.tune(ceiling="6")
    assert "Differs from the settings given at the start: ceiling 6, given 7." in text(page)


async def test_the_reported_figures_are_those_of_the_board(home: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(first_token_p95_s=1.25, per_token_p95_ms=31.0, total_p95_s=4.0, error_rate=0.005, samples=148)
    board = home.runtime.pools["default"].board
    monkeypatch.setattr(type(board), "seen", lambda *_: seen)
    shown = text(await home.get("/"), "live")
    assert "Interactive is slow" in shown
    assert "1.25 s of 1 s over" in shown
    assert "31 ms of 75 ms" in shown
    assert "148 in 60 s" in shown


async def test_a_model_server_that_is_away_is_named(home: Site) -> None:
    probe = home.runtime.probes["default"]
    probe.reachable, probe.error = False, "connection failed"
    assert "The model server cannot be reached: connection failed." in text(await home.get("/"), "live")
    probe.reachable = True
    assert "cannot be reached" not in await home.get("/")


async def test_stale_figures_make_the_verdict_unknown(home: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = home.runtime.reading(home.runtime.pools["default"])
    monkeypatch.setattr(home.runtime, "reading", lambda pool: replace(reading, tick_age_s=60.0))
    page = await home.get("/")
    assert "Interactive: unknown" in text(page, "live")
    assert "Based on data 1 min old." in text(page, "preview")


async def test_text_from_outside_is_never_markup(home: Site) -> None:
    evil = "<script>alert(1)</script>\"'><b>"
    await home.tune(ceiling="5", reason=evil)
    await home.tune(mode="hold", quota="3", reason=evil)
    for address in ("/", "/decisions", f"/decisions?q={evil}"):
        page = await home.get(address)
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


async def test_pages_without_javascript_reload_unless_one_types(home: Site) -> None:
    assert '<noscript><meta http-equiv="refresh"' in await home.get("/")
    assert "http-equiv" not in await home.get("/?refresh=off")
    assert "http-equiv" not in await home.get("/?mode=hold&quota=3")
    assert "http-equiv" not in await home.get("/schedule?edit=window")


async def test_a_plain_get_of_the_form_previews_it_and_keeps_what_was_typed(home: Site) -> None:
    page = await home.get("/?pool=default&mode=hold&quota=3&for=15m&floor=1&ceiling=5&reason=x")
    assert "Ceiling 7 5" in text(page, "preview")
    assert 'name="quota" type="number" inputmode="numeric" min="0" max="7" value="3"' in page
    assert home.settings().hold is None


async def test_static_files_asked_for_by_digest_are_kept_for_ever(home: Site) -> None:
    page = await home.get("/")
    sheet = next(given["href"] for tag, given in Tags(page).tags if tag == "link" and given["rel"] == "stylesheet")
    assert "immutable" in (await home.client.get(sheet)).headers["cache-control"]
    assert "cache-control" not in (await home.client.get(sheet.partition("?")[0])).headers


async def test_polling_asks_for_the_same_parts(tmp_path: Path) -> None:
    async with site(tmp_path, live="poll") as running:
        page = await running.get("/")
        assert 'hx-trigger="every 5s"' in page
        assert "hx-sse:connect" not in page
        address = next(given["hx-get"] for tag, given in Tags(page).tags if tag == "main")
        fragment = await running.get(address)
        assert fragment.count("<hx-partial") == 2
        assert 'id="live"' in fragment


async def test_a_stream_event_carries_the_live_part_and_the_chart(home: Site) -> None:
    watched = home.ui.hub.events(next(iter([_overview()])))
    first = await anext(watched)
    assert 'hx-target="#live"' in first
    assert 'hx-target="#chart"' in first
    await home.ui.hub.tick()
    assert 'hx-target="#chart"' not in await anext(watched)


def _overview():  # type: ignore[no-untyped-def]
    from web.live import Watched

    return Watched("overview", "default")


def decision(home: Site, minutes: float, **changes: object) -> Decision:
    made = Decision(
        at=home.runtime.clock.now() - timedelta(minutes=minutes),
        pool="default",
        actor="controller",
        action="cut",
        reason="per_token",
        sentence="Limit 44 -> 39: p95 time per token is 84 ms.",
        limit=(44.0, 39.0),
        quota=(33, 28),
        triggers=(Trigger("per_token", 1.12, 0.95, 63), Trigger("first_token", None, 0.95, 0)),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


async def test_decisions_tell_what_moved_why_and_with_which_figures(home: Site) -> None:
    await home.runtime.decisions.append([decision(home, 1)])
    page = text(await home.get("/decisions"))
    assert "33 → 28 Limit 44 → 39: p95 time per token is 84 ms." in page
    assert "per token: 1.12, threshold 0.95, 63 samples" in page
    assert "first token: —, threshold 0.95, 0 samples" in page


async def test_decisions_are_filtered_by_the_address(home: Site) -> None:
    rows = [decision(home, n, sentence=f"cut number {n}.") for n in range(1, 4)]
    person = decision(home, 9, actor="operator", action="set", by="ann", note="GPU three is out", sentence="Held.")
    await home.runtime.decisions.append([person, *reversed(rows)])
    assert "cut number 2" in text(await home.get("/decisions?q=NUMBER+2"))
    assert "cut number 3" not in text(await home.get("/decisions?q=NUMBER+2"), "main").partition("Filter")[2]
    people = text(await home.get("/decisions?actor=operator"), "main").partition("Filter")[2]
    assert "GPU three is out" in people
    assert "cut number" not in people
    assert "No decision fits" in text(await home.get("/decisions?q=nothing+like+it"))
    await home.get("/decisions?limit=x&actor=%00&q=" + "y" * 5000)
    for limit in ("%C2%B2", "9" * 5000, "-1", "0"):
        await home.get(f"/decisions?limit={limit}")


async def test_many_decisions_are_shown_in_pages(home: Site) -> None:
    await home.runtime.decisions.append([decision(home, n, sentence=f"cut {n}.") for n in range(250, 0, -1)])
    page = await home.get("/decisions")
    assert page.count("<details>") == 100
    older = next(link for link in links(page) if "limit=" in link)
    assert (await home.get(older)).count("<details>") >= 250


async def test_the_chart_appears_once_the_history_has_samples(home: Site) -> None:
    for _ in range(3):
        home.runtime.history.sample()
        await asyncio.sleep(0)
    page = await home.get("/")
    assert 'class="chart"' in page
    assert "Show as table" in page
    assert "Nothing measured yet" not in page


async def test_a_change_of_the_schedule_claims_no_figures(home: Site) -> None:
    window = Window("Peak", frozenset({0}), time(8), time(20), ceiling=4)
    await home.runtime.operations.change_schedule(Schedule(windows=(window,)), by="ann", based_on=None)
    page = text(await home.get("/decisions"))
    assert "Window Peak added by ann." in page
    assert "limit 0.0" not in page
    [row] = await home.runtime.decisions.recent(limit=1)
    told = decision_json(row)
    assert (told["limit"], told["quota"], told["batch"]) == ([None, None], [None, None], None)


async def test_the_overview_says_what_the_controller_found_at_its_last_look(home: Site) -> None:
    controller = home.runtime.pools["default"].controller
    controller.tick()
    assert controller.why
    assert f"At the controller's last look: {controller.why}" in text(await home.get("/"), "live")
