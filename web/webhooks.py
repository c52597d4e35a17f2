"""`/api/webhooks`: where a tenant is told that its batches ended, and how the telling goes."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from core.batch.queries import instant
from core.errors import InvalidValue
from core.people import asked
from core.people.acting import By
from core.webhooks.registry import DEFAULT_OVERLAP, Webhooks
from core.webhooks.values import Delivery, Endpoint, EventType
from web.api import body_of, json_answer, object_of, own_endpoint, page, page_limit, reason_of, runtime, text_of
from web.people import by_of
from web.webhook_asked import LONGEST_TEXT, events_of, mine, tenant_of

MOST_DELIVERIES = 1000
DEFAULT_DELIVERIES = 100


@own_endpoint
async def create(request: Request) -> Response:
    """Create an endpoint; its secret stands in this answer and nowhere else."""
    given = object_of(await body_of(request))
    url = text_of(given, "url", most=LONGEST_TEXT)
    if not url:
        raise InvalidValue("url", "is missing")
    made, secret = await _webhooks(request).create(
        await tenant_of(request, given),
        url=url,
        events=events_of(given["events"]) if given.get("events") is not None else (),
        description=text_of(given, "description", most=LONGEST_TEXT) or "",
        by=_by(request, given),
    )
    return json_answer({**_told(made), "secret": secret}, 201)


@own_endpoint
async def endpoints(request: Request) -> Response:
    """Answer with all endpoints, oldest first; none of them tells its secret."""
    found = await _webhooks(request).endpoints(mine())
    return json_answer(page([_told(each) for each in found], more=False))


@own_endpoint
async def one(request: Request) -> Response:
    """Answer with one endpoint."""
    return json_answer(_told(await _webhooks(request).endpoint(_id(request), tenant=mine())))


@own_endpoint
async def switch(request: Request) -> Response:
    """Disable an endpoint (`disabled` true), or let it be told again."""
    given = await _given(request)
    if not isinstance(given.get("disabled"), bool):
        raise InvalidValue("disabled", "must be true or false")
    changed = await _webhooks(request).switch(
        _id(request), on=not given["disabled"], tenant=mine(), by=_by(request, given)
    )
    return json_answer(_told(changed))


@own_endpoint
async def rotate(request: Request) -> Response:
    """Give an endpoint a new secret; for `overlap` (24h) the present one signs messages, too."""
    given = await _given(request)
    overlap = asked.length("overlap", asked.text("overlap", given)) if "overlap" in given else DEFAULT_OVERLAP
    changed, secret = await _webhooks(request).rotate(
        _id(request), tenant=mine(), by=_by(request, given), overlap=overlap
    )
    return json_answer({**_told(changed), "secret": secret})


@own_endpoint
async def test(request: Request) -> Response:
    """Send an endpoint a test event once, and answer with how that went; nothing of what the endpoint answered."""
    return json_answer(_delivery(await _webhooks(request).test(_id(request), tenant=mine())))


@own_endpoint
async def delete(request: Request) -> Response:
    """Delete an endpoint, and what is still to be sent to it."""
    given = await _given(request)
    await _webhooks(request).delete(_id(request), tenant=mine(), by=_by(request, given))
    return json_answer({"id": _id(request), "object": "webhook", "deleted": True})


@own_endpoint
async def deliveries(request: Request) -> Response:
    """Answer with the latest deliveries, newest first: states, statuses and times, never what was answered."""
    limit = page_limit(request, default=DEFAULT_DELIVERIES, most=MOST_DELIVERIES)
    found = await _webhooks(request).deliveries(_id(request), tenant=mine(), limit=limit)
    return json_answer(page([_delivery(each) for each in found], more=False))


def _webhooks(request: Request) -> Webhooks:
    return runtime(request).webhooks


def _id(request: Request) -> str:
    found: str = request.path_params["webhook_id"]
    return found


def _by(request: Request, given: dict[str, Any]) -> By:
    return by_of({"reason": reason_of(request, given)})


async def _given(request: Request) -> dict[str, Any]:
    body = await body_of(request)
    return object_of(body) if body.strip() else {}


def _told(found: Endpoint) -> dict[str, Any]:
    return {
        "id": found.id,
        "object": "webhook",
        "tenant": found.tenant,
        "url": found.url,
        "events": [event.value for event in found.events],
        "description": found.description,
        "created_at": instant(found.created_at),
        "disabled_at": instant(found.disabled_at),
        "old_secret_until": instant(found.old_until),
    }


def _delivery(found: Delivery) -> dict[str, Any]:
    return {
        "id": found.event.id,
        "object": "webhook.delivery",
        "type": found.event.type.value,
        "batch_id": None if found.event.type is EventType.TEST else found.event.batch,
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
    Route("/api/webhooks/{webhook_id}", switch, methods=["PATCH"]),
    Route("/api/webhooks/{webhook_id}", delete, methods=["DELETE"]),
    Route("/api/webhooks/{webhook_id}/rotate", rotate, methods=["POST"]),
    Route("/api/webhooks/{webhook_id}/test", test, methods=["POST"]),
    Route("/api/webhooks/{webhook_id}/deliveries", deliveries, methods=["GET"]),
]
