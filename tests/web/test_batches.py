"""The Batches API over real sockets, with the unmodified SDK: create, poll, download, cancel, and Tidegate's extras."""

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Batch, BatchRequestCounts

from tests.batch_house import ENDPOINT, jsonl, line
from tests.servers import DEADLINE_S, Gate, gate, until

TERMINAL = ("completed", "failed", "expired", "cancelled")
NOTHING = BatchRequestCounts(total=0, completed=0, failed=0)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("data"), slots=4) as running:
        yield running


@pytest.fixture(scope="module")
def api(house: Gate) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """A gate whose pool is paused: batches are taken, and nothing of them runs."""
    with gate(tmp_path_factory.mktemp("still"), slots=4) as running:
        running.change(pause=True, reason="test").raise_for_status()
        yield running


@pytest.fixture(scope="module")
def idle(still: Gate) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{still.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def chat(custom_id: str, text: str = "hello", **wishes: Any) -> dict[str, Any]:
    body = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": text}], **wishes}
    return line(custom_id, body=body)


def upload(api: openai.OpenAI, data: bytes) -> str:
    return api.files.create(file=("in.jsonl", data), purpose="batch").id


def create(api: openai.OpenAI, data: bytes, **options: Any) -> Batch:
    given = {"endpoint": ENDPOINT, "completion_window": "24h"} | options
    return api.batches.create(input_file_id=upload(api, data), **given)  # type: ignore[arg-type]


def ended(api: openai.OpenAI, batch: Batch) -> Batch:
    def end() -> Batch | None:
        found = api.batches.retrieve(batch.id)
        return found if found.status in TERMINAL else None

    found: Batch = until(end)
    return found


def reaches(api: openai.OpenAI, batch: Batch, status: str) -> Batch:
    def there() -> Batch | None:
        found = api.batches.retrieve(batch.id)
        return found if found.status == status else None

    found: Batch = until(there)
    return found


def own(batch: Batch) -> dict[str, Any]:
    told: dict[str, Any] = batch.tidegate  # type: ignore[attr-defined]
    return told


def lines_of(api: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [json.loads(each) for each in api.files.content(str(file_id)).read().splitlines()]


def test_a_batch_is_created_polled_and_downloaded(api: openai.OpenAI) -> None:
    batch = create(api, jsonl(*(chat(f"id-{n}") for n in range(12))), metadata={"run": "7"})
    assert (batch.status, batch.endpoint, batch.completion_window) == ("validating", ENDPOINT, "24h")
    assert (batch.metadata, batch.expires_at) == ({"run": "7"}, batch.created_at + 86_400)
    done = ended(api, batch)
    assert (done.status, done.model, done.error_file_id) == ("completed", "m", None)
    assert done.request_counts is not None
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (12, 12, 0)
    lines = lines_of(api, done.output_file_id)
    assert sorted(each["custom_id"] for each in lines) == sorted(f"id-{n}" for n in range(12))
    assert {each["response"]["status_code"] for each in lines} == {200}
    assert all(each["response"]["body"]["choices"][0]["message"]["content"] for each in lines)
    assert done.usage is not None
    assert done.usage.output_tokens == sum(each["response"]["body"]["usage"]["completion_tokens"] for each in lines)
    assert api.files.retrieve(str(done.output_file_id)).purpose == "batch_output"


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 2}),
        ("/v1/embeddings", {"model": "m", "input": ["hi", "ho"]}),
        ("/v1/responses", {"model": "m", "input": "hi", "max_output_tokens": 2}),
    ],
)
def test_every_endpoint_runs(api: openai.OpenAI, endpoint: str, body: dict[str, Any]) -> None:
    batch = create(api, jsonl(line("a", url=endpoint, body=body)), endpoint=endpoint)
    done = ended(api, batch)
    assert done.status == "completed", done
    [result] = lines_of(api, done.output_file_id)
    assert (result["custom_id"], result["response"]["status_code"]) == ("a", 200)


