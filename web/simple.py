"""`POST /api/chat`: a chat call for people with curl."""

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.errors import RequestError
from core.lanes import Outcome
from core.pools import Pool
from core.scheduling.calls import Call, Headers
from core.scheduling.exchange import Exchange
from web.auth import check_model, choose_lane, identity_of
from web.errors import error_headers, invalid_request
from web.front import Front, list_models, read_body, request_id_of, watch


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
        self.error: RequestError | None = None
        self._pieces: list[bytes] = []

    @property
    def body(self) -> bytes:
        """The body as far as it came."""
        return b"".join(self._pieces)

    async def start(self, status: int, headers: Headers) -> None:
        """Note the status."""
        self.started, self.status = True, status

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
    headers = dict(request.scope["headers"])
    request_id = request_id_of(headers)
    reply = CollectedReply()
    try:
        call, pool = await _read(request, front, request_id)
        front.limits.enter(call.tenant, call.lane)
        exchange = Exchange(pool.gateway, call, reply)
        watch(request.scope, exchange)
        try:
            outcome = await exchange.run()
        finally:
            front.limits.leave(call.tenant, call.lane, call.input_tokens + call.output_tokens)
        if reply.error is not None:
            raise reply.error
        if outcome is not Outcome.SUCCESS:
            return Response(reply.body, reply.status or 499, _own(call, pool), "application/json")
        return JSONResponse(_told(call, pool, reply.body), headers=_own(call, pool))
    except RequestError as error:
        own = {"x-request-id": request_id}
        told = {key.decode(): value.decode() for key, value in error_headers(error)}
        return JSONResponse(error.body(), error.status, {**own, **told})


async def _read(request: Request, front: Front, request_id: str) -> tuple[Call, Pool]:
    headers = dict(request.scope["headers"])
    identity = identity_of(request.scope)
    body = await read_body(request.receive, headers, front.body_limit)
    fields = _fields(body)
    lane = choose_lane(identity, asked=fields.type, param="type")
    pool, model = await _pool_and_model(front, fields.model)
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


def _fields(body: bytes) -> _Chat:
    try:
        return msgspec.json.decode(body, type=_Chat)
    except msgspec.DecodeError as error:
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


async def _pool_and_model(front: Front, model: object) -> tuple[Pool, str]:
    """Return the pool and model asked for; without one, the first model of the only pool."""
    if model is not None and not isinstance(model, str):
        raise invalid_request("`model` must be the name of a model, as a string.", "model")
    pool, name = front.router.find(model)
    if model is None:
        fixed = next((glob for glob in pool.config.models if not set("*?[") & set(glob)), None)
        name = fixed or await _first_model(pool)
    return pool, name


async def _first_model(pool: Pool) -> str:
    models = await list_models(pool)
    if not models:
        raise invalid_request("`model` is missing, and the model server lists none.", "model")
    return str(models[0]["id"])


def _told(call: Call, pool: Pool, body: bytes) -> dict[str, object]:
    answer = msgspec.json.decode(body)
    try:
        reply = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
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


def _own(call: Call, pool: Pool) -> dict[str, str]:
    return {
        "x-request-id": call.id,
        "x-tidegate-lane": call.lane.value,
        "x-tidegate-pool": pool.name,
        "x-tidegate-queue-ms": str(round(call.queued_s * 1000)),
    }


ROUTES = [Route("/api/chat", chat, methods=["POST"])]
