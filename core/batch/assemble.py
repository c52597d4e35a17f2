"""Turns a streamed answer back into the plain body that the server would have sent without streaming. Pure.

Chunks are merged as OpenAI's own clients do: in a delta strings are joined, lists extended (by `index` where their
elements have one), objects merged; elsewhere the latest value that is not null stands.
"""

from typing import Any

import msgspec

_PADDING = "obfuscation"
_FIRST_STANDS = frozenset(("id", "created"))
_LAST_EVENTS = frozenset(("response.completed", "response.incomplete", "response.failed"))
_CLOSING = (b'"response.completed"', b'"response.incomplete"', b'"response.failed"', b'"error"')
_SET_ONCE = frozenset(("id", "type", "role"))
_NOT_JOINED = _SET_ONCE | {"index"}
_EMPTY_WITHOUT_TEXT = ("tool_calls", "function_call", "refusal", "audio")

Json = dict[str, Any]


class BadStream(Exception):
    """A stream that is no proper answer. `status` is the HTTP status that the server gave the fault, if any."""

    def __init__(self, message: str, *, error: Json | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.status = status


class _Events:
    """Cuts a stream of server-sent events into the data of its events."""

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next piece, however the stream was cut; return the data of the events that it completed."""
        lines = (self._tail + piece).split(b"\n")
        self._tail = lines.pop()
        found = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        return found

    def rest(self) -> list[bytes]:
        """Return the data of an event that the end of the stream completed."""
        return self.feed(b"\n\n")


class StreamAssembler:
    """Takes a stream in the pieces in which it arrives, and gives the plain body."""

    def __init__(self) -> None:
        self._events = _Events()
        self._error: Json | None = None

    def feed(self, piece: bytes) -> None:
        """Take the next piece. Raises BadStream for data that is nothing an answer may hold."""
        for data in self._events.feed(piece):
            self._take(data)

    def finish(self) -> bytes:
        """Return the plain body. Raises BadStream where the stream told of an error or was cut."""
        for data in self._events.rest():
            self._take(data)
        if self._error is not None:
            raise _told(self._error)
        return self._body()

    def _take(self, data: bytes) -> None:
        try:
            self._take_data(data)
        except (TypeError, AttributeError, KeyError) as error:
            raise BadStream("the stream holds a chunk of an unknown shape") from error

    def _take_data(self, data: bytes) -> None:
        raise NotImplementedError

    def _body(self) -> bytes:
        raise NotImplementedError

    def _note_error(self, error: object) -> None:
        self._error = error if isinstance(error, dict) else {"message": str(error)}


class ChunkAssembler(StreamAssembler):
    """Assembles the streams of `/chat/completions` and `/completions`."""

    def __init__(self) -> None:
        super().__init__()
        self._top: Json = {}
        self._choices: dict[int, Json] = {}
        self._done = False

    def _take_data(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self._done = True
            return
        chunk = _parsed(data)
        if chunk.get("error"):
            self._note_error(chunk["error"])
            return
        for choice in chunk.pop("choices", None) or ():
            self._take_choice(choice)
        chunk.pop(_PADDING, None)
        for name, value in chunk.items():
            if self._top.get(name) is None or (value is not None and name not in _FIRST_STANDS):
                self._top[name] = value

    def _take_choice(self, choice: Json) -> None:
        index = choice.get("index", 0)
        whole = self._choices.setdefault(index, {"index": index})
        delta = choice.pop("delta", None)
        if delta is not None:
            merge(whole.setdefault("message", {}), delta)
        if isinstance(choice.get("text"), str):
            whole["text"] = whole.get("text", "") + choice.pop("text")
        for name, value in choice.items():
            whole[name] = _latest(whole.get(name), value)

    def _body(self) -> bytes:
        unfinished = any(choice.get("finish_reason") is None for choice in self._choices.values())
        if not self._done and (unfinished or not self._choices):
            raise BadStream("the stream ended before its end mark")
        top = dict(self._top)
        if top.get("usage", 0) is None:
            del top["usage"]
        kind = top.get("object", "chat.completion")
        top["object"] = "chat.completion" if kind == "chat.completion.chunk" else kind
        choices = [_plain_choice(self._choices[index]) for index in sorted(self._choices)]
        head = {name: top.pop(name) for name in ("id", "object", "created", "model") if name in top}
        return msgspec.json.encode({**head, "choices": choices, **top})


class ResponseAssembler(StreamAssembler):
    """Assembles the streams of `/responses`, whose last event holds the plain body."""

    def __init__(self) -> None:
        super().__init__()
        self._response: Json | None = None

    def _take_data(self, data: bytes) -> None:
        if not any(mark in data for mark in _CLOSING):
            return
        event = _parsed(data)
        if event.get("type") == "error":
            self._note_error(event.get("error") or event)
        elif event.get("type") in _LAST_EVENTS:
            self._response = event["response"]

    def _body(self) -> bytes:
        if self._response is None:
            raise BadStream("the stream ended before its end mark")
        return msgspec.json.encode(self._response)


ASSEMBLERS: dict[str, type[StreamAssembler]] = {
    "/chat/completions": ChunkAssembler,
    "/completions": ChunkAssembler,
    "/responses": ResponseAssembler,
}
"""How the streams of each endpoint are assembled, by path below the base URL; others are not streamed."""


def merge(whole: Json, delta: Json) -> None:
    """Merge a delta into what came before it."""
    for name, value in delta.items():
        before = whole.get(name)
        if value is None:
            whole.setdefault(name, None)
        elif before is None:
            whole[name] = _list_by_index(value) if isinstance(value, list) else value
        elif isinstance(before, str) and isinstance(value, str):
            if name not in _SET_ONCE:
                whole[name] = before + value
        elif isinstance(before, dict) and isinstance(value, dict):
            merge(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            _extend(before, value)
        elif name not in _NOT_JOINED:
            whole[name] = value


def _latest(before: Any, value: Any) -> Any:
    """Return what stands of two values beside the delta: lists go on, objects are merged, else the latest counts."""
    if before is None or value is None:
        return before if value is None else value
    if isinstance(before, list) and isinstance(value, list):
        return before + value
    if isinstance(before, dict) and isinstance(value, dict):
        return {**before, **{name: _latest(before.get(name), each) for name, each in value.items()}}
    return value


def _list_by_index(values: list[Any]) -> list[Any]:
    """Return the list with its elements of one index merged."""
    whole: list[Any] = []
    _extend(whole, values)
    return whole


def _extend(whole: list[Any], values: list[Any]) -> None:
    for value in values:
        index = value.get("index") if isinstance(value, dict) else None
        same = None
        if isinstance(index, int):
            same = next((each for each in whole if isinstance(each, dict) and each.get("index") == index), None)
        if same is None:
            whole.append(value)
        else:
            merge(same, value)


def _plain_choice(choice: Json) -> Json:
    """Return the choice as a plain body has it: the message first, its tool calls in order and without an index.

    Chunks may leave `logprobs` out; a plain body has it always, as OpenAI's reference says.
    """
    choice.setdefault("logprobs", None)
    message = choice.get("message")
    if message is None:
        return choice
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        ordered = sorted(calls, key=lambda call: call.get("index", 0))
        calls = [{name: value for name, value in call.items() if name != "index"} for call in ordered]
    rest = {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")}
    if calls is not None:
        rest["tool_calls"] = calls
    content = message.get("content")
    if content == "" and any(rest.get(name) for name in _EMPTY_WITHOUT_TEXT):
        content = None
    plain = {"role": message.get("role") or "assistant", "content": content, **rest}
    after = {name: value for name, value in choice.items() if name not in ("index", "message")}
    return {"index": choice["index"], "message": plain, **after}


def _parsed(data: bytes) -> Json:
    try:
        chunk = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadStream("the stream holds data that is no JSON") from None
    if not isinstance(chunk, dict):
        raise BadStream("the stream holds data that is no JSON object")
    return chunk


def _told(error: Json) -> BadStream:
    code = error.get("code", error.get("status"))
    status = code if isinstance(code, int) and 400 <= code <= 599 else None
    return BadStream(str(error.get("message") or "the server broke off with an error"), error=error, status=status)
