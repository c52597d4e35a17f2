"""Reads a model request as the simulated server does: how much to prefill, how much to generate, what to do wrong."""

import math
import zlib
from random import Random
from typing import Annotated, Any

import msgspec

from core.errors import InvalidValue

BYTES_PER_TOKEN = 4
"""Rough size of a token of English text; the prompt's length in tokens is the body's length divided by this."""

OUTPUT_MEDIAN, OUTPUT_SIGMA, OUTPUT_MAX = 150, 0.8, 2000
"""Lognormal answer length, in tokens, where the request sets no maximum."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Status = Annotated[int, msgspec.Meta(ge=400, le=599)]


class Wishes(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """What a test may ask of one answer, in the body's field `sim` or, as JSON, in the header `x-sim`.

    `prompt_tokens`, `output_tokens` and `text` set the work and the words; `tag` names the request in the server's
    log. `status` (with `message` and `retry_after`, as the header will say it) answers with an error at once. `delay`
    waits that many seconds before the request reaches the engine. `reset_after` breaks the connection off after so
    many chunks of a stream (0: after the head), `truncate_after` ends the stream cleanly there, without finish reason
    and [DONE]; an unstreamed answer breaks off half way. `one_byte` sends each byte alone; `gzip` compresses.
    """

    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    text: str | None = None
    tag: str = ""
    status: Status | None = None
    message: str = "simulated failure"
    retry_after: str | int | None = None
    delay: Seconds = 0.0
    reset_after: Count | None = None
    truncate_after: Count | None = None
    one_byte: bool = False
    gzip: bool = False

    def over(self, other: "Wishes") -> "Wishes":
        """Return these wishes, with `other`'s where these say nothing."""
        return msgspec.convert({**msgspec.to_builtins(other), **msgspec.to_builtins(self)}, Wishes)


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: str = "simulated"
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    stream_options: _StreamOptions | None = None
    priority: int | None = None
    encoding_format: str | None = None
    sim: Wishes | None = None


class _EmbeddingInput(msgspec.Struct):
    input: Any = None


class Prompt(msgspec.Struct, frozen=True):
    """A model request, reduced to what the simulation needs. Lengths in tokens; `inputs` counts texts to embed."""

    model: str
    stream: bool
    prompt_tokens: int
    output_tokens: int
    include_usage: bool = False
    priority: int = 0
    inputs: int = 1
    base64: bool = False
    wishes: Wishes = Wishes()


NO_WISHES = Wishes()
_bodies = msgspec.json.Decoder(_Body)
_inputs = msgspec.json.Decoder(_EmbeddingInput)
_wishes = msgspec.json.Decoder(Wishes)


def read_wishes(text: str | bytes) -> Wishes:
    """Parse the header `x-sim`. Raises InvalidValue."""
    try:
        return _wishes.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidValue("x-sim", str(error)) from None


def read_prompt(body: bytes, *, embeddings: bool = False, wishes: Wishes = NO_WISHES) -> Prompt:
    """Parse a request's body; what its field `sim` wishes goes before `wishes`. Raises InvalidValue."""
    try:
        read = _bodies.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidValue("body", str(error)) from None
    if read.sim is not None:
        wishes = read.sim.over(wishes) if wishes is not NO_WISHES else read.sim
    inputs = _count_inputs(body) if embeddings else 1
    return Prompt(
        model=read.model,
        stream=bool(read.stream) and not embeddings,
        prompt_tokens=wishes.prompt_tokens or max(1, len(body) // BYTES_PER_TOKEN),
        output_tokens=1 if embeddings else _output_tokens(read, wishes, body),
        include_usage=bool(read.stream_options and read.stream_options.include_usage),
        priority=read.priority or 0,
        inputs=inputs,
        base64=read.encoding_format == "base64",
        wishes=wishes,
    )


def _output_tokens(body: _Body, wishes: Wishes, raw: bytes) -> int:
    if wishes.text is not None:
        return max(1, len(wishes.text))
    asked = wishes.output_tokens or body.max_completion_tokens or body.max_tokens or body.max_output_tokens
    if asked is not None:
        return max(1, asked)
    chance = Random(zlib.crc32(raw))
    return max(1, min(OUTPUT_MAX, int(chance.lognormvariate(math.log(OUTPUT_MEDIAN), OUTPUT_SIGMA))))


def _count_inputs(body: bytes) -> int:
    given = _inputs.decode(body).input
    if isinstance(given, list) and given and not isinstance(given[0], int):
        return len(given)
    return 1
