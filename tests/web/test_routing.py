import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import RequestError
from web.routing import read_routing, with_model

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_name(body: bytes) -> None:
    refusal = None
    try:
        assert read_routing(body, "/chat/completions").model
    except RequestError as error:
        refusal = (error.status, error.code, error.param)
    assert refusal in (None, *((400, "invalid_request", param) for param in ("body", "model", "stream")))


@given(st.dictionaries(st.sampled_from(["model", "stream", "max_tokens", "service_tier", "other"]), JSON))
def test_any_object_is_read_or_refused_by_name(fields: dict[str, object]) -> None:
    body = msgspec.json.encode(fields)
    good = isinstance(fields.get("model"), str) and fields["model"] != ""
    stream = fields.get("stream")
    if good and (stream is None or isinstance(stream, bool)):
        routing = read_routing(body, "/chat/completions")
        assert (routing.model, routing.stream) == (fields["model"], bool(stream))
    else:
        with pytest.raises(RequestError):
            read_routing(body, "/chat/completions")


def test_endpoints_that_know_no_model_need_none() -> None:
    assert read_routing(b'{"input":"x"}', "/moderations").model is None


@given(st.dictionaries(st.text(), JSON))
def test_an_alias_changes_the_model_and_nothing_else(fields: dict[str, object]) -> None:
    body = msgspec.json.encode({**fields, "model": "alias"})
    changed = msgspec.json.decode(with_model(body, "real"))
    assert changed == {**fields, "model": "real"}
