"""Webhooks over real sockets: made through the API, sent by a running gateway, verified by the unmodified SDK."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.batch_house import jsonl, line
from tests.servers import Gate, gate, running, until

KEYS = [{"name": name, "key": f"{name}-0123456789abcdef", "tenant": name, "lane": "batch"} for name in ("a", "b")]
KEYS.append({"name": "ops", "key": "ops-0123456789abcdef", "tenant": "ops", "role": "admin"})
SECRET_ANSWER = "what-nobody-may-see"


class Receiver:
    """A tenant's own server."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.got: list[tuple[dict[str, str], bytes]] = []

    async def take(self, request: Request) -> Response:
        self.got.append((dict(request.headers), await request.body()))
        return Response(SECRET_ANSWER, self.status)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    with running(Starlette(routes=[Route("/hook", found.take, methods=["POST"])])) as url:
        found.url = f"{url}/hook"
        yield found


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("data"), keys=KEYS, webhook_hosts=["127.0.0.1"]) as house:
        yield house


def call(house: Gate, method: str, path: str = "", who: str = "a", **body: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {who}-0123456789abcdef"}
    return httpx2.request(method, f"{house.url}/api/webhooks{path}", headers=headers, json=body or None)


def test_a_batch_that_ends_is_told_and_the_sdk_verifies_it(house: Gate, receiver: Receiver) -> None:
    made = call(house, "POST", url=receiver.url, description="on call").json()
    client = openai.OpenAI(base_url=f"{house.url}/v1", api_key="a-0123456789abcdef", webhook_secret=made["secret"])
    receiver.status = 500
    file = client.files.create(file=("in.jsonl", jsonl(line())), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    until(lambda: receiver.got)
    receiver.status = 200
    heads, body = receiver.got[0]
    event = client.webhooks.unwrap(body, heads)
    assert event.type == "batch.completed"
    assert event.data.id == batch.id
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + b" ", heads)

    def tried() -> Any:
        rows = call(house, "GET", f"/{made['id']}/deliveries").json()["data"]
        return rows if rows and rows[0]["attempts"] else None

    (row,) = until(tried)
    assert (row["id"], row["batch_id"], row["type"]) == (event.id, batch.id, "batch.completed")
    assert (row["state"], row["status"], row["error"]) == ("pending", 500, None)
    assert row["next_attempt_at"] > row["last_attempt_at"]
    assert SECRET_ANSWER not in str(row)


def test_the_secret_is_told_once_and_never_again(house: Gate, receiver: Receiver) -> None:
    made = call(house, "POST", url=receiver.url)
    assert made.status_code == 201
    secret = made.json()["secret"]
    assert secret.startswith("whsec_")
    one = call(house, "GET", f"/{made.json()['id']}")
    for answer in (one, call(house, "GET"), call(house, "GET", f"/{made.json()['id']}/deliveries")):
        assert secret not in answer.text
        assert answer.status_code == 200
    assert one.json()["events"] == ["batch.completed", "batch.failed", "batch.expired", "batch.cancelled"]


def test_other_tenants_endpoints_do_not_exist(house: Gate, receiver: Receiver) -> None:
    made = call(house, "POST", url=receiver.url).json()["id"]
    for method, path in (("GET", ""), ("GET", "/deliveries"), ("DELETE", ""), ("POST", "/test"), ("POST", "/rotate")):
        assert call(house, method, f"/{made}{path}", who="b").status_code == 404
    assert call(house, "PATCH", f"/{made}", who="b", disabled=True).status_code == 404
    assert call(house, "GET", who="b").json()["data"] == []
    assert call(house, "DELETE", f"/{made}").json() == {"id": made, "object": "webhook", "deleted": True}
    assert call(house, "GET", f"/{made}").status_code == 404


def test_an_endpoint_is_tested_disabled_rotated_and_deleted_with_an_entry_of_each_change(
    house: Gate, receiver: Receiver
) -> None:
    made = call(house, "POST", url=receiver.url, reason="on call").json()
    path = f"/{made['id']}"
    tested = call(house, "POST", f"{path}/test").json()
    assert (tested["type"], tested["state"], tested["status"], tested["batch_id"]) == (
        "webhook.test", "delivered", 200, None,
    )  # fmt: skip
    assert call(house, "POST", f"{path}/test").json()["error"]["code"] == "tested_just_now"
    assert call(house, "GET", f"{path}/deliveries").json()["data"][0]["id"] == tested["id"]
    assert call(house, "PATCH", path, disabled=True, reason="quiet").json()["disabled_at"] is not None
    assert call(house, "PATCH", path, disabled=False).json()["disabled_at"] is None
    assert call(house, "PATCH", path, disabled="yes").status_code == 422
    rotated = call(house, "POST", f"{path}/rotate", overlap="1h").json()
    assert rotated["secret"] != made["secret"]
    assert rotated["old_secret_until"] is not None
    headers = {"authorization": "Bearer a-0123456789abcdef", "x-tidegate-reason": "zu spät".encode()}
    httpx2.delete(f"{house.url}/api/webhooks{path}", headers=headers).raise_for_status()
    entries = audit(house, f"webhook:{made['id']}")
    assert [(entry["action"], entry["reason"]) for entry in entries] == [
        ("webhook.delete", "zu spät"),
        ("webhook.rotate", ""),
        ("webhook.enable", ""),
        ("webhook.disable", "quiet"),
        ("webhook.create", "on call"),
    ]
    assert {(entry["actor"], entry["way"]) for entry in entries} == {("a", "api key a")}


def audit(house: Gate, target: str) -> list[dict[str, Any]]:
    headers = {"authorization": "Bearer ops-0123456789abcdef"}
    found = httpx2.get(f"{house.url}/api/audit", params={"target": target}, headers=headers).raise_for_status()
    rows: list[dict[str, Any]] = found.json()["data"]
    return rows


def test_admins_manage_the_endpoints_of_every_team(house: Gate, receiver: Receiver) -> None:
    made = call(house, "POST", url=receiver.url, who="ops", tenant="b").json()
    assert made["tenant"] == "b"
    assert made["id"] in {each["id"] for each in call(house, "GET", who="b").json()["data"]}
    for tenant in ("b", "nobody"):
        answer = call(house, "POST", url=receiver.url, tenant=tenant)
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "tenant")
    assert call(house, "POST", url=receiver.url, who="ops", tenant="nobody").status_code == 422
    assert call(house, "DELETE", f"/{made['id']}", who="ops").status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"x": 1}, "url"),
        ({"url": 3}, "url"),
        ({"url": "http://example.com/"}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "https://169.254.169.254/"}, "url"),
        ({"url": "https://example.com/", "events": []}, "events"),
        ({"url": "https://example.com/", "events": ["batch.exploded"]}, "events"),
        ({"url": "https://example.com/", "events": [["batch.failed"]]}, "events"),
        ({"url": "https://example.com/", "description": "x" * 201}, "description"),
    ],
)
def test_what_is_wrong_is_named(house: Gate, body: dict[str, Any], param: str) -> None:
    answer = call(house, "POST", **body)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param


def test_without_the_setting_private_addresses_are_refused(tmp_path: Path, receiver: Receiver) -> None:
    with gate(tmp_path) as strict:
        answer = httpx2.post(f"{strict.url}/api/webhooks", json={"url": receiver.url})
    assert answer.status_code == 422
    assert "webhook" in answer.text or "https" in answer.text