@pytest.mark.parametrize(
    ("data", "code", "number"),
    [
        (b"Dear all,\nthese are my notes.\n", "invalid_json_line", 1),
        (jsonl(chat("a"), line("b", method=None)), "invalid_method", 2),
        (jsonl(chat("a"), line("b", method="GET")), "invalid_method", 2),
        (jsonl(chat("a"), line("b", url="http://elsewhere/v1/chat/completions")), "url_mismatch", 2),
        (jsonl(chat("a"), chat("b"), line("c", url="/v1/embeddings")), "url_mismatch", 3),
        (jsonl(chat("a"), chat("b"), chat("a")), "duplicate_custom_id", 3),
        (jsonl(chat("a"), [1, 2]), "invalid_json_line", 2),
        (jsonl(chat("a"), line("b", body="text")), "invalid_json_line", 2),
        (jsonl(chat("a", stream=True)), "stream_not_allowed", 1),
        (b"\n\n", "empty_file", None),
    ],
)
def test_a_bad_file_fails_the_batch_with_its_line(
    house: Gate, api: openai.OpenAI, data: bytes, code: str, number: int | None
) -> None:
    """R112 BerriAI/litellm PR#37527, R54, R56: found before anything is sent, told with the line."""
    sent = house.sim()["requests"]
    batch = ended(api, create(api, data))
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.errors is not None
    first = (batch.errors.data or [])[0]
    assert (first.code, first.line) == (code, number)
    assert first.message
    assert house.sim()["requests"] == sent


def test_a_create_that_the_sdk_sends_again_makes_one_batch_and_two_deliberate_ones_make_two(
    still: Gate, idle: openai.OpenAI
) -> None:
    file_id = upload(idle, jsonl(chat("a")))
    body = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}

    def send(retry: int = 0, **headers: str) -> str:
        given = {"x-stainless-retry-count": str(retry), **headers}
        answer = httpx2.post(f"{still.url}/v1/batches", json=body, headers=given, timeout=DEADLINE_S)
        return str(answer.raise_for_status().json()["id"])

    first = send()
    assert send(retry=1) == send(retry=2) == first
    second = send()
    assert second != first
    assert send(retry=1) == second
    keyed = send(**{"idempotency-key": "k1"})
    assert keyed not in (first, second)
    assert send(**{"idempotency-key": "k1"}) == keyed
    assert send(**{"idempotency-key": "k2"}) != keyed
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda n: send(retry=n, **{"idempotency-key": "k3"}), range(8)))
    assert len(set(ids)) == 1


