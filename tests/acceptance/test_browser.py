"""The pages in a real browser: live, strict, accessible, and whole without JavaScript."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, Route, expect

from core.config import Settings
from tests.acceptance.conftest import Tab, open_tab
from tests.servers import Gate, gate, until
from web.app import create_app

pytestmark = pytest.mark.anyio

PAGES = [
    "/",
    "/?range=2h",
    "/schedule",
    "/schedule?edit=window&name=Peak",
    "/schedule?edit=one_off",
    "/schedule?edit=zone",
    "/schedule/delete?kind=window&name=Peak",
    "/decisions",
    "/audit?controller=1",
    "/audit/1",
    "/audit/2",
    "/audit/calls",
    "/?pool=nope",
]
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PATIENCE_MS = 20_000


async def live(page: Page) -> None:
    """Wait until the page receives updates."""
    await expect(page.locator("#conn")).to_have_text("Live", timeout=PATIENCE_MS)


async def updates(page: Page, count: int = 3) -> None:
    """Wait until the live part was updated `count` times."""
    for _ in range(count):
        before = await page.locator("#live").get_attribute("data-at")
        await page.wait_for_function(
            "(before) => document.querySelector('#live').dataset.at !== before", arg=before, timeout=PATIENCE_MS
        )


@pytest.mark.parametrize("path", PAGES)
async def test_no_page_breaks_the_policy_or_writes_errors(
    chromium: Browser, contexts: list[BrowserContext], house: Gate, path: str
) -> None:
    tab = await open_tab(chromium, contexts, house.url)
    await tab.page.goto(path)
    if await tab.page.locator("#live").count():
        await updates(tab.page, 6 if path == "/" else 1)
    expected = ["404"] if "nope" in path else []
    assert [fault for fault in await tab.faults() if not any(code in fault for code in expected)] == []


async def test_what_the_policy_forbids_would_be_noticed(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    tab = await open_tab(chromium, contexts, house.url)
    await tab.page.goto("/")
    await tab.page.evaluate("() => document.querySelector('h1').setAttribute('style', 'color: red')")
    await tab.page.wait_for_function("() => window.violations.length > 0")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_is_accessible_and_fits_the_screen(
    chromium: Browser, contexts: list[BrowserContext], house: Gate, scheme: str, width: int
) -> None:
    tab = await open_tab(chromium, contexts, house.url, scheme=scheme, width=width)
    for path in PAGES:
        await tab.page.goto(path)
        results = await Axe().run(tab.page, options={"runOnly": {"type": "tag", "values": TAGS}})
        assert results.violations_count == 0, f"{path}: {results.generate_report()}"
        overflow = await tab.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, path


async def test_the_accessibility_check_really_looks(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    tab = await open_tab(chromium, contexts, house.url)
    await tab.page.goto("/decisions")
    await tab.page.evaluate("() => document.querySelector('main').append(document.createElement('button'))")
    results = await Axe().run(tab.page, options={"runOnly": {"type": "tag", "values": TAGS}})
    assert results.violations_count > 0


async def test_figures_move_by_themselves(chromium: Browser, contexts: list[BrowserContext], house: Gate) -> None:
    tab = await open_tab(chromium, contexts, house.url)
    await tab.page.goto("/")
    await live(tab.page)
    await updates(tab.page)
    house.change(ceiling=5, reason="seen live")
    await expect(tab.page.locator("#live")).to_contain_text("1 to 5", timeout=PATIENCE_MS)
    await expect(tab.page.locator("#moved")).to_be_visible(timeout=PATIENCE_MS)
    house.change(ceiling=6, reason="as before")


async def test_focus_typed_text_and_opened_tables_survive_updates(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    tab = await open_tab(chromium, contexts, house.url)
    await tab.page.goto("/")
    await live(tab.page)
    await tab.page.locator("#chart summary").click()
    await tab.page.locator("#reason").fill("half a sen")
    await updates(tab.page, 7)
    await expect(tab.page.locator("#reason")).to_be_focused()
    await expect(tab.page.locator("#reason")).to_have_value("half a sen")
    await expect(tab.page.locator("#chart details")).to_have_attribute("open", "")


async def test_the_preview_follows_the_typing_and_apply_can_be_undone(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    tab = await open_tab(chromium, contexts, house.url)
    page = tab.page
    await page.goto("/")
    await page.locator("input[name=mode][value=hold]").check()
    await page.locator("#quota").fill("0")
    await expect(page.locator("#preview")).to_contain_text("a hold", timeout=PATIENCE_MS)
    await page.locator("#preview summary").click()
    await expect(page.locator("#preview pre")).to_contain_text("curl -X PATCH")
    await page.locator("#reason").fill("browser test")
    await page.locator("#tuning-form").get_by_role("button", name="Apply").click()
    await expect(page.locator(".applied")).to_contain_text("batch held at 0", timeout=PATIENCE_MS)
    assert house.pool()["hold"]["quota"] == 0
    await expect(page.locator("#live")).to_contain_text("Batch is held at 0", timeout=PATIENCE_MS)
    await page.get_by_role("button", name="Undo").click()
    await page.wait_for_url("**/?pool=default#tuning")
    assert house.pool()["hold"] is None
    assert await tab.faults() == []


async def test_two_tabs_the_second_sees_both_values_and_may_apply_again(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    first = (await open_tab(chromium, contexts, house.url)).page
    second = (await open_tab(chromium, contexts, house.url)).page
    for page in (first, second):
        await page.goto("/")
        await page.locator("#reason").fill("two tabs")
    await first.locator("#ceiling").fill("5")
    await first.get_by_role("button", name="Apply").click()
    await expect(first.locator(".applied")).to_be_visible(timeout=PATIENCE_MS)
    await second.locator("#ceiling").fill("3")
    await second.get_by_role("button", name="Apply").click()
    row = second.get_by_role("row", name="Ceiling").filter(has=second.get_by_text("6"))
    await expect(row).to_contain_text("5", timeout=PATIENCE_MS)
    await expect(second.locator("#ceiling")).to_have_value("3")
    results = await Axe().run(second, options={"runOnly": {"type": "tag", "values": TAGS}})
    assert results.violations_count == 0, results.generate_report()
    await expect(second.locator("#reason")).to_have_value("two tabs")
    await second.get_by_role("button", name="Apply").click()
    await expect(second.locator(".applied")).to_be_visible(timeout=PATIENCE_MS)
    assert house.pool()["ceiling"] == 3
    house.change(ceiling=6, reason="as before")


async def test_a_late_stream_extension_still_connects(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    """htmx and its extension as two deferred files are a race; here the script comes late and nothing is lost."""

    async def late(route: Route) -> None:
        await asyncio.sleep(0.3)
        await route.continue_()

    tab = await open_tab(chromium, contexts, house.url)
    await tab.page.route("**/vendor/*.js*", late)
    await tab.page.goto("/")
    await live(tab.page)


async def test_a_stream_that_fails_at_first_is_asked_for_again(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    """symfony/ux#1639: polling ends for ever after one failure."""
    tab = await open_tab(chromium, contexts, house.url)
    refusals = [503, 503]

    async def refuse(route: Route) -> None:
        await (route.fulfill(status=refusals.pop()) if refusals else route.continue_())

    await tab.page.route("**/ui/stream*", refuse)
    await tab.page.goto("/")
    await updates(tab.page, 2)
    await live(tab.page)
    assert refusals == []


