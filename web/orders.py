"""What a client may ask of a batch: JSON to values, with errors that name the field."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
from starlette.requests import Request

from core.batch.lines import ENDPOINTS
from core.batch.service import NewBatch, check_priority
from core.errors import InvalidValue
from web.api import identity, text_of, whole
from web.auth import check_batch

EXPIRES_LEAST_S = 3_600
EXPIRES_MOST_S = 2_592_000
MOST_PAIRS = 16
LONGEST_LABEL = 64
LONGEST_VALUE = 512
MOST_AT_ONCE = 100_000
LONGEST_INTERVAL_MS = 3_600_000


def order_of(request: Request, given: Mapping[str, Any]) -> NewBatch:
    """Return the batch that the body of POST /v1/batches asks for. Raises InvalidValue."""
    endpoint = given.get("endpoint")
    if endpoint not in ENDPOINTS:
        raise InvalidValue("endpoint", f"must be one of {', '.join(ENDPOINTS)}, not {endpoint!r:.60}")
    input_file_id = text_of(given, "input_file_id", most=200)
    if not input_file_id:
        raise InvalidValue("input_file_id", "is missing: upload a file with purpose batch and give its id")
    who = identity(request)
    check_batch(who)
    return NewBatch(
        tenant=who.tenant,
        key=who.key,
        endpoint=str(endpoint),
        input_file_id=input_file_id,
        completion_window=given.get("completion_window", ""),
        metadata=metadata_of(given.get("metadata")),
        output_expires_after=_output_expires_after(given.get("output_expires_after")),
        name=text_of(given, "name", most=200) or "",
        priority=priority_of(given),
        max_concurrency=whole(given, "max_concurrency", least=1, most=MOST_AT_ONCE),
        interval_s=(whole(given, "interval_ms", least=0, most=LONGEST_INTERVAL_MS) or 0) / 1000,
    )


def metadata_of(given: object) -> dict[str, str]:
    """Return a client's own labels. Raises InvalidValue."""
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > MOST_PAIRS:
        raise InvalidValue("metadata", f"must be an object of at most {MOST_PAIRS} texts")
    for name, value in given.items():
        if not isinstance(value, str) or len(name) > LONGEST_LABEL or len(value) > LONGEST_VALUE:
            limits = f"names of at most {LONGEST_LABEL} and texts of at most {LONGEST_VALUE} characters"
            raise InvalidValue("metadata", f"must hold {limits}")
    return given


def priority_of(given: Mapping[str, Any]) -> int:
    """Return a priority, 0 where there is none. Raises InvalidValue."""
    value = given.get("priority", 0)
    if type(value) is not int:
        raise InvalidValue("priority", "must be a whole number")
    check_priority(value)
    return value


def expires_after_of(given: Mapping[str, object]) -> timedelta | None:
    """Return the length in `{anchor: "created_at", seconds}`, `None` where both are absent. Raises InvalidValue."""
    anchor, seconds = given.get("anchor"), given.get("seconds")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidValue("expires_after.anchor", 'must be "created_at"')
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit():
        with suppress(ValueError):  # more digits than a number may have
            seconds = int(seconds)
    if type(seconds) is not int or not EXPIRES_LEAST_S <= seconds <= EXPIRES_MOST_S:
        raise InvalidValue("expires_after.seconds", f"must be from {EXPIRES_LEAST_S} to {EXPIRES_MOST_S}")
    return timedelta(seconds=seconds)


def form_expires_after(fields: Mapping[str, str]) -> timedelta | None:
    """Return the length in a form's fields: `expires_after[anchor]` and `[seconds]`, or `expires_after`, in JSON."""
    whole_field = fields.get("expires_after")
    if whole_field is None:
        return expires_after_of({name: fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds")})
    try:
        return expires_after_of(msgspec.json.decode(whole_field, type=dict[str, object]))
    except (msgspec.DecodeError, RecursionError):
        raise InvalidValue("expires_after", 'must be {"anchor": "created_at", "seconds": ...}') from None


def dedupe_of(request: Request, body: bytes) -> str:
    """Return the hash by which a create that is sent again is known: who, what, and the Idempotency-Key if any."""
    who = identity(request)
    parts = (who.tenant, who.key or "", request.url.path, request.headers.get("idempotency-key", ""))
    return hashlib.sha256(msgspec.json.encode(parts) + body).hexdigest()


def sent_again(request: Request) -> bool:
    """Tell whether this may be sent for the second time: an SDK says so, or there is an Idempotency-Key."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return bool(request.headers.get("idempotency-key")) or (count.isascii() and count.isdigit() and int(count) > 0)


def _output_expires_after(given: object) -> timedelta | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise InvalidValue("output_expires_after", 'must be {"anchor": "created_at", "seconds": ...}')
    try:
        return expires_after_of(given)
    except InvalidValue as error:
        raise InvalidValue(f"output_{error.field}", error.message) from None
