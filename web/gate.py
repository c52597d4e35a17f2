"""The gate: who sends a request, by key, session or proxy; and how those are told that they may not."""

from urllib.parse import quote

import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from core.errors import InvalidValue, RequestError
from core.people.identity import ASKING, GUEST, OPEN, Identity
from core.people.permissions import LEAST, Action
from core.people.ring import FRESH_S, unauthorized
from core.people.sign_in import Vouched
from core.runtime import Runtime
from web.contexts import ErrorPage
from web.errors import send_error
from web.headers import SESSION_COOKIE, own_headers
from web.peers import Peers, headers_named
from web.ui import html, ui_of

SIGN_IN = "/sign-in"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_COOKIE = f"{SESSION_COOKIE}=".encode()

log = structlog.get_logger(__name__)


class Gate:
    """Knows who sends a request. A valid key comes first, then the trusted proxy's word, then the session's cookie."""

    def __init__(self, *, runtime: Runtime) -> None:
        self.peers = Peers(runtime.settings.trusted_proxies)
        self._people = runtime.people
        self._ring = runtime.people.ring
        self._clock = runtime.clock
        self._proxy = runtime.settings.proxy

    def known(self, scope: Scope) -> Identity | None:
        """Return who asks, where that can be told at once: anybody, or a key of which nothing else must be asked."""
        anyone = self._ring.snapshot.anyone
        if anyone is not None:
            return OPEN if anyone is OPEN else None
        for name, value in scope["headers"]:
            if name == b"authorization":
                return self._ring.quick(value)
        return None

    def _by_key(self, scope: Scope, authorization: bytes) -> Identity | None:
        """Return whom a key stands for. On pages another scheme is the business of a proxy in front."""
        if is_page(scope) and authorization[:7].lower() != b"bearer ":
            return None
        return self._ring.identify(authorization, self.peers.address(scope))

    async def identify(self, scope: Scope) -> Identity:
        """Return who asks. Raises RequestError 401 or 503."""
        ring = self._ring
        if not ring.fresh:
            await ring.look_again()
        authorization = headers_named(scope, b"authorization")
        found = self._by_key(scope, authorization[-1]) if authorization and ring.snapshot.anyone is None else None
        return found or await self._proxied(scope) or await self._signed_in(scope) or self._anonymous(scope)

    async def _proxied(self, scope: Scope) -> Identity | None:
        """Return whom a trusted proxy names."""
        if self._proxy.header is None or not self.peers.through_proxy(scope):
            return None
        name = (headers_named(scope, self._proxy.header.encode()) or [b""])[-1].decode("latin-1").strip()
        if not name:
            return None
        if scope["method"] not in _SAFE_METHODS and not _says_where_from(scope):
            raise _refusal(403, "origin_required", "This request must say where it comes from (Origin).")
        try:
            who = Vouched(name, f"proxy|{name.lower()}")
            known = self._ring.snapshot.accounts.get(name.lower())
            if known is None or known.subject != who.subject or not known.active:
                known = await self._people.sign_in.known(who, new_role=self._proxy.role)
                await self._ring.refresh()
        except InvalidValue as error:
            raise _refusal(403, "not_allowed", f"The proxy's name for you {error.message}.") from None
        return self._ring.snapshot.identities.get(known.name)

    async def _signed_in(self, scope: Scope) -> Identity | None:
        """Return who is signed in; a session that is not known may have begun just now on another replica."""
        cookie = session_cookie(scope)
        if not cookie:
            return None
        if not self._ring.fresh:
            raise RequestError(503, "keys_not_checked", "Sign-ins cannot be checked now. Try again.", retry_after=5)
        found = self._ring.session(cookie)
        if found is None:
            await self._ring.look_again()
            found = self._ring.session(cookie)
        return found

    def _anonymous(self, scope: Scope) -> Identity:
        """Return who asks where nothing is shown. Raises RequestError 401."""
        found = self._ring.snapshot.anyone
        if is_page(scope):
            found = OPEN if self._ring.pages_open else None
        if found is None:
            raise unauthorized()
        return found

    def forbidden(self, identity: Identity, action: Action) -> RequestError:
        """Return the refusal of who is known, but may not."""
        if identity.anonymous:
            return unauthorized("This needs an API key or a sign-in.")
        least = LEAST[action]
        what = "An account" if identity.account else "A key"
        wanted = f"role {least}" if least and not identity.role.includes(least) else "a sign-in"
        return _refusal(403, "forbidden", f"{what} with role {identity.role} may not do this; it needs {wanted}.")

    async def refuse(self, scope: Scope, receive: Receive, send: Send, error: RequestError) -> None:
        """Answer that this may not be: the API in OpenAI's shape, pages with the way to sign in."""
        log.info("refused", path=scope["path"][:200], code=error.code, status=error.status)
        if error.code != "forbidden":
            ASKING.set(GUEST)
        if is_page(scope):
            await self._page(Request(scope, receive), error)(scope, receive, send)
            return
        await send_error(send, error, own_headers(scope))

    def _page(self, request: Request, error: RequestError) -> Response:
        part = request.headers.get("hx-request") == "true" or "text/event-stream" in request.headers.get("accept", "")
        if part or request.url.path in ("/ui/stream", "/ui/live"):
            return PlainTextResponse(error.message, error.status, {"cache-control": "no-store"})
        if error.status == 401:
            return RedirectResponse(f"{SIGN_IN}?next={quote(_way_back(request), safe='')}", 303)
        title = "Not for your role" if error.code == "forbidden" else "This cannot be"
        shell = ui_of(request).shell("", title, refresh=False)
        return html(ErrorPage(**shell, message=error.message, back_to="/"), error.status)

    def watched(self, send: Send, identity: Identity) -> Send:
        """Return a `send` that ends a stream without end once the session that opened it is over."""
        checked_at, over = self._clock.monotonic(), False

        async def checked(message: Message) -> None:
            nonlocal checked_at, over
            if over:
                return
            now = self._clock.monotonic()
            if now - checked_at >= FRESH_S and message["type"] == "http.response.body":
                checked_at, over = now, not self._ring.holds(identity)
                if over:
                    message = {"type": "http.response.body", "body": b""}
            await send(message)

        return checked


def session_cookie(scope: Scope) -> str:
    """Return what the browser shows as its session, "" for nothing."""
    for value in headers_named(scope, b"cookie"):
        if _COOKIE in value:
            for part in value.split(b";"):
                name, _, content = part.strip().partition(b"=")
                if name == SESSION_COOKIE.encode():
                    return content.decode("latin-1")
    return ""


def is_page(scope: Scope) -> bool:
    """Tell whether a person's browser asks for this, rather than a program."""
    return not scope["path"].startswith(("/v1/", "/api/"))


def _way_back(request: Request) -> str:
    """Return where to go on after the sign-in: the page asked for, or the one from which a form came."""
    if request.method not in _SAFE_METHODS:
        return "/"
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _says_where_from(scope: Scope) -> bool:
    return any(key in (b"origin", b"sec-fetch-site") for key, _ in scope["headers"])


def _refusal(status: int, code: str, message: str) -> RequestError:
    return RequestError(status, code, message, type="invalid_request_error", should_retry=False)
