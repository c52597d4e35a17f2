"""Sends one item through its pool's gateway and gathers the answer."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from core.batch.assemble import ASSEMBLERS, BadStream, StreamAssembler
from core.batch.output import request_id
from core.batch.retry import Attempt
from core.batch.values import Batch, ClaimedItem
from core.errors import RequestError
from core.lanes import Lane, Outcome
from core.pools import Pool
from core.ports import Clock
from core.scheduling.answers import is_event_stream, retry_after
from core.scheduling.calls import Call, Headers
from core.scheduling.exchange import Exchange

BYTES_PER_TOKEN = 4
UNKNOWN_ANSWER_TOKENS = 500
"""What an answer without a limit is taken to cost, in tokens, when turns are shared out."""
LONGEST_ERROR = 4096
"""Bytes of an error that are kept."""

_NOT_STREAMED = ("audio", "best_of", "use_beam_search")
_STREAM = re.compile(rb"\bstream(ing|ed|s|_options)?\b", re.IGNORECASE)
_WITHOUT_TOKENS = frozenset(("/embeddings",))

Fields = dict[str, msgspec.Raw]


class _Line(msgspec.Struct):
    body: msgspec.Raw


class _Limits(msgspec.Struct):
    max_completion_tokens: object = None
    max_output_tokens: object = None
    max_tokens: object = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens of one answer."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one attempt: `body` is the plain answer, if the server gave one; `message` tells what went wrong.

    `seconds` is the time from the slot to the end, without any wait for the slot.
    """

    attempt: Attempt
    body: bytes = b""
    message: str = ""
    spent: Spent = Spent()
    seconds: float = 0.0


class ItemReply:
    """Gathers the answer to a durable item (see `core.scheduling.calls.Reply`), streamed or not."""

    def __init__(self, path: str) -> None:
        self.started = False
        self.status = 0
        self.headers: Headers = ()
        self.error: RequestError | None = None
        self._path = path
        self._pieces: list[bytes] = []
        self._stream: StreamAssembler | None = None
        self._bad: BadStream | None = None

    async def start(self, status: int, headers: Headers) -> None:
        """Begin, or begin anew."""
        self.started, self.status, self.headers = True, status, headers
        self._pieces, self._bad = [], None
        streamed = is_event_stream(headers)
        self._stream = ASSEMBLERS[self._path]() if streamed and self._path in ASSEMBLERS else None

    async def send(self, piece: bytes) -> None:
        """Take a piece."""
        if self._stream is None:
            self._pieces.append(piece)
        elif self._bad is None:
            try:
                self._stream.feed(piece)
            except BadStream as bad:
                self._bad = bad

    async def finish(self) -> None:
        """Nothing is left to do."""

    async def heartbeat(self) -> None:
        """Nobody needs a sign of life."""

    async def fail(self, error: RequestError) -> None:
        """Note why there is no answer."""
        self.error = error

    def body(self) -> bytes:
        """Return the plain body. Raises BadStream where it is none."""
        if self._bad is not None:
            raise self._bad
        if self._stream is not None:
            return self._stream.finish()
        body = b"".join(self._pieces)
        if self.status < 300 and not _is_object(body):
            raise BadStream("the answer is no JSON object")
        return body


