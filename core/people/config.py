"""The settings of signing in through others: a proxy that names people, or an OpenID Connect provider."""

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from core.addresses import is_loopback
from core.people.identity import Role

_HEADER = re.compile(r"[A-Za-z0-9-]{1,60}")


def _web_address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise ValueError("must be an address such as https://gate.example.org, without user name or query")
    return text.rstrip("/")


def _safe_address(text: str) -> str:
    parts = urlsplit(_web_address(text))
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("must begin with https:// (http:// on this machine alone)")
    return text.rstrip("/")


def _header_name(text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ValueError("must be the name of a header such as X-Forwarded-User")
    return text.lower()


WebAddress = Annotated[str, AfterValidator(_web_address)]
SafeAddress = Annotated[str, AfterValidator(_safe_address)]
HeaderName = Annotated[str, AfterValidator(_header_name)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class ProxySignIn(_Strict):
    """Signing in by a header that a trusted proxy sets."""

    header: HeaderName | None = Field(
        None, description="The header in which a trusted proxy names who is signed in there, such as X-Forwarded-User."
    )
    role: Role | None = Field(
        None, description="The role of whom the proxy names for the first time. Default: an admin makes accounts first."
    )


class OidcSignIn(_Strict):
    """Signing in by an OpenID Connect provider."""

    issuer: SafeAddress | None = Field(None, description="The OpenID Connect provider's issuer address.")
    client_id: str | None = Field(None, description="What Tidegate is called at the provider.")
    client_secret: SecretStr | None = Field(None, description="Its secret there; best as env:NAME.")
    scopes: str = Field("openid profile email", description="What is asked of the provider, separated by blanks.")
    name_claim: str = Field(
        "preferred_username", description="The claim that names the account; where it is missing, a verified email."
    )
    role_claim: str = Field("groups", description="The claim whose values `oidc.roles` maps to roles.")
    roles: dict[str, Role] = Field({}, description="Roles by values of that claim; the highest counts.")
    role: Role | None = Field(
        None, description="The role of whom no value gives one, at the first sign-in. Default: an admin makes accounts."
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.issuer is not None and not self.client_id:
            raise ValueError("client_id is missing; give what Tidegate is called at the provider")
        if self.issuer is not None and "openid" not in self.scopes.split():
            raise ValueError("scopes must hold openid")
        return self
