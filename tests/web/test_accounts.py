from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.web.pages import Site, fields, links, site, text

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse"


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as running:
        yield running


async def first(home: Site) -> None:
    form = fields(await home.get("/accounts"), "account-form")
    answer = await home.post("/ui/accounts", form | {"name": "ann", "password": PASSWORD})
    assert answer.status_code == 303, answer.text


async def add(home: Site, name: str, role: str = "viewer", **more: str) -> int:
    form = {"name": name, "role": role, "tenant": "default", "password": PASSWORD, **more}
    return (await home.post("/ui/accounts", form)).status_code


async def test_without_accounts_the_page_tells_what_that_means_and_offers_the_first(home: Site) -> None:
    page = await home.get("/accounts")
    assert "everybody on this machine may do everything here" in text(page)
    assert fields(page, "account-form")["role"] == "admin"
    assert "/accounts" in links(await home.get("/"))


async def test_who_makes_the_first_account_is_signed_in_with_it_and_pages_close(home: Site) -> None:
    await first(home)
    assert "ann admin" in text(await home.get("/accounts"))
    home.client.cookies.clear()
    await home.get("/", status=303)


@pytest.mark.parametrize("wrong", [{"role": "viewer"}, {"password": ""}, {"password": "short"}, {"name": ""}])
async def test_the_first_account_must_be_an_admin_that_can_sign_in(home: Site, wrong: dict[str, str]) -> None:
    form = fields(await home.get("/accounts"), "account-form") | {"name": "ann", "password": PASSWORD}
    answer = await home.post("/ui/accounts", form | wrong)
    assert answer.status_code == 422
    assert "problem" in answer.text
    await home.get("/")


async def test_accounts_are_listed_changed_disabled_and_let_in_again(home: Site) -> None:
    await first(home)
    assert await add(home, "bob") == 303
    assert await add(home, "bob") == 422
    assert await add(home, "carl", password="") == 303
    page = text(await home.get("/accounts"))
    assert "bob viewer default password never" in page
    assert "carl viewer default none yet never" in page
    form = fields(await home.get("/accounts?edit=bob"), "account-form")
    assert (await home.post("/ui/accounts/change", form | {"role": "operator"})).status_code == 303
    assert (await home.post("/ui/accounts/change", {"name": "bob", "disabled": "yes"})).status_code == 303
    assert "bob (disabled) operator" in text(await home.get("/accounts"))
    assert "Let bob sign in again" in await home.get("/accounts?edit=bob")
    assert (await home.post("/ui/accounts/change", {"name": "bob", "disabled": ""})).status_code == 303
    assert "bob operator" in text(await home.get("/accounts"))
    assert (await home.post("/ui/accounts/change", {"name": "eve", "role": "admin"})).status_code == 404
    await home.get("/accounts?edit=eve", status=404)


async def test_the_last_admin_cannot_lock_everybody_out(home: Site) -> None:
    await first(home)
    for form in ({"disabled": "yes"}, {"role": "viewer"}):
        answer = await home.post("/ui/accounts/change", {"name": "ann", **form})
        assert answer.status_code == 422
        assert "last admin" in answer.text
    assert "ann admin" in text(await home.get("/accounts"))


async def test_a_new_password_signs_out_and_a_bad_one_is_told_at_its_field(home: Site) -> None:
    await first(home)
    await add(home, "bob")
    short = await home.post("/ui/accounts/password", {"name": "bob", "password": "x"})
    assert (short.status_code, "At least 8 characters" in text(short.text, "password-problem")) == (422, False)
    assert "Must have at least 8 characters." in text(short.text)
    assert (await home.post("/ui/accounts/password", {"name": "bob", "password": "another one"})).status_code == 303
    assert (await home.post("/ui/accounts/password", {"name": "eve", "password": "another one"})).status_code == 404
    cookies = dict(home.client.cookies)
    signed = await home.post("/ui/sign-in", {"name": "bob", "password": "another one"})
    assert signed.status_code == 303
    home.client.cookies.clear()
    home.client.cookies.update(cookies)
    sessions = (await home.runtime.people.store.everyone()).sessions
    (bobs,) = [each.id for each in sessions if each.account == "bob"]
    assert "Who is signed in" in await home.get("/accounts")
    done = await home.post("/ui/accounts/sign-out", {"session": bobs})
    assert done.status_code == 303
    assert [each.account for each in (await home.runtime.people.store.everyone()).sessions] == ["ann"]


@pytest.mark.parametrize(
    ("role", "seen"),
    [
        ("viewer", {"Overview", "Batches", "Webhooks", "Schedule", "Decisions"}),
        ("operator", {"Overview", "Batches", "Webhooks", "Schedule", "Decisions", "Audit"}),
    ],
)
async def test_a_role_sees_only_the_pages_and_buttons_that_it_may_use(home: Site, role: str, seen: set[str]) -> None:
    await first(home)
    await add(home, "bob", role)
    await home.post("/ui/sign-in", {"name": "bob", "password": PASSWORD})
    page = await home.get("/")
    navigation = page.partition("<nav")[2].partition("</nav>")[0]
    assert set(text(f"<p>{navigation.partition('>')[2]}</p>").split()) == seen
    may_change = role == "operator"
    assert ("tuning-form" in page) == may_change
    assert ("/ui/pause" in page) == may_change
    assert ("Your role may look on" in page) == (not may_change)
    schedule = await home.get("/schedule")
    assert ("Add a window" in schedule) == may_change
    assert ("change the zone" in schedule) == may_change
    await home.get("/accounts", status=403)
    await home.get("/tenants", status=403)


async def test_where_policy_asks_for_a_reason_every_form_about_others_has_its_field(tmp_path: Path) -> None:
    async with site(tmp_path, require_reason=True) as home:
        form = fields(await home.get("/accounts"), "account-form") | {"name": "ann", "password": PASSWORD}
        assert text((await home.post("/ui/accounts", form)).text, "reason-problem")
        assert (await home.post("/ui/accounts", form | {"reason": "first"})).status_code == 303
        assert await add(home, "bob", "admin", reason="second") == 303
        mine = home.client.cookies["tidegate_session"]
        form = {"name": "bob", "password": PASSWORD}
        assert (await home.post("/ui/sign-in", form)).status_code == 303
        home.client.cookies.set("tidegate_session", mine, domain="127.0.0.1")
        page = await home.get("/accounts")
        wanted = {each.account: each.id for each in (await home.runtime.people.store.everyone()).sessions}
        assert "Why bob is signed out" in page
        for path, form in (
            ("/ui/accounts/sign-out", {"session": wanted["bob"]}),
            ("/ui/accounts/password", {"name": "bob", "password": "another one"}),
            ("/ui/accounts/change", {"name": "bob", "disabled": "yes"}),
        ):
            refused = await home.post(path, form)
            assert (refused.status_code, "required by policy" in refused.text, path) == (422, True, path)
            assert (await home.post(path, form | {"reason": "leaked"})).status_code == 303
        own = {"old": PASSWORD, "password": "another one", "again": "another one"}
        assert (await home.post("/ui/account/password", own)).status_code == 303
