"""`POST /api/batch` over real sockets: a durable batch for people without an SDK."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.servers import DEADLINE_S, Gate, gate, until


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("data"), slots=4, models="m", batch_lines=50) as running:
        yield running


def post(house: Gate, headers: dict[str, str] | None = None, **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{house.url}/api/batch", json=fields, headers=headers, timeout=DEADLINE_S)


def get(house: Gate, batch_id: str, path: str = "") -> Any:
    return httpx2.get(f"{house.url}/api/batch/{batch_id}{path}", timeout=DEADLINE_S).raise_for_status().json()


def finished(house: Gate, batch_id: str) -> Any:
    def done() -> Any:
        told = get(house, batch_id)
        return told if told["state"] == "done" else None

    return until(done)


def test_texts_become_answers_by_document(house: Gate) -> None:
    inputs = ["first", {"doc_id": "b", "text": "second"}, {"messages": [{"role": "user", "content": "third"}]}]
    answer = post(house, task_name="summaries", inputs=inputs, options={"prompt": "Be short.", "max_tokens": 3})
    assert answer.status_code == 202, answer.text
    told = answer.json()
    assert (told["task_name"], told["status"], told["counts"]["total"]) == ("summaries", "validating", 0)
    done = finished(house, told["id"])
    assert (done["status"], done["model"]) == ("completed", "m")
    assert done["counts"] == {"total": 3, "pending": 0, "running": 0, "success": 3, "failed": 0}
    items = [(item["doc_id"], item["index"], item["status"]) for item in done["items"]]
    assert items == [("0", 0, "success"), ("b", 1, "success"), ("2", 2, "success")]
    results = get(house, told["id"], "/results")
    assert [(each["doc_id"], each["status"], each["error"]) for each in results["results"]] == [
        ("0", "success", None),
        ("b", "success", None),
        ("2", "success", None),
    ]
    assert all(each["text"] for each in results["results"])
    assert get(house, told["id"], "/eta")["state"] == "done"
    listed = httpx2.get(f"{house.url}/v1/batches/{told['id']}").json()
    assert (listed["endpoint"], listed["status"]) == ("/v1/chat/completions", "completed")
    sent = httpx2.get(f"{house.url}/v1/files/{listed['input_file_id']}/content").text
    assert '"messages":[{"role":"system","content":"Be short."},{"role":"user","content":"first"}]' in sent


def test_the_other_names_of_the_fields_mean_the_same(house: Gate) -> None:
    told = post(house, task="t", items=["x"], model="m", options={"max_concurrency": 1, "interval_ms": 10}).json()
    assert finished(house, told["id"])["counts"]["success"] == 1


def test_a_page_of_items_goes_on_after_the_last(house: Gate) -> None:
    told = post(house, task="t", inputs=[str(n) for n in range(5)]).json()
    finished(house, told["id"])
    page = get(house, told["id"], "?limit=2&after=1")
    assert ([item["index"] for item in page["items"]], page["has_more"]) == ([2, 3], True)
    assert get(house, told["id"], "?limit=2&after=2")["has_more"] is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"task_name": None}, "task_name"),
        ({"task_name": 5}, "task_name"),
        ({"inputs": []}, "inputs"),
        ({"inputs": "text"}, "inputs"),
        ({"inputs": ["x"] * 51}, "inputs"),
        ({"inputs": ["a", 5]}, "inputs[1]"),
        ({"inputs": [{"text": "a", "messages": []}]}, "inputs[0]"),
        ({"inputs": [{"text": ""}]}, "inputs[0].text"),
        ({"inputs": [{"messages": {}}]}, "inputs[0].messages"),
        ({"inputs": [{"doc_id": [], "text": "a"}]}, "inputs[0].doc_id"),
        ({"inputs": ["a", {"doc_id": 0, "text": "b"}]}, "inputs[1].doc_id"),
        ({"model": "nobody's"}, "model"),
        ({"options": [1]}, "options"),
        ({"options": {"max_tokens": 0}}, "max_tokens"),
        ({"options": {"prompt": 7}}, "prompt"),
        ({"options": {"temperature": 1}}, "options.temperature"),
        ({"completion_window": "1m"}, "completion_window"),
        ({"completion_window": ""}, "completion_window"),
        ({"completion_window": False}, "completion_window"),
        ({"inputs": ["a", ""]}, "inputs[1].text"),
        ({"inputs": [{"doc_id": "x" * 513, "text": "a"}]}, "inputs[0].doc_id"),
        ({"inputs": [{"doc_id": "a\0b", "text": "a"}]}, "inputs[0].doc_id"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_bad_task_is_refused_by_name(house: Gate, fields: dict[str, Any], param: str) -> None:
    answer = post(house, **({"task_name": "t", "inputs": ["x"]} | fields))
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)


def test_several_models_must_be_chosen_from(tmp_path: Path) -> None:
    with gate(tmp_path, models="m,n") as house:
        answer = post(house, task_name="t", inputs=["x"])
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "model")
        assert "m, n" in answer.json()["error"]["message"]
        assert post(house, task_name="t", inputs=["x"], model="n").status_code == 202


def test_a_task_sent_again_with_its_key_is_one_batch(house: Gate) -> None:
    fields: dict[str, Any] = {"task_name": "t", "inputs": ["x"]}
    ids = {post(house, {"idempotency-key": "k"}, **fields).json()["id"] for _ in range(3)}
    assert len(ids) == 1
    assert post(house, **fields).json()["id"] != post(house, **fields).json()["id"]


def test_a_failed_item_tells_why(house: Gate) -> None:
    house.sim(faults={"status": 400, "message": "too long"})
    told = post(house, task_name="t", inputs=["x"]).json()
    done = finished(house, told["id"])
    house.sim(faults=None)
    assert (done["counts"]["failed"], done["items"][0]["status"]) == (1, "failed")
    [bad] = get(house, told["id"], "/results")["results"]
    assert (bad["status"], bad["text"], bad["error"]["message"]) == ("failed", None, "too long")
    assert bad["error"]["status"] == 400


@pytest.mark.parametrize("path", ["", "/eta", "/results"])
def test_an_unknown_batch_is_not_found(house: Gate, path: str) -> None:
    answer = httpx2.get(f"{house.url}/api/batch/batch_nothing{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
