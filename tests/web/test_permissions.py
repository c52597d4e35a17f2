"""Who reaches what: every route with every role, by key, by session and with nothing."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from starlette.routing import BaseRoute, Route

from core.people.identity import Role
from core.people.permissions import GUEST_MAY, Action, allows
from tests.servers import Gate, gate
from web.app import routes
from web.permissions import ACTIONS, action_of, guarded, methods_of

PASSWORD = "correct horse"
ROUTES = [(method or "GET", route.path) for route in routes() for method in methods_of(route)]  # type: ignore[attr-defined]
REAL = [(method, path) for method, path in ROUTES if path != "/static"]
REFUSED = {401, 403}


def address(path: str) -> str:
    """Return an address of the route at which nothing stands."""
    return (
        re.sub(r"\{[^}]*:int\}", "999999", path).replace("{path:path}", "x-no-such").replace("{", "x-").replace("}", "")
    )


def action(method: str, path: str) -> Action:
    found = action_of(method, path)
    assert found is not None
    return found


class Door:
    """A running gateway that needs keys and sign-ins, with a key and a session of each role."""

    def __init__(self, running: Gate) -> None:
        self.url = running.url
        self.keys: dict[Role, str] = {}
        self.cookies: dict[Role, str] = {}
        self._set_up()

    def _set_up(self) -> None:
        with httpx2.Client(base_url=self.url, headers={"origin": self.url}) as first:
            made = first.post("/ui/accounts", data={"name": "admin", "role": "admin", "password": PASSWORD})
            assert made.status_code == 303, made.text
            for role in Role:
                key = first.post("/api/keys", json={"name": role.value, "role": role.value})
                self.keys[role] = key.json()["key"]
                if role is not Role.ADMIN:
                    given = {"name": role.value, "role": role.value, "password": PASSWORD}
                    assert first.post("/api/accounts", json=given).status_code == 201
        for role in Role:
            self.cookies[role] = self.signed_in(role)

    def signed_in(self, role: Role) -> str:
        """Return the cookie of a fresh session."""
        form = {"name": role.value, "password": PASSWORD}
        answer = httpx2.post(f"{self.url}/ui/sign-in", data=form, headers={"origin": self.url})
        assert answer.status_code == 303, answer.text
        return answer.headers["set-cookie"].partition(";")[0]

    def ask(self, method: str, path: str, *, key: Role | None = None, session: Role | None = None) -> httpx2.Response:
        headers = {"origin": self.url}
        if key is not None:
            headers["authorization"] = f"Bearer {self.keys[key]}"
        if session is not None:
            headers["cookie"] = self.cookies[session]
        with httpx2.stream(method, f"{self.url}{address(path)}", headers=headers, timeout=20) as answer:
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                answer.read()
            return answer


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with gate(tmp_path_factory.mktemp("door") / "data") as running:
        yield Door(running)


def test_every_route_has_an_entry_and_no_entry_is_of_a_route_that_is_gone() -> None:
    assert [route for route in ROUTES if action_of(*route) is None and route[1] != "/static"] == []
    assert action_of("", "/static") is Action.PUBLIC
    named = {(method, path) for key in ACTIONS for *methods, path in [key.split()] for method in methods}
    assert named - set(ROUTES) == set()


def test_a_route_without_an_entry_is_for_admins_alone(tmp_path: Path) -> None:
    def endpoint() -> None: ...

    (found,) = guarded([Route("/forgotten", endpoint)])
    assert found.app._action is Action.ACCOUNTS  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        guarded([BaseRoute()])


@pytest.mark.parametrize("role", list(Role))
def test_every_route_answers_each_role_as_the_table_says(door: Door, role: Role) -> None:
    """hangfireio/Hangfire#758; oban_web v2.12.5: a read-only user could still save; bull-board PR #868."""
    wrong = []
    for method, path in REAL:
        wanted = action(method, path)
        if wanted is Action.PUBLIC:
            continue
        may = allows(role, wanted)
        by_key = door.ask(method, path, key=role).status_code
        by_session = door.ask(method, path, session=role).status_code
        if (by_key not in REFUSED) != (may and wanted is not Action.OWN_ACCOUNT):
            wrong.append(("key", method, path, by_key))
        if (by_session not in REFUSED) != may or (by_session == 401):
            wrong.append(("session", method, path, by_session))
    assert wrong == []


def test_with_nothing_to_show_only_what_is_public_is_reached(door: Door) -> None:
    wrong = []
    for method, path in REAL:
        answer = door.ask(method, path)
        if action(method, path) is Action.PUBLIC:
            fine = answer.status_code != 401 or path == "/ui/sign-in"
        elif path.startswith(("/v1/", "/api/")):
            fine = answer.status_code == 401
        else:
            fine = answer.status_code == 401 or answer.headers.get("location", "").startswith("/sign-in?next=")
        if not fine:
            wrong.append((method, path, answer.status_code))
    assert wrong == []


def test_with_accounts_but_no_key_the_models_are_open_and_the_dashboard_is_not(tmp_path: Path) -> None:
    with gate(tmp_path / "data") as running:
        form = {"name": "admin", "role": "admin", "password": PASSWORD}
        headers = {"origin": running.url}
        assert httpx2.post(f"{running.url}/ui/accounts", data=form, headers=headers).status_code == 303
        assert running.chat().status_code == 200
        for method, path in REAL:
            if action(method, path) not in GUEST_MAY or not path.startswith(("/v1/", "/api/")):
                answer = httpx2.request(method, f"{running.url}{address(path)}", headers=headers)
                public = action(method, path) is Action.PUBLIC
                assert public or answer.status_code == 401 or "/sign-in" in answer.headers["location"], path


def test_before_there_are_accounts_pages_are_open_and_from_the_first_key_on_the_api_is_not(tmp_path: Path) -> None:
    with gate(tmp_path / "data") as running:
        for path in ("/", "/tenants", "/accounts", "/audit", "/api/pools", "/api/keys"):
            assert httpx2.get(f"{running.url}{path}").status_code == 200, path
        made = httpx2.post(f"{running.url}/api/keys", json={"name": "first"}).json()
        assert running.chat().status_code == 401
        assert httpx2.get(f"{running.url}/api/pools").status_code == 401
        assert httpx2.get(f"{running.url}/tenants").status_code == 200
        shown = {"authorization": f"Bearer {made['key']}"}
        assert running.chat(headers=shown).status_code == 200
        held = httpx2.patch(
            f"{running.url}/api/pools/default", json={"hold": 1, "reason": "x"}, headers={**shown, "if-match": "*"}
        )
        assert held.json()["hold"]["by"] == "first"
        assert httpx2.get(f"{running.url}/api/keys", headers=shown).status_code == 403
