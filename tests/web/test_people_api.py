from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.web.pages import site

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """The API with an admin's key shown."""
    async with site(tmp_path) as home:
        made = (await home.client.post("/api/keys", json={"name": "ops", "role": "admin"})).json()
        home.client.headers["authorization"] = f"Bearer {made['key']}"
        yield home.client


async def ask(api: httpx2.AsyncClient, method: str, path: str, status: int = 200, **options: Any) -> Any:
    answer = await api.request(method, path, **options)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_key_is_made_listed_rotated_and_revoked(api: httpx2.AsyncClient) -> None:
    given = {
        "name": "k", "tenant": "research", "lanes": ["batch"], "models": ["m-*"], "cidrs": ["10.0.0.0/8"],
        "expires": "30d", "role": "viewer",
    }  # fmt: skip
    made = await ask(api, "POST", "/api/keys", 201, json=given)
    assert made["key"].startswith(made["prefix"])
    assert (made["new_tenant"], made["lane"], made["lanes"], made["state"]) == (True, "batch", ["batch"], "active")
    listed = await ask(api, "GET", "/api/keys")
    assert {each["name"] for each in listed["data"]} == {"ops", "k"}
    assert "key" not in listed["data"][0]
    assert "hash" not in str(listed)
    rotated = await ask(api, "POST", "/api/keys/k/rotate", json={"overlap": "1h", "reason": "yearly"})
    assert rotated["key"] != made["key"]
    assert rotated["old_prefix"] == made["prefix"]
    revoked = await ask(api, "DELETE", "/api/keys/k")
    assert (revoked["state"], (await ask(api, "GET", "/api/keys/k"))["state"]) == ("revoked", "revoked")


@pytest.mark.parametrize(
    ("method", "path", "given", "status", "param"),
    [
        ("POST", "/api/keys", {"name": "ops"}, 422, "name"),
        ("POST", "/api/keys", {"name": "k", "color": 1}, 422, "color"),
        ("POST", "/api/keys", {"name": "k", "expires": 5}, 422, "expires"),
        ("POST", "/api/keys", {"name": "k", "reason": 5}, 422, "reason"),
        ("POST", "/api/keys", [], 400, "body"),
        ("POST", "/api/keys/ops/rotate", {"overlap": "x"}, 422, "overlap"),
        ("POST", "/api/keys/ops/rotate", {"lane": "x"}, 422, "lane"),
        ("DELETE", "/api/keys/ops", {"force": True}, 422, "force"),
        ("DELETE", "/api/keys/none", {}, 404, None),
        ("GET", "/api/keys/none", {}, 404, None),
        ("POST", "/api/tenants", {"name": "a b"}, 422, "name"),
        ("POST", "/api/tenants", {"name": "a", "weight": -1}, 422, "weight"),
        ("GET", "/api/tenants/none", {}, 404, None),
        ("POST", "/api/accounts", {"name": "ann", "role": "king"}, 422, "role"),
        ("POST", "/api/accounts", {"name": "ann", "role": "admin", "password": "x"}, 422, "password"),
        ("POST", "/api/accounts", {"name": "ann", "password": 5}, 422, "password"),
        ("PATCH", "/api/accounts/none", {"role": "viewer"}, 404, None),
        ("PATCH", "/api/accounts/none", {"password": PASSWORD, "role": "viewer"}, 422, "role"),
        ("DELETE", "/api/sessions/none", {}, 404, None),
    ],
)
async def test_what_is_wrong_is_told_by_field_and_changes_nothing(
    api: httpx2.AsyncClient, method: str, path: str, given: Any, status: int, param: str | None
) -> None:
    before = await ask(api, "GET", "/api/keys")
    error = (await ask(api, method, path, status, json=given))["error"]
    assert error["param"] == param
    assert (await ask(api, "GET", "/api/keys"))["data"][0]["state"] == before["data"][0]["state"]


