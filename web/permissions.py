"""Which action each route is, and the one place where that is enforced, for pages and API alike."""

import copy
from collections.abc import Awaitable, Iterable

from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from core.errors import RequestError
from core.people.identity import ASKING, GUEST, Identity
from core.people.permissions import Action, may
from web.auth import IDENTITY
from web.gate import Gate

ACTIONS: dict[str, Action] = {
    # The inference API, and what goes with it
    "POST /v1/chat/completions": Action.INFER,
    "POST /v1/{path:path}": Action.INFER,
    "GET PATCH PUT DELETE /v1/{path:path}": Action.INFER,
    "GET POST PATCH PUT DELETE /v1": Action.INFER,
    "GET /v1/models": Action.INFER,
    "GET /v1/models/{model:path}": Action.INFER,
    "POST /api/chat": Action.INFER,
    # Durable batches and files, of the own tenant
    "GET /v1/files": Action.BATCH_READ,
    "POST /v1/files": Action.BATCH_WRITE,
    "GET /v1/files/{file_id}": Action.BATCH_READ,
    "DELETE /v1/files/{file_id}": Action.BATCH_WRITE,
    "GET /v1/files/{file_id}/content": Action.BATCH_READ,
    "GET /v1/batches": Action.BATCH_READ,
    "POST /v1/batches": Action.BATCH_WRITE,
    "GET /v1/batches/{batch_id}": Action.BATCH_READ,
    "POST /v1/batches/{batch_id}/cancel": Action.BATCH_WRITE,
    "POST /api/batches/{batch_id}/pause": Action.BATCH_WRITE,
    "POST /api/batches/{batch_id}/resume": Action.BATCH_WRITE,
    "POST /api/batches/{batch_id}/priority": Action.BATCH_WRITE,
    "POST /api/batches/{batch_id}/retry-failed": Action.BATCH_WRITE,
    "POST /api/batch": Action.BATCH_WRITE,
    "GET /api/batch/{batch_id}": Action.BATCH_READ,
    "GET /api/batch/{batch_id}/eta": Action.BATCH_READ,
    "GET /api/batch/{batch_id}/results": Action.BATCH_READ,
    "POST /api/batch/quote": Action.BATCH_READ,
    "GET /api/eta/score": Action.BATCH_READ,
    "POST /api/webhooks": Action.BATCH_WRITE,
    "GET /api/webhooks": Action.BATCH_READ,
    "GET /api/webhooks/{webhook_id}": Action.BATCH_READ,
    "PATCH /api/webhooks/{webhook_id}": Action.BATCH_WRITE,
    "DELETE /api/webhooks/{webhook_id}": Action.BATCH_WRITE,
    "POST /api/webhooks/{webhook_id}/rotate": Action.BATCH_WRITE,
    "POST /api/webhooks/{webhook_id}/test": Action.BATCH_WRITE,
    "GET /api/webhooks/{webhook_id}/deliveries": Action.BATCH_READ,
    # Pages of batches: those of the own tenant, for operators all
    "GET /batches": Action.BATCH_READ,
    "GET /batches/new": Action.BATCH_WRITE,
    "GET /batches/confirm": Action.BATCH_WRITE,
    "POST /ui/batches": Action.BATCH_WRITE,
    "POST /ui/batches/change": Action.BATCH_WRITE,
    "POST /ui/batches/undo": Action.BATCH_WRITE,
    "GET /batches/{batch_id}": Action.BATCH_READ,
    "GET /batches/{batch_id}/files/{kind}": Action.BATCH_READ,
    "GET /eta": Action.BATCH_READ,
    # Pages of webhooks: those of the own tenant, for admins all
    "GET /webhooks": Action.BATCH_READ,
    "GET /webhooks/rotate": Action.BATCH_WRITE,
    "GET /webhooks/delete": Action.BATCH_WRITE,
    "GET /webhooks/{webhook_id}": Action.BATCH_READ,
    "POST /ui/webhooks": Action.BATCH_WRITE,
    "POST /ui/webhooks/test": Action.BATCH_WRITE,
    "POST /ui/webhooks/switch": Action.BATCH_WRITE,
    "POST /ui/webhooks/rotate": Action.BATCH_WRITE,
    "POST /ui/webhooks/delete": Action.BATCH_WRITE,
    # The operator API
    "GET /api/pools": Action.SEE,
    "GET /api/pools/{name}": Action.SEE,
    "PATCH /api/pools/{name}": Action.TUNE,
    "GET /api/decisions": Action.SEE,
    "GET /api/schedule": Action.SEE,
    "PUT /api/schedule": Action.SCHEDULE,
    "GET /api/schedule/preview": Action.SEE,
    "POST /api/pools/{name}/test": Action.UPSTREAMS,
    # What happened
    "GET /api/audit": Action.AUDIT_READ,
    "GET /api/audit/export": Action.AUDIT_READ,
    "GET /api/audit/{number:int}": Action.AUDIT_READ,
    "GET /api/calls": Action.CALLS_READ,
    "GET /api/calls/export": Action.CALLS_READ,
    # People, teams and keys
    "GET /api/tenants": Action.TENANTS,
    "POST /api/tenants": Action.TENANTS,
    "GET /api/tenants/{name}": Action.TENANTS,
    "PATCH /api/tenants/{name}": Action.TENANTS,
    "GET /api/keys": Action.KEYS,
    "POST /api/keys": Action.KEYS,
    "GET /api/keys/{name}": Action.KEYS,
    "DELETE /api/keys/{name}": Action.KEYS,
    "POST /api/keys/{name}/rotate": Action.KEYS,
    "GET /api/accounts": Action.ACCOUNTS,
    "POST /api/accounts": Action.ACCOUNTS,
    "GET /api/accounts/{name}": Action.ACCOUNTS,
    "PATCH /api/accounts/{name}": Action.ACCOUNTS,
    "GET /api/sessions": Action.ACCOUNTS,
    "DELETE /api/sessions/{id}": Action.ACCOUNTS,
    # Pages
    "GET /": Action.SEE,
    "GET /decisions": Action.SEE,
    "GET /schedule": Action.SEE,
    "GET /schedule/delete": Action.SCHEDULE,
    "GET /ui/live": Action.SEE,
    "GET /ui/stream": Action.SEE,
    "GET /ui/tuning/preview": Action.TUNE,
    "POST /ui/tuning": Action.TUNE,
    "POST /ui/undo": Action.TUNE,
    "POST /ui/pause": Action.PAUSE,
    "GET /ui/schedule/preview": Action.SCHEDULE,
    "POST /ui/schedule/save": Action.SCHEDULE,
    "POST /ui/schedule/delete": Action.SCHEDULE,
    "GET /audit": Action.AUDIT_READ,
    "GET /audit/{number:int}": Action.AUDIT_READ,
    "GET /audit/calls": Action.CALLS_READ,
    "POST /ui/audit/revert": Action.TUNE,
    "GET /tenants": Action.TENANTS,
    "GET /tenants/rotate": Action.KEYS,
    "GET /tenants/revoke": Action.KEYS,
    "POST /ui/tenants": Action.TENANTS,
    "POST /ui/keys": Action.KEYS,
    "POST /ui/keys/rotate": Action.KEYS,
    "POST /ui/keys/revoke": Action.KEYS,
    "GET /accounts": Action.ACCOUNTS,
    "POST /ui/accounts": Action.ACCOUNTS,
    "POST /ui/accounts/change": Action.ACCOUNTS,
    "POST /ui/accounts/password": Action.ACCOUNTS,
    "POST /ui/accounts/sign-out": Action.ACCOUNTS,
    "GET /account": Action.OWN_ACCOUNT,
    "POST /ui/account/password": Action.OWN_ACCOUNT,
    "POST /ui/account/sign-out": Action.OWN_ACCOUNT,
    # What needs nobody's leave
    "GET /sign-in": Action.PUBLIC,
    "POST /ui/sign-in": Action.PUBLIC,
    "POST /ui/sign-out": Action.PUBLIC,
    "GET /sign-in/provider": Action.PUBLIC,
    "GET /sign-in/provider/back": Action.PUBLIC,
    "GET /setup": Action.PUBLIC,
    "POST /ui/setup": Action.PUBLIC,
    "GET /healthz": Action.PUBLIC,
    "GET /readyz": Action.PUBLIC,
    "GET /metrics": Action.PUBLIC,
    "GET /openapi.json": Action.PUBLIC,
    "/static": Action.PUBLIC,
}
"""By methods (HEAD goes with GET) and path. A route that is not named here is for admins alone, and fails the tests."""

