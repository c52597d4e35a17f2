"""The web application: one table of routes, and what runs while it serves."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from core.config import Settings
from core.errors import RequestError
from core.people.permissions import Action
from core.runtime import Runtime
from web import (
    accounts,
    admin,
    batch_short,
    batches,
    dashboard,
    eta,
    files,
    health,
    oidc,
    openapi,
    people_api,
    sign_in,
    simple,
    tenants,
    trail,
    webhook_pages,
    webhooks,
)
from web.edges import AllowedAddresses
from web.errors import send_error
from web.faults import http_error, server_error
from web.front import Front
from web.gate import Gate
from web.headers import KnownHosts, SecurityHeaders, own_headers
from web.inference import Inference
from web.peers import Peers
from web.permissions import Guarded, guarded
from web.ui import running

HOT_PATH = "/v1/chat/completions"


class _Inference:
    """Hands a request to the inference endpoint of the running application."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        endpoint: Inference = scope["app"].state.inference
        return endpoint(scope, receive, send)


class Application(Starlette):
    """The application. At its `entrance` plain chat calls go straight to their endpoint, past middleware and table of
    routes, which would cost each a tenth, and an open stream two kilobytes.
    """

    def __init__(self, settings: Settings, **options: Any) -> None:
        hosts = self._hosts = KnownHosts([settings.host, *settings.allowed_hosts])
        middleware = [Middleware(SecurityHeaders, hosts=hosts)]
        self._from_anywhere = not settings.allowed_addresses
        if settings.allowed_addresses:
            peers = Peers(settings.trusted_proxies)
            middleware.insert(0, Middleware(AllowedAddresses, ranges=settings.allowed_addresses, peers=peers))
        super().__init__(middleware=middleware, **options)
        self._chat: Guarded | None = None

    def open(self, runtime: Runtime) -> None:
        """Answer requests with what runs in `runtime`."""
        state = self.state
        state.runtime, state.gate, state.front = runtime, Gate(runtime=runtime), Front(runtime=runtime)
        state.inference = Inference(front=state.front)
        if self._from_anywhere:
            self._chat = Guarded(state.inference, Action.INFER, state.gate)

    def entrance(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request: what the server calls, instead of the application itself."""
        hot = scope["type"] == "http" and scope["path"] == HOT_PATH and scope["method"] == "POST"
        if hot and self._chat is not None and self._hosts.has_plain_call(scope):
            scope["app"] = self
            return self._chat(scope, receive, send)
        return self(scope, receive, send)


class _Models:
    """Hands a request for the list of models to the inference endpoint."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint: Inference = scope["app"].state.inference
        await endpoint.models(scope, receive, send)


class _NoSuchEndpoint:
    """Answers what is below /v1 but no endpoint in OpenAI's error shape."""

    only_refuses = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"There is no endpoint {scope['method']} {scope['path'][:200]!r}."
        refusal = RequestError(404, "not_found", message, type="invalid_request_error")
        await send_error(send, refusal, own_headers(scope))


async def metrics(request: Request) -> Response:
    """Answer with all metrics in the Prometheus text format."""
    runtime: Runtime = request.app.state.runtime
    return Response(runtime.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")


def routes() -> list[BaseRoute]:
    """Return all routes, the hot ones first."""
    inference = _Inference()
    return [
        Route(HOT_PATH, inference, methods=["POST"]),
        *files.ROUTES,
        *batches.ROUTES,
        *batch_short.ROUTES,
        *eta.ROUTES,
        *webhooks.ROUTES,
        Route("/v1/models", _Models(), methods=["GET"]),
        Route("/v1/models/{model:path}", _Models(), methods=["GET"]),
        Route("/v1/{path:path}", inference, methods=["POST"]),
        Route("/v1/{path:path}", _NoSuchEndpoint(), methods=["GET", "PUT", "PATCH", "DELETE"]),
        Route("/v1", _NoSuchEndpoint(), methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        Route("/metrics", metrics),
        *health.ROUTES,
        *simple.ROUTES,
        *admin.ROUTES,
        *people_api.ROUTES,
        *trail.ROUTES,
        *openapi.ROUTES,
        *sign_in.ROUTES,
        *oidc.ROUTES,
        *tenants.ROUTES,
        *accounts.ROUTES,
        *webhook_pages.ROUTES,
        *dashboard.ROUTES,
    ]


def create_app(settings: Settings) -> Application:
    """Return the application; its lifespan starts and stops a runtime built from `settings`."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        runtime = Runtime(settings=settings)
        try:
            await runtime.start()
            assert isinstance(app, Application)
            app.open(runtime)
            async with running(app, runtime):
                yield
        finally:
            await runtime.stop()

    return Application(
        settings,
        routes=guarded(routes()),
        lifespan=lifespan,
        exception_handlers={HTTPException: http_error, Exception: server_error},
    )
