"""The Batches pages in a real browser, with real batches running behind them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.acceptance.conftest import open_tab
from tests.servers import Gate, gate, until

pytestmark = pytest.mark.anyio

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PATIENCE_MS = 20_000
PATIENCE_S = 60.0


def line(number: int, **body: Any) -> str:
    wanted = {"model": "m", "messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": 4, **body}
    return json.dumps({"custom_id": f"doc-{number}", "method": "POST", "url": "/v1/chat/completions", "body": wanted})


def failing(number: int) -> str:
    return line(number, sim={"status": 400, "message": "the prompt is too long"})


@dataclass
class Town:
    """Tidegate with a batch in each state that looks different."""

    house: Gate
    ids: dict[str, str]

    @property
    def url(self) -> str:
        return self.house.url

    def create(self, name: str, *lines: str) -> str:
        files = {"file": (f"{name}.jsonl", "\n".join(lines).encode())}
        file = httpx2.post(f"{self.url}/v1/files", data={"purpose": "batch"}, files=files).json()
        order = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        made = httpx2.post(f"{self.url}/v1/batches", json={**order, "name": name}).raise_for_status()
        self.ids[name] = str(made.json()["id"])
        return self.ids[name]

    def batch(self, name: str) -> dict[str, Any]:
        told: dict[str, Any] = httpx2.get(f"{self.url}/v1/batches/{self.ids[name]}").json()
        return told

    def wait(self, name: str, *statuses: str) -> None:
        until(lambda: self.batch(name)["status"] in statuses, PATIENCE_S)

    def path(self, name: str) -> str:
        return f"/batches/{self.ids[name]}"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with gate(tmp_path_factory.mktemp("data"), speed=10, slots=4) as house:
        found = Town(house, {})
        for name, lines in {
            "fine": [line(0), line(1)],
            "partial": [line(0), line(1), failing(2)],
            "broken": [failing(0), failing(1)],
            "refused": [line(0), line(0)],
        }.items():
            found.create(name, *lines)
            found.wait(name, "completed", "failed")
        found.create("running", *(line(number, max_tokens=60) for number in range(20_000)))
        found.wait("running", "in_progress")
        found.create("paused", *(line(number) for number in range(50)))
        found.wait("paused", "in_progress")
        reason = {"reason": "the prompt has a mistake"}
        httpx2.post(f"{found.url}/api/batches/{found.ids['paused']}/pause", json=reason).raise_for_status()
        yield found


def pages_of(town: Town) -> list[str]:
    chosen = f"id={town.ids['running']}&id={town.ids['fine']}"
    return [
        "/batches",
        "/batches?show=paused",
        "/batches?q=nothing",
        "/batches/new",
        *(town.path(name) for name in ("running", "partial", "broken", "refused", "paused")),
        f"{town.path('partial')}?state=failed&q=doc&code=http_400",
        *(f"/batches/confirm?action={action}&{chosen}" for action in ("pause", "priority", "cancel")),
        "/eta",
    ]


async def live(page: Page) -> None:
    await expect(page.locator("#conn")).to_have_text("Live", timeout=PATIENCE_MS)


async def updates(page: Page, count: int = 2) -> None:
    for _ in range(count):
        before = await page.locator("#live").get_attribute("data-at")
        await page.wait_for_function(
            "(before) => document.querySelector('#live').dataset.at !== before", arg=before, timeout=PATIENCE_MS
        )


async def test_no_page_breaks_the_policy_or_writes_errors(
    chromium: Browser, contexts: list[BrowserContext], town: Town
) -> None:
    for path in pages_of(town):
        tab = await open_tab(chromium, contexts, town.url)
        await tab.page.goto(path)
        if await tab.page.locator("#live").count():
            await updates(tab.page, 1)
        assert await tab.faults() == [], path


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_is_accessible_and_fits_the_screen(
    chromium: Browser, contexts: list[BrowserContext], town: Town, scheme: str, width: int
) -> None:
    tab = await open_tab(chromium, contexts, town.url, scheme=scheme, width=width)
    for path in pages_of(town):
        await tab.page.goto(path)
        results = await Axe().run(tab.page, options={"runOnly": {"type": "tag", "values": TAGS}})
        assert results.violations_count == 0, f"{path}: {results.generate_report()}"
        overflow = await tab.page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, path


async def test_progress_moves_by_itself_while_the_choice_stays(
    chromium: Browser, contexts: list[BrowserContext], town: Town
) -> None:
    tab = await open_tab(chromium, contexts, town.url)
    page = tab.page
    await page.goto("/batches")
    await live(page)
    await page.get_by_label("Choose running").check()
    row = page.locator(f"#c-{town.ids['running'].removeprefix('batch_')}")
    before = await row.inner_text()
    await page.wait_for_function(
        "([id, before]) => document.getElementById(id).innerText !== before",
        arg=[await row.get_attribute("id"), before],
        timeout=PATIENCE_MS,
    )
    await updates(page, 6)
    await expect(page.get_by_label("Choose running")).to_be_checked()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("heading", name="Cancel running?")).to_be_visible()
    await page.get_by_role("link", name="Leave as it is").click()
    assert town.batch("running")["status"] == "in_progress"
    assert await tab.faults() == []


async def test_a_batch_that_somebody_else_changed_says_so_and_offers_the_new_actions(
    chromium: Browser, contexts: list[BrowserContext], town: Town
) -> None:
    town.create("shared", *(line(number) for number in range(50)))
    town.wait("shared", "in_progress")
    tab = await open_tab(chromium, contexts, town.url)
    await tab.page.goto(town.path("shared"))
    await live(tab.page)
    httpx2.post(f"{town.url}/v1/batches/{town.ids['shared']}/cancel").raise_for_status()
    await expect(tab.page.locator("#moved")).to_be_visible(timeout=PATIENCE_MS)
    await expect(tab.page.locator("#live")).to_contain_text("Cancelled at", timeout=PATIENCE_MS)
    await tab.page.get_by_role("link", name="Look again").click()
    await expect(tab.page.get_by_role("link", name="Cancel…")).to_have_count(0)
    assert await tab.faults() == []


async def test_no_live_region_holds_anything_that_changes_something(
    chromium: Browser, contexts: list[BrowserContext], town: Town
) -> None:
    tab = await open_tab(chromium, contexts, town.url)
    for path in ("/batches", town.path("running"), town.path("broken")):
        await tab.page.goto(path)
        for region in ("#live", ".batches .cells", "#batch-errors"):
            assert await tab.page.locator(f"{region} :is(button, form, input)").count() == 0, path
            assert await tab.page.locator(f"{region} a[href*=confirm]").count() == 0, path


async def test_the_commonest_error_of_a_batch_that_failed_is_on_its_page(
    chromium: Browser, contexts: list[BrowserContext], town: Town
) -> None:
    """R58 ProjectTech4DevAI/kaapi-backend#723."""
    tab = await open_tab(chromium, contexts, town.url)
    await tab.page.goto(town.path("broken"))
    assert town.batch("broken")["status"] == "completed"
    assert town.batch("broken")["output_file_id"] is None
    await expect(tab.page.locator("#live")).to_contain_text("every one of 2 requests failed")
    await expect(tab.page.locator("#batch-errors")).to_contain_text("the prompt is too long")
    await tab.page.goto(town.path("partial"))
    await expect(tab.page.locator("section.status.warn")).to_contain_text("1 failed")


