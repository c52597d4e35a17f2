"""An ASGI response as the gateway's Reply: bytes go out as they come, errors take the form that the moment allows."""

from starlette.types import Send

from core.errors import RequestError
from core.scheduling.answers import is_event_stream
from core.scheduling.calls import Call, Headers
from web.errors import RawHeaders, error_body, send_error

# What the server in front of the client sets anew, and what must not stand between two machines' connections.
_NOT_PASSED_ON = frozenset((b"date", b"server", b"set-cookie", b"connection", b"alt-svc", b"x-request-id"))
_STREAM_HEAD: RawHeaders = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class BrokenOff(ConnectionError):
    """The answer cannot be ended properly: the server must cut the connection, or it would look complete."""


class AsgiReply:
    """Answers one HTTP request (see `core.scheduling.calls.Reply`)."""

    __slots__ = (
        "_call",
        "_ended",
        "_event_stream",
        "_head_sent",
        "_left",
        "_line_open",
        "_pool",
        "_refusal",
        "_send",
        "started",
        "status",
    )

    def __init__(self, *, send: Send, call: Call, pool: str) -> None:
        self._send = send
        self._call = call
        self._pool = pool.encode()
        self._head_sent = False
        self._left = -1  # bytes of the body to come, below 0 where its length was not announced
        self._ended = False
        self._event_stream = False
        self._refusal: list[bytes] | None = None
        self._line_open = False
        self.started = False
        self.status = 0

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head; after a heartbeat, when it is out already, a refusal is kept to be told inside the stream."""
        self.started = True
        self.status = status
        if self._head_sent:
            self._refusal = None if status < 400 and is_event_stream(headers) else []
            return
        passed = []
        streamed = self._event_stream = is_event_stream(headers)
        for header in headers:
            name, value = header
            if name == b"content-length":
                if streamed:
                    continue  # an error that has to be told inside the stream makes it longer
                self._left = int(value)
            if name not in _NOT_PASSED_ON and not name.startswith(b"x-tidegate-"):
                passed.append(header)
        if status >= 400:
            passed = [_honest(header) for header in passed]
        await self._send_head(status, passed)

    async def send(self, piece: bytes) -> None:
        """Send a piece of the body."""
        if self._refusal is not None:
            self._refusal.append(piece)
            return
        if self._event_stream and piece:
            self._line_open = not piece.endswith(b"\n")
        self._left -= len(piece)
        self._ended = self._left == 0
        await self._send({"type": "http.response.body", "body": piece, "more_body": not self._ended})

    async def finish(self) -> None:
        """End the answer, unless all of its announced length went out, which ended it."""
        if self._ended:
            return
        body = b"" if self._refusal is None else _as_event(_as_error_body(b"".join(self._refusal), self.status))
        await self._send({"type": "http.response.body", "body": body})

    async def heartbeat(self) -> None:
        """Send a comment line, and the head of an event stream before the first."""
        if not self._head_sent:
            self._event_stream = True
            await self._send_head(200, _STREAM_HEAD)
        await self._send({"type": "http.response.body", "body": b": waiting\n\n", "more_body": True})

    async def fail(self, error: RequestError) -> None:
        """Tell the error by status, or inside an open stream; raises BrokenOff where neither is possible any more."""
        self.status = error.status
        if not self._head_sent:
            self._head_sent = True
            await send_error(self._send, error, self.own_headers())
        elif self._event_stream:
            close_line = b"\n\n" if self._line_open else b""
            await self._send({"type": "http.response.body", "body": close_line + _as_event(error_body(error))})
        else:
            raise BrokenOff(error.code)

    def own_headers(self) -> RawHeaders:
        """Return the headers that every answer carries."""
        call = self._call
        return [
            (b"x-request-id", call.id.encode()),
            (b"x-tidegate-lane", call.lane.encode()),
            (b"x-tidegate-pool", self._pool),
            (b"x-tidegate-queue-ms", str(round(call.queued_s * 1000)).encode()),
        ]

    async def _send_head(self, status: int, headers: RawHeaders) -> None:
        buffering = [(b"x-accel-buffering", b"no")] if self._event_stream else []
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *buffering, *self.own_headers()],
            }
        )
        self._head_sent = True  # not before: a heartbeat or an attempt that is broken off while it waits sent nothing


def _honest(header: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """Turn a Retry-After of less than 1, on which some clients come back at once and for ever, into 1 second."""
    name, value = header
    try:
        soon = name == b"retry-after" and float(value) < 1
    except ValueError:
        soon = False
    return (name, b"1") if soon else header


def _as_event(body: bytes) -> bytes:
    return b"data: " + body.replace(b"\r", b"").replace(b"\n", b" ") + b"\n\n"


def _as_error_body(body: bytes, status: int) -> bytes:
    """Return the upstream's refusal if it is in OpenAI's shape, else one that tells its status."""
    if b'"error"' in body and body.lstrip().startswith(b"{"):
        return body
    what = f"with status {status}" if status >= 400 else "a call for a stream with something else"
    return error_body(RequestError(status, "upstream_error", f"The model server answered {what}."))
