"""The page of tenants and keys: make, edit, rotate, revoke."""

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from core.errors import InvalidValue, NotFound, StaleVersion
from core.lanes import Lane
from core.people import asked
from core.people.keys import ApiKey, Issued, KeyState
from core.people.tenants import ALL_LANES, DEFAULT, Tenant
from web import people_views as views
from web.contexts import Choice, SecretPage
from web.people import by_of, people_of, reason_required, runtime_of, time_of
from web.people_contexts import KeyForm, RevokePage, RotatePage, TenantForm, TenantsPage
from web.ui import form_of, form_values, html, see_other, ui_of

_KEY_VALUES = {"expires": "", "models": "", "cidrs": "", "name": ""}
_KEY_NAMES = ("name", "tenant", "role", "expires", "models", "cidrs")
_TOLD = {
    "tenant": "Stored. It is in force here now, and everywhere within 5 seconds.",
    "revoked": "The key is revoked.",
}


async def page(request: Request) -> Response:
    """GET /tenants: every team with its keys; `edit` and `new` in the query open a form."""
    query = request.query_params
    tenant_form = key_form = None
    if "edit" in query:
        try:
            tenant_form = await _tenant_form(request, query["edit"])
        except NotFound as error:
            return ui_of(request).not_found(error)
    elif query.get("new") == "key":
        key_form = await _key_form(request, {**_KEY_VALUES, "tenant": query.get("tenant", DEFAULT)})
    told = _TOLD.get(query.get("done", ""), "")
    return html(await _page(request, tenant_form=tenant_form, key_form=key_form, told=told))


async def save_tenant(request: Request) -> Response:
    """POST /ui/tenants: 303 when stored, 409 on a newer version, 422 with what is wrong."""
    form, values = await form_of(request), await form_values(request)
    lanes = [str(lane) for lane in form.getlist("lanes")]
    original = values.get("original", "")
    given = {name: values[name] for name in asked.TENANT_FIELDS - {"lanes"} if name in values}
    teams = people_of(request).teams
    try:
        patch = asked.tenant_patch({**given, "lanes": lanes})
        if original:
            based_on = int(values.get("version", "")) if values.get("version", "").isdigit() else 0
            await teams.change_tenant(original, patch, by=by_of(values), based_on=based_on)
        else:
            await teams.create_tenant(values.get("name", "").strip(), patch, by=by_of(values))
    except NotFound as error:
        return ui_of(request).not_found(error)
    except StaleVersion as error:
        conflict = f"Somebody changed {original} while you were editing (now version {error.present}). Look, then save."
        return await _tenant_again(request, original, values, lanes, conflict=conflict, version=error.present)
    except InvalidValue as error:
        return await _tenant_again(request, original, values, lanes, errors=_errors(error, {*given, "lanes", "name"}))
    await people_of(request).ring.refresh()
    return see_other("/tenants", done="tenant")


async def make_key(request: Request) -> Response:
    """POST /ui/keys: the new key, shown this once; 422 with what is wrong."""
    values = dict(await form_values(request))
    given: dict[str, Any] = {name: values[name] for name in _KEY_NAMES if name in values}
    given |= _lanes_asked(values.get("lane", ""))
    try:
        wanted = asked.new_key(given, time_of(request)[0])
        issued = await people_of(request).teams.create_key(wanted, by=by_of(values))
    except InvalidValue as error:
        form = await _key_form(request, values, errors=_errors(error, {*given, "lane"}))
        return html(await _page(request, key_form=form), 422)
    return await _made(request, issued)


async def ask_rotate(request: Request) -> Response:
    """GET /tenants/rotate: the question before a key gets a new secret."""
    return await _ask_rotate(request, request.query_params.get("key", ""), {})


