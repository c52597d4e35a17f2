"""The outermost edge: how large a head may be, how slow a client, and from where anything is answered at all."""

import asyncio
import functools
import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from core.addresses import parse_address
from web.errors import error_body, invalid_request
from web.one_write import OneWriteProtocol
from web.peers import Peers

LONGEST_HEAD = 64 * 1024
MOST_HEADERS = 128
HEAD_S = 20.0
"""Seconds within which the head of a request must be here, from its first byte on."""

CONNECTION = "tidegate.connection"
"""Where in a request's scope stands the connection that it came on."""

log = structlog.get_logger(__name__)


def _refusal(status: bytes, media_type: bytes, body: bytes) -> bytes:
    head = (b"HTTP/1.1 " + status, b"content-type: " + media_type, b"content-length: %d" % len(body))
    return b"\r\n".join((*head, b"connection: close", b"", body))


_TOO_LARGE = _refusal(
    b"431 Request Header Fields Too Large",
    b"text/plain; charset=utf-8",
    b"The head of the request is too large.\n",
)
_UPGRADE = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n|$)", re.IGNORECASE)
# An address with a NUL names nothing, and not every database can be asked for it.
_NUL = _refusal(
    b"400 Bad Request",
    b"application/json",
    error_body(invalid_request("The address holds a NUL (%00), which nothing here has.", "path")),
)


def _without_upgrade(data: bytes) -> bytes:
    """Take the wish for HTTP/2 out of a head: Java's client utters it, and the parser would drop the body after it."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"", head) + end + rest


class _Refused(Exception):
    """Stops the parser."""


class _Event(asyncio.Event):
    """An event for which seldom anybody waits: a list of those who do takes a tenth of the library's deque."""

    def __init__(self, *, happened: bool = False) -> None:
        super().__init__()
        self._waiters = []  # type: ignore[assignment]  # it is only appended to, removed from and gone through
        if happened:
            self.set()


class _Pipeline(list[Any]):
    """Requests that came before the one before them was answered, oldest last: next to always there are none."""

    def appendleft(self, item: object) -> None:
        """Add the newest."""
        self.insert(0, item)


