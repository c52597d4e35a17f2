"""The Webhooks pages: list, add, test, disable, rotate, delete. All of it works as plain forms."""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from core.errors import InvalidValue, NotFound, RequestError
from core.people import asked
from core.webhooks.registry import Webhooks
from core.webhooks.values import EVENTS, Delivery, DeliveryState, Endpoint
from web import people_views, webhook_views
from web.contexts import Choice, SecretPage
from web.people import by_of, reason_required, runtime_of, time_of
from web.ui import form_of, form_values, html, see_other, ui_of
from web.webhook_asked import events_of, mine, tenant_of, tenants
from web.webhook_contexts import DeleteWebhookPage, RotateWebhookPage, WebhookForm, WebhookPage, WebhooksPage

LIST = "/webhooks"
DELIVERIES = 50
_TOLD = {
    "deleted": "The endpoint is deleted, with what was still to be sent to it.",
    "disabled": "Disabled: nothing is sent to it, and of batches that end meanwhile it is not told.",
    "enabled": "Enabled: it is told again.",
}


async def page(request: Request) -> Response:
    """GET /webhooks: every endpoint that who asks may see; `new` in the query opens the form."""
    form = await _form(request, {}, EVENTS.values()) if "new" in request.query_params else None
    return html(await _page(request, form, told=_TOLD.get(request.query_params.get("done", ""), "")))


async def create(request: Request) -> Response:
    """POST /ui/webhooks: the secret, shown this once; 422 with what is wrong."""
    form, values = await form_of(request), await form_values(request)
    events = [str(event) for event in form.getlist("events")]
    try:
        made, secret = await _webhooks(request).create(
            await tenant_of(request, values),
            url=values.get("url", "").strip(),
            events=events_of(events),
            description=values.get("description", "").strip(),
            by=by_of(values),
        )
    except InvalidValue as error:
        again = await _form(request, values, events, _errors(error, {"url", "events", "description"}))
        return html(await _page(request, again), 422)
    return _secret(request, made, secret, [])


async def one(request: Request) -> Response:
    """GET /webhooks/{webhook_id}: one endpoint, with its latest deliveries."""
    query = request.query_params
    told, tested = _TOLD.get(query.get("done", ""), ""), query.get("tested", "")
    return await _one(request, request.path_params["webhook_id"], told=told, tested=tested)


async def test(request: Request) -> Response:
    """POST /ui/webhooks/test: 303 to the endpoint's page, which tells how the test went."""
    name = (await form_values(request)).get("id", "")
    try:
        sent = await _webhooks(request).test(name, tenant=mine())
    except NotFound as error:
        return ui_of(request).not_found(error)
    except RequestError as error:
        return await _one(request, name, errors={"form": error.message}, status=error.status)
    return see_other(f"{LIST}/{name}", tested=sent.event.id)


async def switch(request: Request) -> Response:
    """POST /ui/webhooks/switch: `on` is "yes" or empty; 303 when done, 422 with what is wrong."""
    values = await form_values(request)
    name, on = values.get("id", ""), values.get("on") == "yes"
    try:
        await _webhooks(request).switch(name, on=on, tenant=mine(), by=by_of(values))
    except NotFound as error:
        return ui_of(request).not_found(error)
    except InvalidValue as error:
        return await _one(request, name, typed=values, errors=_errors(error, set()), status=422)
    return see_other(f"{LIST}/{name}", done="enabled" if on else "disabled")


async def ask_rotate(request: Request) -> Response:
    """GET /webhooks/rotate: the question before an endpoint gets a new secret."""
    return await _ask_rotate(request, request.query_params.get("id", ""), {}, {})


async def rotate(request: Request) -> Response:
    """POST /ui/webhooks/rotate: the new secret, shown this once."""
    values = await form_values(request)
    name = values.get("id", "")
    try:
        overlap = asked.length("overlap", values.get("overlap", ""))
        changed, secret = await _webhooks(request).rotate(name, tenant=mine(), by=by_of(values), overlap=overlap)
    except NotFound as error:
        return ui_of(request).not_found(error)
    except InvalidValue as error:
        return await _ask_rotate(request, name, values, _errors(error, {"overlap"}), 422)
    notes = []
    if changed.old_until is not None:
        until = f"{changed.old_until.astimezone(time_of(request)[1]):%d %b %Y %H:%M}"
        notes = [f"Until {until} messages carry a signature by the secret from before, too."]
    return _secret(request, changed, secret, notes)


async def ask_delete(request: Request) -> Response:
    """GET /webhooks/delete: the question before an endpoint is deleted."""
    return await _ask_delete(request, request.query_params.get("id", ""), {}, {})


async def delete(request: Request) -> Response:
    """POST /ui/webhooks/delete: 303 when deleted; the host of its address must have been typed."""
    values = await form_values(request)
    name = values.get("id", "")
    try:
        found = await _webhooks(request).endpoint(name, tenant=mine())
        if values.get("confirm", "").strip().lower() != _host(found):
            raise InvalidValue("confirm", f"type {_host(found)}, so that it is surely the right one")
        await _webhooks(request).delete(name, tenant=mine(), by=by_of(values))
    except NotFound as error:
        return ui_of(request).not_found(error)
    except InvalidValue as error:
        return await _ask_delete(request, name, values, _errors(error, {"confirm"}), 422)
    return see_other(LIST, done="deleted")


