"""Signing in and out, the set-up link, and what a session is worth."""

import asyncio
import re
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx2
import pytest

from core.runtime import doors
from tests.servers import DEADLINE_S, Gate, gate, until
from tests.web.pages import fields, text
from web.headers import SESSION_COOKIE
from web.session_cookie import way_on

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("in") / "data", trusted_proxies="127.0.0.1") as found:
        first_admin(found)
        yield found


def first_admin(found: Gate, name: str = "ann") -> None:
    form = {"name": name, "role": "admin", "password": PASSWORD}
    answer = httpx2.post(f"{found.url}/ui/accounts", data=form, headers={"origin": found.url})
    assert answer.status_code == 303, answer.text


def browser(found: Gate, **headers: str) -> httpx2.Client:
    """Return a browser of its own: keeps cookies, tells its origin, follows nothing by itself."""
    return httpx2.Client(base_url=found.url, headers={"origin": found.url, **headers}, timeout=DEADLINE_S)


def sign_in(client: httpx2.Client, name: str = "ann", password: str = PASSWORD, **more: str) -> httpx2.Response:
    return client.post("/ui/sign-in", data={"name": name, "password": password, **more})


def cookie_of(answer: httpx2.Response) -> Any:
    return SimpleCookie(answer.headers["set-cookie"])[SESSION_COOKIE]


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites_and_of_plain_http_where_there_is_https(
    running: Gate,
) -> None:
    """R104 dmellok/tesserae#251; applypack/applypack#69: HttpOnly and SameSite."""
    with browser(running) as plain, browser(running, origin=f"https{running.url.removeprefix('http')}") as safe:
        cookie = cookie_of(sign_in(plain))
        assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (True, "lax", "/", "")
        assert int(cookie["max-age"]) == 24 * 3600
        assert cookie_of(sign_in(safe))["secure"] is True
    with browser(running, **{"x-forwarded-proto": "https"}) as proxied:
        assert cookie_of(sign_in(proxied))["secure"] is True


@pytest.mark.parametrize(
    "foreign",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {},
    ],
)
def test_a_form_of_another_site_does_nothing_although_the_cookie_is_valid(
    running: Gate, foreign: dict[str, str]
) -> None:
    """R104 dmellok/tesserae#251; applypack/applypack#69: no cross-site check on admin posts."""
    with browser(running) as client:
        cookie = sign_in(client).headers["set-cookie"].partition(";")[0]
    forms: list[tuple[str, dict[str, str]]] = [
        ("/ui/keys", {"name": "stolen"}),
        ("/ui/tenants", {"name": "stolen"}),
        ("/ui/accounts", {"name": "stolen", "role": "admin", "password": PASSWORD}),
        ("/ui/pause", {"pool": "default", "action": "pause", "reason": "x", "version": "1"}),
        ("/ui/sign-out", {}),
        ("/api/keys", {"name": "stolen"}),
    ]
    for path, form in forms:
        answer = httpx2.post(f"{running.url}{path}", data=form, headers={"cookie": cookie, **foreign})
        assert answer.status_code == 403, path
        assert answer.json()["error"]["code"] in ("cross_site", "origin_required")
    listed = httpx2.get(f"{running.url}/api/keys", headers={"cookie": cookie})
    assert (listed.status_code, listed.json()["data"]) == (200, [])


def test_who_is_not_signed_in_is_led_there_and_back_again(running: Gate) -> None:
    with browser(running) as client:
        answer = client.get("/decisions?pool=default&q=a b")
        assert answer.status_code == 303
        page = client.get(answer.headers["location"])
        form = fields(page.text, "/ui/sign-in")
        assert form["next"] == "/decisions?pool=default&q=a%20b"
        done = sign_in(client, next=form["next"])
        assert (done.status_code, done.headers["location"]) == (303, form["next"])
        shown = client.get(form["next"])
        assert shown.status_code == 200
        assert "ann admin" in text(shown.text)
        assert client.get("/account").status_code == 200


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/sign-in", "", "x"]
)
def test_the_way_back_never_leads_to_another_site(target: str) -> None:
    assert way_on(target) == "/"
    assert way_on("/schedule?edit=window") == "/schedule?edit=window"


def test_parts_of_pages_and_streams_are_answered_401_instead(running: Gate) -> None:
    with browser(running) as client:
        for path in ("/ui/stream", "/ui/live?page=overview"):
            assert client.get(path).status_code == 401
        assert client.post("/ui/tuning", headers={"hx-request": "true"}).status_code == 401
        assert client.post("/ui/tuning").headers["location"] == "/sign-in?next=%2F"


def test_signing_out_ends_the_session_for_whoever_still_has_the_cookie(running: Gate) -> None:
    with browser(running) as client:
        sign_in(client)
        kept = dict(client.cookies)
        assert client.get("/").status_code == 200
        answer = client.post("/ui/sign-out")
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
        assert "Max-Age=0" in answer.headers["set-cookie"]
    again = httpx2.get(f"{running.url}/", cookies=kept)
    assert again.status_code == 303


