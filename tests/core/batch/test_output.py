import json

import pytest

from core.batch.output import answer_line, error_line, never_run_line, request_id
from core.batch.values import ItemRow, ItemState
from tests.core.batch.test_states import batch


def test_an_answer_stands_in_openais_shape_on_one_line() -> None:
    line = answer_line("batch_ab", 7, "mine", status=200, body=b'{\r\n "a": [1,\n 2], "b": "x\\ny" }', request="req_1")
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert json.loads(line) == {
        "id": "batch_req_ab_7",
        "custom_id": "mine",
        "response": {"status_code": 200, "request_id": "req_1", "body": {"a": [1, 2], "b": "x\ny"}},
        "error": None,
    }


@pytest.mark.parametrize("body", [b"<html>\n502</html>", b"", b'{"a":1} x', b"\xff\xfe", b'{"a":"\xff"}', b"[" * 5000])
def test_an_answer_that_is_no_json_stands_there_as_text(body: bytes) -> None:
    line = json.loads(answer_line("batch_ab", 0, "a", status=502, body=body))
    assert line["response"]["body"] == body.decode(errors="replace")
    assert line["response"]["request_id"] == request_id("batch_ab", 0)


def test_a_line_without_an_answer_tells_why() -> None:
    line = json.loads(error_line("batch_ab", 1, "a", code="upstream_unreachable", message="No."))
    assert (line["response"], line["error"]) == (None, {"code": "upstream_unreachable", "message": "No."})


@pytest.mark.parametrize(
    ("state", "code"), [(ItemState.CANCELLED, "batch_cancelled"), (ItemState.EXPIRED, "batch_expired")]
)
def test_a_line_that_never_ran_says_so(state: ItemState, code: str) -> None:
    line = json.loads(never_run_line(batch(), ItemRow("batch_1", 3, "c", state, 0)))
    assert (line["custom_id"], line["response"], line["error"]["code"]) == ("c", None, code)
