"""Connections to one model server: HTTP/1.1 with keep-alive over httptools, one request at a time on each.

The pool hands out the connection that was used last, in constant time. What is here is what a pass-through needs, and
costs a fifth of a general client's work, which would be half of a request's way.
"""

import asyncio
import socket
import ssl
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import httptools

from core.addresses import is_forbidden
from core.connecting import AddressInfo, AddressRefused, guarded_socket

Resolve = Callable[[str, int], Awaitable[Sequence[AddressInfo]]]

# Below the 5 s after which many servers close an idle connection, so that none is used at the moment of its closing.
KEEP_ALIVE_S = 4.0
LONGEST_HEAD = 256 * 1024
MOST_HELD = 128 * 1024
"""Bytes of a body that are held for a slow reader before the server is made to wait."""
_ENCODINGS = frozenset((b"gzip", b"x-gzip", b"deflate"))
_ANY_FORMAT = 32 + zlib.MAX_WBITS
_GZIP_MAGIC = 0x1F


class Unreachable(OSError):
    """No connection could be made."""


class BrokenOff(OSError):
    """The server closed the connection, or sent what is not HTTP, before its answer was whole."""


class Connection(asyncio.Protocol):
    """One connection. `send` and then `read` until b""; after that, if `reusable`, the next `send`.

    The attributes `status` and `headers` (names in lower case) are those of the present answer. Bodies are decoded
    where they are compressed; `decoded` tells so.
    """

    __slots__ = (
        "_body",
        "_ended",
        "_error",
        "_headers_done",
        "_held",
        "_inflater",
        "_keep_alive",
        "_parser",
        "_paused",
        "_seen",
        "_transport",
        "_until_close",
        "_waiter",
        "decoded",
        "headers",
        "idle_since",
        "status",
    )

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: BrokenOff | None = None
        self._paused = False
        self._begin()
        self._ended = True

    def _begin(self) -> None:
        """Forget the answer before."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.decoded = False
        self._body: list[bytes] = []
        self._held = self._seen = 0
        self._inflater: zlib._Decompress | None = None
        self._headers_done = self._ended = self._keep_alive = self._until_close = False

    @property
    def reusable(self) -> bool:
        """Tell whether the answer is whole and the connection good for another request."""
        return self._ended and self._keep_alive and self._error is None and self._transport is not None

    async def send(self, request: bytes) -> None:
        """Send a whole request and wait for the head of its answer. Raises BrokenOff."""
        self._begin()
        if self._transport is None:
            raise self._error or BrokenOff("closed")
        self._transport.write(request)
        while not self._headers_done:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """Return what of the body has come since the last call, b"" at its end. Raises BrokenOff."""
        while not self._body:
            if self._ended:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        body = self._body
        piece = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        self._held = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def close(self) -> None:
        """Close at once, whatever is under way."""
        self._keep_alive = False
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: BrokenOff) -> None:
        self._error = self._error or error
        self.close()
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a connection."""
        self._transport = transport  # type: ignore[assignment]  # a stream's, though not always of asyncio's own class

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end; it is a proper one only for a body that lasts until then."""
        self._transport = self._parser = None
        if self._until_close and error is None and self._error is None:
            self.on_message_complete()
        if not self._ended:
            self._error = self._error or BrokenOff(type(error).__name__ if error else "closed")
        self._wake()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self._parser is None:
            return
        if self._ended:
            self._fail(BrokenOff("data without a request"))
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, zlib.error) as error:
            self._fail(BrokenOff(type(error).__name__))
            return
        if not self._headers_done:
            self._seen += len(data)
            if self._seen > LONGEST_HEAD:
                self._fail(BrokenOff("endless head"))
        elif self._held > MOST_HELD and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    # httptools

    def on_message_begin(self) -> None:
        """Take the beginning of an answer. A second one was not asked for: nothing of it is taken."""
        if self._ended:
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are left out."""
        if not (self._headers_done or self._ended):
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the end of the head; the head of an interim answer (1xx) is forgotten."""
        parser = self._parser
        if parser is None or self._ended:
            return
        self.status = parser.get_status_code()
        if self.status < 200:
            self.headers.clear()
            return
        self._headers_done = True
        self._keep_alive = parser.should_keep_alive()
        self._until_close = True
        for name, value in self.headers:
            if name in (b"content-length", b"transfer-encoding"):
                self._until_close = False
            elif name == b"content-encoding":
                self.decoded = value.lower() in _ENCODINGS

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if self._ended:
            return
        if self.decoded:
            piece = self._inflated(piece)
        if piece:
            self._body.append(piece)
            self._held += len(piece)

    def on_message_complete(self) -> None:
        """Take the end of an answer, unless it is an interim one."""
        if not self._headers_done or self._ended:
            return
        if self._inflater is not None and not self._inflater.eof:
            self._fail(BrokenOff("half a compressed body"))
        else:
            self._ended = True

    def _inflated(self, piece: bytes) -> bytes:
        """Return a piece decoded. `deflate` is said of zlib's format and, by some servers, of the bare one."""
        if self._inflater is None:
            has_head = piece[0] == _GZIP_MAGIC or piece[0] & 0x0F == zlib.DEFLATED
            self._inflater = zlib.decompressobj(_ANY_FORMAT if has_head else -zlib.MAX_WBITS)
        return self._inflater.decompress(piece)


