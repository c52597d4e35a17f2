"""OpenAI's Batches API, and what Tidegate adds to it: pause, resume, priority, retry of what failed."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from core.batch.values import Batch
from core.errors import InvalidValue
from web.api import (
    body_of,
    endpoint,
    identity,
    json_answer,
    object_of,
    page,
    page_limit,
    reason_of,
    refusal,
    runtime,
    told_reason,
)
from web.orders import dedupe_of, order_of, priority_of, sent_again

LIST_MOST = 100
LIST_DEFAULT = 20


@endpoint
async def create(request: Request) -> Response:
    """Create a batch; it is validated after this answers."""
    body = await body_of(request)
    order = order_of(request, object_of(body))
    batch = await runtime(request).batches.create(
        order, dedupe=dedupe_of(request, body), again=sent_again(request), reason=told_reason(request)
    )
    return await _told(request, batch)


@endpoint
async def batches(request: Request) -> Response:
    """Answer with one page of batches, newest first."""
    limit = page_limit(request, default=LIST_DEFAULT, most=LIST_MOST)
    after = request.query_params.get("after") or None
    rows = await runtime(request).store.batches(tenant=identity(request).tenant, after=after, limit=limit)
    told = await runtime(request).batch_queries.json(rows[:limit])
    return json_answer(page(told, more=len(rows) > limit))


@endpoint
async def batch(request: Request) -> Response:
    """Answer with one batch."""
    found = await runtime(request).store.batch(_id(request), tenant=identity(request).tenant)
    return await _told(request, found)


async def _cancel(request: Request) -> Batch:
    tenant, reason = identity(request).tenant, told_reason(request)
    return await runtime(request).batches.cancel(_id(request), tenant=tenant, reason=reason)


async def _pause(request: Request) -> Batch:
    given, who = await _given(request), identity(request)
    reason = reason_of(request, given)
    return await runtime(request).batches.pause(_id(request), tenant=who.tenant, by=who.name, reason=reason)


async def _resume(request: Request) -> Batch:
    reason = reason_of(request, await _given(request))
    return await runtime(request).batches.resume(_id(request), tenant=identity(request).tenant, reason=reason)


async def _prioritise(request: Request) -> Batch:
    given = await _given(request)
    if "priority" not in given:
        raise InvalidValue("priority", "is missing")
    tenant, reason = identity(request).tenant, reason_of(request, given)
    return await runtime(request).batches.prioritise(_id(request), priority_of(given), tenant=tenant, reason=reason)


async def _retry_failed(request: Request) -> Batch:
    reason = reason_of(request, await _given(request))
    return await runtime(request).batches.retry_failed(_id(request), tenant=identity(request).tenant, reason=reason)


def _change(change: Callable[[Request], Awaitable[Batch]]) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a change that the batch's status may forbid: 400, which no SDK sends again."""

    @endpoint
    async def changed(request: Request) -> Response:
        try:
            return await _told(request, await change(request))
        except InvalidValue as error:
            if error.field == "reason":
                raise refusal(422, "invalid_value", f"reason: {error.message}.", "reason") from None
            if error.field != "status":
                raise
            raise refusal(400, "invalid_status", f"This cannot be done: {error.message}.", "status") from None

    return changed


async def _told(request: Request, found: Batch) -> Response:
    return json_answer((await runtime(request).batch_queries.json([found]))[0])


async def _given(request: Request) -> dict[str, object]:
    body = await body_of(request)
    return object_of(body) if body.strip() else {}


def _id(request: Request) -> str:
    found: str = request.path_params["batch_id"]
    return found


ROUTES = [
    Route("/v1/batches", create, methods=["POST"]),
    Route("/v1/batches", batches, methods=["GET"]),
    Route("/v1/batches/{batch_id}", batch, methods=["GET"]),
    Route("/v1/batches/{batch_id}/cancel", _change(_cancel), methods=["POST"]),
    Route("/api/batches/{batch_id}/pause", _change(_pause), methods=["POST"]),
    Route("/api/batches/{batch_id}/resume", _change(_resume), methods=["POST"]),
    Route("/api/batches/{batch_id}/priority", _change(_prioritise), methods=["POST"]),
    Route("/api/batches/{batch_id}/retry-failed", _change(_retry_failed), methods=["POST"]),
]
