"""`/api/webhooks`: where a tenant is told that its batches ended, and how the telling goes."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from core.batch.queries import instant
from core.errors import InvalidValue
from core.webhooks.values import Delivery, Endpoint, EventType
from web.api import body_of, endpoint, identity, json_answer, object_of, page, page_limit, refusal, runtime, text_of

MOST_DELIVERIES = 1000
DEFAULT_DELIVERIES = 100
LONGEST_TEXT = 4096


@endpoint
async def create(request: Request) -> Response:
    """Create an endpoint; its secret stands in this answer and nowhere else."""
    given = object_of(await body_of(request))
    try:
        url = text_of(given, "url", most=LONGEST_TEXT)
        if not url:
            raise InvalidValue("url", "is missing")
        made, secret = await runtime(request).webhooks.create(
            identity(request).tenant,
            url=url,
            events=_events(given),
            description=text_of(given, "description", most=LONGEST_TEXT) or "",
        )
    except InvalidValue as error:
        raise refusal(422, "invalid_value", f"{error.field}: {error.message}.", error.field) from None
    return json_answer({**_told(made), "secret": secret}, 201)


@endpoint
async def endpoints(request: Request) -> Response:
    """Answer with all endpoints, oldest first; none of them tells its secret."""
    found = await runtime(request).webhooks.endpoints(identity(request).tenant)
    return json_answer(page([_told(each) for each in found], more=False))


@endpoint
async def one(request: Request) -> Response:
    """Answer with one endpoint."""
    found = await runtime(request).webhooks.endpoint(_id(request), tenant=identity(request).tenant)
    return json_answer(_told(found))


@endpoint
async def delete(request: Request) -> Response:
    """Delete an endpoint, and what is still to be sent to it."""
    await runtime(request).webhooks.delete(_id(request), tenant=identity(request).tenant)
    return json_answer({"id": _id(request), "object": "webhook", "deleted": True})


@endpoint
async def deliveries(request: Request) -> Response:
    """Answer with the latest deliveries, newest first: states, statuses and times, never what was answered."""
    limit = page_limit(request, default=DEFAULT_DELIVERIES, most=MOST_DELIVERIES)
    tenant = identity(request).tenant
    found = await runtime(request).webhooks.deliveries(_id(request), tenant=tenant, limit=limit)
    return json_answer(page([_delivery(each) for each in found], more=False))


def _id(request: Request) -> str:
    found: str = request.path_params["webhook_id"]
    return found


def _events(given: Mapping[str, Any]) -> tuple[EventType, ...]:
    names = given.get("events")
    if names is None:
        return ()
    known = [event.value for event in EventType]
    if not isinstance(names, list) or not names or not all(name in known for name in names):
        raise InvalidValue("events", f"must be a list of some of {', '.join(known)}")
    return tuple(EventType(name) for name in names)


def _told(found: Endpoint) -> dict[str, Any]:
    return {
        "id": found.id,
        "object": "webhook",
        "url": found.url,
        "events": [event.value for event in found.events],
        "description": found.description,
        "created_at": instant(found.created_at),
    }


def _delivery(found: Delivery) -> dict[str, Any]:
    return {
        "id": found.event.id,
        "object": "webhook.delivery",
        "type": found.event.type.value,
        "batch_id": found.event.batch,
        "created_at": instant(found.event.created_at),
        "state": found.state.value,
        "attempts": found.attempts,
        "last_attempt_at": instant(found.last_at),
        "next_attempt_at": instant(found.due),
        "status": found.status,
        "error": found.error,
    }


ROUTES = [
    Route("/api/webhooks", create, methods=["POST"]),
    Route("/api/webhooks", endpoints, methods=["GET"]),
    Route("/api/webhooks/{webhook_id}", one, methods=["GET"]),
    Route("/api/webhooks/{webhook_id}", delete, methods=["DELETE"]),
    Route("/api/webhooks/{webhook_id}/deliveries", deliveries, methods=["GET"]),
]
