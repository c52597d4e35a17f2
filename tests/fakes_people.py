"""Fakes and helpers for tests of people, teams and keys."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher

from core.people.acting import By
from core.people.keys import ApiKey, NewKey, made
from core.people.passwords import Passwords
from core.people.roster import Roster
from core.people.secret import KeyedHash
from core.people.sign_in import SignIn
from core.people.store import Everyone
from core.people.teams import Teams
from core.storage.migrate import migrate
from core.storage.store import SqlStore

START = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
HASHER = KeyedHash(b"the secret of the tests")
ADA = By("ada", "browser", "because")


class HandClock:
    """Time that passes when the test says so. Wall time and monotonic time go together."""

    def __init__(self) -> None:
        self.passed = 0.0

    def pass_(self, seconds: float) -> None:
        self.passed += seconds

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed)

    def monotonic(self) -> float:
        return 1000.0 + self.passed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        raise NotImplementedError


class ListedPeople:
    """The part of a PeopleStore that a key ring reads: what the test lists; it may be down."""

    def __init__(self, everyone: Everyone | None = None) -> None:
        self.stored = everyone or Everyone(revision=1)
        self.down = False
        self.reads = 0
        self.noted: list[tuple[dict[str, datetime], dict[str, datetime]]] = []

    def put(self, **changed: Any) -> None:
        self.stored = replace(self.stored, revision=self.stored.revision + 1, **changed)

    async def revision(self) -> int:
        if self.down:
            raise OSError("down")
        return self.stored.revision

    async def everyone(self) -> Everyone:
        if self.down:
            raise OSError("down")
        self.reads += 1
        return self.stored

    async def seen(self, *, keys: dict[str, datetime], sessions: dict[str, datetime]) -> None:
        self.noted.append((dict(keys), dict(sessions)))


def api_key(name: str = "k", *, token: str = "", **fields: Any) -> ApiKey:
    """Return a stored key whose secret is `token` (by default "tg_" and its name)."""
    token = token or f"tg_{name}"
    special = {field: fields.pop(field) for field in ("revoked_at", "old_hash", "old_until") if field in fields}
    fields.setdefault("tenant", "default")
    return replace(made(NewKey(name=name, **fields), token=token, hasher=HASHER, now=START), **special)


def bearer(token: str) -> bytes:
    """Return the Authorization header that shows `token`."""
    return f"Bearer {token}".encode()


def quick_passwords() -> Passwords:
    """Return passwords that are hashed with next to no care, for speed."""
    return Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))


class House:
    """A real database with what changes people, teams and keys in it."""

    def __init__(self, store: SqlStore, clock: HandClock, *, require_reason: bool = False) -> None:
        self.store, self.clock = store, clock
        passwords = quick_passwords()
        self.teams = Teams(
            store=store, clock=clock, hasher=HASHER, taken=frozenset({"in-file"}), require_reason=require_reason
        )
        self.roster = Roster(store=store, clock=clock, passwords=passwords, require_reason=require_reason)
        self.sign_in = SignIn(
            store=store,
            roster=self.roster,
            clock=clock,
            hasher=HASHER,
            passwords=passwords,
            lasts=timedelta(hours=24),
        )

    async def everyone(self) -> Everyone:
        return await self.store.everyone()

    async def actions(self) -> list[str]:
        """Return what the audit trail tells, oldest first."""
        return [record.entry.action for record in await self.store.audit_chain(after=0, limit=100)]


@asynccontextmanager
async def house(folder: Path, **options: Any) -> AsyncIterator[House]:
    """Give a house on a fresh SQLite database."""
    url = f"sqlite:///{folder / 'tidegate.db'}"
    await migrate(url)
    store = SqlStore(url)
    try:
        yield House(store, HandClock(), **options)
    finally:
        await store.close()
