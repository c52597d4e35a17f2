"""The inference API: every POST under /v1 that a pool serves, and the list of models."""

import asyncio
import logging
import re
from collections.abc import Iterable

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from core.errors import RequestError
from core.lanes import Lane, Outcome
from core.pools import Pool
from core.scheduling.calls import Call, Headers
from core.scheduling.exchange import Exchange
from web.auth import Identity, check_model, choose_lane, identity_of, may_use
from web.errors import RawHeaders, internal_error, send_error
from web.front import ClientGone, Front, list_models, read_body, request_id_of, watch
from web.replies import AsgiReply, BrokenOff
from web.routing import NEEDS_MODEL, WITHOUT_TOKENS, Routing, read_routing, with_model

log = structlog.get_logger(__name__)

_PATH = re.compile(r"(/[A-Za-z0-9_~:-][A-Za-z0-9._~:-]*)+")
_NOT_FORWARDED = frozenset(
    (
        b"accept-encoding",
        b"authorization",
        b"connection",
        b"content-length",
        b"cookie",
        b"expect",
        b"forwarded",
        b"host",
        b"http2-settings",
        b"idempotency-key",
        b"keep-alive",
        b"origin",
        b"proxy-authorization",
        b"proxy-connection",
        b"referer",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
        b"x-tidegate-lane",
    )
)


class Inference:
    """The ASGI endpoint of all inference requests."""

    def __init__(self, *, front: Front) -> None:
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = request_id_of(headers)
        identity = identity_of(scope)
        try:
            path = upstream_path(scope)
            body = await read_body(receive, headers, self._front.body_limit)
            call, pool = self._call(scope, path, headers, body, identity, request_id)
            self._front.limits.enter(call.tenant, call.lane)
        except RequestError as error:
            log.info("refused", request_id=request_id, code=error.code, status=error.status)
            await send_error(send, error, _early_headers(request_id, identity.lane))
            return
        except ClientGone:
            log.info("client left while sending", request_id=request_id)
            return
        except Exception:
            await send_error(send, internal_error(), _early_headers(request_id, identity.lane))
            raise
        # What nobody reads any more would stay for as long as an open stream does.
        del body, headers
        scope["headers"].clear()
        try:
            await self._answer(call, pool, scope, send)
        finally:
            self._front.limits.leave(call.tenant, call.lane, call.input_tokens + call.output_tokens)

    async def _answer(self, call: Call, pool: Pool, scope: Scope, send: Send) -> None:
        reply = AsgiReply(send=send, call=call, pool=pool.name)
        try:
            exchange = Exchange(pool.gateway, call, reply)
            watch(scope, exchange)
            outcome = await exchange.run()
        except BrokenOff as broken:
            log.warning("broke off", request_id=call.id, pool=pool.name, code=str(broken))
            return
        except Exception:
            await reply.fail(internal_error())
            raise
        if outcome is not Outcome.SUCCESS or logging.root.level <= logging.DEBUG:
            log.log(
                logging.DEBUG if outcome is Outcome.SUCCESS else logging.INFO,
                "answered",
                request_id=call.id,
                pool=pool.name,
                lane=call.lane.value,
                outcome=outcome.value,
                status=reply.status,
            )

    def _call(
        self,
        scope: Scope,
        path: str,
        headers: dict[bytes, bytes],
        body: bytes,
        identity: Identity,
        request_id: str,
    ) -> tuple[Call, Pool]:
        routing = _routing(body, path, headers.get(b"content-type", b""))
        lane = choose_lane(identity, asked=_text(headers.get(b"x-tidegate-lane")), service_tier=routing.service_tier)
        check_model(identity, routing.model)
        pool, model = self._front.router.find(routing.model)
        if routing.model is not None and model != routing.model:
            body = with_model(body, model)
        query = scope["query_string"].decode("latin-1")
        call = Call(
            id=request_id,
            tenant=identity.tenant,
            lane=lane,
            model=model,
            path=f"{path}?{query}" if query else path,
            body=body,
            headers=forwarded(scope["headers"], request_id),
            stream=routing.stream,
            max_tokens=routing.max_tokens,
            has_tokens=path not in WITHOUT_TOKENS,
            max_wait=_patience(headers, lane, stream=routing.stream),
            key=identity.key or "",
        )
        return call, pool

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET /v1/models: what the pools' servers list, as far as the pools serve it, and the aliases."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = request_id_of(headers)
        try:
            body = await self._list_models(scope.get("path_params", {}).get("model"), identity_of(scope))
        except RequestError as error:
            await send_error(send, error, _early_headers(request_id, Lane.INTERACTIVE))
            return
        own = [(b"content-type", b"application/json"), *_early_headers(request_id, Lane.INTERACTIVE)]
        await send({"type": "http.response.start", "status": 200, "headers": own})
        await send({"type": "http.response.body", "body": msgspec.json.encode(body)})

    async def _list_models(self, wanted: str | None, identity: Identity) -> object:
        pools = list(self._front.pools.values())
        answers = await asyncio.gather(*(list_models(pool) for pool in pools), return_exceptions=True)
        found: dict[str, dict[str, object]] = {}
        for pool, answer in zip(pools, answers, strict=True):
            if isinstance(answer, list):
                for model in self._served(pool, answer):
                    if may_use(identity, str(model["id"])):
                        found.setdefault(str(model["id"]), model)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if failed and not found:
            raise failed[0]
        if wanted is None:
            return {"object": "list", "data": list(found.values())}
        if wanted not in found:
            raise RequestError(
                404, "model_not_found", f"No model {wanted[:200]!r}.", type="invalid_request_error", param="model"
            )
        return found[wanted]

    def _served(self, pool: Pool, models: list[dict[str, object]]) -> Iterable[dict[str, object]]:
        for model in models:
            try:
                if self._front.router.find(str(model["id"]))[0] is pool:
                    yield model
            except RequestError:
                continue
        for alias in pool.config.aliases:
            yield {"id": alias, "object": "model", "created": 0, "owned_by": "tidegate"}


