import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batch.lines import LineCutter, LineReader, RawLine, Route
from core.batch.values import LineError, NewItem
from tests.batch_house import ENDPOINT, jsonl, line, one_pool

GOOD = line()


def cut(data: bytes, *, longest: int = 1000, pieces: int = 7) -> list[RawLine]:
    cutter = LineCutter(longest=longest)
    found = [each for start in range(0, len(data), pieces) for each in cutter.feed(data[start : start + pieces])]
    return [*found, *cutter.finish()]


def read(data: bytes, *, route: Route = one_pool, most: int = 100, longest: int = 1000) -> list[NewItem | LineError]:
    reader = LineReader(endpoint=ENDPOINT, route=route, most=most, longest=longest)
    found = (reader.read(each) for each in cut(data, longest=longest))
    return [each for each in found if each is not None]


def only_error(data: bytes, **options: int) -> LineError:
    [error] = [each for each in read(data, **options) if isinstance(each, LineError)]
    return error


def test_a_good_line_becomes_an_item_with_its_place_and_cost() -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x" * 400}]}
    data = jsonl(GOOD) + json.dumps(line("b", body=body)).encode()
    first, second = read(data)
    assert isinstance(second, NewItem)
    assert isinstance(first, NewItem)
    assert data[second.offset : second.offset + second.length] == data.splitlines()[1]
    assert (second.index, second.custom_id, second.model, second.max_tokens) == (1, "b", "m", 9)
    assert 100 < second.prompt_tokens < 130
    assert first.max_tokens is None


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        (b"[1,2]", "invalid_json_line", None),
        (b'"text"', "invalid_json_line", None),
        (b"null", "invalid_json_line", None),
        (b"7", "invalid_json_line", None),
        (b"{", "invalid_json_line", None),
        (b'{"custom_id":"a"} {}', "invalid_json_line", None),
        (b'{"custom_id":"\xff"}', "invalid_json_line", None),
        (b"[" * 900, "invalid_json_line", None),
        (line(body=[1]), "invalid_json_line", "body"),
        (line(body="text"), "invalid_json_line", "body"),
        (GOOD | {"body": None}, "invalid_json_line", "body"),
        (line(body=None), "invalid_json_line", "body"),
    ],
)
def test_what_is_no_object_is_an_invalid_json_line(given: object, code: str, param: str | None) -> None:
    """R56 headroomlabs-ai/headroom PR#2316: a line that is valid JSON but no object crashes the batch."""
    text = given if isinstance(given, bytes) else json.dumps(given).encode()
    error = only_error(jsonl(line("first")) + text)
    assert (error.code, error.line, error.param) == (code, 2, param)


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        (line(method=None), "invalid_method", "method"),
        (line(method="GET"), "invalid_method", "method"),
        (line(method=5), "invalid_method", "method"),
        (line(url=None), "missing_url", "url"),
        (line(url="/v1/nonsense"), "url_mismatch", "url"),
        (line(url="/v1/embeddings"), "url_mismatch", "url"),
        (line(url={"a": 1}), "url_mismatch", "url"),
        (line(custom_id=""), "missing_custom_id", "custom_id"),
        (line(custom_id=7), "missing_custom_id", "custom_id"),
        ({**GOOD, "custom_id": None}, "missing_custom_id", "custom_id"),
        (line(custom_id="x" * 513), "invalid_custom_id", "custom_id"),
        (line(custom_id="a\0b"), "invalid_custom_id", "custom_id"),
        (line(body={}), "invalid_body", "body.model"),
        (line(body={"model": 5}), "invalid_body", "body.model"),
        (line(body={"model": "m", "stream": True}), "stream_not_allowed", "body.stream"),
        (line(body={"model": "m", "stream": "yes"}), "invalid_body", "body.stream"),
    ],
)
def test_a_line_that_asks_for_something_else_is_refused_with_its_number(given: object, code: str, param: str) -> None:
    """R112 BerriAI/litellm PR#37527: a bad batch upload is found only after the provider round trip."""
    error = only_error(jsonl(line("first"), line("second"), given), longest=2000)
    assert (error.code, error.line, error.param) == (code, 3, param)


