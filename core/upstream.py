"""The HTTP client of a model server, over aiohttp's connection pool.

aiohttp finds a free connection in constant time and parses in C. Its requests are handed over without another client's
types in between: those would cost a quarter of a request's way.
"""

import functools
from collections.abc import Sequence

import aiohttp
import yarl
from multidict import CIMultiDict, istr

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
# What aiohttp would add of its own where the client sent none; to forbid it costs more than to look.
_ADDED = (istr("User-Agent"), istr("Accept"), istr("Content-Type"))
_ENCODED = frozenset((b"content-encoding", b"content-length"))


class HttpAnswer:
    """An answer whose head has arrived (see `core.ports.UpstreamAnswer`).

    Its body is decoded (gzip, deflate), so its headers then tell neither an encoding nor a length that no longer fits.
    """

    __slots__ = ("_response", "_scrub", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, scrubber: Scrubber | None = None) -> None:
        self.status = response.status
        self.headers: Sequence[tuple[bytes, bytes]] = _passed_on(response.raw_headers, scrubber)
        self._response = response
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
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _truncated("broke off in the middle of its answer") from error

    def close(self) -> None:
        """Give the connection back, or abort the request if its answer was not read to the end."""
        self._response.close()


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
        self._base_url = base_url
        self._resolver = resolver
        self._own_headers = [("Accept-Encoding", "identity")]
        self._scrubber = Scrubber(api_key) if api_key else None
        if api_key:
            self._own_headers.append(("Authorization", f"Bearer {api_key}"))
        self._session: aiohttp.ClientSession | None = None
        self._url = functools.lru_cache(maxsize=256)(self._build_url)

    async def send(self, request: UpstreamRequest) -> UpstreamAnswer:
        """Send once and wait for the head. Raises UpstreamFailed."""
        headers = CIMultiDict(self._own_headers)
        for key, value in request.headers:
            headers.add(key.decode("latin-1"), value.decode("latin-1"))
        try:
            response = await (self._session or self._open_session()).request(
                request.method,
                self._url(request.path),
                data=request.body or None,
                headers=headers,
                skip_auto_headers=[name for name in _ADDED if name not in headers] or None,
                allow_redirects=False,
                timeout=_timeout(request.connect_timeout),
            )
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise UpstreamFailed(
                502, "upstream_unreachable", "The model server cannot be reached.", retry_after=5
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _truncated("closed the connection without an answer") from error
        if response.status < 400:
            return HttpAnswer(response, self._scrubber)
        return await self._refusal(response)

    async def _refusal(self, response: aiohttp.ClientResponse) -> HttpRefusal:
        body = bytearray()
        try:
            while len(body) < LONGEST_ERROR and (piece := await response.content.readany()):
                body += piece
        except (aiohttp.ClientError, OSError) as error:
            raise _truncated("broke off in the middle of its answer") from error
        finally:
            response.close()
        told = self._scrubber.clean(bytes(body)) if self._scrubber else bytes(body)
        return HttpRefusal(response.status, _passed_on(response.raw_headers, self._scrubber), told[:LONGEST_ERROR])

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        self._session = aiohttp.ClientSession(
            connector=connector(keep_alive=KEEP_ALIVE_S, resolver=self._resolver),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
        )
        return self._session

    def _build_url(self, path: str) -> yarl.URL:
        return yarl.URL(self._base_url + path, encoded=True)


def _truncated(what: str) -> UpstreamFailed:
    return UpstreamFailed(502, "upstream_truncated", f"The model server {what}.", retry_after=5)


@functools.lru_cache(maxsize=64)
def _timeout(connect: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, sock_connect=connect)


def _passed_on(raw: Sequence[tuple[bytes, bytes]], scrubber: Scrubber | None) -> list[tuple[bytes, bytes]]:
    headers = [(key.lower(), value if scrubber is None else scrubber.clean(value)) for key, value in raw]
    names = {key for key, _ in headers}
    dropped = _HOP_BY_HOP | _ENCODED if b"content-encoding" in names else _HOP_BY_HOP
    return headers if names.isdisjoint(dropped) else [header for header in headers if header[0] not in dropped]
