"""Accounts: who may sign in, and as what."""

from dataclasses import dataclass, field
from datetime import datetime

from core.errors import InvalidValue
from core.people.identity import Role
from core.people.tenants import DEFAULT

SHORTEST_PASSWORD = 8
LONGEST_PASSWORD = 1024


@dataclass(frozen=True, slots=True)
class Account:
    """A person. Without `password` they sign in through the proxy or provider that `subject` names, or will.

    `subject` is "proxy" or, for a provider, its issuer and the person's id there.
    """

    name: str
    role: Role
    tenant: str = DEFAULT
    password: str | None = field(default=None, repr=False)
    subject: str | None = None
    created_at: datetime | None = None
    last_sign_in_at: datetime | None = None
    disabled_at: datetime | None = None

    @property
    def active(self) -> bool:
        """Tell whether the person may sign in."""
        return self.disabled_at is None


def check_password(password: str, name: str) -> str:
    """Return the password if it may be one. Raises InvalidValue."""
    if len(password) < SHORTEST_PASSWORD:
        raise InvalidValue("password", f"must have at least {SHORTEST_PASSWORD} characters")
    if len(password) > LONGEST_PASSWORD:
        raise InvalidValue("password", f"must have at most {LONGEST_PASSWORD:,} characters")
    if password.lower() == name.lower():
        raise InvalidValue("password", "must not be the account's name")
    return password