def test_a_wrong_password_is_told_with_the_name_kept_and_too_many_are_slowed_down(running: Gate) -> None:
    with browser(running, **{"x-forwarded-for": "203.0.113.9"}) as client:
        for _ in range(5):
            answer = sign_in(client, password="wrong")
            assert answer.status_code == 401
        assert "The name or the password is wrong." in answer.text
        assert fields(answer.text, "/ui/sign-in")["name"] == "ann"
        assert fields(answer.text, "/ui/sign-in")["password"] == ""
        slowed = sign_in(client)
        assert slowed.status_code == 429
        assert 1 <= int(slowed.headers["retry-after"]) <= 300
        assert "Too many attempts failed. Try again in" in slowed.text
    with browser(running, **{"x-forwarded-for": "203.0.113.10"}) as other:
        assert sign_in(other).status_code == 303


def test_ones_own_sessions_are_listed_and_ended(running: Gate) -> None:
    with browser(running, **{"user-agent": "laptop"}) as here, browser(running, **{"user-agent": "phone"}) as there:
        sign_in(here)
        sign_in(there)
        page = here.get("/account").text
        assert "phone" in page
        assert "(this one)" in page
        listed = here.get("/api/sessions").json()["data"]
        (phone,) = [each["id"] for each in listed if each["agent"] == "phone"]
        assert here.post("/ui/account/sign-out", data={"session": phone}).status_code == 303
        assert there.get("/").status_code == 303
        assert here.get("/").status_code == 200


def test_a_password_is_changed_by_who_knows_the_old_one(running: Gate) -> None:
    with browser(running) as admin, browser(running) as bob:
        sign_in(admin)
        made = admin.post("/api/accounts", json={"name": "bob", "role": "viewer", "password": PASSWORD})
        assert made.status_code == 201
        sign_in(bob, "bob")
        assert bob.get("/accounts").status_code == 403
        assert "Tenants" not in text(bob.get("/").text)
        wrong = bob.post("/ui/account/password", data={"old": "x", "password": "another one", "again": "another one"})
        assert (wrong.status_code, "That is not your password." in wrong.text) == (422, True)
        unlike = bob.post("/ui/account/password", data={"old": PASSWORD, "password": "another one", "again": "other"})
        assert (unlike.status_code, "Is not the same as above." in unlike.text) == (422, True)
        done = bob.post(
            "/ui/account/password", data={"old": PASSWORD, "password": "another one", "again": "another one"}
        )
        assert done.headers["location"] == "/account?done=password"
        assert "The password is changed." in bob.get(done.headers["location"]).text


def test_an_open_page_goes_silent_when_its_session_is_ended(running: Gate) -> None:
    with browser(running) as client:
        cookie = sign_in(client).headers["set-cookie"].partition(";")[0]
        with httpx2.stream("GET", f"{running.url}/ui/stream", headers={"cookie": cookie}, timeout=DEADLINE_S) as opened:
            assert opened.status_code == 200
            pieces = opened.iter_text()
            assert "verdict" in next(pieces)
            client.post("/ui/sign-out")
            for _ in pieces:
                pass
    until(lambda: running.app.state.hub.watchers == 0)


def test_a_set_up_link_makes_the_first_admin_signed_in_at_once(tmp_path: Path) -> None:
    with gate(tmp_path / "data") as found, browser(found) as client:
        assert "No sign-in yet" in client.get("/").text
        assert "Nobody has to sign in yet" in client.get("/sign-in").text
        assert client.get("/setup?token=guess").status_code == 403
        token = asyncio.run(_token(found))
        page = client.get(f"/setup?token={token}")
        form = fields(page.text, "/ui/setup")
        assert form["token"] == token
        unlike = client.post("/ui/setup", data={**form, "name": "ann", "password": PASSWORD, "again": "x"})
        assert unlike.status_code == 422
        done = client.post("/ui/setup", data={**form, "name": "ann", "password": PASSWORD, "again": PASSWORD})
        assert done.status_code == 303
        assert cookie_of(done)["httponly"] is True
        assert "ann admin" in text(client.get("/").text)
        with browser(found) as other:
            assert other.get("/").status_code == 303
            assert other.post("/ui/setup", data={**form, "name": "eve"}).status_code in (403, 422)
        assert client.get(f"/setup?token={token}").status_code == 403
        assert re.search(r"<a class=\"sub\" href=\"/account\">ann", client.get("/schedule").text)


async def _token(found: Gate) -> str:
    """Make a set-up token from outside, as the command does."""
    looked = await doors(found.runtime.settings, set_up=True)
    assert looked.set_up is not None
    return looked.set_up


@pytest.mark.parametrize(
    "body",
    [
        {"data": {"name": "a" * 20_000, "password": "x"}},
        {"data": {f"field{number}": "x" for number in range(600)}},
        {"data": {"name": "ann"}, "files": {"password": ("x", b"y" * 20_000)}},
    ],
    ids=["long", "many", "file"],
)
def test_a_form_with_files_or_too_much_in_it_is_refused_before_it_is_kept(running: Gate, body: dict[str, Any]) -> None:
    answer = httpx2.post(f"{running.url}/ui/sign-in", headers={"origin": running.url}, **body)
    assert answer.status_code == 400
