"""What the endpoints of files and batches share: who asks, and errors in OpenAI's shape."""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from core.errors import InvalidValue, NotFound, RequestError
from core.people.audit import API, VIA
from core.runtime import Runtime
from web.auth import Identity, identity_of
from web.errors import error_body, error_headers, invalid_request
from web.front import request_id_of

MAX_BODY = 1024 * 1024
REASON_HEADER = "x-tidegate-reason"
LONGEST_REASON = 500
CLIENT_GONE = 499

Endpoint = Callable[[Request], Awaitable[Response]]


def endpoint(handler: Endpoint) -> Endpoint:
    """Turn errors into answers in OpenAI's shape."""

    @wraps(handler)
    async def answered(request: Request) -> Response:
        headers, via = dict(request.scope["headers"]), VIA.set(API)
        try:
            answer = await handler(request)
        except RequestError as error:
            answer = error_answer(error)
        except InvalidValue as error:
            answer = error_answer(invalid_request(f"{error.field}: {error.message}.", error.field))
        except NotFound as error:
            answer = error_answer(refusal(404, "not_found", f"{error}."))
        except ClientDisconnect:
            answer = Response(status_code=CLIENT_GONE)
        finally:
            VIA.reset(via)
        answer.headers["x-request-id"] = request_id_of(headers)
        return answer

    return answered


def own_endpoint(handler: Endpoint) -> Endpoint:
    """Turn errors into answers as `endpoint` does, but a wrong value into 422: for what is no endpoint of OpenAI's."""

    @endpoint
    @wraps(handler)
    async def checked(request: Request) -> Response:
        try:
            return await handler(request)
        except InvalidValue as error:
            raise refusal(422, "invalid_value", f"{error.field}: {error.message}.", error.field) from None

    return checked


def identity(request: Request) -> Identity:
    """Return who asks."""
    return identity_of(request.scope)


def runtime(request: Request) -> Runtime:
    """Return what runs behind the routes."""
    found: Runtime = request.app.state.runtime
    return found


def refusal(status: int, code: str, message: str, param: str | None = None) -> RequestError:
    """Return the refusal of a request that is wrong in itself."""
    return RequestError(status, code, message, type="invalid_request_error", param=param)


def error_answer(error: RequestError) -> Response:
    """Return an error as an answer."""
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(error_body(error), error.status, headers, media_type="application/json")


def json_answer(body: object, status: int = 200) -> Response:
    """Return a JSON answer that nobody keeps."""
    return Response(msgspec.json.encode(body), status, {"cache-control": "no-store"}, media_type="application/json")


async def body_of(request: Request, most: int = MAX_BODY) -> bytes:
    """Return the request's body. Raises RequestError 413."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise refusal(413, "request_too_large", f"The body may have {most:,} bytes.", "body")
    return bytes(body)


def object_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is. Raises RequestError 400."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_request(f"The body must be a JSON object: {error}.", "body") from None
    if not isinstance(found, dict):
        raise invalid_request("The body must be a JSON object.", "body")
    return found


def whole(given: Mapping[str, Any], name: str, *, least: int, most: int) -> int | None:
    """Return a whole number that may be absent. Raises InvalidValue."""
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidValue(name, f"must be a whole number from {least} to {most}")
    return value


def text_of(given: Mapping[str, Any], name: str, *, most: int) -> str | None:
    """Return a text that may be absent. Raises InvalidValue."""
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > most or "\0" in value:
        raise InvalidValue(name, f"must be a text of at most {most} characters")
    return value


def reason_of(request: Request, given: Mapping[str, Any]) -> str:
    """Return why a change is made: the body's `reason`, else what its header says. Raises InvalidValue."""
    return text_of(given, "reason", most=LONGEST_REASON) or told_reason(request) or ""


def told_reason(request: Request) -> str | None:
    """Return the reason in the header, the one place that OpenAI's protocol leaves for one, `None` where it is missing.

    Raises InvalidValue.
    """
    value = request.headers.get(REASON_HEADER)
    if value is None:
        return None
    told = value.encode("latin-1").decode("utf-8", "replace").strip()
    return text_of({"reason": told}, "reason", most=LONGEST_REASON) or None


def page_limit(request: Request, *, default: int, most: int) -> int:
    """Return the query's `limit`. Raises InvalidValue."""
    text = request.query_params.get("limit")
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise InvalidValue("limit", f"must be a whole number from 1 to {most}, not {text!r:.40}")
    return int(text)


def page(rows: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """Return one page of a list in OpenAI's shape."""
    return {
        "object": "list",
        "data": rows,
        "first_id": rows[0]["id"] if rows else None,
        "last_id": rows[-1]["id"] if rows else None,
        "has_more": more,
    }
