import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.scheduling.answer_scan import BodyScan, StreamScan
from tests.fakes import ROLE, STOP, event

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":11}}\n\n'
NULL_USAGE = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n'


@given(st.data())
def test_pieces_and_usage_do_not_depend_on_where_the_stream_was_cut(data: st.DataObject) -> None:
    """R36 api7/aisix#111: one byte at a time is the extreme."""
    text = ROLE + event("你好") + event("é") + NULL_USAGE + USAGE + STOP
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=len(text))))
    scan = StreamScan("/chat/completions")
    counted = sum(scan.feed(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))
    assert (counted, scan.pieces, scan.complete, scan.inside_event) == (3, 3, True, False)
    assert (scan.input_tokens, scan.output_tokens) == (7, 11)


def test_usage_null_in_every_chunk_does_not_wipe_the_count() -> None:
    """R42 router-for-me/CLIProxyAPI PR#2762."""
    scan = StreamScan("/chat/completions")
    for piece in (NULL_USAGE, USAGE, NULL_USAGE):
        scan.feed(piece)
    assert scan.output_tokens == 11


@pytest.mark.parametrize(
    "usage",
    [
        b'{"completion_tokens":-5}',
        b'{"completion_tokens":2147483648}',
        b'{"completion_tokens":' + b"9" * 400 + b"}",
        b'{"completion_tokens":2,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_usage_that_cannot_be_is_none_and_harms_nothing(usage: bytes) -> None:
    scans = StreamScan("/chat/completions"), BodyScan()
    scans[0].feed(b'data: {"error":null,"usage":' + usage + b"}\n\n")
    scans[1].feed(b'{"usage":' + usage + b"}")
    for scan in scans:
        scan.finish()
        assert scan.output_tokens is None


@pytest.mark.parametrize(
    "end",
    [
        b"data: [DONE]\n\n",
        b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n',
        b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\r\n\r\n',
    ],
)
def test_a_stream_is_complete_with_either_end_mark(end: bytes) -> None:
    scan = StreamScan("/completions")
    scan.feed(event("a"))
    assert not scan.complete
    scan.feed(end)
    assert scan.complete


def test_responses_are_counted_by_their_deltas() -> None:
    scan = StreamScan("/responses")
    delta = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n\n'
    assert scan.feed(delta * 3) == 3
    assert not scan.complete
    done = b'data: {"type":"response.completed","response":{"usage":{"input_tokens":2,"output_tokens":3}}}\n\n'
    scan.feed(b"event: response.completed\n" + done)
    assert (scan.complete, scan.input_tokens, scan.output_tokens) == (True, 2, 3)


def test_streams_of_other_endpoints_need_no_end_mark() -> None:
    scan = StreamScan("/audio/speech")
    scan.feed(b"data: {}\n\n")
    assert scan.complete


def test_a_body_tells_its_usage_and_nonsense_tells_none() -> None:
    scan = BodyScan()
    for piece in (b'{"id":1,"usage":{"prompt_tokens":3,', b'"total_tokens":9}}'):
        scan.feed(piece)
    scan.finish()
    assert (scan.input_tokens, scan.output_tokens) == (3, None)
    other = BodyScan()
    other.feed(b"<html>")
    other.finish()
    assert other.output_tokens is None


def test_the_word_of_the_end_mark_inside_of_what_a_model_wrote_is_no_end() -> None:
    """R31 open-webui/open-webui#29628: a stream that is cut after it would look complete."""
    scan = StreamScan("/chat/completions")
    assert scan.feed(event("[DONE]") + event("say data: [DONE] twice")) == 2
    assert not scan.complete
    scan.feed(b"data:[DONE]\r\n\r\n")
    assert scan.complete


@pytest.mark.parametrize(
    ("path", "line", "failed"),
    [
        ("/chat/completions", b'{"error":{"message":"out of memory","code":null}}', 500),
        ("/chat/completions", b'{"error":{"message":"too long","code":400}}', 400),
        ("/chat/completions", b'{"error":"out of memory"}', 500),
        ("/completions", b'{"object":"error","error":{"code":503}}', 503),
        ("/chat/completions", b'{"choices":[{"delta":{"content":"an \\"error\\""}}],"error":null}', 0),
        ("/responses", b'{"type":"response.failed","response":{"error":{"code":"server_error"}}}', 500),
        ("/responses", b'{"type":"response.created","response":{"error":null}}', 0),
    ],
)
def test_an_error_told_inside_a_stream_is_no_success(path: str, line: bytes, failed: int) -> None:
    scan = StreamScan(path)
    scan.feed(b"data: " + line + b"\n\n")
    assert scan.failed == failed
    assert scan.complete == (failed > 0)
