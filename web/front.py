"""What the endpoints that take LLM requests share: who asks, for which pool, with what body; is the client there."""

import asyncio
import random
import re
import secrets

import msgspec
from starlette.types import Receive, Scope

from core.errors import RequestError
from core.pools import Pool
from core.ports import UpstreamRequest
from core.runtime import Runtime
from core.scheduling.answers import read_answer
from core.scheduling.exchange import Exchange
from web.edges import CONNECTION, EdgeProtocol
from web.routing import Router

MODELS_PATIENCE_S = 5.0
# Names to tell requests apart, no secrets: the system's own randomness would cost a system call each.
_ids = random.Random(secrets.randbits(128))
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class ClientGone(Exception):
    """The client left while its request was still being read."""


class Front:
    """The pools of a running gateway, and the limits of tenants, as its endpoints need them."""

    def __init__(self, *, runtime: Runtime) -> None:
        self.pools = runtime.pools
        self.limits = runtime.tenant_limits
        self.router = Router(list(runtime.pools.values()))
        self.body_limit = runtime.settings.body_limit


def watch(scope: Scope, exchange: Exchange) -> None:
    """Abort `exchange` when the client of its request leaves, which its connection tells while it is answered."""
    connection: EdgeProtocol | None = scope.get(CONNECTION)
    if connection is not None:
        connection.watch(scope, exchange.client_left)


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    """Return the request's body. Raises RequestError 413 over `limit` bytes, as early as it shows; ClientGone."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    message = await receive()
    pieces, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        message = await receive()


def request_id_of(headers: dict[bytes, bytes]) -> str:
    """Return the client's own request id if it is a decent one, else a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return f"req_{_ids.getrandbits(96):024x}"


async def list_models(pool: Pool) -> list[dict[str, object]]:
    """Ask a pool's server for its models. Raises RequestError 502 or 504."""
    try:
        async with asyncio.timeout(MODELS_PATIENCE_S):
            answer = await pool.upstream.send(UpstreamRequest("GET", "/models", b""))
            body = await read_answer(answer)
    except TimeoutError:
        raise RequestError(
            504, "upstream_timeout", "The model server lists no models in time.", retry_after=5
        ) from None
    try:
        listed = msgspec.json.decode(body)["data"]
        return [model for model in listed if isinstance(model, dict) and "id" in model]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise RequestError(502, "upstream_error", "The model server's list of models cannot be read.") from None


def _too_large(limit: int) -> RequestError:
    return RequestError(
        413,
        "request_too_large",
        f"The body is larger than {limit:,} bytes (setting body_limit).",
        type="invalid_request_error",
        param="body",
    )