class Connections:
    """The connections to one host, made as they are needed, kept for `KEEP_ALIVE_S` after use.

    `resolve` tells the addresses of a name and port, as `getaddrinfo` does. Every connection is guarded.
    """

    def __init__(self, *, host: str, port: int, tls: bool, resolve: Resolve | None = None) -> None:
        self._host = host
        self._resolve = resolve or _system_addresses
        self._port = port
        self._tls: ssl.SSLContext | bool = tls
        self._idle: deque[Connection] = deque()
        self._sweep: asyncio.TimerHandle | None = None

    async def take(self, patience: float) -> Connection:
        """Return a free connection, or a new one, made within `patience` seconds. Raises Unreachable."""
        idle, oldest = self._idle, asyncio.get_running_loop().time() - KEEP_ALIVE_S
        while idle:
            connection = idle.pop()
            if connection.reusable and connection.idle_since > oldest:
                return connection
            connection.close()
        return await self._connect(patience)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, or close it if its answer was not read to the end."""
        if not connection.reusable:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(KEEP_ALIVE_S, self._close_old)

    async def close(self) -> None:
        """Close all that is idle."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)

    def _close_old(self) -> None:
        loop = asyncio.get_running_loop()
        idle, oldest = self._idle, loop.time() - KEEP_ALIVE_S
        while idle and (idle[0].idle_since <= oldest or not idle[0].reusable):
            idle.popleft().close()
        again = idle[0].idle_since - oldest if idle else None
        self._sweep = None if again is None else loop.call_later(again, self._close_old)

    async def _connect(self, patience: float) -> Connection:
        if self._tls is True:
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(patience):
                opened = await self._open_socket()
                try:
                    return await self._over(opened)
                except BaseException:
                    opened.close()
                    raise
        except OSError as error:
            raise Unreachable(type(error).__name__) from error

    async def _open_socket(self) -> socket.socket:
        """Return a socket that is connected to the first of the host's addresses that takes it."""
        if is_forbidden(self._host):
            raise AddressRefused("the host is link-local or a metadata service, which is never an upstream")
        failure = OSError("the name leads nowhere")
        for info in await self._resolve(self._host, self._port):
            try:
                opened = guarded_socket(info)
            except OSError as error:
                failure = error
                continue
            try:
                opened.setblocking(False)
                await asyncio.get_running_loop().sock_connect(opened, info[4])
            except BaseException as error:
                opened.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
            else:
                return opened
        raise failure

    async def _over(self, opened: socket.socket) -> Connection:
        name = self._host if self._tls else None
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, sock=opened, ssl=self._tls or None, server_hostname=name
        )
        return connection


async def _system_addresses(host: str, port: int) -> Sequence[AddressInfo]:
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
