"""Tenants, keys, accounts and sessions as JSON, for admins and their scripts."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from core.errors import InvalidValue, NotFound, StaleVersion
from core.people import asked
from core.people.identity import Role
from core.people.keys import DEFAULT_OVERLAP, ApiKey, Issued
from core.people.names import check_role
from core.people.tenants import DEFAULT, Tenant
from core.people.told import account_json, key_json, session_json, tenant_json
from web.api import body_of, json_answer, object_of, own_endpoint, refusal
from web.people import by_of, people_of, runtime_of
from web.versions import based_on, if_match


@own_endpoint
async def tenants(request: Request) -> Response:
    """Answer with every tenant, and what its direct calls used in the last minute."""
    everyone = await people_of(request).store.everyone()
    return json_answer({"data": [_tenant(request, tenant) for tenant in everyone.tenants]})


@own_endpoint
async def tenant(request: Request) -> Response:
    """Answer with one tenant and its version as ETag."""
    return _with_version(request, await _stored_tenant(request))


@own_endpoint
async def create_tenant(request: Request) -> Response:
    """Make a tenant."""
    given, reason = await _given(request)
    name = asked.text("name", given)
    patch = asked.tenant_patch({field: value for field, value in given.items() if field != "name"})
    made = await people_of(request).teams.create_tenant(name, patch, by=by_of(reason))
    await people_of(request).ring.refresh()
    return _with_version(request, made, 201)


@own_endpoint
async def change_tenant(request: Request) -> Response:
    """Change a tenant; in force when this answers."""
    seen = if_match(request)
    given, reason = await _given(request)
    patch = asked.tenant_patch(given)
    present = await _stored_tenant(request)
    try:
        version = based_on(seen, present.version)
        saved = await people_of(request).teams.change_tenant(present.name, patch, by=by_of(reason), based_on=version)
    except StaleVersion:
        now = await _stored_tenant(request)
        told = refusal(412, "version_stale", f"Somebody changed this first: the present version is {now.version}.")
        return json_answer({**_tenant(request, now), **told.body()}, 412)
    await people_of(request).ring.refresh()
    return _with_version(request, saved)


@own_endpoint
async def keys(request: Request) -> Response:
    """Answer with every stored key; of none its secret."""
    everyone = await people_of(request).store.everyone()
    return json_answer({"data": [_key(request, key) for key in everyone.keys]})


@own_endpoint
async def key(request: Request) -> Response:
    """Answer with one key."""
    return json_answer(_key(request, _named("key", request, (await people_of(request).store.everyone()).keys)))


@own_endpoint
async def create_key(request: Request) -> Response:
    """Make a key, and its tenant where there is none; its secret stands in this answer and nowhere else."""
    given, reason = await _given(request)
    wanted = asked.new_key(given, runtime_of(request).clock.now())
    return await _issued(request, await people_of(request).teams.create_key(wanted, by=by_of(reason)), 201)


@own_endpoint
async def rotate_key(request: Request) -> Response:
    """Give a key a new secret; `overlap` (24h) is for how long the present one is still taken."""
    given, reason = await _given(request)
    _only(given, {"overlap"})
    overlap = asked.length("overlap", asked.text("overlap", given)) if "overlap" in given else DEFAULT_OVERLAP
    teams = people_of(request).teams
    issued = await teams.rotate_key(request.path_params["name"], by=by_of(reason), overlap=overlap)
    return await _issued(request, issued, 200)


@own_endpoint
async def revoke_key(request: Request) -> Response:
    """Let a key never be taken again."""
    given, reason = await _given(request)
    _only(given, set())
    revoked = await people_of(request).teams.revoke_key(request.path_params["name"], by=by_of(reason))
    await people_of(request).ring.refresh()
    return json_answer(_key(request, revoked))


@own_endpoint
async def accounts(request: Request) -> Response:
    """Answer with every account."""
    everyone = await people_of(request).store.everyone()
    return json_answer({"data": [account_json(account) for account in everyone.accounts]})


@own_endpoint
async def account(request: Request) -> Response:
    """Answer with one account."""
    found = _named("account", request, (await people_of(request).store.everyone()).accounts)
    return json_answer(account_json(found))


@own_endpoint
async def create_account(request: Request) -> Response:
    """Make an account; without `password` it is for who signs in through proxy or provider under that name."""
    given, reason = await _given(request)
    _only(given, {"name", "role", "tenant", "password"})
    made = await people_of(request).roster.create(
        asked.text("name", given),
        role=check_role("role", asked.text("role", given) or Role.MEMBER),
        password=_password(given),
        tenant=asked.text("tenant", given) or DEFAULT,
        by=by_of(reason),
    )
    await people_of(request).ring.refresh()
    return json_answer(account_json(made), 201)


@own_endpoint
async def change_account(request: Request) -> Response:
    """Change `role`, `tenant`, `disabled`, or `password` alone."""
    given, reason = await _given(request)
    name, roster = request.path_params["name"], people_of(request).roster
    if "password" in given:
        _only(given, {"password"})
        changed = await roster.set_password(name, _password(given) or "", by=by_of(reason))
    else:
        changed = await roster.change(name, asked.account_patch(given), by=by_of(reason))
    await people_of(request).ring.refresh()
    return json_answer(account_json(changed))


@own_endpoint
async def sessions(request: Request) -> Response:
    """Answer with every session that stands."""
    now = runtime_of(request).clock.now()
    everyone = await people_of(request).store.everyone()
    return json_answer({"data": [session_json(each) for each in everyone.sessions if each.expires_at > now]})


@own_endpoint
async def end_session(request: Request) -> Response:
    """End a session."""
    _, reason = await _given(request)
    wanted, people = request.path_params["id"], people_of(request)
    found = [each for each in (await people.store.everyone()).sessions if each.id == wanted]
    if not found:
        raise NotFound("session", wanted[:80])
    await people.roster.end_sessions(found, by=by_of(reason))
    await people.ring.refresh()
    return json_answer({"id": wanted, "deleted": True})


async def _given(request: Request) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body's fields, and the reason apart."""
    body = await body_of(request)
    given = object_of(body) if body.strip() else {}
    return given, {"reason": asked.text("reason", {"reason": given.pop("reason", None)})}


