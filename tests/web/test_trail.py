"""The audit trail and the call log over the API."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from core.people.telling import COLUMNS
from tests.servers import Gate, gate, until


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("data"), slots=8) as running:
        for n, ceiling in enumerate((6, 5, 4)):
            assert running.change(ceiling=ceiling, reason=f"step {n}").status_code == 200
        assert running.chat(max_tokens=3).status_code == 200
        until(lambda: get(running, "/api/calls")["data"])
        yield running


def get(house: Gate, path: str, status: int = 200) -> Any:
    answer = httpx2.get(house.url + path)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_changes_are_told_newest_first_with_all_their_fields(house: Gate) -> None:
    found = get(house, "/api/audit")["data"]
    assert [row["reason"] for row in found] == ["step 2", "step 1", "step 0"]
    assert set(found[0]) == set(COLUMNS)
    assert (found[0]["actor"], found[0]["action"], found[0]["target"]) == ("operator", "pool.settings", "pool:default")
    assert (found[0]["before"]["ceiling"], found[0]["after"]["ceiling"]) == (5, 4)
    assert get(house, f"/api/audit/{found[0]['number']}") == found[0]


def test_pages_follow_each_other_without_gap_or_overlap(house: Gate) -> None:
    first = get(house, "/api/audit?limit=2")
    rest = get(house, f"/api/audit?limit=2&before={first['next']}")
    assert [row["reason"] for row in [*first["data"], *rest["data"]]] == ["step 2", "step 1", "step 0"]
    assert rest["next"] is None


def test_the_controllers_rows_come_when_asked_for(house: Gate) -> None:
    found = until(lambda: get(house, "/api/audit?automatic=true&actor=restart")["data"])
    assert {row["way"] for row in found} == {"controller"}


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=9999", "since=yesterday", "before=x", "automatic=maybe", "colour=blue", "q=" + "x" * 201],
)
def test_a_filter_that_is_wrong_is_named(house: Gate, query: str) -> None:
    error = get(house, f"/api/audit?{query}", 422)["error"]
    assert error["param"] == query.partition("=")[0]


def test_what_is_not_there_is_404(house: Gate) -> None:
    get(house, "/api/audit/99999", 404)
    get(house, f"/api/audit/{2**70}", 404)


def test_exports_hold_everything_that_fits(house: Gate) -> None:
    answer = httpx2.get(f"{house.url}/api/audit/export?action=pool")
    assert answer.headers["content-disposition"] == 'attachment; filename="audit.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [row["reason"] for row in rows] == ["step 2", "step 1", "step 0"]
    listed = get(house, "/api/audit?action=pool")["data"]
    assert get(house, "/api/audit/export?action=pool&format=json") == listed
    assert get(house, "/api/audit/export?action=nothing&format=json") == []
    get(house, "/api/audit/export?format=xml", 422)


def test_calls_are_told_without_what_was_said(house: Gate) -> None:
    [call] = get(house, "/api/calls")["data"]
    assert (call["pool"], call["lane"], call["outcome"], call["status"]) == ("default", "interactive", "success", 200)
    assert (call["model"], call["output_tokens"], call["tenant"], call["batch"]) == ("m", 3, "default", "")
    assert call["total_ms"] > 0
    assert "hello" not in str(call)
    assert get(house, "/api/calls?lane=batch")["data"] == []
    assert get(house, "/api/calls/export?format=json") == [call]
    exported = httpx2.get(f"{house.url}/api/calls/export?format=csv").text
    assert [row["request"] for row in csv.DictReader(io.StringIO(exported))] == [call["request"]]


def test_both_need_a_key_where_there_are_keys(tmp_path: Path) -> None:
    with gate(tmp_path / "data", keys=[{"name": "ops", "key": "key-of-ops-1234567"}]) as running:
        for path in ("/api/audit", "/api/audit/export", "/api/calls", "/api/calls/export", "/api/audit/1"):
            assert httpx2.get(running.url + path).status_code == 401
        headers = {"authorization": "Bearer key-of-ops-1234567"}
        assert httpx2.get(f"{running.url}/api/audit", headers=headers).status_code == 200


def test_asking_a_model_server_tells_whether_it_answers_and_nothing_of_what(house: Gate) -> None:
    answer = httpx2.post(f"{house.url}/api/pools/default/test")
    told = answer.json()
    assert answer.status_code == 200
    assert set(told) == {"pool", "reachable", "error", "ms"}
    assert (told["pool"], told["reachable"], told["error"]) == ("default", True, None)
    assert httpx2.post(f"{house.url}/api/pools/nope/test").status_code == 404


def test_a_model_server_that_is_away_is_told_in_words_without_its_address(tmp_path: Path) -> None:
    with gate(tmp_path / "data", pools=[{"name": "away", "base_url": "http://127.0.0.1:9/secret/v1"}]) as running:
        answer = httpx2.post(f"{running.url}/api/pools/away/test")
    assert (answer.json()["reachable"], answer.json()["error"]) == (False, "connection failed")
    assert "secret" not in answer.text


def test_who_changes_without_a_key_over_the_interface_is_told_apart_from_the_browser(house: Gate) -> None:
    assert {row["way"] for row in get(house, "/api/audit?target=pool:default")["data"]} == {"api"}
