"""Sessions: somebody who is signed in with one browser."""

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

LONGEST_AGENT = 200


class Way(StrEnum):
    """How a session began."""

    LOCAL = "password"
    SET_UP = "set-up link"
    PROVIDER = "provider"


@dataclass(frozen=True, slots=True)
class Session:
    """One sign-in. `hash` is that of the random text in the browser's cookie; `id` names it where it is listed."""

    id: str
    hash: str = field(repr=False)
    account: str
    created_at: datetime
    expires_at: datetime
    seen_at: datetime
    address: str
    agent: str
    way: Way


def new_cookie() -> str:
    """Return what a browser is given to show: 256 random bits."""
    return secrets.token_urlsafe(32)


def new_session(
    account: str, *, hash: str, now: datetime, lasts: timedelta, address: str, agent: str, way: Way
) -> Session:
    """Return a session that begins now."""
    shown = "".join(character for character in agent if character.isprintable())[:LONGEST_AGENT]
    return Session(
        id=secrets.token_hex(8),
        hash=hash,
        account=account,
        created_at=now,
        expires_at=now + lasts,
        seen_at=now,
        address=address,
        agent=shown,
        way=way,
    )
