import msgspec

from core.batch.attempts import may_stream, streaming, with_model, with_priority


def fields(**given: object) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.items()}


def told(made: dict[str, msgspec.Raw]) -> dict[str, object]:
    return msgspec.json.decode(msgspec.json.encode(made), type=dict[str, object])


def test_the_engines_priority_is_sent_only_where_the_pool_says_so_and_a_lines_own_wins() -> None:
    assert told(with_priority(fields(a=1), None)) == {"a": 1}
    assert told(with_priority(fields(a=1), 10)) == {"priority": 10, "a": 1}
    assert told(with_priority(fields(priority=3), 10)) == {"priority": 3}


def test_a_stream_is_asked_for_with_its_usage_and_other_options_stay() -> None:
    asked = told(streaming(fields(model="m", stream_options={"x": 1}), "/chat/completions"))
    assert asked == {"model": "m", "stream": True, "stream_options": {"x": 1, "include_usage": True}}
    assert "stream_options" not in told(streaming(fields(model="m"), "/responses"))


def test_what_cannot_be_put_together_again_is_not_streamed() -> None:
    assert may_stream("/chat/completions", fields(model="m", audio=None))
    assert not may_stream("/chat/completions", fields(model="m", modalities=["text", "audio"]))
    assert not may_stream("/completions", fields(best_of=3))
    assert not may_stream("/embeddings", fields())


def test_an_aliased_model_goes_by_its_servers_name() -> None:
    assert told(with_model(fields(model="alias"), "real")) == {"model": "real"}
