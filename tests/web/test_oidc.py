"""Signing in by a real OpenID Connect provider, which runs as a process of its own."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from core.paths import CHECKOUT
from tests.oidc_provider import CLIENT, SECRET
from tests.servers import DEADLINE_S, Gate, gate
from tests.web.pages import query, text
from web.oidc import COOKIE

PASSWORD = "correct horse"


class Provider:
    """The provider's process, and what it is told to do next."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer

    def next(
        self, fault: str = "", *, rotate: bool = False, user_info: dict[str, Any] | None = None, **person: Any
    ) -> None:
        told = {"fault": fault, "rotate": rotate, "person": {"sub": "1", **person}, "user_info": user_info or {}}
        httpx2.post(f"{self.issuer}/next", json=told).raise_for_status()


@contextlib.contextmanager
def provider_process() -> Iterator[Provider]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        issuer = f"http://127.0.0.1:{bound.getsockname()[1]}"
        command = [sys.executable, str(CHECKOUT / "tests" / "oidc_provider.py"), str(bound.fileno()), issuer]
        process = subprocess.Popen(command, pass_fds=[bound.fileno()])
    try:
        # Its socket takes connections before it runs: the first answer comes when it does.
        httpx2.get(f"{issuer}/jwks", timeout=60).raise_for_status()
        yield Provider(issuer)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with provider_process() as running:
        yield running


@pytest.fixture
def running(tmp_path: Path, provider: Provider) -> Iterator[Gate]:
    with gate(tmp_path / "data", oidc=settings(provider)) as found:
        yield found


def settings(provider: Provider, **more: Any) -> dict[str, Any]:
    roles = {"staff": "member", "ops": "operator", "root": "admin"}
    given = {"issuer": provider.issuer, "client_id": CLIENT, "client_secret": SECRET, "roles": roles}
    return given | more


def browser(found: Gate) -> httpx2.Client:
    return httpx2.Client(base_url=found.url, headers={"origin": found.url}, timeout=DEADLINE_S)


def come_in(client: httpx2.Client, target: str = "/") -> httpx2.Response:
    """Go to the provider and come back; return Tidegate's answer to that."""
    left = client.get("/sign-in/provider", params={"next": target})
    assert left.status_code == 303, left.text
    back = httpx2.get(left.headers["location"], timeout=DEADLINE_S)
    assert back.status_code == 307, back.text
    return client.get(back.headers["location"])


def test_who_the_provider_knows_is_signed_in_with_the_role_of_the_groups_and_led_back(
    running: Gate, provider: Provider
) -> None:
    provider.next(preferred_username="Ann", groups=["staff", "ops", "unknown"])
    with browser(running) as client:
        page = client.get("/", follow_redirects=True)
        assert "/sign-in/provider?next=" in page.text
        answer = come_in(client, "/decisions?pool=default")
        assert (answer.status_code, answer.headers["location"]) == (303, "/decisions?pool=default")
        assert "httponly" in answer.headers["set-cookie"].lower()
        assert "ann operator" in text(client.get("/").text)
        assert COOKIE not in client.cookies
    provider.next(preferred_username="ann.renamed", groups="root")
    with browser(running) as client:
        come_in(client)
        assert "ann admin" in text(client.get("/").text)
        assert "provider" in client.get("/accounts").text


@pytest.mark.parametrize(
    "fault",
    ["nonce", "audience", "token issuer", "expired", "signature", "unsigned", "shared secret"],
)
def test_an_answer_that_is_not_what_the_standard_asks_lets_nobody_in(
    running: Gate, provider: Provider, fault: str
) -> None:
    provider.next(fault, preferred_username="ann", groups=["root"])
    with browser(running) as client:
        answer = come_in(client)
        assert answer.status_code == 502
        assert "The sign-in provider failed: its answer cannot be used" in answer.text
        assert client.get("/").status_code == 303


def test_a_new_signing_key_of_the_provider_is_found_by_itself(running: Gate, provider: Provider) -> None:
    with browser(running) as client:
        provider.next(preferred_username="ann", groups=["staff"])
        assert come_in(client).status_code == 303
        provider.next(preferred_username="ann", groups=["staff"], rotate=True)
        assert come_in(client).status_code == 303