UNNAMED = Action.ACCOUNTS
_TABLE = {
    (method, path): action
    for route, action in ACTIONS.items()
    for *methods, path in [route.split()]
    for method in methods or [""]
}


def methods_of(route: BaseRoute) -> list[str]:
    """Return the methods of a route, HEAD left out; "" stands for those of a mounted application."""
    return sorted(set(getattr(route, "methods", None) or {""}) - {"HEAD"})


def action_of(method: str, path: str) -> Action | None:
    """Return the action that a route is with a method, `None` where the table does not name it."""
    return _TABLE.get((method, path))


def guarded(routes: Iterable[BaseRoute]) -> list[BaseRoute]:
    """Return the routes, each open only to those who may do what it is for."""
    return [_guarded(route) for route in routes]


def _guarded(route: BaseRoute) -> BaseRoute:
    if not isinstance(route, Route | Mount):
        raise TypeError(f"{route!r} cannot be guarded")
    found = {action_of(method, route.path) or UNNAMED for method in methods_of(route)}
    if len(found) > 1:
        raise ValueError(f"{route.path} is several actions; make a route of each")
    guarded_route = copy.copy(route)
    guarded_route.app = Guarded(route.app, found.pop())
    return guarded_route


class Guarded:
    """An ASGI application that only those reach who may do `action`; whoever asks stands in the scope.

    The gate is that of the application which serves the request, unless it is given.
    """

    def __init__(self, app: ASGIApp, action: Action, gate: Gate | None = None) -> None:
        self._app = app
        self._action = action
        self._gate = gate

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Find out who asks, and let him in or answer why not."""
        if self._action is Action.PUBLIC:
            ASKING.set(GUEST)
            return self._app(scope, receive, send)
        gate: Gate = self._gate or scope["app"].state.gate
        identity = gate.known(scope)
        if identity is None or not may(identity, self._action):
            return self._ask(gate, scope, receive, send)
        ASKING.set(identity)
        return self._enter(gate, identity, scope, receive, send)

    async def _ask(self, gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            identity = await gate.identify(scope)
            ASKING.set(identity)
            if not may(identity, self._action):
                raise gate.forbidden(identity, self._action)
        except RequestError as error:
            await gate.refuse(scope, receive, send, error)
            return
        await self._enter(gate, identity, scope, receive, send)

    def _enter(self, gate: Gate, identity: Identity, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        scope[IDENTITY] = identity
        return self._app(scope, receive, gate.watched(send, identity) if scope["path"] == "/ui/stream" else send)
