"""Errors as answers: OpenAI's shape, with the headers that make clients do the right thing."""

import msgspec
from starlette.types import Send

from core.errors import RequestError

RawHeaders = list[tuple[bytes, bytes]]


def invalid_request(message: str, param: str | None = None, *, status: int = 400) -> RequestError:
    """Return the refusal of a request that is wrong in itself; `param` names the field."""
    return RequestError(status, "invalid_request", message, type="invalid_request_error", param=param)


def error_headers(error: RequestError) -> RawHeaders:
    """Return the headers that tell a client whether, and when, to try again."""
    headers: RawHeaders = []
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if error.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if error.should_retry else b"false"))
    if error.position is not None:
        headers.append((b"x-tidegate-queue-position", str(error.position).encode()))
    if error.estimated_wait is not None:
        headers.append((b"x-tidegate-estimated-wait", f"{error.estimated_wait:.1f}".encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def error_body(error: RequestError) -> bytes:
    """Return the error as a JSON body."""
    return msgspec.json.encode(error.body())


async def send_error(send: Send, error: RequestError, extra: RawHeaders | None = None) -> None:
    """Answer an ASGI request with `error`; `extra` headers go with it."""
    body = error_body(error)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *error_headers(error),
        *(extra or ()),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def internal_error() -> RequestError:
    """Return the answer where Tidegate itself is at fault; what went wrong stands in the log alone."""
    return RequestError(500, "internal_error", "Tidegate failed to answer this; its log tells why.")
