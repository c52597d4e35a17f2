"""The operator API: pools, decisions and the schedule as JSON, changed on the version that was seen."""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from core.control import wallclock
from core.control.windows import overlaps, transitions
from core.errors import InvalidValue, NotFound, RequestError, StaleVersion
from core.operations import PoolPatch
from core.people.audit import API, VIA
from core.pools import Pool
from core.quotas import PoolSettings
from core.runtime import Runtime
from web.auth import identity_of
from web.errors import error_body, error_headers, invalid_request
from web.schemas import (
    Json,
    decision_json,
    instant_of,
    overlap_json,
    patch_of,
    pool_json,
    reason_of,
    schedule_json,
    schedule_of,
    source_name,
    transition_json,
)
from web.versions import based_on as base_version
from web.versions import if_match

MAX_BODY = 1024 * 1024
MAX_DECISIONS = 1000
MAX_PREVIEW_DAYS = 62
MAX_OVERLAPS = 100

Endpoint = Callable[[Request], Awaitable[Response]]


class _Stale(Exception):
    """The change was based on another version; `current` is the thing as it is now, and goes into the answer."""

    def __init__(self, current: Json) -> None:
        self.current = current


def _endpoint(handler: Endpoint) -> Endpoint:
    """Turn errors into answers in OpenAI's shape."""

    @wraps(handler)
    async def answered(request: Request) -> Response:
        via = VIA.set(API)
        try:
            return await handler(request)
        except RequestError as error:
            return _error(error)
        except InvalidValue as error:
            return _error(_refusal(422, "invalid_value", f"{error.field}: {error.message}", error.field))
        except NotFound as error:
            return _error(_refusal(404, "not_found", f"{error}."))
        except _Stale as stale:
            message = f"Somebody changed this first: the present version is {stale.current['version']}; see it here."
            refusal = _refusal(412, "version_stale", message)
            return _json({**stale.current, **refusal.body()}, 412, version=stale.current["version"])
        finally:
            VIA.reset(via)

    return answered


@_endpoint
async def pools(request: Request) -> Response:
    """Answer with every pool."""
    runtime = _runtime(request)
    return _json({"data": [pool_json(runtime.reading(pool)) for pool in runtime.pools.values()]})


@_endpoint
async def pool(request: Request) -> Response:
    """Answer with one pool and its version as ETag."""
    return _pool_answer(_runtime(request), _pool(request))


@_endpoint
async def change_pool(request: Request) -> Response:
    """Change a pool; the new settings are in force when this answers."""
    runtime, found = _runtime(request), _pool(request)
    seen = if_match(request)
    patch = patch_of(await _body(request))
    try:
        stored = await runtime.settings_store.pool(found.name)
        based_on = base_version(seen, stored.version)
        await runtime.operations.change_pool(found.name, patch, by=_who(request), based_on=based_on)
    except StaleVersion:
        await runtime.reload()
        raise _Stale(pool_json(runtime.reading(found))) from None
    await runtime.reload()
    return _pool_answer(runtime, found, {"shadowed_by": _shadowed_by(runtime, found, patch)})


@_endpoint
async def probe_pool(request: Request) -> Response:
    """Ask a pool's model server once whether it answers; what it answers is told to nobody."""
    found = _pool(request)
    began = _runtime(request).clock.monotonic()
    error = await _runtime(request).probes[found.name].ask()
    took = round((_runtime(request).clock.monotonic() - began) * 1000, 1)
    return _json({"pool": found.name, "reachable": error is None, "error": error, "ms": took})


@_endpoint
async def decisions(request: Request) -> Response:
    """Answer with the decision log, newest first."""
    query = request.query_params
    pool_name = query.get("pool")
    if pool_name is not None and pool_name not in _runtime(request).pools:
        raise NotFound("pool", pool_name)
    since = query.get("since")
    rows = await _runtime(request).decisions.recent(
        pool=pool_name,
        # An unescaped "+" of an offset arrives as a blank.
        since=instant_of(since.strip().replace(" ", "+"), "since") if since else None,
        limit=_whole_query(request, "limit", 100, MAX_DECISIONS),
    )
    return _json({"data": [decision_json(row) for row in rows]})


@_endpoint
async def schedule(request: Request) -> Response:
    """Answer with the schedule and its version as ETag."""
    stored = await _runtime(request).settings_store.schedule()
    return _json(schedule_json(stored), version=stored.version)