class EdgeProtocol(OneWriteProtocol):
    """The server's HTTP protocol: refuses heads that are too large, and cuts off clients that hold a connection up.

    A client is cut off that takes nothing of its answer, or sends nothing of its body, for `stall` seconds, or does not
    finish the head of its request within 20 s. Its request then ends as if it had left. An honest request costs no
    timer.
    """

    __slots__ = (
        "_begun",
        "_chunk",
        "_head",
        "_left",
        "_pending",
        "_reading",
        "_refused",
        "_running",
        "_taken",
        "_unused",
        "_writing",
    )  # more attributes than the server's own would cost each connection a dictionary without shared keys
    stall: float = 30.0
    head_time: float = HEAD_S

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pipeline = _Pipeline()  # type: ignore[assignment]  # it has all that is used
        self._chunk = 0
        self._head = 0
        self._begun = 0.0
        self._taken = 0.0
        self._refused = b""
        self._unused = True
        self._pending = 0
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._left: Callable[[], object] | None = None
        self._running: Any = None

    def watch(self, scope: Scope, left: Callable[[], object]) -> None:
        """Call `left` when the client leaves before the request of `scope`, which has been read, is answered.

        Where it has left already, that is soon.

        A task that waits in `receive` would tell the same, and cost every stream two kilobytes.
        """
        if self.transport.is_closing():
            self.loop.call_soon(left)
        else:
            self._left = left
            if self.cycle.scope is scope:  # else the next request is here already
                self.cycle.message_event = _Event()
                self.flow.resume_reading()  # paused by a large body, it would not learn that the client leaves

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin with a connection."""
        super().connection_made(transport)
        self.flow._is_writable_event = _Event(happened=True)
        self._begun = self.loop.time()
        self._reading = self.loop.call_later(self.timeout_keep_alive, self._look_at_reading)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and tell who watches."""
        self._forget_reading()
        self._forget_writing()
        super().connection_lost(exc)
        running = self._running
        if running is not None and running is not self.cycle and not running.response_complete:
            # The server tells the newest request alone; this one, which is answered, would go on for ever.
            running.disconnected = True
            running.message_event.set()
        left, self._left = self._left, None
        if left is not None:
            left()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        self._left = None
        super().on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    # Reading

    def data_received(self, data: bytes) -> None:
        """Parse what came; watch over a request that is not whole yet."""
        self._chunk = len(data)
        if b"h2c" in data and not self._in_body:
            data = _without_upgrade(data)
        super().data_received(data)
        if self._in_head or self._in_body:
            self._not_whole()
            return
        if self._reading is not None:
            self._forget_reading()
        if self.cycle is not None and self.cycle.response_complete:
            # The rest of a body that was not asked for: it took away the timer that closes idle connections.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_headers_complete(self) -> None:
        """Go on if the head is fit, and not too large."""
        if b"%00" in self.url:
            self._refused = _NUL
            raise _Refused
        if len(self.headers) > MOST_HEADERS or self._head + self._chunk > LONGEST_HEAD:
            size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if len(self.headers) > MOST_HEADERS or size > LONGEST_HEAD:
                self._refused = _TOO_LARGE
                raise _Refused
        cast("dict[str, Any]", self.scope)[CONNECTION] = self
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, or was not parsed to its end, and close."""
        if not self._refused:
            super().send_400_response(msg)
            return
        self.transport.write(self._refused)
        self.transport.close()

    @property
    def _in_head(self) -> bool:
        return self.scope is not None and "method" not in self.scope

    @property
    def _in_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete

    def _not_whole(self) -> None:
        now = self._taken = self.loop.time()
        if self._in_head:
            self._begun = now if self._head == 0 else self._begun
            self._head += self._chunk
            if self._head > LONGEST_HEAD and not self.transport.is_closing():
                self._refused = _TOO_LARGE
                self.send_400_response("")
                return
        else:
            self._head = 0
        if self._reading is None or self._unused:
            self._watch_reading()

    def _watch_reading(self) -> None:
        self._unused = False
        self._forget_reading(head=self._head)
        self._reading = self.loop.call_later(min(self.head_time, self.stall), self._look_at_reading)

    def _forget_reading(self, *, head: int = 0) -> None:
        self._head = head
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _look_at_reading(self) -> None:
        self._reading = None
        now = self.loop.time()
        if self.scope is None:
            late = True
        elif self._in_head:
            late = now - self._begun >= self.head_time
        elif self._in_body:
            late = not self.flow.read_paused and now - self._taken >= self.stall
        else:
            return
        if late:
            self._cut_off("sends too slowly")
        else:
            self._watch_reading()

    # Writing

    def pause_writing(self) -> None:
        """Note that the client does not keep up, and watch over it."""
        super().pause_writing()
        self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Note that the client has caught up."""
        super().resume_writing()
        self._forget_writing()

    def _watch_writing(self, pending: int) -> None:
        self._pending = pending
        self._writing = self.loop.call_later(self.stall, self._look_at_writing)

    def _forget_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _look_at_writing(self) -> None:
        self._writing = None
        pending = self.transport.get_write_buffer_size()
        if pending >= self._pending:
            self._cut_off("takes nothing of its answer")
        else:
            self._watch_writing(pending)

    def _cut_off(self, why: str) -> None:
        log.info("client cut off", why=why)
        self.transport.abort()


def protocol_with(stall: float) -> type[EdgeProtocol]:
    """Return the protocol that cuts off clients after `stall` seconds."""
    return type("EdgeProtocol", (EdgeProtocol,), {"stall": stall})


class AllowedAddresses:
    """ASGI middleware: answers only clients whose address lies in one of `ranges`; all others get 403."""

    def __init__(self, app: ASGIApp, *, ranges: Iterable[str], peers: Peers) -> None:
        self._app = app
        self._peers = peers
        self._networks = [ipaddress.ip_network(text) for text in ranges]
        self._allows = functools.lru_cache(maxsize=4096)(self._lies_inside)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] == "http" and not self._allows(self._peers.address(scope)):
            await _refuse(send)
        else:
            await self._app(scope, receive, send)

    def _lies_inside(self, text: str) -> bool:
        address = parse_address(text)
        return address is not None and any(address in network for network in self._networks)


async def _refuse(send: Send) -> None:
    message = "Tidegate answers nothing to this address (setting allowed_addresses)."
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "address_not_allowed"}
    body = msgspec.json.encode({"error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
