from typing import Any

import pytest
from pydantic import ValidationError

from core.config import Settings
from core.errors import ConfigError
from core.people.identity import Role
from core.sources import load, shown

CANARY = "canary-0123456789abcdef"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"proxy": {"header": "X-User"}}, "no trusted_proxies"),
        ({"proxy": {"header": "X User"}, "trusted_proxies": "10.0.0.1"}, "name of a header"),
        ({"oidc": {"issuer": "https://login.example.org"}}, "client_id is missing"),
        ({"oidc": {"issuer": "http://login.example.org", "client_id": "x"}}, "must begin with https://"),
        ({"oidc": {"issuer": "https://u:p@login.example.org", "client_id": "x"}}, "must be an address"),
        ({"oidc": {"issuer": "https://a.example", "client_id": "x", "scopes": "email"}}, "openid"),
        ({"oidc": {"roles": {"staff": "king"}}}, "Input should be"),
        ({"public_url": "gate.example"}, "must be an address"),
        ({"secret": "short"}, "at least 16"),
        ({"trusted_proxies": "10.0.0.0/99"}, "no address range"),
        ({"session_hours": 0}, "greater than 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(**given)


def test_settings_of_sign_in_come_from_the_environment_with_secrets_masked() -> None:
    loaded = load(
        environ={
            "TIDEGATE_SECRET": CANARY,
            "TIDEGATE_OIDC__ISSUER": "https://login.example.org/",
            "TIDEGATE_OIDC__CLIENT_ID": "tidegate",
            "TIDEGATE_OIDC__CLIENT_SECRET": CANARY,
            "TIDEGATE_OIDC__ROLES": '{"staff": "member"}',
            "TIDEGATE_PROXY__HEADER": "X-User",
            "TIDEGATE_PROXY__ROLE": "viewer",
            "TIDEGATE_TRUSTED_PROXIES": "10.0.0.1,10.1.0.0/16",
        },
        env_file=None,
    ).settings
    assert loaded.oidc.issuer == "https://login.example.org"
    assert loaded.oidc.roles == {"staff": Role.MEMBER}
    assert (loaded.proxy.header, loaded.proxy.role) == ("x-user", Role.VIEWER)
    assert loaded.trusted_proxies == ("10.0.0.1/32", "10.1.0.0/16")
    assert CANARY not in str(shown(loaded)) + repr(loaded)
    assert loaded.secrets().count(CANARY) == 2


def test_a_wrong_secret_is_named_but_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={"TIDEGATE_SECRET": "s3cr3t"}, env_file=None)
    assert "TIDEGATE_SECRET" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
