"""Answers where no endpoint made one: what no route takes, and what went wrong."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from core.errors import RequestError
from web.errors import error_body, internal_error
from web.headers import own_headers

_API = ("/v1", "/api/")
_CODES = {404: "not_found", 405: "method_not_allowed"}


async def http_error(request: Request, error: Exception) -> Response:
    """Answer what no route takes: in OpenAI's shape below /v1 and /api, as a line of text elsewhere."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if not request.url.path.startswith(_API):
        return PlainTextResponse(error.detail, error.status_code, headers)
    code = _CODES.get(error.status_code, "invalid_request")
    told = RequestError(error.status_code, code, f"{error.detail}.", type="invalid_request_error")
    return _answered(request, told, headers)


async def server_error(request: Request, error: Exception) -> Response:
    """Answer where Tidegate itself is at fault."""
    if not request.url.path.startswith(_API):
        return PlainTextResponse("Internal Server Error", 500)
    return _answered(request, internal_error(), {})


def _answered(request: Request, error: RequestError, headers: dict[str, str]) -> Response:
    own = {name.decode(): value.decode() for name, value in own_headers(request.scope)}
    return Response(error_body(error), error.status, {**headers, **own}, media_type="application/json")