async def _page(request: Request, form: WebhookForm | None, told: str = "") -> WebhooksPage:
    found = await _webhooks(request).endpoints(mine())
    health = await _webhooks(request).health(found)
    now, zone = time_of(request)
    return WebhooksPage(
        **ui_of(request).shell("Webhooks", "Webhooks", refresh=False),
        rows=webhook_views.lines(found, health, named=mine() is None, now=now, zone=zone),
        form=form,
        told=told,
        zone=runtime_of(request).schedule.zone,
    )


async def _form(
    request: Request, values: Mapping[str, str], events: Iterable[str], errors: dict[str, str] | None = None
) -> WebhookForm:
    chosen, names = set(events), await tenants(request)
    known = {event.value: event.value.removeprefix("batch.") for event in EVENTS.values()}
    own = values.get("tenant", "") or request.query_params.get("tenant", "")
    return WebhookForm(
        values=dict(values),
        events=tuple(Choice(value, label, value in chosen) for value, label in known.items()),
        tenants=people_views.names(names, own) if len(names) > 1 else (),
        errors=errors or {},
        reason_required=reason_required(request),
    )


async def _one(
    request: Request,
    name: str,
    *,
    told: str = "",
    tested: str = "",
    typed: Mapping[str, str] | None = None,
    errors: dict[str, str] | None = None,
    status: int = 200,
) -> Response:
    ui, (now, zone) = ui_of(request), time_of(request)
    try:
        found = await _webhooks(request).endpoint(name, tenant=mine())
    except NotFound as error:
        return ui.not_found(error)
    latest = await _webhooks(request).deliveries(name, tenant=mine(), limit=DELIVERIES)
    test = next((each for each in latest if each.event.id == tested), None)
    context = WebhookPage(
        **ui.shell("Webhooks", f"Webhook {_host(found)}", refresh=False),
        id=found.id,
        host=_host(found),
        facts=webhook_views.facts(found, now=now, zone=zone),
        disabled=found.disabled_at is not None,
        deliveries=webhook_views.delivery_lines(latest, now=now, zone=zone),
        tested=_tested(test) if test else "",
        arrived=test is not None and test.state is DeliveryState.DELIVERED,
        told=told,
        values=dict(typed or {}),
        errors=errors or {},
        reason_required=reason_required(request),
        zone=runtime_of(request).schedule.zone,
    )
    return html(context, status)


def _tested(test: Delivery) -> str:
    how = "arrived" if test.state is DeliveryState.DELIVERED else "did not arrive"
    return f"The test {how}: {webhook_views.answer(test)}."


async def _ask_rotate(
    request: Request, name: str, values: Mapping[str, str], errors: dict[str, str], status: int = 200
) -> Response:
    try:
        found = await _webhooks(request).endpoint(name, tenant=mine())
    except NotFound as error:
        return ui_of(request).not_found(error)
    context = RotateWebhookPage(
        **ui_of(request).shell("Webhooks", f"Rotate the secret of {_host(found)}", refresh=False),
        id=found.id,
        address=found.url,
        overlaps=people_views.choices(people_views.OVERLAPS, values.get("overlap", "24h")),
        values=dict(values),
        errors=errors,
        reason_required=reason_required(request),
    )
    return html(context, status)


async def _ask_delete(
    request: Request, name: str, values: Mapping[str, str], errors: dict[str, str], status: int = 200
) -> Response:
    try:
        found = await _webhooks(request).endpoint(name, tenant=mine())
    except NotFound as error:
        return ui_of(request).not_found(error)
    context = DeleteWebhookPage(
        **ui_of(request).shell("Webhooks", f"Delete {_host(found)}", refresh=False),
        id=found.id,
        address=found.url,
        host=_host(found),
        values=dict(values),
        errors=errors,
        reason_required=reason_required(request),
    )
    return html(context, status)


def _secret(request: Request, made: Endpoint, secret: str, notes: list[str]) -> Response:
    """Answer with an endpoint's secret; nothing keeps the answer."""
    verify = "client.webhooks.unwrap(body, headers)"
    return html(
        SecretPage(
            **ui_of(request).shell("Webhooks", f"Webhook {_host(made)}", refresh=False),
            heading=f"Webhook {_host(made)} of {made.tenant}",
            label="The signing secret",
            token=secret,
            notes=(*notes, "Receivers check with it that a message comes from here."),
            code_name="Check a message with the openai SDK",
            code=f"client = openai.OpenAI(webhook_secret=...)\nevent = {verify}",
            back_to=f"{LIST}/{made.id}",
        )
    )


def _webhooks(request: Request) -> Webhooks:
    return runtime_of(request).webhooks


def _host(found: Endpoint) -> str:
    return urlsplit(found.url).netloc.lower()


def _errors(error: InvalidValue, fields: set[str]) -> dict[str, str]:
    """Return what is wrong by field of the form; what is no field of it stands above."""
    told = f"{error.message[:1].upper()}{error.message[1:]}."
    return {error.field: told} if error.field in {*fields, "reason"} else {"form": f"{error.field}: {told}"}


ROUTES: list[BaseRoute] = [
    Route("/webhooks", page),
    Route("/webhooks/rotate", ask_rotate),
    Route("/webhooks/delete", ask_delete),
    Route("/webhooks/{webhook_id}", one),
    Route("/ui/webhooks", create, methods=["POST"]),
    Route("/ui/webhooks/test", test, methods=["POST"]),
    Route("/ui/webhooks/switch", switch, methods=["POST"]),
    Route("/ui/webhooks/rotate", rotate, methods=["POST"]),
    Route("/ui/webhooks/delete", delete, methods=["POST"]),
]