async def test_pages_may_ask_for_figures_instead_of_being_sent_them(
    chromium: Browser, contexts: list[BrowserContext], tmp_path: Path
) -> None:
    with gate(tmp_path, live="poll") as polled:
        tab = await open_tab(chromium, contexts, polled.url)
        await tab.page.goto("/")
        await updates(tab.page, 2)
        await live(tab.page)
        assert await tab.faults() == []


@contextmanager
def serving(folder: Path, port: int) -> Iterator[int]:
    """Run Tidegate on a port that stays the same over restarts; yields it."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    app = create_app(Settings(data=folder, upstream="http://127.0.0.1:9/v1", tick=0.5))
    config = uvicorn.Config(app, log_level="critical", http="httptools", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        bound.close()
        assert not thread.is_alive()


async def test_a_restart_is_told_and_the_page_goes_on_without_reload(
    chromium: Browser, contexts: list[BrowserContext], tmp_path: Path
) -> None:
    """R89 ceph/ceph PR#27160 (updates end for ever), R91 PikoCI/pikoci PR#401 (the banner stays)."""
    with serving(tmp_path, 0) as port:
        page = await _watching(chromium, contexts, f"http://127.0.0.1:{port}")
    lost = page.locator("#lost")
    await expect(lost).to_contain_text("Connection lost, data from ", timeout=PATIENCE_MS)
    at = await page.locator("#live").get_attribute("data-at")
    assert at is not None
    await expect(lost).to_contain_text(at)
    await expect(page.locator("#conn")).not_to_have_text("Live")
    with serving(tmp_path, port):
        await live(page)
        await expect(lost).to_be_hidden(timeout=PATIENCE_MS)
        await updates(page)
        assert await page.evaluate("() => window.sameDocument") is True


