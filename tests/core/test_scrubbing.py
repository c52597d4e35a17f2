"""R99 BerriAI/litellm#15799: a provider that echoes the key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.scrubbing import MASK, Scrubber

KEY = "sk-canary-7731-0123456789"


@pytest.mark.parametrize("text", [KEY, f"Bearer {KEY}", f'{{"error":{{"message":"bad key {KEY}."}}}}', KEY * 3])
def test_the_key_is_masked_in_an_error(text: str) -> None:
    cleaned = Scrubber(KEY).clean(text.encode())
    assert KEY.encode() not in cleaned
    assert MASK in cleaned


def test_the_key_is_masked_as_json_and_urls_spell_it() -> None:
    scrubber = Scrubber('sk/a"b+c=012345')
    for spelled in ('sk/a"b+c=012345', 'sk/a\\"b+c=012345', "sk%2Fa%22b%2Bc%3D012345", "sk/a%22b%2Bc%3D012345"):
        assert scrubber.clean(f"x{spelled}y".encode()) == b"x********y"


def test_a_key_that_may_be_a_word_is_left_in_answers_and_a_very_short_one_in_errors() -> None:
    assert Scrubber("ollama").stream() is None
    assert Scrubber("ollama").clean(b"bad key ollama") == b"bad key ********"
    assert Scrubber("x").clean(b"x is wrong") == b"x is wrong"


@given(st.data())
def test_the_key_is_masked_however_the_answer_is_cut(data: st.DataObject) -> None:
    parts = st.sampled_from([KEY, "data: ", "\n\n", "s", "sk-", KEY[:9], "text", '"'])
    whole = "".join(data.draw(st.lists(parts, max_size=12))).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    stream = Scrubber(KEY).stream()
    assert stream is not None
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    passed = b"".join([*map(stream.feed, pieces), stream.rest()])
    assert passed == whole.replace(KEY.encode(), MASK)


def test_a_piece_that_ends_an_event_never_waits() -> None:
    stream = Scrubber(KEY).stream()
    assert stream is not None
    for piece in (b'data: {"a":"s"}\n\n', b"data: [DONE]\n\n", b"{}"):
        assert stream.feed(piece) == piece
    assert stream.rest() == b""
