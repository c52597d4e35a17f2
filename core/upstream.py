"""The HTTP client of a model server: requests go out as bytes, answers come back as they arrive, without the key."""

import functools
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from core.connections import BrokenOff, Connection, Connections, Resolve, Unreachable
from core.errors import UpstreamFailed
from core.ports import UpstreamAnswer, UpstreamRequest
from core.scrubbing import Scrubber

LONGEST_ERROR = 64 * 1024
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
_FRAMING = frozenset((b"content-encoding", b"content-length"))
_DECODED = _HOP_BY_HOP | _FRAMING
_OWN = frozenset((b"host", b"accept-encoding", b"content-length", b"authorization")) | _HOP_BY_HOP
_TARGET = re.compile(r"[!-~\x80-\xff]+")
_PORTS = {"http": 80, "https": 443}


class HttpAnswer:
    """An answer whose head has arrived (see `core.ports.UpstreamAnswer`).

    Its body is decoded (gzip, deflate), so its headers then tell neither an encoding nor a length that no longer fits.
    """

    __slots__ = ("_connection", "_connections", "_scrub", "headers", "status")

    def __init__(self, connection: Connection, connections: Connections, scrubber: Scrubber | None) -> None:
        self.status = connection.status
        self.headers: Sequence[tuple[bytes, bytes]] = _passed_on(connection, scrubber)
        self._connection: Connection | None = connection
        self._connections = connections
        self._scrub = scrubber.stream() if scrubber is not None else None

    async def read(self) -> bytes:
        """Return the next piece, b"" at the end. Raises UpstreamFailed (`upstream_truncated`)."""
        if self._scrub is None:
            return await self._piece()
        while piece := await self._piece():
            if passed := self._scrub.feed(piece):
                return passed
        return self._scrub.rest()

    async def _piece(self) -> bytes:
        if self._connection is None:
            return b""
        try:
            piece = await self._connection.read()
        except BrokenOff as error:
            raise _truncated("broke off in the middle of its answer") from error
        if not piece:
            self.close()
        return piece

    def close(self) -> None:
        """Give the connection back, or abort the request if its answer was not read to the end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.give_back(connection)


class HttpRefusal:
    """An answer of status 400 or above: its body, cut where it is very long and without the key, is here already."""

    __slots__ = ("_body", "headers", "status")

    def __init__(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        length = (b"content-length", str(len(body)).encode())
        self.status = status
        self.headers: Sequence[tuple[bytes, bytes]] = [
            *(header for header in headers if header[0] not in _FRAMING),
            length,
        ]
        self._body = body

    async def read(self) -> bytes:
        """Return the body, then b""."""
        body, self._body = self._body, b""
        return body

    def close(self) -> None:
        """Do nothing: the connection was given back or aborted before."""


class HttpUpstream:
    """One model server (see `core.ports.Upstream`). Its key replaces whatever the client sent, and is taken out of
    whatever comes back.

    Never retries, never follows redirects, keeps no cookies, uses no proxy, connects to no link-local or metadata
    address. The connect time-out is the request's; there is no other.
    """

    def __init__(self, *, base_url: str, api_key: str | None, resolve: Resolve | None = None) -> None:
        parts = urlsplit(base_url)
        port = parts.port or _PORTS[parts.scheme]
        tls = parts.scheme == "https"
        self._connections = Connections(host=parts.hostname or "", port=port, tls=tls, resolve=resolve)
        self._scrubber = Scrubber(api_key) if api_key else None
        self._base_path = parts.path
        key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
        self._own = f"host: {parts.netloc}\r\naccept-encoding: identity\r\n{key}".encode()
        self._line = functools.lru_cache(maxsize=256)(self._build_line)

    async def send(self, request: UpstreamRequest) -> UpstreamAnswer:
        """Send once and wait for the head. Raises UpstreamFailed."""
        written = self._written(request)
        try:
            connection = await self._connections.take(request.connect_timeout)
        except Unreachable as error:
            raise UpstreamFailed(
                502, "upstream_unreachable", "The model server cannot be reached.", retry_after=5
            ) from error
        try:
            await connection.send(written)
        except BrokenOff as error:
            raise _truncated("closed the connection without an answer") from error
        except BaseException:
            connection.close()
            raise
        answer = HttpAnswer(connection, self._connections, self._scrubber)
        return answer if answer.status < 400 else await self._refusal(connection)

    async def _refusal(self, connection: Connection) -> HttpRefusal:
        body = bytearray()
        try:
            while len(body) < LONGEST_ERROR and (piece := await connection.read()):
                body += piece
        except BrokenOff as error:
            raise _truncated("broke off in the middle of its answer") from error
        finally:
            headers, status = _passed_on(connection, self._scrubber), connection.status
            self._connections.give_back(connection)
        told = self._scrubber.clean(bytes(body)) if self._scrubber else bytes(body)
        return HttpRefusal(status, headers, told[:LONGEST_ERROR])

    async def close(self) -> None:
        """Close all connections that are idle; the others close when their answers end."""
        await self._connections.close()

    def _written(self, request: UpstreamRequest) -> bytes:
        """Return the request as it goes over the wire. Raises ValueError for what would be another request."""
        head = [self._line(request.method, request.path), self._own]
        for name, value in request.headers:
            if name.lower() not in _OWN:
                head.append(b"%b: %b\r\n" % (name, value))
        if request.body or request.method == "POST":
            head.append(b"content-length: %d\r\n" % len(request.body))
        lines, breaks = b"".join(head), len(head) - 1 + self._own.count(b"\n")
        if lines.count(b"\n") != breaks or lines.count(b"\r") != breaks or b"\0" in lines:
            raise ValueError("a header holds what no header may hold")
        return b"%b\r\n%b" % (lines, request.body)

    def _build_line(self, method: str, path: str) -> bytes:
        target = self._base_path + path
        if not _TARGET.fullmatch(target):
            raise ValueError("the path holds what no path may hold")
        return f"{method} {target} HTTP/1.1\r\n".encode("latin-1")


def _truncated(what: str) -> UpstreamFailed:
    return UpstreamFailed(502, "upstream_truncated", f"The model server {what}.", retry_after=5)


def _passed_on(connection: Connection, scrubber: Scrubber | None) -> list[tuple[bytes, bytes]]:
    dropped = _DECODED if connection.decoded else _HOP_BY_HOP
    headers = [header for header in connection.headers if header[0] not in dropped]
    return headers if scrubber is None else [(name, scrubber.clean(value)) for name, value in headers]