async def rotate(request: Request) -> Response:
    """POST /ui/keys/rotate: the new secret, shown this once."""
    values = await form_values(request)
    name = values.get("key", "")
    try:
        overlap = asked.length("overlap", values.get("overlap", ""))
        issued = await people_of(request).teams.rotate_key(name, by=by_of(values), overlap=overlap)
    except NotFound as error:
        return ui_of(request).not_found(error)
    except InvalidValue as error:
        return await _ask_rotate(request, name, _errors(error, {"overlap"}), 422)
    return await _made(request, issued)


async def ask_revoke(request: Request) -> Response:
    """GET /tenants/revoke: the question before a key is revoked."""
    return await _ask_revoke(request, request.query_params.get("key", ""), {}, {})


async def revoke(request: Request) -> Response:
    """POST /ui/keys/revoke: 303 when revoked; the key's name must have been typed."""
    values = await form_values(request)
    name = values.get("key", "")
    try:
        if values.get("confirm", "").strip() != name:
            raise InvalidValue("confirm", f"type {name}, so that it is surely the right one")
        await people_of(request).teams.revoke_key(name, by=by_of(values))
    except NotFound as error:
        return ui_of(request).not_found(error)
    except InvalidValue as error:
        return await _ask_revoke(request, name, values, _errors(error, {"confirm"}), 422)
    await people_of(request).ring.refresh()
    return see_other("/tenants", done="revoked")


async def _page(
    request: Request, *, tenant_form: TenantForm | None = None, key_form: KeyForm | None = None, told: str = ""
) -> TenantsPage:
    runtime, ui = runtime_of(request), ui_of(request)
    everyone = await people_of(request).store.everyone()
    now, zone = time_of(request)
    usage = {tenant.name: runtime.tenant_limits.usage(tenant.name) for tenant in everyone.tenants}
    keys = runtime.settings.keys
    return TenantsPage(
        **ui.shell("Tenants", "Tenants and keys", refresh=False),
        tenants=views.tenant_cards(everyone, keys, usage, now=now, zone=zone),
        tenant_form=tenant_form,
        key_form=key_form,
        told=told,
        open=not everyone.keys and not keys,
        zone=runtime.schedule.zone,
    )


async def _tenant_form(request: Request, name: str) -> TenantForm:
    """Return the form with what is stored; for "" that of a new tenant. Raises NotFound."""
    found = await _tenant(request, name) if name else None
    lanes = found.lanes if found else ALL_LANES
    return TenantForm(
        original=name,
        version=found.version if found else 0,
        values=views.tenant_values(found),
        lanes=_lane_boxes(lanes),
        errors={},
        conflict="",
        reason_required=reason_required(request),
    )


async def _tenant_again(
    request: Request,
    original: str,
    values: Mapping[str, str],
    lanes: list[str],
    *,
    errors: dict[str, str] | None = None,
    conflict: str = "",
    version: int | None = None,
) -> Response:
    """Answer with the form as it was typed."""
    present = int(values.get("version", "")) if values.get("version", "").isdigit() else 0
    form = TenantForm(
        original=original,
        version=present if version is None else version,
        values=dict(values),
        lanes=_lane_boxes(lanes),
        errors=errors or {},
        conflict=conflict,
        reason_required=reason_required(request),
    )
    return html(await _page(request, tenant_form=form), 409 if conflict else 422)


async def _key_form(request: Request, values: Mapping[str, str], errors: dict[str, str] | None = None) -> KeyForm:
    tenants = [tenant.name for tenant in (await people_of(request).store.everyone()).tenants]
    return KeyForm(
        values=dict(values),
        tenants=views.names(tenants, values.get("tenant", DEFAULT)),
        lanes=views.choices(views.LANE_WORDS, values.get("lane", "")),
        roles=views.roles(values.get("role", "member")),
        errors=errors or {},
        reason_required=reason_required(request),
    )


