"""The seam to where people, teams and keys are stored."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from core.people.accounts import Account
from core.people.audit import AuditEntry
from core.people.keys import ApiKey
from core.people.sessions import Session
from core.people.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Everyone:
    """All that is stored, as of one revision. `secret_mark` tells apart the secrets under which hashes were made."""

    revision: int = 0
    tenants: tuple[Tenant, ...] = ()
    keys: tuple[ApiKey, ...] = ()
    accounts: tuple[Account, ...] = ()
    sessions: tuple[Session, ...] = ()
    secret_mark: str | None = None


@dataclass(frozen=True, slots=True)
class SetUp:
    """The set-up link that may still be used: the keyed hash of its token, and until when."""

    hash: str = field(repr=False)
    until: datetime


class PeopleStore(Protocol):
    """Tenants, keys, accounts and sessions. Every change is one transaction with its audit entry.

    Changes happen one after the other, whoever makes them, and each raises the revision by one: who has seen a revision
    has seen all before it. `change` functions are pure; what they raise leaves everything as it was. `entry` makes the
    audit entry of what was there before and what is there now.
    """

    async def revision(self) -> int:
        """Return the present revision; cheap."""

    async def everyone(self) -> Everyone:
        """Return all that is stored, in one consistent state."""

    async def add_tenants(
        self, tenants: Iterable[Tenant], *, entry: Callable[[Tenant], AuditEntry] | None = None
    ) -> list[Tenant]:
        """Store the tenants that are not stored yet, leave those that are; return the former."""

    async def change_tenant(
        self,
        name: str,
        change: Callable[[Tenant], Tenant],
        *,
        based_on: int | None,
        entry: Callable[[Tenant, Tenant], AuditEntry],
    ) -> Tenant:
        """Store the changed tenant as the next version. Raises NotFound, StaleVersion."""

    async def add_key(
        self, key: ApiKey, *, tenant: Tenant, entry: AuditEntry, tenant_entry: AuditEntry, mark: str
    ) -> bool:
        """Store a new key, and its tenant where that is missing; return whether it was.

        `mark` is that of the secret under which the key's hash was made; it is kept with the first key. Raises
        InvalidValue `name` where there is a key of that name, ConfigError where other keys have another mark.
        """

    async def change_key(
        self, name: str, change: Callable[[ApiKey], ApiKey], *, entry: Callable[[ApiKey, ApiKey], AuditEntry]
    ) -> ApiKey:
        """Store the changed key. Raises NotFound."""

    async def forget_keys(self, *, entry: Callable[[Sequence[ApiKey]], AuditEntry]) -> int:
        """Delete every key, as if there had never been one; return how many."""

    async def add_account(
        self, account: Account, *, entry: AuditEntry, only: Callable[[Sequence[Account]], None] | None = None
    ) -> None:
        """Store a new account; `only` may raise on seeing those there are.

        Raises InvalidValue `name` where there is one of that name. Set-up links are void from then on.
        """

    async def change_account(
        self,
        name: str,
        change: Callable[[Account, Sequence[Account]], Account],
        *,
        entry: Callable[[Account, Account], AuditEntry] | None,
        sign_out: bool = False,
    ) -> Account:
        """Store the changed account; `change` sees all others too. `sign_out` ends its sessions. Raises NotFound."""

    async def add_session(self, session: Session, *, entry: AuditEntry) -> None:
        """Store a new session, and the instant as its account's last sign-in; drop sessions that are over."""

    async def end_sessions(self, ids: Iterable[str], *, entry: AuditEntry | None) -> int:
        """Delete sessions; return how many there were."""

    async def seen(self, *, keys: Mapping[str, datetime], sessions: Mapping[str, datetime]) -> None:
        """Note when keys (by name) and sessions (by id) were last used; no change, so no new revision."""

    async def note(self, *entries: AuditEntry) -> None:
        """Add audit entries of what changed nothing, such as a sign-in that failed."""

    async def put_set_up(self, set_up: SetUp | None) -> None:
        """Let this be the one set-up link that may be used; `None`: none may."""

    async def set_up(self) -> SetUp | None:
        """Return the set-up link that may be used."""
