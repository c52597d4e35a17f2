"""Signing in: by password, by the one-time set-up link, or on the word of a proxy or provider."""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import ceil

from core.errors import InvalidValue, NotFound, RequestError
from core.people.accounts import Account, check_password
from core.people.acting import By
from core.people.audit import BROWSER, AuditEntry
from core.people.identity import Role
from core.people.names import account_name
from core.people.passwords import Passwords
from core.people.roster import Roster
from core.people.secret import KeyedHash
from core.people.sessions import Session, Way, new_cookie, new_session
from core.people.store import PeopleStore, SetUp
from core.people.tenants import DEFAULT
from core.people.throttle import SignInThrottle
from core.people.told import account_json
from core.ports import Clock

SET_UP_LASTS = timedelta(hours=24)
PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Browser:
    """From where somebody signs in."""

    address: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session with what the browser is given for it."""

    session: Session
    cookie: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Vouched:
    """Somebody whose name a proxy or provider vouches for. `role` `None`: it says nothing about what they may.

    `subject` is what they are known by there, for ever; the name may change.
    """

    name: str
    subject: str
    role: Role | None = None


class SignIn:
    """Begins and ends sessions. A refusal is RequestError: 401 `sign_in_failed`, 403 `not_allowed`, 429 `slow_down`.

    `lasts` is how long a session does.
    """

    def __init__(
        self,
        *,
        store: PeopleStore,
        roster: Roster,
        clock: Clock,
        hasher: KeyedHash,
        passwords: Passwords,
        lasts: timedelta,
        throttle: SignInThrottle | None = None,
    ) -> None:
        self._store = store
        self._roster = roster
        self._clock = clock
        self._hasher = hasher
        self._passwords = passwords
        self._lasts = lasts
        self._throttle = throttle or SignInThrottle()

    async def with_password(self, name: str, password: str, browser: Browser) -> SignedIn:
        """Sign in. Whether the name or the password was wrong is not told."""
        try:
            name = account_name(name)
        except InvalidValue:
            name = ""
        await self._try(name, password, browser)
        return await self._begin(name, browser, Way.LOCAL)

    async def change_password(self, name: str, old: str, new: str, browser: Browser) -> SignedIn:
        """Change one's own password: signs out everywhere, and in here anew. Raises InvalidValue too."""
        check_password(new, name)
        await self._try(name, old, browser)
        await self._roster.set_password(name, new, by=By(name, BROWSER))
        return await self._begin(name, browser, Way.LOCAL)

    async def set_up_token(self) -> str | None:
        """Return a new token for the set-up link, `None` where there are accounts; one from before is void."""
        if (await self._store.everyone()).accounts:
            return None
        token = new_cookie()
        until = self._clock.now() + SET_UP_LASTS
        await self._store.put_set_up(SetUp(self._hasher.hexdigest(token), until))
        return token

    async def may_set_up(self, token: str) -> bool:
        """Tell whether the set-up link with that token may be used."""
        found = await self._store.set_up()
        if found is None or found.until <= self._clock.now():
            return False
        return hmac.compare_digest(found.hash, self._hasher.hexdigest(token))

    async def set_up(self, token: str, name: str, password: str, browser: Browser) -> SignedIn:
        """Make the first admin and sign him in; the link is used up. Raises InvalidValue too."""
        if not await self.may_set_up(token):
            raise _refusal(403, "not_allowed", "This link was used already, or is more than a day old.")
        by = By(account_name(name), BROWSER, "set-up link")
        account = await self._roster.create(name, role=Role.ADMIN, password=password, by=by, first=True)
        return await self._begin(account.name, browser, Way.SET_UP)

    async def vouched(self, who: Vouched, browser: Browser, *, new_role: Role | None) -> SignedIn:
        """Sign in whom a provider vouches for."""
        account = await self.known(who, new_role=new_role)
        return await self._begin(account.name, browser, Way.PROVIDER)

    async def known(self, who: Vouched, *, new_role: Role | None) -> Account:
        """Return the account of whom a proxy or provider vouches for, made now where there is none and it may be.

        `new_role` is that of an account made now where nothing else is said; `None`: none is made then. An account
        with a password, or of another subject, is somebody else's, whatever the name.
        """
        accounts = (await self._store.everyone()).accounts
        found = next((each for each in accounts if each.subject == who.subject), None)
        if found is None:
            found = await self._claimed(who, accounts, new_role)
        if not found.active:
            raise _refusal(403, "not_allowed", f"The account {found.name} is disabled.")
        if who.role is not None and who.role is not found.role:
            found = await self._changed(
                who, found.name, lambda account: replace(account, role=who.role or account.role)
            )
        return found

    async def _changed(self, who: Vouched, name: str, change: Callable[[Account], Account]) -> Account:
        """Store what a proxy or provider changes of an account by vouching for it."""

        def entry(before: Account, after: Account) -> AuditEntry:
            told = account_json(before), account_json(after)
            now = self._clock.now()
            return self._by(who).entry(now, "account.change", f"account:{after.name}", before=told[0], after=told[1])

        return await self._store.change_account(name, lambda account, _: change(account), entry=entry)

    async def _claimed(self, who: Vouched, accounts: Sequence[Account], new_role: Role | None) -> Account:
        """Return the account that was made for this name beforehand, else a new one."""
        name, now = account_name(who.name), self._clock.now()
        there = next((each for each in accounts if each.name == name), None)
        if there is not None:
            if there.password is not None or there.subject is not None:
                raise _refusal(403, "not_allowed", f"The account {name} belongs to somebody else here; ask an admin.")
            return await self._changed(who, name, lambda account: replace(account, subject=who.subject))
        role = who.role or new_role
        if role is None:
            raise _refusal(403, "not_allowed", f"{name} has no role here; ask an admin for an account.")
        account = Account(name, role, DEFAULT, subject=who.subject, created_at=now)
        entry = self._by(who).entry(now, "account.create", f"account:{name}", after=account_json(account))
        await self._store.add_account(account, entry=entry)
        return account

    async def _try(self, name: str, password: str, browser: Browser) -> None:
        """Check a password, as often as the throttle lets."""
        wait = self._throttle.wait(name, browser.address, self._clock.monotonic())
        if wait > 0:
            message = f"Too many attempts failed. Try again in {_minutes(wait)}."
            raise RequestError(429, "slow_down", message, type="rate_limit_error", retry_after=ceil(wait))
        # Before anything is waited for: attempts side by side count each other.
        self._throttle.failed(name, browser.address, self._clock.monotonic())
        account = next((each for each in (await self._store.everyone()).accounts if each.name == name), None)
        stored = account.password if account is not None and account.active else None
        if not await self._passwords.verify(stored, password):
            await self._note_failure(name, browser, account)
            raise _refusal(401, "sign_in_failed", "The name or the password is wrong.")
        self._throttle.succeeded(name, browser.address)

    async def _note_failure(self, name: str, browser: Browser, account: Account | None) -> None:
        why = "no such account" if account is None else "disabled" if not account.active else "wrong password"
        by = By("-", BROWSER, f"{why}, from {browser.address or 'an unknown address'}")
        await self._store.note(by.entry(self._clock.now(), "sign-in.failed", f"account:{name or '-'}"))

    async def _begin(self, name: str, browser: Browser, way: Way) -> SignedIn:
        cookie, now = new_cookie(), self._clock.now()
        session = new_session(
            name,
            hash=self._hasher.hexdigest(cookie),
            now=now,
            lasts=self._lasts,
            address=browser.address,
            agent=browser.agent,
            way=way,
        )
        by = By(name, BROWSER, f"{way}, from {browser.address or 'an unknown address'}")
        try:
            await self._store.add_session(session, entry=by.entry(now, "sign-in", f"account:{name}"))
        except NotFound:
            raise _refusal(401, "sign_in_failed", "The account is gone.") from None
        return SignedIn(session, cookie)

    @staticmethod
    def _by(who: Vouched) -> By:
        return By(who.name, PROXY if who.subject.startswith(PROXY) else "provider")


def _refusal(status: int, code: str, message: str) -> RequestError:
    return RequestError(status, code, message, type="invalid_request_error", should_retry=False)


def _minutes(seconds: float) -> str:
    return f"{ceil(seconds)} s" if seconds <= 90 else f"{ceil(seconds / 60)} minutes"