def _only(given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(given.keys() - known)
    if unknown:
        raise InvalidValue(unknown[0][:60], "is unknown here")


def _password(given: Mapping[str, Any]) -> str | None:
    value = given.get("password")
    if value is not None and not isinstance(value, str):
        raise InvalidValue("password", "must be a text")
    return value


def _named(kind: str, request: Request, rows: Any) -> Any:
    name = request.path_params["name"]
    found = next((each for each in rows if each.name == name), None)
    if found is None:
        raise NotFound(kind, name[:80])
    return found


async def _stored_tenant(request: Request) -> Tenant:
    found: Tenant = _named("tenant", request, (await people_of(request).store.everyone()).tenants)
    return found


def _tenant(request: Request, found: Tenant) -> dict[str, Any]:
    requests, tokens, batch = runtime_of(request).tenant_limits.usage(found.name)
    return {**tenant_json(found), "last_minute": {"requests": requests, "tokens": tokens}, "batch_calls": batch}


def _with_version(request: Request, found: Tenant, status: int = 200) -> Response:
    answer = json_answer(_tenant(request, found), status)
    answer.headers["etag"] = f'"{found.version}"'
    return answer


def _key(request: Request, found: ApiKey) -> dict[str, Any]:
    return key_json(found, runtime_of(request).clock.now())


async def _issued(request: Request, issued: Issued, status: int) -> Response:
    await people_of(request).ring.refresh()
    return json_answer({**_key(request, issued.key), "key": issued.token, "new_tenant": issued.new_tenant}, status)


ROUTES: list[BaseRoute] = [
    Route("/api/tenants", tenants),
    Route("/api/tenants", create_tenant, methods=["POST"]),
    Route("/api/tenants/{name}", tenant),
    Route("/api/tenants/{name}", change_tenant, methods=["PATCH"]),
    Route("/api/keys", keys),
    Route("/api/keys", create_key, methods=["POST"]),
    Route("/api/keys/{name}", key),
    Route("/api/keys/{name}", revoke_key, methods=["DELETE"]),
    Route("/api/keys/{name}/rotate", rotate_key, methods=["POST"]),
    Route("/api/accounts", accounts),
    Route("/api/accounts", create_account, methods=["POST"]),
    Route("/api/accounts/{name}", account),
    Route("/api/accounts/{name}", change_account, methods=["PATCH"]),
    Route("/api/sessions", sessions),
    Route("/api/sessions/{id}", end_session, methods=["DELETE"]),
]
