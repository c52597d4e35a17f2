"""Input files line by line: one line becomes an item or an error. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from core.batch.values import LineError, NewItem

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
BOM = b"\xef\xbb\xbf"
LONGEST_ID = 512
LONGEST_MODEL = 256
# A rule of thumb for text: a token has about four bytes.
BYTES_PER_TOKEN = 4

Route = Callable[[str], tuple[str, str] | None]


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line of a file: its number, from 1, its place in bytes and its text, `None` where that is too long."""

    number: int
    offset: int
    length: int
    text: bytes | None


class LineCutter:
    """Cuts a file that comes in pieces into lines, without their ends and without the byte order mark.

    A blank line has the text b"". Keeps no more than one line of at most `longest` bytes.
    """

    def __init__(self, *, longest: int) -> None:
        self._longest = longest
        self._rest = b""
        self._start = 0
        self._skipped = 0
        self._number = 0

    def feed(self, piece: bytes) -> Iterator[RawLine]:
        """Yield the lines that end in `piece`, the next one in file order."""
        *whole, rest = piece.split(b"\n")
        for part in whole:
            yield self._end(part)
        self._rest += rest
        if len(self._rest) > self._longest:
            self._skipped += len(self._rest)
            self._rest = b""

    def finish(self) -> Iterator[RawLine]:
        """Yield what stands behind the last line end."""
        yield self._end(b"")

    def _end(self, part: bytes) -> RawLine:
        text, skipped, start = self._rest + part, self._skipped, self._start
        self._rest, self._skipped = b"", 0
        self._start += skipped + len(text) + 1
        self._number += 1
        if skipped or len(text) > self._longest:
            return RawLine(self._number, start, skipped + len(text), None)
        if self._number == 1 and text.startswith(BOM):
            text, start = text[len(BOM) :], start + len(BOM)
        text = text.rstrip(b"\r \t")
        return RawLine(self._number, start, len(text), text)


class _Line(msgspec.Struct):
    custom_id: object = None
    method: object = msgspec.UNSET
    url: object = msgspec.UNSET
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    model: object = None
    stream: object = None
    max_tokens: object = None
    max_completion_tokens: object = None
    max_output_tokens: object = None


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_body = msgspec.json.Decoder(_Body).decode


class _Wrong(Exception):
    """The line cannot be taken; carries code, message and field."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class LineReader:
    """Reads the lines of one batch in order.

    `route` tells which pool serves a model and the model's name there. All lines of a batch go to one pool: `pool` is
    that of the first. `count` is how many lines were not blank. `model` is that of all lines, `None` where they differ.
    """

    def __init__(self, *, endpoint: str, route: Route, most: int, longest: int) -> None:
        self._endpoint = endpoint
        self._route = route
        self._most = most
        self._longest = longest
        self._ids: set[str] = set()
        self._models: dict[str, str] = {}
        self.count = 0
        self.pool: str | None = None

    @property
    def model(self) -> str | None:
        """The model's name at its server where all lines have the same."""
        names = set(self._models.values())
        return names.pop() if len(names) == 1 else None

    def read(self, line: RawLine) -> NewItem | LineError | None:
        """Return the item that the line asks for, what is wrong with it, or nothing for a blank line."""
        blank = line.text == b""
        if blank and line.number <= 2 * self._most + 1:
            return None
        self.count += not blank
        try:
            return self._read(line)
        except _Wrong as wrong:
            return LineError(wrong.code, wrong.message, line.number, wrong.param)

    def _read(self, line: RawLine) -> NewItem:
        if self.count > self._most or not line.length:
            raise _Wrong("too_many_lines", f"The file has more than {self._most:,} requests (setting batch_lines).")
        if line.text is None:
            raise _Wrong("line_too_long", f"The line has {line.length:,} bytes; the most is {self._longest:,}.")
        fields = _fields(line.text)
        custom_id = self._custom_id(fields.custom_id)
        self._check_target(fields)
        body = _body(bytes(fields.body))
        return NewItem(
            index=self.count - 1,
            custom_id=custom_id,
            offset=line.offset,
            length=line.length,
            model=self._model(body.model),
            prompt_tokens=max(1, len(bytes(fields.body)) // BYTES_PER_TOKEN),
            max_tokens=_most_tokens(body),
        )

    def _custom_id(self, given: object) -> str:
        if not isinstance(given, str) or not given:
            raise _Wrong("missing_custom_id", "`custom_id` must be a text that is not empty.", "custom_id")
        if len(given) > LONGEST_ID or "\0" in given:
            message = f"`custom_id` may have {LONGEST_ID} characters and no NUL."
            raise _Wrong("invalid_custom_id", message, "custom_id")
        if given in self._ids:
            raise _Wrong("duplicate_custom_id", f"`custom_id` {given!r:.80} stands in an earlier line.", "custom_id")
        self._ids.add(given)
        return given

    def _check_target(self, fields: _Line) -> None:
        if fields.method != "POST":
            shown = "missing" if fields.method is msgspec.UNSET else f"{fields.method!r:.40}"
            raise _Wrong("invalid_method", f'`method` is {shown}; it must be "POST".', "method")
        if fields.url is msgspec.UNSET:
            raise _Wrong("missing_url", f"`url` is missing; it must be {self._endpoint!r}.", "url")
        if fields.url != self._endpoint:
            message = f"`url` is {fields.url!r:.80}; the batch's endpoint is {self._endpoint!r}."
            raise _Wrong("url_mismatch", message, "url")

    def _model(self, given: object) -> str:
        if not isinstance(given, str) or not given:
            raise _Wrong("invalid_body", "`body.model` must be the name of a model.", "body.model")
        known = self._models.get(given)
        if known is not None:
            return known
        found = self._route(given) if len(given) <= LONGEST_MODEL and "\0" not in given else None
        if found is None:
            raise _Wrong("model_not_found", f"No pool serves the model {given!r:.80}.", "body.model")
        pool, name = found
        self.pool = self.pool or pool
        if pool != self.pool:
            message = f"The model {given!r:.80} is served by another pool than those of earlier lines."
            raise _Wrong("model_mismatch", message, "body.model")
        self._models[given] = name
        return name


def _fields(text: bytes) -> _Line:
    try:
        text.isascii() or text.decode()
        return _decode_line(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _Wrong("invalid_json_line", f"The line is no JSON object: {error!s:.200}.") from None


def _body(raw: bytes) -> _Body:
    try:
        body = _decode_body(raw)
    except (msgspec.DecodeError, RecursionError):
        raise _Wrong("invalid_json_line", "`body` is missing or no JSON object.", "body") from None
    if body.stream is True:
        raise _Wrong("stream_not_allowed", "A batch cannot stream: leave `body.stream` out.", "body.stream")
    if body.stream not in (None, False):
        raise _Wrong("invalid_body", "`body.stream` must be false or absent.", "body.stream")
    return body


def _most_tokens(body: _Body) -> int | None:
    given = (body.max_completion_tokens, body.max_output_tokens, body.max_tokens)
    numbers = (value for value in given if isinstance(value, int) and not isinstance(value, bool))
    # What no column can hold is the model server's to refuse.
    return next((value for value in numbers if 0 <= value < 2**31), None)
