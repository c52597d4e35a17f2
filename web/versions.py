"""The version that a change is based on, as If-Match tells it."""

from starlette.requests import Request

from core.errors import RequestError, StaleVersion
from web.errors import invalid_request


def if_match(request: Request) -> frozenset[int] | None:
    """Return the versions in If-Match, `None` for `*`. Raises RequestError: 428 without it, 400 for no version."""
    header = request.headers.get("if-match")
    if header is None:
        message = 'Send If-Match with the ETag that GET answered, such as If-Match: "3"; * overrides on purpose.'
        raise RequestError(428, "precondition_required", message, type="invalid_request_error", param="If-Match")
    if header.strip() == "*":
        return None
    versions = [tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")]
    if not all(tag.isascii() and tag.isdigit() and len(tag) < 19 for tag in versions):
        raise invalid_request(f'If-Match must be an ETag such as "3", or *, not {header[:60]!r}.', "If-Match")
    return frozenset(int(tag) for tag in versions)


def based_on(seen: frozenset[int] | None, present: int) -> int | None:
    """Return the version to base a change on, `None` to override. Raises StaleVersion."""
    if seen is None:
        return None
    if present not in seen:
        raise StaleVersion(max(seen), present)
    return present
