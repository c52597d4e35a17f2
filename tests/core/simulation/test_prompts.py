"""Reading a request as the simulated server does."""

import json
from typing import Any

import pytest

from core.errors import InvalidValue
from core.simulation.prompts import Wishes, read_prompt, read_wishes


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def test_the_work_comes_from_the_body() -> None:
    prompt = read_prompt(body(messages=[{"role": "user", "content": "x" * 400}], max_tokens=7, stream=True))
    assert (prompt.model, prompt.stream, prompt.output_tokens) == ("m", True, 7)
    assert 100 <= prompt.prompt_tokens <= 130


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_each_endpoints_maximum_is_the_answers_length(name: str) -> None:
    assert read_prompt(body(**{name: 9})).output_tokens == 9


def test_without_a_maximum_the_length_is_drawn_and_always_the_same() -> None:
    drawn = {read_prompt(body(user=str(number))).output_tokens for number in range(50)}
    assert len(drawn) > 20
    assert read_prompt(body(user="a")) == read_prompt(body(user="a"))


def test_wishes_in_the_body_go_before_those_from_elsewhere() -> None:
    elsewhere = Wishes(status=500, delay=2.0)
    prompt = read_prompt(body(sim={"status": 429, "prompt_tokens": 5}), wishes=elsewhere)
    assert prompt.wishes == Wishes(status=429, delay=2.0, prompt_tokens=5)
    assert prompt.prompt_tokens == 5


def test_null_fields_are_as_good_as_absent() -> None:
    prompt = read_prompt(body(max_tokens=None, stream=None, stream_options=None, sim=None, priority=None))
    assert not prompt.stream
    assert not prompt.include_usage


@pytest.mark.parametrize(("given", "count"), [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2)])
def test_texts_to_embed_are_counted_in_every_form(given: Any, count: int) -> None:
    prompt = read_prompt(body(input=given), embeddings=True)
    assert (prompt.inputs, prompt.output_tokens, prompt.stream) == (count, 1, False)


@pytest.mark.parametrize("text", [b"", b"[]", b'"x"', b'{"model": 1}', b'{"sim": {"statsu": 500}}'])
def test_a_body_of_the_wrong_shape_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidValue):
        read_prompt(text)


def test_a_header_with_a_wrong_wish_is_refused() -> None:
    with pytest.raises(InvalidValue, match="delay"):
        read_wishes('{"delay": -1}')