async def _watching(chromium: Browser, contexts: list[BrowserContext], url: str) -> Page:
    tab: Tab = await open_tab(chromium, contexts, url)
    await tab.page.goto("/")
    await live(tab.page)
    await tab.page.evaluate("() => { window.sameDocument = true; }")
    return tab.page


async def test_without_javascript_every_page_is_whole_and_reloads_itself(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    tab = await open_tab(chromium, contexts, house.url, javascript=False)
    await tab.page.goto("/")
    await expect(tab.page.locator("h1")).to_contain_text("Interactive")
    await expect(tab.page.locator("svg.gauge")).to_be_visible()
    await expect(tab.page.locator("svg.chart")).to_be_visible()
    await expect(tab.page.locator("#theme")).to_be_hidden()
    await expect(tab.page.locator("#lost")).to_be_hidden()
    assert 'http-equiv="refresh"' in await tab.page.content()


async def test_without_javascript_the_forms_work(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    page = (await open_tab(chromium, contexts, house.url, javascript=False)).page
    await page.goto("/?refresh=off")
    await page.locator("input[name=mode][value=hold]").check()
    await page.locator("#quota").fill("2")
    await page.get_by_role("button", name="Preview").click()
    await expect(page.locator("#preview")).to_contain_text("a hold")
    await page.locator("#reason").fill("no script")
    await page.get_by_role("button", name="Apply").click()
    await expect(page.locator(".applied")).to_contain_text("batch held at 2")
    assert house.pool()["hold"]["reason"] == "no script"
    await page.get_by_role("button", name="Undo").click()
    assert house.pool()["hold"] is None
    await page.goto("/schedule?edit=window")
    await page.locator("#name").fill("Lunch")
    await page.locator("#reason").fill("no script")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".applied")).to_contain_text("Lunch saved")
    await page.get_by_role("link", name="Delete Lunch").click()
    await page.locator("#reason").fill("no script")
    await page.get_by_role("button", name="Delete Lunch").click()
    await expect(page.locator(".applied")).to_contain_text("Lunch deleted")


async def test_the_week_follows_the_editor(chromium: Browser, contexts: list[BrowserContext], house: Gate) -> None:
    tab = await open_tab(chromium, contexts, house.url)
    await tab.page.goto("/schedule?edit=window&name=Peak")
    await tab.page.locator("#ceiling").fill("2")
    await expect(tab.page.locator("#week-title")).to_have_text("This week as it would be", timeout=PATIENCE_MS)
    await expect(tab.page.locator("#schedule-preview")).to_contain_text("Peak 1 to 2")
    assert await tab.faults() == []


async def test_the_colour_scheme_is_kept_over_pages(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    page = (await open_tab(chromium, contexts, house.url)).page
    await page.goto("/")
    light = await page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    await page.locator("#theme").click()
    await page.goto("/schedule")
    dark = await page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert light != dark


async def test_a_frozen_page_stands_still_until_it_is_let_go(
    chromium: Browser, contexts: list[BrowserContext], house: Gate
) -> None:
    page = (await open_tab(chromium, contexts, house.url)).page
    await page.goto("/")
    await live(page)
    await page.locator("#freeze").click()
    at = await page.locator("#live").get_attribute("data-at")
    await expect(page.locator("#conn")).to_have_text(f"Frozen at {at}")
    await page.evaluate(
        """() => {
          window.arrived = 0;
          document.querySelector("#main").addEventListener("htmx:sse:before:message", () => { window.arrived += 1; });
        }"""
    )
    house.change(ceiling=5, reason="while frozen")
    house.change(ceiling=6, reason="as before")
    await page.wait_for_function("() => window.arrived >= 3", timeout=PATIENCE_MS)
    assert await page.locator("#live").get_attribute("data-at") == at
    await page.locator("#freeze").click()
    await updates(page, 2)
    await live(page)


async def test_a_page_weighs_little(chromium: Browser, contexts: list[BrowserContext], house: Gate) -> None:
    """Under 60 kB of JavaScript and 15 kB of style sheets, and nothing from anywhere else."""
    page = (await open_tab(chromium, contexts, house.url)).page
    sizes: dict[str, int] = {}

    answers = []
    page.on("response", lambda answer: answers.append(answer))
    await page.goto("/")
    for answer in answers:
        if "/ui/" not in answer.url:
            sizes[answer.url.partition("?")[0]] = len(await answer.body())
    assert all(url.startswith(house.url) for url in sizes)
    assert sum(size for url, size in sizes.items() if url.endswith(".js")) < 60_000
    assert sum(size for url, size in sizes.items() if url.endswith(".css")) < 15_000