def test_batches_are_listed_page_by_page_newest_first(tmp_path: Path) -> None:
    with gate(tmp_path) as house, openai.OpenAI(base_url=f"{house.url}/v1", api_key="any") as api:
        assert list(api.batches.list()) == []
        house.change(pause=True)
        ids = [create(api, jsonl(chat("a"))).id for _ in range(5)]
        assert [batch.id for batch in api.batches.list(limit=2)] == ids[::-1]
        page = api.batches.list(limit=2, after=ids[2])
        assert [batch.id for batch in page.data] == [ids[1], ids[0]]
        assert page.has_more is False
        with pytest.raises(openai.NotFoundError):
            api.batches.list(after="batch_nothing")
        for limit in (0, 101):
            with pytest.raises(openai.BadRequestError):
                api.batches.list(limit=limit)


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({"endpoint": "/v1/nonsense"}, "endpoint", 400),
        ({"endpoint": None}, "endpoint", 400),
        ({"completion_window": "30m"}, "completion_window", 400),
        ({"completion_window": "15d"}, "completion_window", 400),
        ({"completion_window": 24}, "completion_window", 400),
        ({"completion_window": None}, "completion_window", 400),
        ({"input_file_id": None}, "input_file_id", 400),
        ({"input_file_id": 7}, "input_file_id", 400),
        ({"input_file_id": "file-nothing"}, None, 404),
        ({"metadata": {"a": 1}}, "metadata", 400),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", 400),
        ({"metadata": {"a": "x" * 513}}, "metadata", 400),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor", 400),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds", 400),
        ({"output_expires_after": 5}, "output_expires_after", 400),
        ({"priority": 101}, "priority", 400),
        ({"priority": "high"}, "priority", 400),
        ({"priority": True}, "priority", 400),
        ({"max_concurrency": 0}, "max_concurrency", 400),
    ],
)
def test_a_bad_order_is_refused_by_name(
    still: Gate, idle: openai.OpenAI, fields: dict[str, Any], param: str | None, status: int
) -> None:
    body = {"input_file_id": upload(idle, jsonl(chat("a"))), "endpoint": ENDPOINT, "completion_window": "24h"}
    answer = httpx2.post(f"{still.url}/v1/batches", json=body | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"null", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(still: Gate, body: bytes) -> None:
    answer = httpx2.post(f"{still.url}/v1/batches", content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body")


@pytest.mark.parametrize(("window", "hours"), [("1h", 1), ("24h", 24), ("3d", 72), ("72h", 72), ("14d", 336)])
def test_a_completion_window_is_honoured_and_told_as_given(idle: openai.OpenAI, window: str, hours: int) -> None:
    batch = create(idle, jsonl(chat("a")), completion_window=window)
    assert batch.expires_at == batch.created_at + hours * 3600
    assert idle.batches.retrieve(batch.id).completion_window == batch.completion_window == window


@pytest.mark.parametrize("window", ["0h", "24", "24H", "1w", "337h", "1.5h", "", " 1d", ["24h"], True])
def test_a_window_that_is_none_is_refused(still: Gate, idle: openai.OpenAI, window: object) -> None:
    body = {"input_file_id": upload(idle, jsonl(chat("a"))), "endpoint": ENDPOINT, "completion_window": window}
    answer = httpx2.post(f"{still.url}/v1/batches", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "completion_window")


def test_outputs_expire_when_the_order_says_so(api: openai.OpenAI) -> None:
    after = {"anchor": "created_at", "seconds": 7200}
    batch = ended(api, create(api, jsonl(chat("a")), output_expires_after=after))
    output = api.files.retrieve(str(batch.output_file_id))
    assert output.expires_at == output.created_at + 7200
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")


def test_what_is_cancelled_while_it_is_checked_has_no_lines_to_tell_of(idle: openai.OpenAI) -> None:
    batch = create(idle, jsonl(*(chat(f"id-{n}") for n in range(4000))))
    assert idle.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    after = reaches(idle, batch, "cancelled")
    if after.in_progress_at is None:
        assert (after.request_counts, after.output_file_id, after.error_file_id) == (NOTHING, None, None)
    else:
        assert len(lines_of(idle, after.error_file_id)) == 4000
    assert idle.batches.cancel(batch.id).status == "cancelled"


def test_a_create_sent_again_after_a_cancel_is_the_cancelled_batch(idle: openai.OpenAI) -> None:
    file_id = upload(idle, jsonl(chat("a")))

    def send(key: str) -> str:
        order: dict[str, Any] = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
        return idle.batches.create(**order, extra_headers={"idempotency-key": key}).id

    first = send("k")
    idle.batches.cancel(first)
    assert send("k") == first
    assert send("other") != first


def test_a_cancelled_batch_ends_and_tells_of_every_line(idle: openai.OpenAI) -> None:
    batch = reaches(idle, create(idle, jsonl(*(chat(f"id-{n}") for n in range(3)))), "in_progress")
    cancelled = idle.batches.cancel(batch.id)
    assert cancelled.status in ("cancelling", "cancelled")
    after = reaches(idle, batch, "cancelled")
    assert after.request_counts is not None
    assert (after.request_counts.total, after.request_counts.failed, after.output_file_id) == (3, 3, None)
    assert {each["error"]["code"] for each in lines_of(idle, after.error_file_id)} == {"batch_cancelled"}
    assert idle.batches.cancel(batch.id).status == "cancelled"


def test_a_cancel_at_any_moment_ends_as_completed_or_cancelled(api: openai.OpenAI) -> None:
    """R61 llm-d/llm-d-batch-gateway#146: cancel that meets the finish leaves "cancelling" for ever."""
    chance = random.Random(61)
    for _ in range(15):
        batch = create(api, jsonl(*(chat(f"id-{n}", max_tokens=30) for n in range(3))))
        time.sleep(chance.uniform(0, 0.3))  # the moment is what this test varies
        with suppress(openai.BadRequestError):  # it was completed before
            api.batches.cancel(batch.id)
        after = ended(api, batch)
        assert after.status in ("completed", "cancelled")
        counts = after.request_counts
        assert counts is not None
        assert counts.completed + counts.failed == counts.total


def test_what_has_ended_otherwise_cannot_be_cancelled(idle: openai.OpenAI) -> None:
    batch = ended(idle, create(idle, b"notes\n"))
    with pytest.raises(openai.BadRequestError) as caught:
        idle.batches.cancel(batch.id)
    assert (caught.value.code, caught.value.param) == ("invalid_status", "status")


def test_tidegates_own_fields_stand_beside_openais(still: Gate, idle: openai.OpenAI) -> None:
    batch = create(idle, jsonl(chat("a")), extra_body={"priority": 7, "name": "nightly"})
    told = own(reaches(idle, batch, "in_progress"))
    assert (told["state"], told["pool"], told["priority"]) == ("queued", "default", 7)
    assert (told["position"], told["deadline_risk"]) == (1, None)
    assert "paused" in told["waiting_for"]
    assert told["eta"]["state"] in ("learning", "paused")
    assert told["eta"]["low"] is None
    idle.batches.cancel(batch.id)


def test_a_batch_is_paused_resumed_and_put_first(still: Gate, idle: openai.OpenAI) -> None:
    batch = reaches(idle, create(idle, jsonl(chat("a"))), "in_progress")
    url = f"{still.url}/api/batches/{batch.id}"
    paused = httpx2.post(f"{url}/pause", json={"reason": "costs"}).json()["tidegate"]
    assert paused["state"] == "paused"
    assert "paused by operator: costs" in paused["waiting_for"]
    assert own(idle.batches.retrieve(batch.id))["state"] == "paused"
    assert httpx2.post(f"{url}/resume").json()["tidegate"]["state"] == "queued"
    assert httpx2.post(f"{url}/priority", json={"priority": -3}).json()["tidegate"]["priority"] == -3
    for body in ({}, {"priority": 1000}, {"priority": "x"}):
        refused = httpx2.post(f"{url}/priority", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
    assert httpx2.post(f"{url}/retry-failed").json()["error"]["code"] == "invalid_status"
    assert httpx2.post(f"{still.url}/api/batches/batch_nothing/pause").status_code == 404
    idle.batches.cancel(batch.id)


def test_tenants_see_only_their_own_batches(tmp_path: Path) -> None:
    keys = [{"name": name, "key": f"tg_{name}", "tenant": name} for name in ("red", "blue")]
    with gate(tmp_path, keys=keys) as house:
        red, blue = (openai.OpenAI(base_url=f"{house.url}/v1", api_key=f"tg_{n}") for n in ("red", "blue"))
        batch = create(red, jsonl(chat("a")))
        assert list(blue.batches.list()) == []
        for call in (blue.batches.retrieve, blue.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(batch.id)
        bearer = {"authorization": "Bearer tg_blue"}
        for action in ("pause", "resume", "priority", "retry-failed"):
            body = {"priority": 1}
            answer = httpx2.post(f"{house.url}/api/batches/{batch.id}/{action}", json=body, headers=bearer)
            assert answer.status_code == 404
        assert httpx2.get(f"{house.url}/v1/batches").status_code == 401
        assert red.batches.retrieve(batch.id).id == batch.id


def test_a_file_in_use_is_refused_by_name(idle: openai.OpenAI) -> None:
    batch = reaches(idle, create(idle, jsonl(chat("a"))), "in_progress")
    with pytest.raises(openai.BadRequestError) as caught:
        idle.files.delete(batch.input_file_id)
    assert caught.value.code == "file_in_use"
    idle.batches.cancel(batch.id)
    reaches(idle, batch, "cancelled")
    assert idle.files.delete(batch.input_file_id).deleted


def test_failed_lines_are_told_and_can_run_again(house: Gate, api: openai.OpenAI) -> None:
    """R58 ProjectTech4DevAI/kaapi-backend#723: all lines fail; completed, output null, error file set."""
    bad = {"sim": {"status": 400}}
    batch = ended(api, create(api, jsonl(chat("a", **bad), chat("b", **bad))))
    assert (batch.status, batch.output_file_id) == ("completed", None)
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (0, 2)
    failed = lines_of(api, batch.error_file_id)
    assert {(each["response"]["status_code"], each["error"] is None) for each in failed} == {(400, True)}
    again = httpx2.post(f"{house.url}/api/batches/{batch.id}/retry-failed")
    assert (again.status_code, again.json()["status"]) == (200, "in_progress")
    after = ended(api, batch)
    assert after.request_counts is not None
    assert (after.status, after.request_counts.failed) == ("completed", 2)
    assert len(lines_of(api, after.error_file_id)) == 2