async def test_without_javascript_a_batch_is_uploaded_watched_and_cancelled(
    chromium: Browser, contexts: list[BrowserContext], town: Town, tmp_path: Path
) -> None:
    path = tmp_path / "evening.jsonl"
    path.write_text("\n".join(line(number, max_tokens=60) for number in range(5_000)))
    tab = await open_tab(chromium, contexts, town.url, javascript=False)
    page = tab.page
    await page.goto("/batches")
    await page.get_by_role("link", name="New batch").click()
    await page.get_by_label("File", exact=True).set_input_files(path)
    await page.get_by_role("button", name="Upload and start").click()
    await page.wait_for_url("**/batches/batch_*")
    await expect(page.get_by_role("heading", name="evening")).to_be_visible()
    town.ids["evening"] = page.url.rpartition("/")[2]
    town.wait("evening", "in_progress")
    await page.goto(town.path("evening"))
    await page.get_by_role("link", name="Pause").click()
    await page.get_by_label("Reason").fill("not tonight")
    await page.get_by_role("button", name="Pause evening").click()
    await expect(page.locator("#live")).to_contain_text("Paused by operator: not tonight.")
    await page.get_by_role("link", name="Cancel…").click()
    await page.get_by_role("button", name="Cancel evening").click()
    await expect(page.locator(".applied")).to_contain_text("evening cancelled")
    town.wait("evening", "cancelled")


async def test_a_file_with_mistakes_is_told_with_its_lines(
    chromium: Browser, contexts: list[BrowserContext], town: Town, tmp_path: Path
) -> None:
    path = tmp_path / "mistakes.jsonl"
    path.write_text(f"{line(0)}\nno json\n")
    tab = await open_tab(chromium, contexts, town.url)
    await tab.page.goto("/batches/new")
    await tab.page.get_by_label("File", exact=True).set_input_files(path)
    await tab.page.get_by_role("button", name="Upload and start").click()
    await expect(tab.page.locator("#batch-errors")).to_contain_text("Line 2", timeout=PATIENCE_MS)
    await expect(tab.page.locator("#live")).to_contain_text("Refused at", timeout=PATIENCE_MS)
    assert await tab.faults() == []