def test_plain_notes_are_refused_line_by_line() -> None:
    errors = read(b"Dear all,\n\nthese are notes.\n")
    assert [(error.code, error.line) for error in errors if isinstance(error, LineError)] == [
        ("invalid_json_line", 1),
        ("invalid_json_line", 3),
    ]


def test_a_custom_id_stands_once() -> None:
    """R54 sgl-project/sglang#1415, llm-d/llm-d-batch-gateway#147: duplicate custom_id makes results ambiguous."""
    error = only_error(jsonl(line("a"), line("b"), line("a")))
    assert (error.code, error.line) == ("duplicate_custom_id", 3)


def test_an_unfinished_stream_field_is_fine() -> None:
    assert isinstance(read(jsonl(line(body={"model": "m", "stream": False})))[0], NewItem)
    assert isinstance(read(jsonl(line(body={"model": "m", "stream": None})))[0], NewItem)


def test_models_of_one_pool_may_differ_and_get_their_real_names() -> None:
    pools = {"small": ("a", "small-7b"), "large": ("a", "large"), "far": ("b", "far")}
    reader = LineReader(endpoint=ENDPOINT, route=pools.get, most=9, longest=999)
    names = ("small", "large", "far", "none", "small")
    lines = cut(jsonl(*(line(str(n), body={"model": name}) for n, name in enumerate(names))))
    found = [each for raw in lines if (each := reader.read(raw)) is not None]
    assert [each.model if isinstance(each, NewItem) else each.code for each in found] == [
        "small-7b",
        "large",
        "model_mismatch",
        "model_not_found",
        "small-7b",
    ]
    assert (reader.pool, reader.model) == ("a", None)


def test_one_model_of_all_lines_is_the_batchs() -> None:
    reader = LineReader(endpoint=ENDPOINT, route=one_pool, most=9, longest=999)
    for raw in cut(jsonl(line("a"), line("b"))):
        reader.read(raw)
    assert (reader.pool, reader.model, reader.count) == ("default", "m", 2)


def test_one_line_too_many_is_an_error_and_so_are_endless_blank_lines() -> None:
    error = only_error(jsonl(*(line(str(n)) for n in range(4))), most=3)
    assert (error.code, error.line) == ("too_many_lines", 4)
    assert isinstance(read(b"\n" * 8, most=3)[0], LineError)
    assert read(b"\n" * 6, most=3) == []


def test_a_line_that_is_too_long_is_an_error_and_the_next_is_read() -> None:
    first, second = read(jsonl(line("x" * 2000)) + jsonl(line("b")))
    assert isinstance(first, LineError)
    assert (first.code, first.line) == ("line_too_long", 1)
    assert isinstance(second, NewItem)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("tail", [b"", b"\n", b"\r\n\r\n \n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_byte_order_mark_line_ends_and_blank_lines_do_not_matter(bom: bytes, end: bytes, tail: bytes) -> None:
    texts = [json.dumps(line(name)).encode() for name in ("a", "b")]
    data = bom + end.join(texts) + tail
    items = read(data)
    assert [data[i.offset : i.offset + i.length] for i in items if isinstance(i, NewItem)] == texts


@given(st.binary(max_size=200), st.integers(1, 50), st.integers(1, 60))
def test_however_a_file_is_cut_its_lines_are_the_same(data: bytes, pieces: int, longest: int) -> None:
    lines = cut(data, pieces=pieces, longest=longest)
    assert lines == cut(data, pieces=10_000, longest=longest)
    assert [each.number for each in lines] == list(range(1, data.count(b"\n") + 2))
    for each in lines:
        if each.text is not None:
            assert data[each.offset : each.offset + each.length] == each.text


@given(st.binary(max_size=80), st.sampled_from([lambda b: b, lambda b: b'{"custom_id":' + b + b"}"]))
def test_no_bytes_make_the_reader_fail(data: bytes, wrap: Callable[[bytes], bytes]) -> None:
    for each in read(wrap(data)):
        assert isinstance(each, LineError) or each.custom_id
