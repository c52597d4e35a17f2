"""`POST /api/chat`: a chat call for people with curl."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.errors import RequestError
from core.lanes import Lane, Outcome
from core.pools import Pool, serving
from core.scheduling.calls import Call, Headers
from core.scheduling.exchange import Exchange
from web.auth import Identity, check_model, choose_lane, identity_of, may_use
from web.errors import error_headers, invalid_request
from web.front import ClientGone, Front, list_models, read_body, request_id_of, watch

LEFT = 499
_PASSED_ON = frozenset((b"content-type", b"retry-after", b"x-should-retry"))


class _Chat(msgspec.Struct, forbid_unknown_fields=True):
    message: object = None
    messages: object = None
    type: object = None
    model: object = None
    max_tokens: object = None
    temperature: object = None


class CollectedReply:
    """Keeps an answer whole (see `core.scheduling.calls.Reply`)."""

    def __init__(self) -> None:
        self.started = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.error: RequestError | None = None
        self._pieces: list[bytes] = []

    @property
    def body(self) -> bytes:
        """The body as far as it came."""
        return b"".join(self._pieces)

    async def start(self, status: int, headers: Headers) -> None:
        """Note the status, and what the headers tell whoever is refused."""
        self.started, self.status = True, status
        told = {key.decode(): value.decode("latin-1") for key, value in headers if key in _PASSED_ON}
        if told.get("retry-after", "").strip() == "0":
            told["retry-after"] = "1"
        self.headers = told

    async def send(self, piece: bytes) -> None:
        """Keep a piece."""
        self._pieces.append(piece)

    async def finish(self) -> None:
        """Nothing is left to do."""

    async def heartbeat(self) -> None:
        """Nobody waits for bytes here."""

    async def fail(self, error: RequestError) -> None:
        """Keep the error."""
        self.error = error


async def chat(request: Request) -> Response:
    """Answer `{"type": "interactive"|"batch", "message": "..."}` (or `messages`) with `{"reply": "...", ...}`."""
    front: Front = request.app.state.front
    request_id = request_id_of(dict(request.scope["headers"]))
    try:
        call, pool = await _read(request, front, request_id)
    except RequestError as error:
        return _refused(error, _early(request_id, identity_of(request.scope).lane))
    except ClientGone:
        return Response(status_code=LEFT)
    try:
        return await _answer(request, front, call, pool)
    except RequestError as error:
        return _refused(error, _own(call, pool))


async def _answer(request: Request, front: Front, call: Call, pool: Pool) -> Response:
    """Return the answer to a call, or the model server's refusal as it came. Raises RequestError."""
    reply = CollectedReply()
    front.limits.enter(call.tenant, call.lane)
    try:
        exchange = Exchange(pool.gateway, call, reply)
        watch(request.scope, exchange)
        outcome = await exchange.run()
    finally:
        front.limits.leave(call.tenant, call.lane, call.input_tokens + call.output_tokens)
    if reply.error is not None:
        raise reply.error
    if outcome is not Outcome.SUCCESS:
        return Response(reply.body, reply.status or LEFT, {**reply.headers, **_own(call, pool)})
    return JSONResponse(_told(call, pool, reply.body), headers=_own(call, pool))


async def _read(request: Request, front: Front, request_id: str) -> tuple[Call, Pool]:
    headers = dict(request.scope["headers"])
    identity = identity_of(request.scope)
    fields = _fields(await read_body(request.receive, headers, front.body_limit))
    lane = _lane(identity, fields.type, headers.get(b"x-tidegate-lane"))
    pool, model = await _pool_and_model(front, identity, fields.model)
    check_model(identity, fields.model if isinstance(fields.model, str) else model)
    given = {"max_tokens": fields.max_tokens, "temperature": fields.temperature}
    sent = {"model": model, "messages": _messages(fields), **{k: v for k, v in given.items() if v is not None}}
    call = Call(
        id=request_id,
        tenant=identity.tenant,
        lane=lane,
        model=model,
        path="/chat/completions",
        body=msgspec.json.encode(sent),
        headers=[(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())],
        key=identity.key or "",
    )
    return call, pool


def _lane(identity: Identity, asked: object, header: bytes | None) -> Lane:
    """Return the lane: either `type` or the header lowers a call, as everywhere. Raises RequestError."""
    lane = choose_lane(identity, asked=asked, param="type")
    by_header = None if header is None else header.decode("latin-1").strip().lower()
    return max(lane, choose_lane(identity, asked=by_header), key=lambda each: each is Lane.BATCH)


def _fields(body: bytes) -> _Chat:
    try:
        return msgspec.json.decode(body, type=_Chat)
    except RecursionError:
        raise invalid_request("The body is nested too deeply.", "body") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_request(f'The body must be a JSON object like {{"message": "Hello"}}: {error}.', "body") from None


def _messages(fields: _Chat) -> object:
    if (fields.message is None) == (fields.messages is None):
        raise invalid_request("Give either `message`, a text, or `messages`, a list.", "message")
    if fields.messages is None:
        if not isinstance(fields.message, str):
            raise invalid_request("`message` must be a text.", "message")
        return [{"role": "user", "content": fields.message}]
    if not isinstance(fields.messages, list) or not fields.messages:
        raise invalid_request("`messages` must be a list that is not empty.", "messages")
    return fields.messages


async def _pool_and_model(front: Front, identity: Identity, model: object) -> tuple[Pool, str]:
    """Return the pool and model asked for; without one, the first model of the only pool."""
    if model is not None and not isinstance(model, str):
        raise invalid_request("`model` must be the name of a model, as a string.", "model")
    pool, name = front.router.find(model)
    if model is None:
        fixed = next((glob for glob in pool.config.models if not set("*?[") & set(glob)), None)
        name = fixed or await _first_model(pool, identity)
    return pool, name


async def _first_model(pool: Pool, identity: Identity) -> str:
    """Return the first model of the server that the pool serves, one that the key may name if there is any."""
    served = [name for model in await list_models(pool) if serving([pool], name := str(model["id"]))]
    if not served:
        raise invalid_request("`model` is missing, and the model server lists none that this pool serves.", "model")
    return next((name for name in served if may_use(identity, name)), served[0])


def _told(call: Call, pool: Pool, body: bytes) -> dict[str, object]:
    try:
        answer = msgspec.json.decode(body)
        reply = answer["choices"][0]["message"]["content"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, IndexError, TypeError):
        raise RequestError(502, "upstream_error", "The model server's answer is no chat completion.") from None
    return {
        "reply": reply,
        "model": answer.get("model", call.model),
        "lane": call.lane.value,
        "pool": pool.name,
        "queue_ms": round(call.queued_s * 1000),
        "usage": answer.get("usage"),
        "request_id": call.id,
    }


def _refused(error: RequestError, own: dict[str, str]) -> Response:
    told = {key.decode(): value.decode() for key, value in error_headers(error)}
    return JSONResponse(error.body(), error.status, {**told, **own})


def _early(request_id: str, lane: Lane) -> dict[str, str]:
    return {"x-request-id": request_id, "x-tidegate-lane": lane.value, "x-tidegate-queue-ms": "0"}


def _own(call: Call, pool: Pool) -> dict[str, str]:
    return {
        "x-request-id": call.id,
        "x-tidegate-lane": call.lane.value,
        "x-tidegate-pool": pool.name,
        "x-tidegate-queue-ms": str(round(call.queued_s * 1000)),
    }


ROUTES = [Route("/api/chat", chat, methods=["POST"])]
