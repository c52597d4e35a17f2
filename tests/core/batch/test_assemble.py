import copy
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.batch.assemble import ASSEMBLERS, BadStream
from core.simulation.answers import ChatFormat, CompletionFormat, ResponseFormat
from core.simulation.prompts import Prompt

Json = dict[str, Any]
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
UNKNOWN = st.dictionaries(st.sampled_from(["x_one", "x_two", "x_three"]), SCALARS, max_size=2)
LOGPROB = st.fixed_dictionaries(
    {"token": TEXT, "logprob": st.floats(-20, 0), "bytes": st.none() | st.lists(st.integers(0, 255), max_size=3)}
)
TOOL_CALL = st.fixed_dictionaries(
    {
        "id": TEXT,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT}),
    }
)


def assembled(path: str, pieces: list[bytes]) -> Json:
    """Return the body that an endpoint's stream is assembled into."""
    assembler = ASSEMBLERS[path]()
    for piece in pieces:
        assembler.feed(piece)
    body: Json = msgspec.json.decode(assembler.finish())
    return body


def event(chunk: Json | str) -> bytes:
    data = chunk.encode() if isinstance(chunk, str) else msgspec.json.encode(chunk)
    return b"data: " + data + b"\n\n"


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    """Return `data` in pieces of any size."""
    pieces = []
    while data:
        size = chance.choice((1, 2, 7, 40, 500))
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def parts(text: str, chance: random.Random) -> list[str]:
    pieces = []
    while text:
        size = chance.randint(1, 4)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


# Chat


@st.composite
def messages(draw: st.DrawFn) -> Json:
    calls = draw(st.lists(TOOL_CALL, max_size=2))
    refusal = draw(st.none() | TEXT)
    message: Json = {"role": "assistant"}
    message["content"] = draw(st.none() | TEXT) if calls or refusal else draw(st.none() | TEXT | st.just(""))
    for name in ("reasoning_content", "reasoning", "x_notes"):
        if draw(st.booleans()):
            message[name] = draw(TEXT)
    if draw(st.booleans()) or refusal:
        message["refusal"] = refusal
    if calls:
        message["tool_calls"] = calls
    return message


