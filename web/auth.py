"""Who sends a request: the key's tenant and lanes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from core.config import KeyConfig
from core.errors import RequestError
from core.lanes import Lane
from web.errors import invalid_request


@dataclass(frozen=True, slots=True)
class Identity:
    """On whose behalf a request runs, the lane it runs in unless lowered, and the lanes it may use at all."""

    tenant: str
    lane: Lane
    lanes: frozenset[Lane]
    key: str | None = None


OPEN = Identity("default", Lane.INTERACTIVE, frozenset(Lane))


class Keys:
    """The API keys. Without any, everyone is tenant `default` in both lanes."""

    def __init__(self, keys: Sequence[KeyConfig]) -> None:
        self._identities = {
            _digest(key.key.get_secret_value().encode()): Identity(key.tenant, key.lane, frozenset(key.lanes), key.name)
            for key in keys
        }

    def identify(self, authorization: bytes | None) -> Identity:
        """Return who sent this `Authorization` header. Raises RequestError 401 `invalid_api_key`."""
        if not self._identities:
            return OPEN
        scheme, _, token = (authorization or b"").partition(b" ")
        identity = self._identities.get(_digest(token.strip())) if scheme.lower() == b"bearer" else None
        if identity is None:
            raise RequestError(
                401,
                "invalid_api_key",
                "This needs a valid API key: send it as `Authorization: Bearer KEY`.",
                type="invalid_request_error",
                should_retry=False,
            )
        return identity


def choose_lane(
    identity: Identity, *, asked: object, service_tier: object = None, param: str = "x-tidegate-lane"
) -> Lane:
    """Return the lane of a request: its key's own, which the lane `asked` for can only lower.

    Raises RequestError: 400 for an unknown lane, naming `param`; 403 `lane_not_allowed`.
    """
    lane = identity.lane
    if asked is not None and asked not in tuple(Lane):
        shown = repr(asked)[:40]
        raise invalid_request(f"{param} is {shown}; it must be 'interactive' or 'batch'.", param)
    if asked == Lane.BATCH or service_tier == "flex":
        lane = Lane.BATCH
    if lane not in identity.lanes:
        raise RequestError(
            403,
            "lane_not_allowed",
            f"This key may not use the {lane} lane.",
            type="invalid_request_error",
            param=param,
            should_retry=False,
        )
    return lane


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