async def test_a_tenant_changes_on_the_version_that_was_seen(api: httpx2.AsyncClient) -> None:
    made = await api.post("/api/tenants", json={"name": "a", "weight": 2, "queued_tokens": 10**9})
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    await ask(api, "PATCH", "/api/tenants/a", 428, json={"weight": 3})
    changed = await api.patch("/api/tenants/a", json={"weight": 3, "batch_slots": 5}, headers={"if-match": '"1"'})
    assert (changed.json()["weight"], changed.json()["batch_slots"], changed.headers["etag"]) == (3, 5, '"2"')
    stale = await ask(api, "PATCH", "/api/tenants/a", 412, json={"weight": 4}, headers={"if-match": '"1"'})
    assert (stale["weight"], stale["error"]["code"]) == (3, "version_stale")
    await ask(api, "PATCH", "/api/tenants/a", json={"batch_slots": None}, headers={"if-match": "*"})
    found = await ask(api, "GET", "/api/tenants/a")
    assert (found["batch_slots"], found["queued_tokens"]) == (None, 10**9)
    assert found["last_minute"] == {"requests": 0, "tokens": 0}
    assert {each["name"] for each in (await ask(api, "GET", "/api/tenants"))["data"]} == {"a", "default"}


async def test_accounts_and_sessions_are_managed_too(api: httpx2.AsyncClient) -> None:
    await ask(api, "POST", "/api/accounts", 201, json={"name": "ann", "role": "admin", "password": PASSWORD})
    await ask(api, "POST", "/api/accounts", 201, json={"name": "Bob", "role": "viewer", "password": PASSWORD})
    changed = await ask(api, "PATCH", "/api/accounts/bob", json={"role": "operator", "tenant": "ops"})
    assert (changed["role"], changed["tenant"], changed["disabled"]) == ("operator", "ops", False)
    last = await ask(api, "PATCH", "/api/accounts/ann", 422, json={"disabled": True})
    assert "last admin" in last["error"]["message"]
    form = {"name": "bob", "password": PASSWORD}
    assert (await api.post("/ui/sign-in", data=form, headers={"origin": "http://127.0.0.1"})).status_code == 303
    api.cookies.clear()
    (session,) = (await ask(api, "GET", "/api/sessions"))["data"]
    assert (session["account"], session["way"]) == ("bob", "password")
    await ask(api, "DELETE", f"/api/sessions/{session['id']}")
    assert (await ask(api, "GET", "/api/sessions"))["data"] == []
    await ask(api, "PATCH", "/api/accounts/bob", json={"password": "another one"})
    assert "argon2" not in str(await ask(api, "GET", "/api/accounts/bob"))
    names = [each["name"] for each in (await ask(api, "GET", "/api/accounts"))["data"]]
    assert names == ["ann", "bob"]


async def test_changes_carry_the_keys_name_into_the_audit(api: httpx2.AsyncClient, tmp_path: Path) -> None:
    await ask(api, "POST", "/api/tenants", 201, json={"name": "a", "reason": "new team"})
    entry = (await ask(api, "GET", "/api/audit"))["data"][0]
    assert (entry["actor"], entry["action"], entry["reason"], entry["way"]) == (
        "ops",
        "tenant.create",
        "new team",
        "api key ops",
    )


async def test_where_policy_asks_for_a_reason_the_api_does_too(tmp_path: Path) -> None:
    async with site(tmp_path, require_reason=True) as home:
        refused = await home.client.post("/api/keys", json={"name": "k"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (422, "reason")
        made = await home.client.post("/api/keys", json={"name": "k", "role": "admin", "reason": "first"})
        assert made.status_code == 201
        home.client.headers["authorization"] = f"Bearer {made.json()['key']}"
        ann = {"name": "ann", "role": "admin", "password": PASSWORD, "reason": "first"}
        assert (await home.client.post("/api/accounts", json=ann)).status_code == 201
        form, headers = {"name": "ann", "password": PASSWORD}, {"origin": "http://127.0.0.1"}
        assert (await home.client.post("/ui/sign-in", data=form, headers=headers)).status_code == 303
        home.client.cookies.clear()
        (session,) = (await home.client.get("/api/sessions")).json()["data"]
        for method, path, body in (
            ("DELETE", f"/api/sessions/{session['id']}", {}),
            ("PATCH", "/api/accounts/ann", {"password": "another one"}),
        ):
            refused = await home.client.request(method, path, json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (422, "reason")
            assert (await home.client.request(method, path, json=body | {"reason": "leaked"})).status_code == 200
        entries = (await home.client.get("/api/audit?actor=k")).json()["data"]
        assert [(entry["action"], entry["reason"]) for entry in entries[:2]] == [
            ("account.password", "leaked"),
            ("sign-in.ended", "leaked"),
        ]