@st.composite
def chat_bodies(draw: st.DrawFn) -> Json:
    choices = []
    for index in range(draw(st.integers(1, 3))):
        logprobs = st.fixed_dictionaries({"content": st.lists(LOGPROB, min_size=1, max_size=4), "refusal": st.none()})
        choices.append(
            {
                "index": index,
                "message": draw(messages()),
                "logprobs": draw(st.none() | logprobs),
                "finish_reason": draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"])),
                **draw(UNKNOWN),
            }
        )
    head = {"id": draw(TEXT), "object": "chat.completion", "created": draw(st.integers(0, 2**40)), "model": draw(TEXT)}
    tail = {"service_tier": draw(st.none() | TEXT), "system_fingerprint": draw(st.none() | TEXT), **draw(UNKNOWN)}
    usage = {"usage": {"prompt_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 1}}}
    return {**head, "choices": choices, **tail, **(usage if draw(st.booleans()) else {})}


def deltas(message: Json, chance: random.Random) -> list[Json]:
    """Return a message as a server streams it: role first, then texts and tool calls in pieces."""
    nulls = {name: None for name in ("content", "refusal") if name in message}
    first: Json = {"role": message["role"], **nulls}
    if message["content"] == "" or (message["content"] is None and message.get("tool_calls") and chance.random() < 0.5):
        first["content"] = ""
    found: list[Json] = [first]
    for name, value in message.items():
        if name not in ("role", "tool_calls") and value:
            found += [{name: part} for part in parts(value, chance)]
    for index, call in enumerate(message.get("tool_calls", [])):
        function = {"name": call["function"]["name"], "arguments": ""}
        found.append({"tool_calls": [{"index": index, "id": call["id"], "type": call["type"], "function": function}]})
        for part in parts(call["function"]["arguments"], chance):
            found.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    return found


def choice_chunks(choice: Json, chance: random.Random) -> list[Json]:
    logprobs = choice["logprobs"]
    tokens = list(logprobs["content"]) if logprobs else []
    chunks: list[Json] = []
    for delta in deltas(choice["message"], chance):
        chunk: Json = {"index": choice["index"], "delta": delta, "logprobs": None, "finish_reason": None}
        if tokens and chance.random() < 0.5:
            chunk["logprobs"] = {"content": [tokens.pop(0)], "refusal": None}
        chunks.append(chunk)
    last = {name: value for name, value in choice.items() if name not in ("message", "logprobs")}
    last_logprobs = {"content": tokens, "refusal": None} if logprobs else None
    return [*chunks, {**last, "delta": {}, "logprobs": last_logprobs}]


def chat_stream(body: Json, chance: random.Random) -> bytes:
    head = {name: value for name, value in body.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    queues = [choice_chunks(choice, chance) for choice in body["choices"]]
    events = []
    while queues:
        queue = chance.choice(queues)
        events.append(event({**head, "choices": [queue.pop(0)], "usage": None, "obfuscation": "xyz"}))
        queues = [each for each in queues if each]
        if chance.random() < 0.1:
            events.append(b": still here\n\n")
    if "usage" in body:
        events.append(event({**head, "choices": [], "usage": body["usage"]}))
    return b"".join([*events, event("[DONE]")])


@settings(max_examples=300, deadline=None)
@given(chat_bodies(), st.integers(0, 2**32))
def test_an_assembled_chat_answer_equals_the_plain_one_field_by_field(body: Json, seed: int) -> None:
    chance = random.Random(seed)
    stream = chat_stream(copy.deepcopy(body), chance)
    if chance.random() < 0.3:
        stream = stream.replace(b"\n", b"\r\n")
    assert assembled("/chat/completions", cut(stream, chance)) == body


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_an_assembled_completion_equals_the_plain_one(data: st.DataObject) -> None:
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    lists = st.lists(TEXT, min_size=1, max_size=4)
    choices = [
        {
            "index": index,
            "text": data.draw(st.text(max_size=12)),
            "logprobs": data.draw(st.none() | st.fixed_dictionaries({"tokens": lists, "text_offset": lists})),
            "finish_reason": data.draw(st.sampled_from(["stop", "length"])),
        }
        for index in range(data.draw(st.integers(1, 3)))
    ]
    body = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": choices, "usage": {"a": 1}}
    head = {name: body[name] for name in ("id", "object", "created", "model")}
    events = []
    for choice in choices:
        for part in parts(str(choice["text"]), chance):
            events.append({**head, "choices": [{**choice, "text": part, "logprobs": None, "finish_reason": None}]})
        events.append({**head, "choices": [{**choice, "text": ""}]})
    stream = b"".join(map(event, [*events, {**head, "choices": [], "usage": {"a": 1}}, "[DONE]"]))
    assert assembled("/completions", cut(stream, chance)) == body


@pytest.mark.parametrize(
    ("path", "form"),
    [("/chat/completions", ChatFormat), ("/completions", CompletionFormat), ("/responses", ResponseFormat)],
)
def test_the_simulated_servers_streams_assemble_into_its_plain_answers(path: str, form: Any) -> None:
    def made() -> Any:
        return form(Prompt("m", True, 7, 3, include_usage=True), 1, 1_700_000_000)

    streaming = made()
    stream = streaming.opening() + b"".join(streaming.delta(word) for word in ("the ", "tide ", "comes "))
    whole = msgspec.json.decode(made().whole(3))
    assert assembled(path, [stream + streaming.closing(3)]) == whole


# What is no proper answer


def test_an_error_inside_the_stream_is_told_with_its_status() -> None:
    stream = event({"error": {"message": "out of memory", "code": 400, "type": "BadRequest"}}) + event("[DONE]")
    with pytest.raises(BadStream, match="out of memory") as told:
        assembled("/chat/completions", [stream])
    assert told.value.status == 400
    assert told.value.error == {"message": "out of memory", "code": 400, "type": "BadRequest"}


def test_an_error_event_of_responses_is_told() -> None:
    with pytest.raises(BadStream, match="too long"):
        assembled("/responses", [event({"type": "error", "code": "context", "message": "too long"})])


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        event("[1]"),
        event("nonsense"),
        event({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}),
        event({"choices": [3]}),
        event({"choices": [{"index": [], "delta": {}}]}),
        event({"choices": [{"index": 0, "delta": "text"}]}),
    ],
)
def test_what_is_no_answer_or_was_cut_is_refused(stream: bytes) -> None:
    with pytest.raises(BadStream):
        assembled("/chat/completions", [stream])


def test_of_several_choices_one_that_never_ended_is_a_cut() -> None:
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]},
        {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]},
    ]
    with pytest.raises(BadStream, match="end mark"):
        assembled("/chat/completions", [event(chunk) for chunk in chunks])


def test_a_stream_without_done_but_with_its_finish_reason_is_whole() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    body = assembled("/chat/completions", [event(chunk).rstrip(b"\n")])
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "a"}


def test_custom_tool_calls_and_audio_do_not_get_lost() -> None:
    def chunk(delta: Json) -> bytes:
        return event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    stream = [
        chunk({"role": "assistant", "content": None}),
        chunk({"tool_calls": [{"index": 1, "id": "b", "type": "custom", "custom": {"name": "n", "input": "x"}}]}),
        chunk({"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "n", "input": ""}}]}),
        chunk({"tool_calls": [{"index": 1, "custom": {"input": "y"}}]}),
        chunk({"audio": {"id": "s", "transcript": "he"}}),
        chunk({"audio": {"transcript": "llo", "expires_at": 5}}),
        event("[DONE]"),
    ]
    message = assembled("/chat/completions", stream)["choices"][0]["message"]
    assert [call["custom"]["input"] for call in message["tool_calls"]] == ["", "xy"]
    assert message["audio"] == {"id": "s", "transcript": "hello", "expires_at": 5}


def test_an_emoji_cut_in_two_stays_whole() -> None:
    """R36 api7/aisix#111."""
    text = "你好 👩‍👩‍👧‍👦 é"
    stream = event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}) + event("[DONE]")
    body = assembled("/chat/completions", [stream[place : place + 1] for place in range(len(stream))])
    assert body["choices"][0]["message"]["content"] == text
