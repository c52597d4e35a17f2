"""What guards the pages: security headers, the Host check against DNS rebinding, and the cross-site rules."""

import functools
import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from web.errors import RawHeaders
from web.front import request_id_of

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SESSION_COOKIE = "tidegate_session"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_BROWSERS_HEADERS = frozenset({b"origin", b"sec-fetch-site", b"cookie"})
_FOREIGN_SITES = frozenset({"cross-site", "same-site"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


class KnownHosts:
    """The names under which the gateway may be reached: the loopback ones and `names`; "*" stands for all.

    Addresses given as numbers are always known: only a name can be rebound.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in names)
        self._known = functools.lru_cache(maxsize=256)(self._is_known)

    def __contains__(self, host: str) -> bool:
        return self._known(host)

    def has_plain_call(self, scope: Scope) -> bool:
        """Tell at little cost whether this is a request to a known host that no browser can have sent."""
        host = b""
        for key, value in scope["headers"]:
            if key in _BROWSERS_HEADERS:
                return False
            if key == b"host":
                host = host or value
        return self._known(host.decode("latin-1"))

    def _is_known(self, host: str) -> bool:
        if "*" in self._names:
            return True
        name = _host_name(host)
        if name == "localhost" or name.endswith(".localhost") or name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class SecurityHeaders:
    """ASGI middleware: refuses unknown hosts and cross-site changes, and sets the headers of every page.

    Answers under /v1/ pass through untouched.
    """

    def __init__(self, app: ASGIApp, *, hosts: KnownHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self.refusal(scope["method"], scope["path"], Headers(scope=scope))
        if refusal is not None:
            await _refuse(scope, send, *refusal)
        elif scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
        else:
            await self._app(scope, receive, _with_headers(send))

    def refusal(self, method: str, path: str, headers: Headers) -> tuple[str, str] | None:
        """Return (code, message) of why this request is refused, `None` where it may pass."""
        host = headers.get("host", "")
        if host not in self._hosts:
            name = _host_name(host) or "(none)"
            return "host_not_allowed", f"Tidegate does not answer to the host name {name!r}; add it to `allowed_hosts`."
        if method in _SAFE_METHODS:
            return None
        return _cross_site(path, headers, host)


def _cross_site(path: str, headers: Headers, host: str) -> tuple[str, str] | None:
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site in _FOREIGN_SITES or (origin is not None and not _same_origin(origin, host)):
        return "cross_site", "A page of another site may not do this."
    required = path.startswith("/ui/") or f"{SESSION_COOKIE}=" in headers.get("cookie", "")
    if required and site is None and origin is None:
        return "origin_required", "This request must say where it comes from (Origin or Sec-Fetch-Site)."
    return None


def _same_origin(origin: str, host: str) -> bool:
    """Compare host and port. The scheme is left out: behind a proxy that ends TLS the two differ."""
    try:
        parts, own = urlsplit(origin), urlsplit(f"{urlsplit(origin).scheme}://{host}")
        default = _DEFAULT_PORTS.get(parts.scheme)
        return parts.hostname is not None and (parts.hostname, parts.port or default) == (
            own.hostname,
            own.port or default,
        )
    except ValueError:
        return False


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def own_headers(scope: Scope) -> RawHeaders:
    """Return the headers that an answer of the API carries that no lane and no pool had to do with."""
    own = [(b"x-request-id", request_id_of(dict(scope["headers"])).encode())]
    if scope["path"].startswith("/v1"):
        own += [(b"x-tidegate-lane", b"interactive"), (b"x-tidegate-queue-ms", b"0")]
    return own


async def _refuse(scope: Scope, send: Send, code: str, message: str) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = msgspec.json.encode({"error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += own_headers(scope)
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["x-content-type-options"] = "nosniff"
            headers["referrer-policy"] = "same-origin"
            if headers.get("content-type", "").startswith("text/html"):
                headers["content-security-policy"] = CSP
                headers.setdefault("cache-control", "no-store")
        await send(message)

    return wrapped
