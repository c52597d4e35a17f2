"""The HTTP client of a model server, over aiohttp's connection pool and parser.

aiohttp finds a free connection in constant time and parses in C. Its session, which would double the cost of a request
for what is not needed here (cookies, redirects, a task that writes the body), stays out of the way: a request is one
write on a connection of the pool.
"""

import functools
from collections.abc import Sequence

import aiohttp
import yarl
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from aiohttp.streams import StreamReader

from core.connecting import connector
from core.errors import UpstreamFailed
from core.ports import UpstreamAnswer, UpstreamRequest
from core.scrubbing import Scrubber

# Below the 5 s after which many servers close an idle connection, so that none is used at the moment of its closing.
KEEP_ALIVE_S = 4.0
LONGEST_HEADER = 65536
LONGEST_ERROR = 64 * 1024
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
_ENCODED = frozenset((b"content-encoding", b"content-length"))
# What aiohttp raises for a server that answers badly, breaks off, or is gone.
_BROKEN = (aiohttp.ClientError, HttpProcessingError, OSError)


class HttpAnswer:
    """An answer whose head has arrived (see `core.ports.UpstreamAnswer`).

    Its body is decoded (gzip, deflate), so its headers then tell neither an encoding nor a length that no longer fits.
    """

    __slots__ = ("_connection", "_content", "_scrub", "headers", "status")

    def __init__(
        self,
        connection: Connection,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        content: StreamReader,
        scrubber: Scrubber | None,
    ) -> None:
        self.status = status
        self.headers = headers
        self._connection = connection
        self._content = content
        self._scrub = scrubber.stream() if scrubber is not None else None

    async def read(self) -> bytes:
        """Return the next piece, b"" at the end. Raises UpstreamFailed (`upstream_truncated`)."""
        try:
            if self._scrub is None:
                return await self._content.readany()
            while piece := await self._content.readany():
                if passed := self._scrub.feed(piece):
                    return passed
            return self._scrub.rest()
        except _BROKEN as error:
            raise _truncated("broke off in the middle of its answer") from error

    def close(self) -> None:
        """Give the connection back, or abort the request if its answer was not read to the end."""
        transport = self._connection.transport
        if self._content.at_eof() and transport is not None and not transport.get_write_buffer_size():
            self._connection.release()
        else:
            self._connection.close()


class HttpRefusal:
    """An answer of status 400 or above: its body, cut where it is very long and without the key, is here already."""

    __slots__ = ("_body", "headers", "status")

    def __init__(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        length = (b"content-length", str(len(body)).encode())
        self.status = status
        self.headers: Sequence[tuple[bytes, bytes]] = [
            *(header for header in headers if header[0] not in _ENCODED),
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

    Never retries, never follows redirects, keeps no cookies, connects to no link-local or metadata address. The connect
    time-out is the request's; there is no other.
    """

    def __init__(
        self, *, base_url: str, api_key: str | None, resolver: aiohttp.abc.AbstractResolver | None = None
    ) -> None:
        self._url = yarl.URL(base_url)
        self._path = self._url.raw_path.encode()
        self._resolver = resolver
        self._scrubber = Scrubber(api_key) if api_key else None
        self._own_headers = [f"Host: {self._url.host_port_subcomponent}".encode(), b"Accept-Encoding: identity"]
        if api_key:
            self._own_headers.append(b"Authorization: Bearer %b" % api_key.encode())
        self._pool: tuple[aiohttp.TCPConnector, aiohttp.ClientRequest] | None = None

    async def send(self, request: UpstreamRequest) -> UpstreamAnswer:
        """Send once and wait for the head. Raises UpstreamFailed."""
        connection = await self._connect(request.connect_timeout)
        try:
            message, content = await _exchange(connection, self._head(request) + request.body)
        except BaseException as error:
            connection.close()
            if isinstance(error, _BROKEN):
                raise _truncated("closed the connection without an answer") from error
            raise
        headers = _passed_on(message.raw_headers, self._scrubber, decoded=bool(message.compression))
        answer = HttpAnswer(connection, message.code, headers, content, self._scrubber)
        return answer if message.code < 400 else await self._refusal(answer)

    async def close(self) -> None:
        """Close all connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool[0].close()

    async def _connect(self, seconds: float) -> Connection:
        """Return a free connection, or a new one."""
        if self._pool is None:
            # The pool finds by a request where to connect, and how; it is the same for all of ours.
            made = connector(keep_alive=KEEP_ALIVE_S, resolver=self._resolver)
            self._pool = made, aiohttp.ClientRequest("POST", self._url)
        pool, where = self._pool
        try:
            connection = await pool.connect(where, [], _timeout(seconds))
            # What a server sent that nobody had asked for would be taken for the next answer.
            while connection.protocol is None or connection.protocol.should_close:
                connection.close()
                connection = await pool.connect(where, [], _timeout(seconds))
            return connection
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamFailed(
                502, "upstream_unreachable", "The model server cannot be reached.", retry_after=5
            ) from error

    def _head(self, request: UpstreamRequest) -> bytes:
        """Return the request's line and headers. Raises ValueError where one holds a line break."""
        lines = [b"%b %b%b HTTP/1.1" % (request.method.encode(), self._path, request.path.encode("latin-1"))]
        lines += self._own_headers
        lines += [b"%b: %b" % header for header in request.headers]
        if request.body or request.method == "POST":
            lines.append(b"Content-Length: %d" % len(request.body))
        head = b"\r\n".join(lines)
        if not head.count(b"\n") == head.count(b"\r") == len(lines) - 1:
            raise ValueError("a header holds a line break")
        return head + b"\r\n\r\n"

    async def _refusal(self, answer: HttpAnswer) -> HttpRefusal:
        body = bytearray()
        try:
            while len(body) < LONGEST_ERROR and (piece := await answer.read()):
                body += piece
        finally:
            answer.close()
        told = self._scrubber.clean(bytes(body)) if self._scrubber else bytes(body)
        return HttpRefusal(answer.status, answer.headers, told[:LONGEST_ERROR])


async def _exchange(connection: Connection, request: bytes) -> tuple[RawResponseMessage, StreamReader]:
    """Send a whole request and wait for the head of its answer."""
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None:
        raise aiohttp.ServerDisconnectedError
    protocol.set_response_params(read_until_eof=True, max_line_size=LONGEST_HEADER, max_field_size=LONGEST_HEADER)
    transport.write(request)
    while True:
        message, content = await protocol.read()
        if message.code >= 200:
            return message, content


def _truncated(what: str) -> UpstreamFailed:
    return UpstreamFailed(502, "upstream_truncated", f"The model server {what}.", retry_after=5)


@functools.lru_cache(maxsize=64)
def _timeout(connect: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect)


def _passed_on(
    raw: Sequence[tuple[bytes, bytes]], scrubber: Scrubber | None, *, decoded: bool
) -> list[tuple[bytes, bytes]]:
    """Return an answer's headers, their names in lower case, without those between two machines alone.

    Where the body is `decoded` they tell neither its encoding nor its length any more.
    """
    clean = scrubber.clean if scrubber is not None else bytes
    headers = [(clean(key).lower(), clean(value)) for key, value in raw]
    names = {key for key, _ in headers}
    dropped = _HOP_BY_HOP | _ENCODED if decoded else _HOP_BY_HOP
    if b"connection" in names:
        named = (value for key, value in headers if key == b"connection")
        dropped = dropped.union(name.strip().lower() for value in named for name in value.split(b","))
    return headers if names.isdisjoint(dropped) else [header for header in headers if header[0] not in dropped]
