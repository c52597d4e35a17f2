"""Signing in by an OpenID Connect provider: authorization code with PKCE, the answer checked as the standard asks."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec
import structlog
from itsdangerous import BadSignature, URLSafeTimedSerializer
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from core.errors import InvalidValue, RequestError
from core.people.config import OidcSignIn
from core.people.identity import Role
from core.people.sign_in import Vouched
from core.ports import Clock
from web.people import admit, browser_of, is_https, people_of, runtime_of
from web.session_cookie import way_on
from web.ui import ui_of

COOKIE = "tidegate_provider"
PATH = "/sign-in/provider"
DISCOVERY = "/.well-known/openid-configuration"
PENDING_S = 600
PATIENCE_S = 10.0
KNOWN_FOR_S = 3600.0
LEEWAY_S = 60
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")

log = structlog.get_logger(__name__)


@contextmanager
def _told(fault: str) -> Iterator[None]:
    """Turn what goes wrong with the provider, and nothing else, into ProviderFailed."""
    import httpx2
    from authlib.common.errors import AuthlibBaseError
    from joserfc.errors import JoseError

    try:
        yield
    except (httpx2.HTTPError, msgspec.MsgspecError, AuthlibBaseError, JoseError, ValueError) as error:
        raise ProviderFailed(f"{fault}: {type(error).__name__}") from error


class ProviderFailed(Exception):
    """The provider gave no answer that can be used; the message says what, and repeats nothing of the answer."""


class _Facts(msgspec.Struct):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None


class _Keys(msgspec.Struct):
    keys: list[dict[str, Any]]


class _Token(msgspec.Struct):
    id_token: str
    access_token: str | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """A sign-in under way: what its answer must fit, kept signed in the browser meanwhile."""

    state: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))
    next: str = "/"


class Provider:
    """One OpenID Connect provider. What it tells of itself is asked anew each hour, and when a key is unknown."""

    def __init__(self, *, config: OidcSignIn, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._facts: _Facts | None = None
        self._keys = _Keys([])
        self._known_at = float("-inf")

    async def begin(self, pending: Pending, redirect_uri: str) -> str:
        """Return the provider's address to which the browser is to go. Raises ProviderFailed."""
        facts = await self._discovered()
        async with self._client(redirect_uri) as client:
            url, _ = client.create_authorization_url(
                facts.authorization_endpoint,
                state=pending.state,
                code_verifier=pending.verifier,
                nonce=pending.nonce,
            )
        return str(url)

    async def finish(self, code: str, pending: Pending, redirect_uri: str) -> Vouched:
        """Return who the provider says this is. Raises ProviderFailed, RequestError 403."""
        facts = await self._discovered()
        async with self._client(redirect_uri) as client:
            with _told("its answer cannot be used"):
                told = await client.fetch_token(facts.token_endpoint, code=code, code_verifier=pending.verifier)
                claims = await self._checked(msgspec.convert(dict(told), _Token), pending)
                if self._config.name_claim not in claims or self._config.role_claim not in claims:
                    claims = {**await self._user_info(client, claims["sub"]), **claims}
        return self._vouched(claims)

    def _client(self, redirect_uri: str) -> Any:
        # Imported where it is needed: nobody without a provider should wait for it at the start.
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        secret = self._config.client_secret
        return AsyncOAuth2Client(
            client_id=self._config.client_id,
            client_secret=secret.get_secret_value() if secret else None,
            token_endpoint_auth_method="client_secret_basic" if secret else "none",
            scope=self._config.scopes,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            leeway=0,
            timeout=PATIENCE_S,
        )

    async def _discovered(self) -> _Facts:
        """Return what the provider tells of itself."""
        if self._facts is not None and self._clock.monotonic() - self._known_at <= KNOWN_FOR_S:
            return self._facts
        return await self._discover()

    async def _discover(self) -> _Facts:
        issuer = self._config.issuer or ""
        async with self._client("") as client:
            with _told("it cannot be reached"):
                told = await client.request("GET", f"{issuer}{DISCOVERY}", withhold_token=True)
                facts = msgspec.json.decode(told.raise_for_status().content, type=_Facts)
                if facts.issuer.rstrip("/") != issuer:
                    raise ProviderFailed("it names another issuer than `oidc.issuer`")
                keys = await client.request("GET", facts.jwks_uri, withhold_token=True)
                self._keys = msgspec.json.decode(keys.raise_for_status().content, type=_Keys)
        self._facts, self._known_at = facts, self._clock.monotonic()
        return facts

    async def _checked(self, token: _Token, pending: Pending) -> dict[str, Any]:
        """Return the claims of the id token once all of it has been checked (OpenID Connect Core, 3.1.3.7)."""
        from authlib.oidc.core import CodeIDToken
        from joserfc.errors import JoseError

        facts = await self._discovered()
        try:
            decoded = self._decoded(token.id_token)
        except (JoseError, ValueError):
            facts = await self._discover()
            decoded = self._decoded(token.id_token)
        claims = CodeIDToken(
            decoded.claims,
            decoded.header,
            options={
                "iss": {"essential": True, "value": facts.issuer},
                "aud": {"essential": True, "value": self._config.client_id},
            },
            params={
                "nonce": pending.nonce,
                "client_id": self._config.client_id,
                "access_token": token.access_token,
            },
        )
        claims.validate(now=int(self._clock.now().timestamp()), leeway=LEEWAY_S)
        return dict(claims)

    def _decoded(self, id_token: str) -> Any:
        from joserfc import jwt
        from joserfc.jwk import KeySet

        return jwt.decode(id_token, KeySet.import_key_set({"keys": list(self._keys.keys)}), algorithms=ALGORITHMS)

    async def _user_info(self, client: Any, subject: str) -> dict[str, Any]:
        """Return what the provider tells beside the id token; that of somebody else is nothing."""
        address = (await self._discovered()).userinfo_endpoint
        if not address:
            return {}
        told = await client.request("GET", address)
        found = msgspec.json.decode(told.raise_for_status().content, type=dict[str, Any])
        return found if found.get("sub") == subject else {}

    def _vouched(self, claims: Mapping[str, Any]) -> Vouched:
        name = claims.get(self._config.name_claim)
        if not name and claims.get("email_verified") is True:
            name = claims.get("email")
        if not isinstance(name, str) or not name:
            raise RequestError(403, "not_allowed", "The provider tells no name for you.", should_retry=False)
        return Vouched(name, f"{self._config.issuer}|{claims['sub']}", self._role(claims.get(self._config.role_claim)))

    def _role(self, told: object) -> Role | None:
        """Return the highest role that the provider's values give, `None` where they give none."""
        values = told if isinstance(told, list) else [told]
        found = [role for value, role in self._config.roles.items() if value in values]
        return max(found, key=lambda role: role.rank, default=None)


