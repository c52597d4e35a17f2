"""Accounts: who may sign in, as what; and how passwords are kept."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from core.errors import InvalidValue
from core.people.identity import Role
from core.people.tenants import DEFAULT

SHORTEST_PASSWORD = 8
LONGEST_PASSWORD = 1024
AT_ONCE = 2


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


class Passwords:
    """Argon2id in threads, few at a time: each check takes tens of milliseconds and 64 MiB on purpose."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._nobody: str | None = None

    async def hash(self, password: str) -> str:
        """Return the password as it is stored."""
        async with self._turns:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def verify(self, stored: str | None, password: str) -> bool:
        """Tell whether this is the password. With nothing stored it takes as long and is not."""
        async with self._turns:
            return await asyncio.to_thread(self._verify, stored, password[:LONGEST_PASSWORD])

    def _verify(self, stored: str | None, password: str) -> bool:
        if self._nobody is None:
            self._nobody = self._hasher.hash("nobody's")
        try:
            return self._hasher.verify(stored or self._nobody, password) and stored is not None
        except (VerificationError, InvalidHashError):
            return False
