"""What an upstream's answer, or the lack of one, tells: headers, and how the request ended."""

from datetime import datetime

from core.errors import RequestError, UpstreamFailed
from core.lanes import Outcome
from core.ports import UpstreamAnswer
from core.scheduling.calls import Headers
from core.scheduling.retry_after import retry_after_seconds


def upstream_timeout(which: str) -> UpstreamFailed:
    """Return the error of a deadline that passed: `first_byte`, `between_bytes` or `total`."""
    told = {
        "first_byte": "sent no answer in time",
        "between_bytes": "stopped sending in the middle of its answer",
        "total": "did not come to the end of its answer in time",
    }
    return UpstreamFailed(504, "upstream_timeout", f"The model server {told[which]}.", retry_after=5)


def outcome_of(error: RequestError) -> Outcome:
    """Return the outcome of a request that ended with `error`."""
    if error.code in ("upstream_timeout", "queue_timeout"):
        return Outcome.TIMEOUT
    if error.code == "upstream_truncated":
        return Outcome.UPSTREAM_TRUNCATED
    return Outcome.UPSTREAM_ERROR if isinstance(error, UpstreamFailed) else Outcome.CANCELLED


def outcome_of_status(status: int) -> Outcome:
    """Return the outcome of a request that was answered with a status from 400 on."""
    if status == 429:
        return Outcome.RATE_LIMITED
    if status == 408:
        return Outcome.TIMEOUT
    return Outcome.CLIENT_ERROR if status < 500 else Outcome.UPSTREAM_ERROR


def header(headers: Headers, name: bytes) -> bytes | None:
    """Return the value of a header by its name, `None` where it is missing."""
    for key, value in headers:
        if key == name:
            return value
    return None


def is_event_stream(headers: Headers) -> bool:
    """Tell whether the answer is a stream of events."""
    return (header(headers, b"content-type") or b"").startswith(b"text/event-stream")


def retry_after(headers: Headers, now: datetime) -> float | None:
    """Return the seconds that the Retry-After header asks for, `None` if it says nothing."""
    value = header(headers, b"retry-after")
    return None if value is None else retry_after_seconds(value.decode("latin-1"), now)


async def read_answer(answer: UpstreamAnswer) -> bytes:
    """Return an answer's whole body and close it. Raises UpstreamFailed where it breaks off."""
    pieces = []
    try:
        while piece := await answer.read():
            pieces.append(piece)
    finally:
        answer.close()
    return b"".join(pieces)
