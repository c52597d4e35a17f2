"""Our OpenAPI document, made of the routes themselves, so that none is left out and none made up."""

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from web import openapi_parts as parts
from web.api import REASON_HEADER

PATH = "/openapi.json"
_TOLD = ("/v1/", "/api/")
_TOLD_ALONE = frozenset({"/healthz", "/readyz", "/metrics", PATH})
_PARAMETER = re.compile(r"{(\w+)(?::(\w+))?}")
_DESCRIPTION = (
    "The OpenAI-compatible API for models, files and batches under /v1, and the operator API under /api. "
    "Errors have OpenAI's shape. See the README for what each call does."
)


async def openapi(request: Request) -> Response:
    """Answer with this document."""
    state = request.app.state
    if getattr(state, "openapi", None) is None:
        state.openapi = msgspec.json.encode(document(request.app.routes))
    return Response(state.openapi, media_type="application/json")


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Return the document of these routes; pages and what exists only to say no are left out."""
    paths: dict[str, dict[str, Any]] = {}
    for route in told(routes):
        path = _PARAMETER.sub(r"{\1}", route.path)
        for method in sorted(set(route.methods or ()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(method, path, route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidegate", "version": version("tidegate"), "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": parts.SCHEMAS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def told(routes: Iterable[BaseRoute]) -> Iterator[Route]:
    """Yield the routes that the document tells of."""
    for route in routes:
        if not isinstance(route, Route) or getattr(route.endpoint, "only_refuses", False):
            continue
        if route.path.startswith(_TOLD) or route.path in _TOLD_ALONE:
            yield route


def _operation(method: str, path: str, route: Route) -> dict[str, Any]:
    name = f"{method} {path}"
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", name).strip("_").lower(),
        "summary": parts.SUMMARIES.get(name) or _first_line(route.endpoint),
        "responses": _responses(name),
    }
    parameters = [*_in_path(route), *_in_query(name), *_in_headers(name)]
    if parameters:
        operation["parameters"] = parameters
    body = _body(name, method)
    if body is not None:
        operation["requestBody"] = body
    if path.startswith(_TOLD):
        operation["security"] = [{"key": []}, {}]
    return operation


def _first_line(endpoint: Any) -> str:
    return str(endpoint.__doc__ or "").strip().splitlines()[0]


def _in_path(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": parts.whole(minimum=1) if kind == "int" else parts.text(minLength=1),
        }
        for name, kind in _PARAMETER.findall(route.path)
    ]


def _in_query(name: str) -> list[dict[str, Any]]:
    return [{"name": key, "in": "query", "schema": schema} for key, schema in parts.QUERIES.get(name, {}).items()]


def _in_headers(name: str) -> list[dict[str, Any]]:
    told = {}
    if name in parts.WITH_VERSION:
        told["If-Match"] = "The version that the change is based on, as the ETag told it; * overrides."
    if name in parts.WITH_REASON:
        told[REASON_HEADER] = "Why, for the audit trail."
    return [{"name": key, "in": "header", "description": why, "schema": parts.text()} for key, why in told.items()]


def _body(name: str, method: str) -> dict[str, Any] | None:
    if method not in ("POST", "PUT", "PATCH") or name in parts.WITHOUT_BODY:
        return None
    if name == "POST /v1/files":
        schema = parts.given(("file", "purpose"), file=parts.text(format="binary"), purpose=parts.text(const="batch"))
        return {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    return {"content": {parts.JSON: {"schema": parts.BODIES.get(name, parts.named("Object"))}}}


def _responses(name: str) -> dict[str, Any]:
    answers = parts.ANSWERS.get(name, {parts.JSON: parts.named("Object")})
    good = {"description": "Done.", "content": {kind: {"schema": schema} for kind, schema in answers.items()}}
    error: dict[str, Any] = {"content": {parts.JSON: {"schema": parts.named("Error")}}}
    if name in parts.PASSED_ON:
        error = {"content": {parts.JSON: {"schema": {}}, parts.PLAIN: {"schema": parts.text()}, "text/html": {}}}
    responses = {"2XX": good}
    if name == "GET /readyz":
        return {**responses, "503": {**good, "description": "Not ready, with every reason why."}}
    if name.startswith(("GET /healthz", "GET /metrics", f"GET {PATH}")):
        return responses
    return {
        **responses,
        "4XX": {**error, "description": "The request cannot be answered as it is."},
        "5XX": {**error, "description": "The model server, or its queue, could not answer in time."},
    }


ROUTES: list[BaseRoute] = [Route(PATH, openapi)]
