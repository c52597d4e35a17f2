"""How passwords are kept: as Argon2id, hashed and checked in threads."""

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from core.people.accounts import LONGEST_PASSWORD

AT_ONCE = 2


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