@_endpoint
async def change_schedule(request: Request) -> Response:
    """Replace the schedule; it is in force when this answers."""
    runtime = _runtime(request)
    seen = if_match(request)
    body = await _body(request)
    wanted, note = schedule_of(body), reason_of(body)
    try:
        based_on = base_version(seen, (await runtime.settings_store.schedule()).version)
        saved = await runtime.operations.change_schedule(wanted, by=_who(request), note=note, based_on=based_on)
    except StaleVersion:
        raise _Stale(schedule_json(await runtime.settings_store.schedule())) from None
    await runtime.reload()
    return _json(schedule_json(saved), version=saved.version)


@_endpoint
async def preview(request: Request) -> Response:
    """Answer with the edges of the coming days, and with rules that overlap.

    With `pool`, or where there is one pool, what is in force before and after each edge is given in numbers; else null
    stands for the pool's own bounds.
    """
    runtime = _runtime(request)
    days = _whole_query(request, "days", 8, MAX_PREVIEW_DAYS)
    stored = await runtime.settings_store.schedule()
    now, zone = runtime.clock.now(), wallclock.zone(stored.zone)
    about = _asked_pool(request)
    base = about.settings.base_bounds() if about else None
    rows = transitions(stored, now, days, about.name if about else None, base=base)
    return _json(
        {
            "data": [transition_json(row, zone) for row in rows],
            "overlaps": [overlap_json(each) for each in overlaps(stored, now)[:MAX_OVERLAPS]],
            "zone": stored.zone,
            "pool": about.name if about else None,
            "days": days,
            "version": stored.version,
        }
    )


def _runtime(request: Request) -> Runtime:
    runtime: Runtime = request.app.state.runtime
    return runtime


def _who(request: Request) -> str:
    """Return the name under which changes are recorded."""
    return identity_of(request.scope).name


def _pool(request: Request) -> Pool:
    name = request.path_params["name"]
    found = _runtime(request).pools.get(name)
    if found is None:
        raise NotFound("pool", name[:80])
    return found


def _asked_pool(request: Request) -> Pool | None:
    runtime_pools, name = _runtime(request).pools, request.query_params.get("pool")
    if name is None:
        return next(iter(runtime_pools.values())) if len(runtime_pools) == 1 else None
    if name not in runtime_pools:
        raise NotFound("pool", name[:80])
    return runtime_pools[name]


def _pool_answer(runtime: Runtime, found: Pool, more: Mapping[str, object] | None = None) -> Response:
    body = pool_json(runtime.reading(found))
    return _json({**body, **(more or {})}, version=body["version"])


def _shadowed_by(runtime: Runtime, found: Pool, patch: PoolPatch) -> str | None:
    """Return what hides bounds that were just given: "hold", the name of a window or one-off, or nothing."""
    given = patch.bounds_given
    if not given:
        return None
    if _held(found.settings, runtime) and given & {"floor", "ceiling"}:
        return "hold"
    source = found.controller.bounds.source
    rule = next((rule for rule in runtime.schedule.rules if rule.source == source), None)
    hidden = rule is not None and any(getattr(rule, name) is not None for name in given)
    return source_name(source) if hidden else None


def _held(settings: PoolSettings, runtime: Runtime) -> bool:
    return settings.hold is not None and settings.hold.active(runtime.clock.now())


async def _body(request: Request) -> object:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise _refusal(415, "unsupported_media_type", f"Send content-type: application/json, not {kind[:60]!r}.")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise _refusal(413, "request_too_large", f"The body may have {MAX_BODY} bytes.")
    try:
        return msgspec.json.decode(bytes(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_request(f"The body must be JSON: {error}.", "body") from None


def _whole_query(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise InvalidValue(name, f"must be a whole number from 1 to {most}, not {text!r:.40}")
    return int(text)


def _refusal(status: int, code: str, message: str, param: str | None = None) -> RequestError:
    return RequestError(status, code, message, type="invalid_request_error", param=param)


def _error(error: RequestError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(error_body(error), error.status, headers, media_type="application/json")


def _json(body: Mapping[str, Any], status: int = 200, *, version: int | None = None) -> Response:
    headers = {"cache-control": "no-store"}
    if version is not None:
        headers["etag"] = f'"{version}"'
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


ROUTES = [
    Route("/api/pools", pools),
    Route("/api/pools/{name}", pool),
    Route("/api/pools/{name}", change_pool, methods=["PATCH"]),
    Route("/api/pools/{name}/test", probe_pool, methods=["POST"]),
    Route("/api/decisions", decisions),
    Route("/api/schedule", schedule),
    Route("/api/schedule", change_schedule, methods=["PUT"]),
    Route("/api/schedule/preview", preview),
]
