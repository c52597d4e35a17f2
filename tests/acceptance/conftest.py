"""A real browser in front of a real system. The browser is Chromium: /usr/bin/chromium, or CHROMIUM."""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from core.control.wallclock import zone
from tests.servers import Gate, gate

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
COLLECT = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`);
});
"""


def chromium_path() -> str:
    """Return the browser to use; skip where there is none, unless TIDEGATE_REQUIRE_BROWSER is 1."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    if Path(path).exists():
        return path
    missing = f"no browser at {path}; install Chromium or set CHROMIUM"
    if os.environ.get("TIDEGATE_REQUIRE_BROWSER") == "1":
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture(scope="session")
async def chromium(anyio_backend: str) -> AsyncIterator[Browser]:
    path = chromium_path()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """Tidegate with two pools, windows and some traffic behind it."""
    with gate(tmp_path_factory.mktemp("data"), slots=8) as running:
        settle(running)
        yield running


def settle(house: Gate) -> None:
    """Give the pages something to show: answers, decisions, a schedule with an overlap."""
    for _ in range(3):
        house.chat(max_tokens=3)
    house.change(ceiling=6, reason="room for a test")
    windows = [
        {"name": "Peak", "days": ["mon", "tue", "wed", "thu", "fri"], "start": "08:00", "end": "20:00", "ceiling": 4},
        {"name": "Night", "days": ["fri", "sat"], "start": "19:00", "end": "06:00", "ceiling": 7, "priority": 5},
    ]
    assert zone("Europe/Berlin")
    body = {"zone": "Europe/Berlin", "windows": windows, "one_offs": []}
    httpx2.put(f"{house.url}/api/schedule", json=body, headers={"if-match": "*"}).raise_for_status()


class Tab:
    """One page in a browser of its own, with everything that went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("console", lambda told: self.errors.append(told.text) if told.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    async def faults(self) -> list[str]:
        """Return console errors, uncaught exceptions and violations of the content policy so far."""
        violations: list[str] = await self.page.evaluate("() => window.violations")
        return [*self.errors, *violations]


@pytest.fixture
async def contexts(chromium: Browser) -> AsyncIterator[list[BrowserContext]]:
    opened: list[BrowserContext] = []
    yield opened
    for context in opened:
        await context.close()


async def open_tab(
    chromium: Browser,
    contexts: list[BrowserContext],
    url: str,
    *,
    scheme: str = "light",
    width: int = 1280,
    javascript: bool = True,
) -> Tab:
    """Open an empty tab in a browser profile of its own."""
    context = await chromium.new_context(
        base_url=url,
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 800},
        java_script_enabled=javascript,
    )
    contexts.append(context)
    if javascript:
        await context.add_init_script(COLLECT)
    return Tab(await context.new_page())
