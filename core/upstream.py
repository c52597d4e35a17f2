"""The HTTP client of a model server: httpx2's face over aiohttp's connection pool.

aiohttp finds a free connection in constant time and parses in C; httpx2's own pool looks at every connection at each
request. Requests are handed over ready-made, without a client object on the way.
"""

import functools
from collections.abc import AsyncIterator, Sequence

import aiohttp
import httpx2
import yarl

from core.errors import UpstreamFailed
from core.ports import UpstreamAnswer, UpstreamRequest

# Below the 5 s after which many servers close an idle connection, so that none is used at the moment of its closing.
KEEP_ALIVE_S = 4.0
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
_ENCODED = (b"content-encoding", b"content-length")


class _Body(httpx2.AsyncByteStream):
    """An answer's body, decoded, in the pieces in which it arrived."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise httpx2.RemoteProtocolError(type(error).__name__) from error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self.read():
            yield piece

    def close(self) -> None:
        self._response.close()

    async def aclose(self) -> None:
        self.close()


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """An httpx2 transport over aiohttp's connection pool. Never retries, never follows redirects, keeps no cookies.

    Bodies are decoded (gzip, deflate), so answers carry neither content-encoding nor a length that no longer fits.
    The connect time-out is the request's `timeout` extension; there is no other.
    """

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send `request` and return once the head of the answer is there."""
        timeout = request.extensions.get("timeout", {})
        try:
            response = await self._open_session().request(
                request.method,
                _target(str(request.url)),
                data=await request.aread() or None,
                headers=[(key.decode("latin-1"), value.decode("latin-1")) for key, value in request.headers.raw],
                allow_redirects=False,
                timeout=_timeout(timeout.get("connect")),
            )
        except aiohttp.ConnectionTimeoutError as error:
            raise httpx2.ConnectTimeout(type(error).__name__, request=request) from error
        except aiohttp.ClientConnectorError as error:
            raise httpx2.ConnectError(type(error).__name__, request=request) from error
        except (aiohttp.ClientError, OSError) as error:
            raise httpx2.RemoteProtocolError(type(error).__name__, request=request) from error
        return httpx2.Response(response.status, headers=_answer_headers(response), stream=_Body(response))

    async def aclose(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                max_line_size=65536,
                max_field_size=65536,
            )
        return self._session


class HttpAnswer:
    """An answer whose head has arrived (see `core.ports.UpstreamAnswer`)."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers: Sequence[tuple[bytes, bytes]] = response.headers.raw
        assert isinstance(response.stream, _Body)
        self._body = response.stream

    async def read(self) -> bytes:
        """Return the next piece, b"" at the end. Raises UpstreamFailed (`upstream_truncated`)."""
        try:
            return await self._body.read()
        except httpx2.RemoteProtocolError as error:
            raise _truncated("broke off in the middle of its answer") from error

    def close(self) -> None:
        """Give the connection back, or abort the request if its answer was not read to the end."""
        self._body.close()


class HttpUpstream:
    """One model server (see `core.ports.Upstream`). Its key replaces whatever the client sent."""

    def __init__(self, *, base_url: str, api_key: str | None, transport: httpx2.AsyncBaseTransport) -> None:
        self._base = httpx2.URL(base_url)
        self._authorization = [(b"authorization", f"Bearer {api_key}".encode())] if api_key else []
        self._host = [(b"host", self._base.netloc), (b"accept-encoding", b"identity")]
        self._transport = transport
        self._url = functools.lru_cache(maxsize=256)(self._build_url)

    async def send(self, request: UpstreamRequest) -> UpstreamAnswer:
        """Send once and wait for the head. Raises UpstreamFailed."""
        outgoing = httpx2.Request(
            request.method,
            self._url(request.path),
            headers=[*self._host, *request.headers, *self._authorization],
            content=request.body or None,
            extensions={"timeout": {"connect": request.connect_timeout}},
        )
        try:
            response = await self._transport.handle_async_request(outgoing)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise UpstreamFailed(
                502, "upstream_unreachable", "The model server cannot be reached.", retry_after=5
            ) from error
        except httpx2.TransportError as error:
            raise _truncated("closed the connection without an answer") from error
        return HttpAnswer(response)

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    def _build_url(self, path: str) -> httpx2.URL:
        return httpx2.URL(str(self._base) + path)


def _truncated(what: str) -> UpstreamFailed:
    return UpstreamFailed(502, "upstream_truncated", f"The model server {what}.", retry_after=5)


@functools.lru_cache(maxsize=1024)
def _target(url: str) -> yarl.URL:
    return yarl.URL(url, encoded=True)


@functools.lru_cache(maxsize=64)
def _timeout(connect: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=connect)


def _answer_headers(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    raw = response.raw_headers
    decoded = any(key.lower() == b"content-encoding" for key, _ in raw)
    dropped = _HOP_BY_HOP | frozenset(_ENCODED) if decoded else _HOP_BY_HOP
    return [(key.lower(), value) for key, value in raw if key.lower() not in dropped]
