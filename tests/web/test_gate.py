"""Who a request is taken to come from, and what its tenant may ask for, over real sockets."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from core.people.acting import shell
from core.people.identity import Role
from core.people.ring import FRESH_S
from core.runtime import open_people
from tests.servers import CHAT, DEADLINE_S, Gate, gate, until
from tests.web.pages import text

PASSWORD = "correct horse"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Gate]:
    with gate(tmp_path / "data", trusted_proxies="127.0.0.1") as found:
        yield found


def key(found: Gate, name: str = "k", admin: str | None = None, **given: Any) -> dict[str, str]:
    """Make a key; return the header that shows it."""
    headers = {} if admin is None else {"authorization": admin}
    made = httpx2.post(f"{found.url}/api/keys", json={"name": name, **given}, headers=headers)
    assert made.status_code == 201, made.text
    return {"authorization": f"Bearer {made.json()['key']}"}


def limit(found: Gate, shown: dict[str, str], **given: Any) -> None:
    headers = {**shown, "if-match": "*"}
    answer = httpx2.patch(f"{found.url}/api/tenants/default", json=given, headers=headers)
    assert answer.status_code == 200, answer.text


def error(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_refusal_has_the_headers_of_every_answer(running: Gate) -> None:
    key(running)
    answer = running.chat(headers={"x-request-id": "mine"})
    assert error(answer) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-should-retry"] == "false"
    assert (answer.headers["x-request-id"], answer.headers["x-tidegate-lane"]) == ("mine", "interactive")
    for path in ("/v1/models", "/v1/nothing", "/v1/files"):
        assert error(httpx2.get(f"{running.url}{path}")) == (401, "invalid_api_key")


def test_a_key_reaches_only_its_models_lanes_and_addresses(running: Gate) -> None:
    shown = key(running, role="admin")
    narrow = key(running, "narrow", shown["authorization"], models=["m", "other-*"], lanes=["interactive"])
    assert running.chat(headers=narrow).status_code == 200
    assert error(running.chat(headers=narrow, model="x")) == (403, "model_not_allowed")
    assert error(running.chat(headers={**narrow, "x-tidegate-lane": "batch"})) == (403, "lane_not_allowed")
    listed = httpx2.get(f"{running.url}/v1/models", headers=narrow).json()["data"]
    assert {model["id"] for model in listed} <= {"m"}
    chat = {"message": "hi", "model": "x"}
    assert error(httpx2.post(f"{running.url}/api/chat", json=chat, headers=narrow)) == (403, "model_not_allowed")
    far = key(running, "far", shown["authorization"], cidrs=["203.0.113.0/24"])
    assert error(running.chat(headers=far)) == (403, "address_not_allowed")
    assert running.chat(headers={**far, "x-forwarded-for": "203.0.113.7"}).status_code == 200
    spoofed = {**far, "x-forwarded-for": "203.0.113.7, 192.0.2.9"}
    assert error(running.chat(headers=spoofed)) == (403, "address_not_allowed")


def test_a_tenants_limits_are_kept_with_an_honest_retry_after(running: Gate) -> None:
    shown = key(running, role="admin")
    limit(running, shown, requests_per_minute=2)
    for _ in range(2):
        assert running.chat(headers=shown, max_tokens=2).status_code == 200
    refused = running.chat(headers=shown)
    assert error(refused) == (429, "tenant_limit")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert 50 <= int(refused.headers["retry-after"]) <= 60
    chat = httpx2.post(f"{running.url}/api/chat", json={"message": "hi"}, headers=shown)
    assert error(chat) == (429, "tenant_limit")
    assert httpx2.get(f"{running.url}/v1/models", headers=shown).status_code == 200
    limit(running, shown, requests_per_minute=None, tokens_per_minute=5)
    assert error(running.chat(headers=shown)) == (429, "tenant_limit")
    limit(running, shown, tokens_per_minute=None)
    assert running.chat(headers=shown, max_tokens=2).status_code == 200
    used = httpx2.get(f"{running.url}/api/tenants/default", headers=shown).json()["last_minute"]
    assert used["requests"] == 3
    assert used["tokens"] > 5


def test_a_tenants_direct_batch_calls_hold_no_more_slots_than_its_ceiling(tmp_path: Path) -> None:
    with gate(tmp_path / "data", speed=1.0) as found:
        shown = key(found, role="admin")
        limit(found, shown, batch_slots=1)
        batch = {**shown, "x-tidegate-lane": "batch"}
        with ThreadPoolExecutor(1) as pool:
            long = pool.submit(found.chat, headers=batch, max_tokens=60)
            until(lambda: found.runtime.tenant_limits.usage("default")[2] == 1)
            assert error(found.chat(headers=batch)) == (429, "tenant_limit")
            assert found.chat(headers=shown, max_tokens=1).status_code == 200
            assert long.result(DEADLINE_S).status_code == 200
        assert found.chat(headers=batch, max_tokens=1).status_code == 200


def test_a_client_that_leaves_gives_its_tenants_slot_back(tmp_path: Path) -> None:
    with gate(tmp_path / "data", speed=1.0) as found:
        shown = key(found)
        headers = {**shown, "x-tidegate-lane": "batch"}
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 500}
        url = f"{found.url}/v1/chat/completions"
        with httpx2.stream("POST", url, json=body, headers=headers, timeout=DEADLINE_S) as answer:
            pieces = answer.iter_bytes()
            next(pieces)
            assert found.runtime.tenant_limits.usage("default")[2] == 1
        until(lambda: found.runtime.tenant_limits.usage("default")[2] == 0)


def test_a_database_that_is_away_refuses_stored_keys_after_5_s_and_takes_them_when_it_is_back(running: Gate) -> None:
    shown = key(running)
    ring, revision = running.runtime.people.ring, running.runtime.store.revision

    async def down() -> int:
        raise OSError("away")

    running.runtime.store.revision = down  # type: ignore[method-assign]
    assert running.chat(headers=shown, max_tokens=1).status_code == 200
    until(lambda: not ring.fresh, FRESH_S + DEADLINE_S)
    answer = running.chat(headers=shown)
    assert error(answer) == (503, "keys_not_checked")
    assert answer.headers["retry-after"] == "5"
    assert error(running.chat(headers={"authorization": "Bearer tg_unknown"})) == (401, "invalid_api_key")
    running.runtime.store.revision = revision  # type: ignore[method-assign]
    until(lambda: running.chat(headers=shown, max_tokens=1).status_code == 200)


def test_a_revoked_key_is_refused_while_an_answer_that_runs_comes_to_its_end(tmp_path: Path) -> None:
    """R106: the policy for running streams: they end at their own end."""
    with gate(tmp_path / "data", speed=1.0) as found:
        admin = key(found, "ops", role="admin")
        shown = key(found, "k", admin["authorization"])
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 60}
        url = f"{found.url}/v1/chat/completions"
        with httpx2.stream("POST", url, json=body, headers=shown, timeout=DEADLINE_S) as answer:
            pieces = answer.iter_bytes()
            next(pieces)
            assert httpx2.delete(f"{found.url}/api/keys/k", headers=admin).status_code == 200
            assert error(found.chat(headers=shown)) == (401, "invalid_api_key")
            assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


def test_whom_a_trusted_proxy_names_is_signed_in_and_others_are_not_believed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"proxy": {"header": "X-Forwarded-User", "role": "viewer"}}
    with gate(tmp_path / "a", trusted_proxies="127.0.0.1", **settings) as found:
        named = {"x-forwarded-user": "Ann@Example.org"}
        page = httpx2.get(f"{found.url}/", headers=named)
        assert page.status_code == 200
        assert "ann@example.org viewer" in text(page.text)
        assert "Sign out" not in page.text
        assert httpx2.get(f"{found.url}/").status_code == 303
        assert httpx2.get(f"{found.url}/tenants", headers=named).status_code == 403
        form = {"pool": "default"}
        assert httpx2.post(f"{found.url}/api/keys", json=form, headers=named).status_code == 403
        bare = httpx2.post(f"{found.url}/api/keys", headers=named, json={})
        assert error(bare) == (403, "origin_required")
        strange = httpx2.get(f"{found.url}/", headers={"x-forwarded-user": "<script>"})
        assert strange.status_code == 403
        names = [account.name for account in asyncio.run(_accounts(found))]
        assert names == ["ann@example.org"]
    with gate(tmp_path / "b", trusted_proxies="192.0.2.1", **settings) as found:
        assert httpx2.get(f"{found.url}/", headers=named).status_code == 303


def test_without_a_role_for_newcomers_an_admin_makes_the_accounts_of_a_proxy(tmp_path: Path) -> None:
    with gate(tmp_path / "data", trusted_proxies="127.0.0.1", proxy={"header": "x-user"}) as found:
        assert httpx2.get(f"{found.url}/", headers={"x-user": "ann"}).status_code == 403
        asyncio.run(_make(found, "ann"))
        assert httpx2.get(f"{found.url}/tenants", headers={"x-user": "ann"}).status_code == 200


async def _accounts(found: Gate) -> Any:
    async with open_people(found.runtime.settings) as people:
        return (await people.store.everyone()).accounts


async def _make(found: Gate, name: str) -> None:
    async with open_people(found.runtime.settings) as people:
        await people.roster.create(name, role=Role.ADMIN, password=None, by=shell())


def test_a_proxys_own_basic_sign_in_does_not_hinder_ours(running: Gate) -> None:
    form = {"name": "ann", "role": "admin", "password": PASSWORD}
    basic = {"authorization": "Basic YTpi", "origin": running.url}
    with httpx2.Client(base_url=running.url, headers=basic) as client:
        assert client.post("/ui/accounts", data=form).status_code == 303
        assert client.post("/api/keys", json={"name": "k"}).status_code == 201
        assert client.get("/").status_code == 200
        assert client.get("/api/pools").status_code == 401
        assert client.get("/sign-in").status_code == 200


def submitted(found: Gate, shown: dict[str, str], model: str) -> httpx2.Response:
    """Upload a file of one line that asks `model`, and create its batch."""
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT | {"model": model}}
    files = {"file": ("x.jsonl", json.dumps(line).encode())}
    data = {"purpose": "batch"}
    stored = httpx2.post(f"{found.url}/v1/files", files=files, data=data, headers=shown).json()
    order = {"input_file_id": stored["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return httpx2.post(f"{found.url}/v1/batches", json=order, headers=shown)


def test_a_batch_may_name_only_the_models_of_its_key(running: Gate) -> None:
    shown = key(running, models=["m"])

    def state(model: str) -> dict[str, Any]:
        made = submitted(running, shown, model)
        assert made.status_code == 200, made.text
        url = f"{running.url}/v1/batches/{made.json()['id']}"
        done = until(lambda: (b := httpx2.get(url, headers=shown).json())["status"] in ("failed", "completed") and b)
        return dict(done)

    assert state("m")["status"] == "completed"
    refused = state("x")
    assert (refused["status"], refused["errors"]["data"][0]["code"]) == ("failed", "model_not_found")


def test_a_tenant_with_as_much_queued_as_it_may_creates_no_further_batch(running: Gate) -> None:
    shown = key(running, role="admin")
    pause = {"pause": True, "reason": "so that it stays queued"}
    paused = httpx2.patch(f"{running.url}/api/pools/default", json=pause, headers={**shown, "if-match": "*"})
    assert paused.status_code == 200
    limit(running, shown, queued_items=1)
    made = submitted(running, shown, "m").json()
    url = f"{running.url}/v1/batches/{made['id']}"
    until(lambda: httpx2.get(url, headers=shown).json()["request_counts"]["total"] == 1)
    refused = submitted(running, shown, "m")
    assert error(refused) == (429, "tenant_limit")
    assert refused.headers["retry-after"] == "60"
    task = {"task_name": "t", "inputs": ["a"], "model": "m"}
    assert error(httpx2.post(f"{running.url}/api/batch", json=task, headers=shown)) == (429, "tenant_limit")
    limit(running, shown, queued_items=None)
    assert submitted(running, shown, "m").status_code == 200


def test_a_tenants_weight_reaches_the_worker(running: Gate) -> None:
    shown = key(running, role="admin")
    limit(running, shown, weight=4)
    worker = running.runtime.worker
    assert worker._orders["default"].weights["default"] == 4
