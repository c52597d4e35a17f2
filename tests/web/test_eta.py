from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from tests.servers import CHAT, Gate, gate, until

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("eta")) as running:
        until(lambda: running.runtime.forecaster._looked_at)
        yield running


def quote(house: Gate, **fields: Any) -> httpx2.Response:
    return httpx2.post(f"{house.url}/api/batch/quote", json=fields)


def upload(house: Gate, content: bytes) -> str:
    files = {"file": ("in.jsonl", content)}
    answer = httpx2.post(f"{house.url}/v1/files", data={"purpose": "batch"}, files=files)
    return str(answer.raise_for_status().json()["id"])


def test_a_quote_without_data_says_that_it_cannot_tell_yet(house: Gate) -> None:
    told = quote(house, lines=100, prompt_tokens=5000).raise_for_status().json()
    assert quote(house, lines=100, tokens=5000).raise_for_status().json()["prompt_tokens"] == told["prompt_tokens"]
    assert told["pool"] == "default"
    assert told["eta"]["state"] == "learning"
    assert told["eta"]["basis"].startswith("Not enough finished requests yet to say;")
    assert (told["eta"]["low"], told["eta"]["mid"], told["eta"]["high"]) == (None, None, None)


def test_a_quote_of_an_uploaded_file_counts_its_lines_and_tokens(house: Gate) -> None:
    line = msgspec.json.encode(LINE)
    told = quote(house, file_id=upload(house, b"\n".join([line] * 50) + b"\r\n\n")).raise_for_status().json()
    assert told["lines"] == 50
    body = len(msgspec.json.encode(CHAT))
    assert abs(told["prompt_tokens"] - 50 * body / 4) <= 25


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "lines"),
        ({"lines": 5}, "prompt_tokens"),
        ({"lines": 0, "prompt_tokens": 1}, "lines"),
        ({"lines": True, "prompt_tokens": 1}, "lines"),
        ({"lines": 1, "prompt_tokens": -1}, "prompt_tokens"),
        ({"lines": 1, "prompt_tokens": 1, "rows": 1}, "rows"),
        ({"lines": 1, "prompt_tokens": 1, "file_id": "file-x"}, "file_id"),
        ({"lines": 1, "prompt_tokens": 1, "completion_window": "soon"}, "completion_window"),
        ({"lines": 1, "prompt_tokens": 1, "model": 7}, "model"),
    ],
)
def test_what_is_wrong_is_named(house: Gate, fields: dict[str, Any], param: str) -> None:
    answer = quote(house, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_an_unknown_file_is_not_found(house: Gate) -> None:
    assert quote(house, file_id="file-nowhere").status_code == 404


def test_a_file_without_lines_is_refused(house: Gate) -> None:
    assert quote(house, file_id=upload(house, b"\n\n")).status_code == 400


def test_the_score_of_nothing_is_no_number(house: Gate) -> None:
    told = httpx2.get(f"{house.url}/api/eta/score").raise_for_status().json()
    nothing = {"n": 0, "median_error": None, "held": None}
    assert told == {"overall": nothing, "at_submission": nothing, "tenant": {"name": "default", **nothing}}


def test_with_keys_both_need_one(tmp_path: Path) -> None:
    keys = [{"name": "k", "key": "tg_secret_key", "tenant": "news"}]
    with gate(tmp_path, keys=keys) as house:
        assert quote(house, lines=1, prompt_tokens=1).status_code == 401
        assert httpx2.get(f"{house.url}/api/eta/score").status_code == 401
        signed = {"authorization": "Bearer tg_secret_key"}
        told = httpx2.get(f"{house.url}/api/eta/score", headers=signed).raise_for_status().json()
        assert told["tenant"]["name"] == "news"
