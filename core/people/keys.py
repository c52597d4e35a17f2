"""API keys: shown once, stored as a keyed hash with a prefix to know them by."""

import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from core.errors import InvalidValue
from core.lanes import Lane
from core.people.identity import ANY_MODEL, Role
from core.people.names import check_globs, check_name
from core.people.secret import KeyedHash

KEY_MARK = "tg_"
SHOWN = 9
MOST_RANGES = 100
LONGEST_OVERLAP = timedelta(days=90)
DEFAULT_OVERLAP = timedelta(hours=24)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class KeyState(StrEnum):
    """Whether a key is taken."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One stored key; of its secret only the hash is known, of the secret that it had before a rotation likewise.

    `cidrs` are the address ranges that it may be sent from, empty for all; `models` are globs. Names are unique, those
    of revoked keys included.
    """

    name: str
    tenant: str
    hash: str = field(repr=False)
    prefix: str
    role: Role = Role.MEMBER
    lane: Lane = Lane.INTERACTIVE
    lanes: tuple[Lane, ...] = (Lane.INTERACTIVE, Lane.BATCH)
    models: tuple[str, ...] = ANY_MODEL
    cidrs: tuple[str, ...] = ()
    created_at: datetime | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
    old_hash: str | None = field(default=None, repr=False)
    old_prefix: str | None = None
    old_until: datetime | None = None

    def state(self, now: datetime) -> KeyState:
        """Return whether the key is taken at `now`."""
        if self.revoked_at is not None:
            return KeyState.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return KeyState.EXPIRED
        return KeyState.ACTIVE

    def overlaps(self, now: datetime) -> bool:
        """Tell whether the secret from before the last rotation is still taken."""
        return self.old_until is not None and self.old_until > now


@dataclass(frozen=True, slots=True)
class NewKey:
    """What is asked of a key that is to be made. `lanes` empty means both; `expires_at` `None` never."""

    tenant: str
    name: str
    role: Role = Role.MEMBER
    lane: Lane | None = None
    lanes: tuple[Lane, ...] = ()
    models: tuple[str, ...] = ANY_MODEL
    cidrs: tuple[str, ...] = ()
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Issued:
    """A key together with its secret, at the one moment at which that is known. `new_tenant`: it was made along."""

    key: ApiKey
    token: str = field(repr=False)
    new_tenant: bool = False


def new_token() -> str:
    """Return a fresh secret: 256 random bits."""
    return KEY_MARK + secrets.token_urlsafe(32)


def made(wanted: NewKey, *, token: str, hasher: KeyedHash, now: datetime) -> ApiKey:
    """Return the key that `wanted` describes. Raises InvalidValue, naming the field."""
    if wanted.expires_at is not None and wanted.expires_at <= now:
        raise InvalidValue("expires", "must lie in the future")
    lane, lanes = _lanes(wanted)
    return ApiKey(
        name=check_name("name", wanted.name),
        tenant=check_name("tenant", wanted.tenant),
        hash=hasher.hexdigest(token),
        prefix=token[:SHOWN],
        role=wanted.role,
        lane=lane,
        lanes=lanes,
        models=check_globs("models", wanted.models),
        cidrs=check_ranges("cidrs", wanted.cidrs),
        created_at=now,
        expires_at=wanted.expires_at,
    )


def rotated(key: ApiKey, *, token: str, hasher: KeyedHash, now: datetime, overlap: timedelta) -> ApiKey:
    """Return the key with a new secret; the present one is taken for `overlap` more. Raises InvalidValue."""
    if key.revoked_at is not None:
        raise InvalidValue("name", f"key {key.name} is revoked; make a new one")
    if not timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise InvalidValue("overlap", f"must be from 0 to {LONGEST_OVERLAP.days} days")
    kept = overlap > timedelta(0)
    return replace(
        key,
        hash=hasher.hexdigest(token),
        prefix=token[:SHOWN],
        old_hash=key.hash if kept else None,
        old_prefix=key.prefix if kept else None,
        old_until=now + overlap if kept else None,
    )


def check_ranges(field_name: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Return address ranges in their usual spelling. Raises InvalidValue."""
    try:
        found = tuple(dict.fromkeys(str(network(text)) for text in texts if text.strip()))
    except ValueError:
        raise InvalidValue(field_name, "must be addresses or ranges such as 10.0.0.0/8 or fd00::/8") from None
    if len(found) > MOST_RANGES:
        raise InvalidValue(field_name, f"must be at most {MOST_RANGES} ranges")
    return found


def network(text: str) -> Network:
    """Return the range that `text` writes; an address alone is a range of one. Raises ValueError."""
    return ipaddress.ip_network(text.strip(), strict=False)


def _lanes(wanted: NewKey) -> tuple[Lane, tuple[Lane, ...]]:
    """Return the default lane and all lanes; without a wish of its own a key begins in interactive if it may."""
    lanes = tuple(lane for lane in Lane if not wanted.lanes or lane in wanted.lanes)
    lane = wanted.lane or lanes[0]
    if lane not in lanes:
        raise InvalidValue("lane", f"{lane} is not among the lanes that the key may use")
    return lane, lanes