def upstream_path(scope: Scope) -> str:
    """Return the path below /v1, with its leading slash. Raises RequestError 404 for what can be no endpoint."""
    path: str = scope["path"]
    below = path.removeprefix("/v1")
    if not path.startswith("/v1/") or not _PATH.fullmatch(below):
        raise RequestError(404, "not_found", f"There is no endpoint {path[:200]!r}.", type="invalid_request_error")
    return below


def forwarded(headers: Iterable[tuple[bytes, bytes]], request_id: str) -> Headers:
    """Return the client's headers as far as they are the model server's business; never a key, cookie or origin."""
    passed = [
        (key, value) for key, value in headers if key not in _NOT_FORWARDED and not key.startswith((b"sec-", b"x-forw"))
    ]
    passed.append((b"x-request-id", request_id.encode()))
    return passed


def _routing(body: bytes, path: str, content_type: bytes) -> Routing:
    if path in NEEDS_MODEL or b"json" in content_type or body.lstrip()[:1] == b"{":
        return read_routing(body, path)
    return Routing(None, False, None, None)


def _patience(headers: dict[bytes, bytes], lane: Lane, *, stream: bool) -> float | None:
    """Return how long the client itself will wait for a sign of life; a batch stream is kept alive by heartbeats."""
    given = _text(headers.get(b"x-stainless-read-timeout"))
    if given is None or (stream and lane is Lane.BATCH):
        return None
    try:
        seconds = float(given)
    except ValueError:
        return None
    return seconds if 0 < seconds < 86_400 else None


def _early_headers(request_id: str, lane: Lane) -> RawHeaders:
    return [
        (b"x-request-id", request_id.encode()),
        (b"x-tidegate-lane", lane.encode()),
        (b"x-tidegate-queue-ms", b"0"),
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1").strip().lower()