def test_names_and_groups_may_come_from_the_user_info_and_an_email_only_if_it_is_verified(
    running: Gate, provider: Provider
) -> None:
    with browser(running) as client:
        provider.next(sub="7", user_info={"preferred_username": "gil", "groups": ["ops"]})
        come_in(client)
        assert "gil operator" in text(client.get("/").text)
        provider.next(sub="8", email="hal@example.org", email_verified=False, groups=["ops"])
        assert come_in(client).status_code == 403
        provider.next(sub="8", email="hal@example.org", email_verified=True, groups=["ops"])
        come_in(client)
        assert "hal@example.org operator" in text(client.get("/").text)
        provider.next(sub="9", user_info={"sub": "7", "preferred_username": "gil", "groups": ["root"]})
        assert come_in(client).status_code == 403


def test_nobody_comes_in_without_a_role_nor_into_an_account_with_a_password(tmp_path: Path, provider: Provider) -> None:
    with gate(tmp_path / "a") as found, browser(found) as first:
        form = {"name": "ann", "role": "admin", "password": PASSWORD}
        assert first.post("/ui/accounts", data=form).status_code == 303
    with gate(tmp_path / "a", oidc=settings(provider)) as found, browser(found) as client:
        provider.next(sub="5", preferred_username="nobody", groups=[])
        answer = come_in(client)
        assert (answer.status_code, "no role here" in answer.text) == (403, True)
        provider.next(sub="5", preferred_username="ann", groups=["root"])
        answer = come_in(client)
        assert (answer.status_code, "belongs to somebody else" in answer.text) == (403, True)
        assert client.post("/ui/sign-in", data={"name": "ann", "password": PASSWORD}).status_code == 303
    with gate(tmp_path / "b", oidc=settings(provider, role="viewer")) as found, browser(found) as client:
        provider.next(sub="5", preferred_username="nobody", groups=[])
        come_in(client)
        assert "nobody viewer" in text(client.get("/").text)


def test_an_answer_that_nobody_asked_for_is_not_taken(running: Gate, provider: Provider) -> None:
    provider.next(preferred_username="ann", groups=["root"])
    with browser(running) as mine, browser(running) as theirs:
        left = theirs.get("/sign-in/provider")
        stolen = httpx2.get(left.headers["location"]).headers["location"]
        assert mine.get(stolen).status_code == 400
        mine.get("/sign-in/provider")
        assert mine.get(stolen).status_code == 400
        mine.cookies.set(COOKIE, "forged", path="/sign-in/provider")
        assert mine.get(stolen).status_code == 400
        assert theirs.get(stolen).status_code == 303
        assert theirs.get(stolen).status_code == 400


def test_a_refusal_of_the_provider_and_one_that_is_away_are_told(tmp_path: Path, provider: Provider) -> None:
    provider.next("denied")
    with gate(tmp_path / "a", oidc=settings(provider)) as found, browser(found) as client:
        answer = come_in(client)
        assert (answer.status_code, "did not let you in" in answer.text) == (403, True)
    away = settings(provider, issuer="http://127.0.0.1:9")
    with gate(tmp_path / "b", oidc=away) as found, browser(found) as client:
        answer = client.get("/sign-in/provider")
        assert (answer.status_code, "it cannot be reached" in answer.text) == (502, True)
    provider.next("issuer")
    with gate(tmp_path / "c", oidc=settings(provider)) as found, browser(found) as client:
        assert "another issuer" in client.get("/sign-in/provider").text
    with gate(tmp_path / "d") as found, browser(found) as client:
        assert client.get("/sign-in/provider").status_code == 404


def test_what_the_provider_is_asked_fits_the_public_address_and_hides_the_secret(
    tmp_path: Path, provider: Provider
) -> None:
    provider.next()
    public = {"public_url": "https://gate.example.org", "allowed_hosts": "gate.example.org"}
    with gate(tmp_path / "data", oidc=settings(provider), **public) as found, browser(found) as client:
        left = client.get("/sign-in/provider")
        asked = query(left.headers["location"])
        assert asked["redirect_uri"] == ["https://gate.example.org/sign-in/provider/back"]
        assert asked["code_challenge_method"] == ["S256"]
        assert SECRET not in left.headers["location"]
        assert urlsplit(left.headers["location"]).netloc == urlsplit(provider.issuer).netloc
        cookie = left.headers["set-cookie"]
        assert all(part in cookie.lower() for part in ("httponly", "samesite=lax", "secure", "path=/sign-in/provider"))