class ItemSender:
    """Sends items. Chat, completions and responses are streamed from the server and made plain again.

    So batch's first tokens and the time between its tokens are seen, as the controller needs. A pool whose server
    refuses streams is sent plain requests from then on, until the restart.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._plain: set[str] = set()

    async def send(
        self, item: ClaimedItem, batch: Batch, pool: Pool, line: bytes, *, begun: Callable[[Exchange], None]
    ) -> Answer:
        """Send the item whose line of the input file is `line`; `begun` is told of each exchange before it runs."""
        path = batch.endpoint.removeprefix("/v1")
        fields = with_model(msgspec.json.decode(msgspec.json.decode(line, type=_Line).body, type=Fields), item.model)
        fields = with_priority(fields, pool.config.engine_priority)
        streams = pool.config.stream_items and pool.name not in self._plain and may_stream(path, fields)
        answer = await self._send(item, batch, pool, fields, path, begun, stream=streams)
        if not streams or not refuses_stream(answer):
            return answer
        plain = await self._send(item, batch, pool, fields, path, begun, stream=False)
        if plain.attempt.outcome is Outcome.SUCCESS:
            self._plain.add(pool.name)
        return plain

    async def _send(
        self,
        item: ClaimedItem,
        batch: Batch,
        pool: Pool,
        fields: Fields,
        path: str,
        begun: Callable[[Exchange], None],
        *,
        stream: bool,
    ) -> Answer:
        name = request_id(item.batch_id, item.index).encode()
        call = Call(
            id=name.decode(),
            tenant=batch.tenant,
            lane=Lane.BATCH,
            model=item.model,
            path=path,
            body=msgspec.json.encode(streaming(fields, path) if stream else fields),
            headers=[(b"content-type", b"application/json"), (b"x-request-id", name)],
            stream=stream,
            has_tokens=path not in _WITHOUT_TOKENS,
            durable=True,
            source=batch.id,
            key=batch.key or "",
        )
        reply = ItemReply(path)
        exchange = Exchange(pool.gateway, call, reply)
        begun(exchange)
        began = self._clock.monotonic()
        outcome = await exchange.run()
        seconds = max(0.0, self._clock.monotonic() - began - call.queued_s)
        return self._answer(outcome, reply, call, seconds)

    def _answer(self, outcome: Outcome, reply: ItemReply, call: Call, seconds: float) -> Answer:
        if reply.error is not None:
            code, message = reply.error.code, reply.error.message
            return Answer(Attempt(outcome, code=code), message=message, seconds=seconds)
        if outcome in (Outcome.CANCELLED, Outcome.PREEMPTED, Outcome.CLIENT_DISCONNECT):
            return Answer(Attempt(outcome), message="The request was broken off.", seconds=seconds)
        try:
            body = reply.body()
        except BadStream as bad:
            return _bad_answer(bad, seconds)
        if outcome is not Outcome.SUCCESS:
            wait = retry_after(reply.headers, self._clock.now())
            return Answer(Attempt(outcome, reply.status, retry_after=wait), bounded(body), seconds=seconds)
        return Answer(Attempt(outcome, reply.status), body, spent=spent(body, call), seconds=seconds)


def cost(line: bytes) -> float:
    """Return what an item is taken to cost, in tokens, before it is sent: its text and the most it may generate."""
    try:
        limits = msgspec.json.decode(msgspec.json.decode(line, type=_Line).body, type=_Limits)
    except msgspec.DecodeError:
        return float(UNKNOWN_ANSWER_TOKENS)
    given = (limits.max_completion_tokens, limits.max_output_tokens, limits.max_tokens)
    most = next((value for value in given if isinstance(value, int) and value > 0), UNKNOWN_ANSWER_TOKENS)
    return len(line) / BYTES_PER_TOKEN + most


def may_stream(path: str, fields: Fields) -> bool:
    """Tell whether the answer to a body can be streamed and put together again."""
    if path not in ASSEMBLERS or b'"audio"' in bytes(fields.get("modalities", b"")):
        return False
    return not any(bytes(fields.get(name, b"null")) not in (b"null", b"1", b"false") for name in _NOT_STREAMED)


def streaming(fields: Fields, path: str) -> Fields:
    """Return the body that asks for a stream, with usage where that must be asked for."""
    wanted = {**fields, "stream": msgspec.Raw(b"true")}
    if path != "/responses":
        options = msgspec.json.decode(fields["stream_options"]) if "stream_options" in fields else None
        asked = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        wanted["stream_options"] = msgspec.Raw(msgspec.json.encode(asked))
    return wanted


def with_model(fields: Fields, model: str) -> Fields:
    """Return the body with the name by which the model's server knows it."""
    return {**fields, "model": msgspec.Raw(msgspec.json.encode(model))} if model else fields


def with_priority(fields: Fields, priority: int | None) -> Fields:
    """Return the body with the engine's priority, unless it has its own or the pool sends none."""
    return fields if priority is None else {"priority": msgspec.Raw(str(priority).encode()), **fields}


def refuses_stream(answer: Answer) -> bool:
    """Tell whether the server says that it cannot stream this."""
    return answer.attempt.status in (400, 422, 501) and _STREAM.search(answer.body) is not None


def spent(body: bytes, call: Call) -> Spent:
    """Return the tokens that an answer says it took; where it does not, those that the gateway counted."""
    try:
        usage = msgspec.json.decode(body, type=_Body).usage
    except msgspec.DecodeError:
        usage = None
    if usage is None:
        return Spent(input=call.input_tokens, output=call.output_tokens)
    given, made = usage.prompt_tokens_details, usage.completion_tokens_details
    given, made = given or usage.input_tokens_details, made or usage.output_tokens_details
    return Spent(
        input=usage.prompt_tokens or usage.input_tokens or 0,
        cached=(given.cached_tokens if given else None) or 0,
        output=usage.completion_tokens or usage.output_tokens or 0,
        reasoning=(made.reasoning_tokens if made else None) or 0,
    )


def bounded(body: bytes) -> bytes:
    """Return an error's body, as it came if it is JSON of decent length, else as an error with its beginning."""
    if len(body) <= LONGEST_ERROR and _is_object(body):
        return body
    text = body[:LONGEST_ERROR].decode(errors="replace")
    return msgspec.json.encode({"error": {"message": text, "type": "server_error", "param": None, "code": None}})


def _bad_answer(bad: BadStream, seconds: float) -> Answer:
    if bad.status is not None and bad.error is not None:
        outcome = Outcome.CLIENT_ERROR if bad.status < 500 else Outcome.UPSTREAM_ERROR
        body = bounded(msgspec.json.encode({"error": bad.error}))
        return Answer(Attempt(outcome, bad.status), body, seconds=seconds)
    attempt = Attempt(Outcome.UPSTREAM_ERROR, code="upstream_invalid_answer")
    return Answer(attempt, message=f"The model server's answer cannot be used: {bad}."[:500], seconds=seconds)


def _is_object(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=Fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
