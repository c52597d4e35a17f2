"""Sign-in, tenants, keys and accounts in a real browser: strict, accessible, and whole without JavaScript."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.acceptance.conftest import Tab, open_tab
from tests.servers import Gate, gate

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse"
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PAGES = [
    "/tenants",
    "/tenants?edit=",
    "/tenants?edit=research",
    "/tenants?new=key",
    "/tenants/rotate?key=indexer",
    "/tenants/revoke?key=indexer",
    "/accounts",
    "/accounts?edit=",
    "/accounts?edit=bob",
    "/account",
    "/webhooks",
    "/webhooks?new=",
    "/webhooks/{webhook}",
    "/webhooks/rotate?id={webhook}",
    "/webhooks/delete?id={webhook}",
]


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """Tidegate with two tenants, keys in every state, and three accounts."""
    with gate(tmp_path_factory.mktemp("office") / "data", slots=8, webhook_hosts=["127.0.0.1"]) as running:
        headers = {"origin": running.url}
        with httpx2.Client(base_url=running.url, headers=headers) as admin:
            form = {"name": "ann", "role": "admin", "password": PASSWORD}
            assert admin.post("/ui/accounts", data=form).status_code == 303
            for given in (
                {"name": "indexer", "tenant": "research", "models": ["m-*"], "cidrs": ["10.0.0.0/8"], "expires": "90d"},
                {"name": "gone", "tenant": "research"},
                {"name": "ops-cli", "role": "operator"},
            ):
                assert admin.post("/api/keys", json=given).status_code == 201
            admin.post("/api/keys/indexer/rotate", json={})
            admin.delete("/api/keys/gone")
            for path in ("nowhere", "resting", "new"):
                hook = {"url": f"http://127.0.0.1:9/{path}", "description": path}
                made = admin.post("/api/webhooks", json=hook).raise_for_status().json()["id"]
                if path == "nowhere":
                    assert admin.post(f"/api/webhooks/{made}/test").json()["state"] == "given_up"
                elif path == "resting":
                    admin.patch(f"/api/webhooks/{made}", json={"disabled": True}).raise_for_status()
            for name, role in (("bob", "viewer"), ("olga", "operator")):
                given = {"name": name, "role": role, "password": PASSWORD}
                assert admin.post("/api/accounts", json=given).status_code == 201
        yield running


@pytest.fixture
async def empty(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gate]:
    with gate(tmp_path_factory.mktemp("empty") / "data", webhook_hosts=["127.0.0.1"]) as running:
        yield running


async def sign_in(page: Page, name: str = "ann", path: str = "/sign-in") -> None:
    await page.goto(path)
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in", exact=True).click()
    await expect(page.locator("header")).to_contain_text(name)


async def checked(tab: Tab, what: str) -> None:
    """Fail where the page is not accessible or wider than the screen."""
    results = await Axe().run(tab.page, options={"runOnly": {"type": "tag", "values": TAGS}})
    assert results.violations_count == 0, f"{what}: {results.generate_report()}"
    assert await tab.page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, what


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_is_accessible_fits_the_screen_and_keeps_the_policy(
    chromium: Browser, contexts: list[BrowserContext], office: Gate, scheme: str, width: int
) -> None:
    tab = await open_tab(chromium, contexts, office.url, scheme=scheme, width=width)
    await tab.page.goto("/sign-in")
    await checked(tab, "sign-in")
    await sign_in(tab.page)
    webhook = (await office.runtime.webhooks.endpoints(None))[0].id
    for path in PAGES:
        await tab.page.goto(path.format(webhook=webhook))
        await checked(tab, path)
    assert await tab.faults() == []


async def test_who_asks_for_a_page_signs_in_and_arrives_there(
    chromium: Browser, contexts: list[BrowserContext], office: Gate
) -> None:
    tab = await open_tab(chromium, contexts, office.url)
    await sign_in(tab.page, path="/decisions?pool=default")
    await expect(tab.page).to_have_url(f"{office.url}/decisions?pool=default")
    await tab.page.get_by_role("button", name="Sign out").click()
    await expect(tab.page.get_by_role("heading", name="Sign in")).to_be_visible()
    await tab.page.goto("/")
    await expect(tab.page).to_have_url(f"{office.url}/sign-in?next=%2F")


async def test_a_wrong_password_is_told_and_the_name_stays(
    chromium: Browser, contexts: list[BrowserContext], office: Gate
) -> None:
    tab = await open_tab(chromium, contexts, office.url)
    await tab.page.goto("/sign-in")
    await tab.page.get_by_label("Name").fill("ann")
    await tab.page.get_by_label("Password").fill("wrong")
    await tab.page.get_by_role("button", name="Sign in", exact=True).click()
    await expect(tab.page.get_by_role("alert").filter(has_text="wrong")).to_be_visible()
    await expect(tab.page.get_by_label("Name")).to_have_value("ann")
    await checked(tab, "after a failure")


async def test_a_key_is_made_copied_rotated_and_revoked(
    chromium: Browser, contexts: list[BrowserContext], office: Gate
) -> None:
    tab = await open_tab(chromium, contexts, office.url)
    page = tab.page
    await sign_in(page, path="/tenants?new=key&tenant=research")
    await page.get_by_label("Name", exact=True).fill("fresh")
    await page.get_by_label("Runs in").select_option(label="batch only")
    await page.get_by_role("button", name="Make the key").click()
    token = await page.get_by_label("The key").input_value()
    assert token.startswith("tg_")
    await checked(tab, "key made")
    await page.get_by_role("button", name="Copy").click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    # As over plain http on a name of its own, where there is no clipboard.
    await page.evaluate("() => Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    await page.get_by_role("button", name="Copied").click()
    selected = "() => { const f = document.querySelector('#token'); return f.selectionEnd - f.selectionStart }"
    assert await page.evaluate(selected) == len(token)
    await page.get_by_role("link", name="I have copied it").click()
    row = page.get_by_role("row").filter(has_text="fresh")
    await expect(row).to_contain_text("batch only, member")
    await row.get_by_role("link", name="Rotate").click()
    await page.get_by_role("button", name="Rotate fresh").click()
    assert await page.get_by_label("The key").input_value() != token
    await page.goto("/tenants/revoke?key=fresh")
    await page.get_by_label("Type the key's name").fill("fresh")
    await page.get_by_role("button", name="Revoke fresh").click()
    await expect(page.get_by_role("row").filter(has_text="fresh")).to_contain_text("(revoked)")
    assert await tab.faults() == []


async def test_without_javascript_everything_can_be_done_from_the_first_account_on(
    chromium: Browser, contexts: list[BrowserContext], empty: Gate
) -> None:
    tab = await open_tab(chromium, contexts, empty.url, javascript=False, width=360)
    page = tab.page
    await page.goto("/")
    await page.get_by_role("link", name="No sign-in yet").click()
    await page.get_by_label("Name").fill("ann")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Add the account").click()
    await expect(page.locator("header")).to_contain_text("ann")
    await page.get_by_role("button", name="Sign out", exact=True).click()
    await sign_in(page)
    await page.goto("/tenants?edit=default")
    await page.get_by_label("Tokens per minute").fill("1000")
    await page.get_by_role("button", name="Save default").click()
    await expect(page.locator("main")).to_contain_text("at most 1,000")
    await page.goto("/tenants?new=key")
    await page.get_by_label("Name", exact=True).fill("plain")
    await page.get_by_role("button", name="Make the key").click()
    assert (await page.get_by_label("The key").input_value()).startswith("tg_")
    await expect(page.get_by_role("button", name="Copy")).to_be_hidden()
    await page.goto("/account")
    await page.get_by_role("button", name="Sign out ann").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


@pytest.mark.parametrize("javascript", [True, False])
async def test_a_webhook_is_added_tested_disabled_rotated_and_deleted(
    chromium: Browser, contexts: list[BrowserContext], empty: Gate, javascript: bool
) -> None:
    tab = await open_tab(chromium, contexts, empty.url, javascript=javascript, width=360)
    page, host = tab.page, empty.model.removeprefix("http://")
    await page.goto("/")
    await page.get_by_role("navigation").get_by_role("link", name="Webhooks").click()
    await page.get_by_role("link", name="Add a webhook").click()
    await page.get_by_label("Address").fill(f"{empty.model}/v1/chat/completions")
    await page.get_by_label("expired").uncheck()
    await page.get_by_role("button", name="Add the webhook").click()
    first = await page.get_by_label("The signing secret").input_value()
    assert first.startswith("whsec_")
    await page.get_by_role("link", name="I have copied it").click()
    await page.get_by_role("button", name="Send a test").click()
    await expect(page.get_by_role("status").filter(has_text="The test arrived: status 200.")).to_be_visible()
    await page.get_by_role("button", name="Disable it").click()
    await expect(page.get_by_role("button", name="Enable it")).to_be_visible()
    await page.get_by_role("link", name="Rotate the secret").click()
    await page.get_by_role("button", name="Rotate the secret").click()
    assert await page.get_by_label("The signing secret").input_value() != first
    await page.get_by_role("link", name="I have copied it").click()
    await page.get_by_role("link", name="Delete…").click()
    await page.get_by_label(f"Type {host}").fill(host)
    await page.get_by_role("button", name="Delete the webhook").click()
    await expect(page.get_by_text("Nobody is told.")).to_be_visible()
    if javascript:
        assert await tab.faults() == []


@pytest.mark.parametrize("name", ["bob", "olga"])
async def test_what_a_role_may_not_is_not_there(
    chromium: Browser, contexts: list[BrowserContext], office: Gate, name: str
) -> None:
    tab = await open_tab(chromium, contexts, office.url)
    page = tab.page
    await sign_in(page, name)
    buttons = page.locator("main").get_by_role("button")
    if name == "bob":
        await expect(buttons).to_have_count(0)
    else:
        await expect(page.get_by_role("button", name="Apply")).to_be_visible()
    for link in ("Tenants", "Accounts"):
        await expect(page.get_by_role("navigation").get_by_role("link", name=link)).to_have_count(0)
    await checked(tab, f"overview of {name}")
    await page.goto("/tenants")
    await expect(page.get_by_role("heading", name="Not for your role")).to_be_visible()
    await checked(tab, f"refusal of {name}")
