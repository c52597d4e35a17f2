"""Where policy asks for a reason (`require_reason`), the API takes no change without one, OpenAI's own calls apart."""

from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from tests.batch_house import ENDPOINT, jsonl, line
from tests.servers import Gate, gate

UNKNOWN = "0" * 32


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """A gate whose pool is paused, so that batches stay as they are."""
    with gate(tmp_path_factory.mktemp("data"), require_reason=True, webhook_hosts=["127.0.0.1"]) as running:
        running.change(pause=True, reason="test").raise_for_status()
        yield running


@pytest.fixture(scope="module")
def api(strict: Gate) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{strict.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def batch(api: openai.OpenAI) -> str:
    """A batch that an unmodified client made, without a word."""
    file = api.files.create(file=("in.jsonl", jsonl(line())), purpose="batch")
    return api.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h").id


@pytest.fixture(scope="module")
def webhook(strict: Gate) -> str:
    body = {"url": "http://127.0.0.1:9/", "reason": "tests"}
    made: dict[str, Any] = httpx2.post(f"{strict.url}/api/webhooks", json=body).raise_for_status().json()
    return str(made["id"])


def ask(house: Gate, call: str, body: dict[str, Any], **headers: str) -> httpx2.Response:
    method, path = call.split()
    return httpx2.request(method, house.url + path, json=body, headers={"if-match": "*", **headers})


def reasons(house: Gate, target: str) -> list[tuple[str, str]]:
    rows = httpx2.get(f"{house.url}/api/audit", params={"target": target}).json()["data"]
    return [(row["action"], row["reason"]) for row in rows][::-1]


CALLS: dict[str, dict[str, Any]] = {
    "PATCH /api/pools/default": {"ceiling": 4},
    "PUT /api/schedule": {"zone": "Europe/Berlin", "windows": [], "one_offs": []},
    "POST /api/batches/BATCH/pause": {},
    "POST /api/batches/BATCH/resume": {},
    "POST /api/batches/BATCH/priority": {"priority": 3},
    "POST /api/batches/BATCH/retry-failed": {},
    "POST /api/batch": {"task_name": "t", "model": "m", "inputs": ["a"]},
    "POST /api/webhooks": {"url": "http://127.0.0.1:9/"},
    "PATCH /api/webhooks/WEBHOOK": {"disabled": True},
    "POST /api/webhooks/WEBHOOK/rotate": {},
    "DELETE /api/webhooks/WEBHOOK": {},
    "POST /api/tenants": {"name": "team"},
}


@pytest.mark.parametrize("call", CALLS)
def test_no_change_is_taken_without_a_reason_and_with_one_it_is_kept(
    strict: Gate, batch: str, webhook: str, call: str
) -> None:
    body, call = CALLS[call], call.replace("BATCH", batch).replace("WEBHOOK", webhook)
    count = len(httpx2.get(f"{strict.url}/api/audit?limit=1000").json()["data"])
    for given in ({}, {"reason": ""}, {"reason": "  "}):
        answer = ask(strict, call, {**body, **given})
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "reason"), answer.text
    rows = httpx2.get(f"{strict.url}/api/audit?limit=1000").json()["data"]
    assert len(rows) == count
    if call.endswith("/retry-failed"):
        assert ask(strict, call, {**body, "reason": "because"}).json()["error"]["code"] == "invalid_status"
        return
    answer = ask(strict, call, {**body, "reason": "because"})
    assert answer.status_code < 300, answer.text
    newest = httpx2.get(f"{strict.url}/api/audit?limit=1").json()["data"][0]
    assert newest["reason"] == "because"


def test_unmodified_clients_work_and_may_give_a_reason_in_a_header(tmp_path_factory: pytest.TempPathFactory) -> None:
    with gate(tmp_path_factory.mktemp("openai"), require_reason=True) as house:
        house.change(pause=True, reason="test").raise_for_status()
        with openai.OpenAI(base_url=f"{house.url}/v1", api_key="any", max_retries=0) as api:
            silent = api.files.create(file=("in.jsonl", jsonl(line())), purpose="batch")
            told = {"x-tidegate-reason": "nightly run"}
            file = api.files.create(file=("in.jsonl", jsonl(line())), purpose="batch", extra_headers=told)
            made = api.batches.create(
                input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", extra_headers=told
            )
            api.batches.cancel(made.id, extra_headers=told)
            api.files.delete(silent.id)
            assert reasons(house, f"file:{silent.id}") == [("file.create", ""), ("file.delete", "")]
            assert reasons(house, f"file:{file.id}") == [("file.create", "nightly run")]
            assert reasons(house, f"batch:{made.id}") == [
                ("batch.create", "nightly run"),
                ("batch.cancel", "nightly run"),
            ]
            rows = httpx2.get(f"{house.url}/api/audit", params={"action": "batch"}).json()["data"]
            assert {(row["actor"], row["way"]) for row in rows} == {("operator", "api")}
            with pytest.raises(openai.UnprocessableEntityError) as caught:
                api.batches.cancel(made.id, extra_headers={"x-tidegate-reason": "x" * 501})
            assert caught.value.param == "reason"


def test_the_header_counts_wherever_a_reason_is_asked_for_about_batches(strict: Gate, batch: str) -> None:
    answer = ask(strict, f"POST /api/batches/{batch}/priority", {"priority": 9}, **{"x-tidegate-reason": "in haste"})
    assert answer.status_code == 200
    assert reasons(strict, f"batch:{batch}")[-1] == ("batch.priority", "in haste")