async def _ask_rotate(request: Request, name: str, errors: dict[str, str], status: int = 200) -> Response:
    try:
        key = await _key(request, name)
    except NotFound as error:
        return ui_of(request).not_found(error)
    page = RotatePage(
        **ui_of(request).shell("Tenants", f"Rotate {key.name}", refresh=False),
        name=key.name,
        tenant=key.tenant,
        prefix=key.prefix,
        overlaps=views.choices(views.OVERLAPS, "24h"),
        errors=errors,
        reason_required=reason_required(request),
    )
    return html(page, status)


async def _ask_revoke(
    request: Request, name: str, values: Mapping[str, str], errors: dict[str, str], status: int = 200
) -> Response:
    try:
        key = await _key(request, name)
    except NotFound as error:
        return ui_of(request).not_found(error)
    now, zone = time_of(request)
    used = f"{key.last_used_at.astimezone(zone):%d %b %Y %H:%M}" if key.last_used_at else "never"
    page = RevokePage(
        **ui_of(request).shell("Tenants", f"Revoke {key.name}", refresh=False),
        name=key.name,
        tenant=key.tenant,
        prefix=key.prefix,
        used=used if key.state(now) is KeyState.ACTIVE else f"{used}; {key.state(now)}",
        values=dict(values),
        errors=errors,
        reason_required=reason_required(request),
    )
    return html(page, status)


async def _made(request: Request, issued: Issued) -> Response:
    """Answer with a key's secret; nothing keeps the answer."""
    await people_of(request).ring.refresh()
    key, (now, zone) = issued.key, time_of(request)
    notes = [f"Tenant {key.tenant} was made along with it."] if issued.new_tenant else []
    if key.old_until is not None and key.overlaps(now):
        until = f"{key.old_until.astimezone(zone):%d %b %Y %H:%M}"
        notes.append(f"The secret that it had before ({key.old_prefix}…) works until {until}.")
    url = f"{str(request.base_url).rstrip('/')}/v1/models"
    return html(
        SecretPage(
            **ui_of(request).shell("Tenants", f"Key {key.name}", refresh=False),
            heading=f"Key {key.name} of {key.tenant}",
            label="The key",
            token=issued.token,
            notes=tuple(notes),
            code_name="As curl",
            code=f"curl {url} -H 'Authorization: Bearer {key.prefix}…'",
            back_to="/tenants",
        )
    )


async def _tenant(request: Request, name: str) -> Tenant:
    found = {tenant.name: tenant for tenant in (await people_of(request).store.everyone()).tenants}
    if name not in found:
        raise NotFound("tenant", name)
    return found[name]


async def _key(request: Request, name: str) -> ApiKey:
    found = {key.name: key for key in (await people_of(request).store.everyone()).keys}
    if name not in found:
        raise NotFound("key", name)
    return found[name]


def _lanes_asked(choice: str) -> dict[str, Any]:
    """Return the lanes that one of the choices of the form stands for."""
    if choice in ("interactive", "batch"):
        return {"lane": choice, "lanes": [choice]}
    return {"lane": "batch"} if choice == "both-batch" else {}


def _lane_boxes(chosen: Iterable[str]) -> tuple[Choice, ...]:
    lanes = set(chosen)
    return tuple(Choice(lane, lane, lane in lanes) for lane in Lane)


def _errors(error: InvalidValue, fields: set[str]) -> dict[str, str]:
    """Return what is wrong by field of the form; what is no field of it stands above."""
    told = f"{error.message[:1].upper()}{error.message[1:]}."
    if error.field in {*fields, "reason"}:
        return {error.field: told}
    return {"form": f"{error.field}: {told}"}


ROUTES: list[BaseRoute] = [
    Route("/tenants", page),
    Route("/tenants/rotate", ask_rotate),
    Route("/tenants/revoke", ask_revoke),
    Route("/ui/tenants", save_tenant, methods=["POST"]),
    Route("/ui/keys", make_key, methods=["POST"]),
    Route("/ui/keys/rotate", rotate, methods=["POST"]),
    Route("/ui/keys/revoke", revoke, methods=["POST"]),
]
