"""The one road for changes of accounts, for API, pages and command line alike."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from core.errors import InvalidValue
from core.people.accounts import Account, check_password
from core.people.acting import By
from core.people.audit import BROWSER, COMMAND_LINE, AuditEntry, check_reason
from core.people.identity import Role
from core.people.names import account_name, check_name
from core.people.passwords import Passwords
from core.people.sessions import Session
from core.people.store import PeopleStore
from core.people.tenants import DEFAULT
from core.people.told import account_json
from core.ports import Clock


@dataclass(frozen=True, slots=True)
class AccountPatch:
    """What to change of an account; `None`: nothing."""

    role: Role | None = None
    tenant: str | None = None
    disabled: bool | None = None

    def apply(self, account: Account, now: datetime) -> Account:
        """Return the changed account. Raises InvalidValue."""
        if self.role is None and self.tenant is None and self.disabled is None:
            raise InvalidValue("role", "changes nothing: give role, tenant or disabled")
        disabled_at = account.disabled_at
        if self.disabled is not None:
            disabled_at = (disabled_at or now) if self.disabled else None
        tenant = account.tenant if self.tenant is None else check_name("tenant", self.tenant)
        return replace(account, role=self.role or account.role, tenant=tenant, disabled_at=disabled_at)


class Roster:
    """Makes and changes accounts; each change is in force here when it returns, elsewhere within 5 s.

    There is always an admin who may sign in, once there was one. With `require_reason` a change without a reason is an
    InvalidValue, but for one's own password and sessions, and for commands. Raises InvalidValue, naming the field, and
    NotFound.
    """

    def __init__(self, *, store: PeopleStore, clock: Clock, passwords: Passwords, require_reason: bool = False) -> None:
        self._store = store
        self._clock = clock
        self._passwords = passwords
        self._require_reason = require_reason

    async def create(
        self, name: str, *, role: Role, password: str | None, by: By, tenant: str = DEFAULT, first: bool = False
    ) -> Account:
        """Make an account. Without a password it is for who signs in by a proxy or provider under that name.

        `first` makes it only while there is no other account.
        """
        self._check(by)
        name, now = account_name(name), self._clock.now()
        hashed = await self._passwords.hash(check_password(password, name)) if password is not None else None
        account = Account(name, role, check_name("tenant", tenant), password=hashed, created_at=now)

        def only(there: Sequence[Account]) -> None:
            if first and there:
                raise InvalidValue("name", "there is an account already; sign in with that one")

        entry = by.entry(now, "account.create", f"account:{name}", after=account_json(account))
        await self._store.add_account(account, entry=entry, only=only)
        return account

    async def change(self, name: str, patch: AccountPatch, *, by: By) -> Account:
        """Change an account. Who is disabled is signed out."""
        self._check(by)
        name, now = account_name(name), self._clock.now()

        def change(account: Account, others: Sequence[Account]) -> Account:
            changed = patch.apply(account, now)
            if _is_admin(account) and not _is_admin(changed) and not any(map(_is_admin, others)):
                raise InvalidValue("role", f"{name} is the last admin who may sign in; make another one first")
            return changed

        return await self._store.change_account(
            name, change, entry=_entry(by, "account.change", now), sign_out=patch.disabled is True
        )

    async def set_password(self, name: str, password: str, *, by: By) -> Account:
        """Give an account a password, in place of whatever it signed in with, and sign it out everywhere."""
        self._check(by, own=name)
        name, now = account_name(name), self._clock.now()
        hashed = await self._passwords.hash(check_password(password, name))

        def change(account: Account, _: Sequence[Account]) -> Account:
            return replace(account, password=hashed, subject=None)

        return await self._store.change_account(name, change, entry=_entry(by, "account.password", now), sign_out=True)

    async def end_sessions(self, sessions: Iterable[Session], *, by: By) -> int:
        """Sign out; return how many sessions there were."""
        ended = list(sessions)
        if not ended:
            return 0
        names = sorted({session.account for session in ended})
        self._check(by, own=names[0] if len(names) == 1 else None)
        target = f"account:{names[0]}" if len(names) == 1 else "sessions"
        entry = by.entry(self._clock.now(), "sign-in.ended", target, before=[session.id for session in ended])
        return await self._store.end_sessions([session.id for session in ended], entry=entry)

    def _check(self, by: By, *, own: str | None = None) -> None:
        """Raise InvalidValue where a reason is missing; nobody needs one for what is his own, nor for a command."""
        free = by.way == COMMAND_LINE or (by.way == BROWSER and by.name == own)
        check_reason(by.reason, required=self._require_reason and not free)


def _is_admin(account: Account) -> bool:
    return account.role is Role.ADMIN and account.active


def _entry(by: By, action: str, now: datetime) -> Callable[[Account, Account], AuditEntry]:
    def entry(before: Account, after: Account) -> AuditEntry:
        told = account_json(before), account_json(after)
        return by.entry(now, action, f"account:{after.name}", before=told[0], after=told[1])

    return entry
