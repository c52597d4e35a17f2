"""The lines of result files, in OpenAI's shape. Pure."""

import msgspec

from core.batch.values import Batch, ItemRow, ItemState

NEVER_RUN = {
    ItemState.CANCELLED: ("batch_cancelled", "The batch was cancelled before this request could run."),
    ItemState.EXPIRED: ("batch_expired", "The batch's completion window ended before this request could run."),
}


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Line(msgspec.Struct):
    id: str
    custom_id: str
    response: _Response | None
    error: _Error | None


def request_id(batch_id: str, index: int) -> str:
    """Return the id of a line: the same at every attempt."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{index}"


def answer_line(batch_id: str, index: int, custom_id: str, *, status: int, body: bytes, request: str = "") -> bytes:
    """Return the line, with its newline, of a request that the model server answered: whatever the status.

    `body` is the answer as it came, `request` the id under which it was sent. What is no JSON stands there as text.
    """
    line = request_id(batch_id, index)
    response = _Response(status, request or line, msgspec.Raw(_one_line(body)))
    return _encoded(_Line(line, custom_id, response, None))


def error_line(batch_id: str, index: int, custom_id: str, *, code: str, message: str) -> bytes:
    """Return the line, with its newline, of a request that got no answer."""
    return _encoded(_Line(request_id(batch_id, index), custom_id, None, _Error(code, message)))


def never_run_line(batch: Batch, item: ItemRow) -> bytes:
    """Return the line of an item that was cancelled or expired."""
    code, message = NEVER_RUN[item.state]
    return error_line(batch.id, item.index, item.custom_id, code=code, message=message)


def _encoded(line: _Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _one_line(body: bytes) -> bytes:
    """Return JSON without line breaks: they can only stand between its parts."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(body.decode(errors="replace"))
    return body.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in body or b"\r" in body else body
