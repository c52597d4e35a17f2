"""Reads an answer as it passes: content pieces, usage, and whether a stream came to its proper end. Pure."""

from typing import Annotated

import msgspec

# What an answer can have at most; more is nonsense, and would not fit where it is stored.
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_UNREADABLE = (msgspec.DecodeError, RecursionError)
_MOST_TAIL = 1 << 20
_MOST_BODY = 4 << 20
_NO_CONTENT = (
    b'"content":""',
    b'"content": ""',
    b'"choices":[]',
    b'"choices": []',
    b'"delta":{}',
    b'"delta": {}',
    b"data: [DONE]",
    b"data:[DONE]",
)


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None


class _Error(msgspec.Struct):
    code: object = None


class _Inner(msgspec.Struct):
    usage: _Usage | None = None
    error: _Error | str | None = None


class _Event(msgspec.Struct):
    usage: _Usage | None = None
    response: _Inner | None = None
    error: _Error | str | None = None


_decode = msgspec.json.Decoder(_Event).decode


class _Scan:
    """What both kinds of answer have in common: the usage that the server reported."""

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None

    def _note_usage(self, text: bytes) -> None:
        try:
            event = _decode(text)
        except _UNREADABLE:
            return
        usage = event.usage or (event.response.usage if event.response else None)
        if usage is None:
            return
        self.input_tokens = _first(usage.prompt_tokens, usage.input_tokens, self.input_tokens)
        self.output_tokens = _first(usage.completion_tokens, usage.output_tokens, self.output_tokens)


class StreamScan(_Scan):
    """Follows an event stream, however it was cut into pieces.

    `pieces` counts events that carry content. `complete` tells whether the stream's own end mark was seen: `[DONE]` or
    a finish reason for chat and completions, a closing event for responses; an error told inside the stream ends it,
    too. Streams of other endpoints have no mark. `failed` is the status of such an error, 500 where it names none.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.pieces = 0
        self.failed = 0
        self._tail = b""
        self._responses = path.endswith("/responses")
        self._marked = self._responses or path.endswith("/completions")
        self._ended = False

    @property
    def complete(self) -> bool:
        """Tell whether a clean end now is the end that the server meant."""
        return self._ended or self.failed > 0 or not self._marked

    @property
    def inside_event(self) -> bool:
        """Tell whether the last byte seen stands inside a line."""
        return bool(self._tail)

    def feed(self, piece: bytes) -> int:
        """Take the next piece as it arrived; return how many events with content it completed."""
        text = self._tail + piece if self._tail else piece
        end = text.rfind(b"\n") + 1
        self._tail = text[end:] if len(text) - end <= _MOST_TAIL else b""
        if end == 0:
            return 0
        lines = text if end == len(text) else text[:end]
        count = lines.count(b'.delta"') if self._responses else self._content_events(lines)
        self.pieces += count
        self._ended = self._ended or self._ends(lines)
        if b'"usage"' in lines:
            self._find_usage(lines)
        if b'"error"' in lines:
            self._find_error(lines)
        return count

    def finish(self) -> None:
        """Do nothing: all that a stream tells was read as it passed."""

    def _content_events(self, lines: bytes) -> int:
        events = lines.count(b"data:")
        if events == 0:
            return 0
        return max(0, events - sum(lines.count(mark) for mark in _NO_CONTENT))

    def _ends(self, lines: bytes) -> bool:
        if self._responses:
            return (
                b'"response.completed"' in lines or b'"response.incomplete"' in lines or b'"response.failed"' in lines
            )
        return _says_done(lines) or b'"finish_reason":"' in lines or b'"finish_reason": "' in lines

    def _find_usage(self, lines: bytes) -> None:
        for line in lines.splitlines():
            if line.startswith(b"data:") and b'"usage"' in line:
                self._note_usage(line[5:])

    def _find_error(self, lines: bytes) -> None:
        for line in lines.splitlines():
            if line.startswith(b"data:") and b'"error"' in line:
                try:
                    event = _decode(line[5:])
                except _UNREADABLE:
                    continue
                error = event.error or (event.response.error if event.response else None)
                if error is not None:
                    code = error.code if isinstance(error, _Error) else None
                    self.failed = code if isinstance(code, int) and 400 <= code < 600 else 500


class BodyScan(_Scan):
    """Follows a whole JSON body, of which it keeps at most 4 MiB to find the usage."""

    pieces = 0
    failed = 0
    complete = True
    inside_event = False

    def __init__(self) -> None:
        super().__init__()
        self._body: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> int:
        """Take the next piece; a body carries no content events."""
        self._size += len(piece)
        if self._size <= _MOST_BODY:
            self._body.append(piece)
        return 0

    def finish(self) -> None:
        """Look for the usage, now that the body is whole."""
        if self._size <= _MOST_BODY:
            self._note_usage(b"".join(self._body))


def _says_done(lines: bytes) -> bool:
    """Tell whether one of the lines is the end mark; its word may also stand inside of what a model wrote."""
    return b"[DONE]" in lines and any(
        line[5:].strip() == b"[DONE]" for line in lines.splitlines() if line[:5] == b"data:"
    )


def _first(*values: int | None) -> int | None:
    for value in values:
        if value is not None:
            return value
    return None