async def leave(request: Request) -> Response:
    """GET /sign-in/provider: on to the provider."""
    provider = _provider(request)
    if provider is None:
        return ui_of(request).error_page("No provider", "No sign-in provider is set up here.", 404, "/sign-in")
    pending = Pending(next=way_on(request.query_params.get("next", "/")))
    try:
        url = await provider.begin(pending, _redirect_uri(request))
    except ProviderFailed as error:
        return _failed(request, error)
    answer = RedirectResponse(url, 303, {"cache-control": "no-store"})
    kept = [pending.state, pending.nonce, pending.verifier, pending.next]
    answer.set_cookie(
        COOKIE,
        _signer(request).dumps(kept),
        max_age=PENDING_S,
        path=PATH,
        secure=_redirect_uri(request).startswith("https://"),
        httponly=True,
        samesite="lax",
    )
    return answer


async def back(request: Request) -> Response:
    """GET /sign-in/provider/back: the provider's answer."""
    provider, query = _provider(request), request.query_params
    pending = _pending(request)
    if provider is None or pending is None or not secrets.compare_digest(query.get("state", ""), pending.state):
        message = "This answer belongs to no sign-in begun here in the last ten minutes. Begin again."
        return ui_of(request).error_page("Begin again", message, 400, "/sign-in")
    if "code" not in query:
        return ui_of(request).error_page("Not signed in", "The provider did not let you in.", 403, "/sign-in")
    settings = runtime_of(request).settings.oidc
    try:
        who = await provider.finish(query["code"], pending, _redirect_uri(request))
        signed_in = await people_of(request).sign_in.vouched(who, browser_of(request), new_role=settings.role)
    except ProviderFailed as error:
        return _failed(request, error)
    except InvalidValue as error:
        message = f"The provider's name for you {error.message}."
        return ui_of(request).error_page("Not signed in", message, 403, "/sign-in")
    except RequestError as error:
        return ui_of(request).error_page("Not signed in", error.message, error.status, "/sign-in")
    answer = await admit(request, signed_in, pending.next)
    answer.delete_cookie(COOKIE, path=PATH)
    return answer


def _provider(request: Request) -> Provider | None:
    """Return the provider that the settings name, `None` for none."""
    runtime, state = runtime_of(request), request.app.state
    if runtime.settings.oidc.issuer is None:
        return None
    if getattr(state, "provider", None) is None:
        state.provider = Provider(config=runtime.settings.oidc, clock=runtime.clock)
    found: Provider = state.provider
    return found


def _pending(request: Request) -> Pending | None:
    try:
        kept = _signer(request).loads(request.cookies.get(COOKIE, ""), max_age=PENDING_S)
    except BadSignature:
        return None
    return Pending(*kept)


def _signer(request: Request) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(people_of(request).cookie_key, salt="sign-in by provider")


def _redirect_uri(request: Request) -> str:
    """Return where the provider sends the browser back to, as it must be registered there."""
    public = runtime_of(request).settings.public_url
    if public is None:
        public = f"{'https' if is_https(request) else 'http'}://{request.url.netloc}"
    return f"{public}{PATH}/back"


def _failed(request: Request, error: ProviderFailed) -> Response:
    log.warning("the sign-in provider failed", fault=str(error))
    message = f"The sign-in provider failed: {error}. Try again, or sign in with a password."
    return ui_of(request).error_page("Not signed in", message, 502, f"/sign-in?next={quote('/', safe='')}")


ROUTES: list[BaseRoute] = [Route(PATH, leave), Route(f"{PATH}/back", back)]
