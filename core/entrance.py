"""Builds, from the settings, all that knows who may come in: key ring, teams, roster, sign-in."""

from dataclasses import dataclass
from datetime import timedelta

from core.addresses import is_loopback
from core.config import Settings
from core.errors import ConfigError
from core.people.identity import Role
from core.people.passwords import Passwords
from core.people.ring import KeyRing
from core.people.roster import Roster
from core.people.secret import KeyedHash, derived, load_secret
from core.people.sign_in import SignIn
from core.people.snapshot import FileKey, Rules
from core.people.store import PeopleStore
from core.people.teams import MARK, Teams
from core.people.tenants import DEFAULT, Tenant, TenantDirectory
from core.ports import Clock

HASHES = "keys and sessions"
COOKIES = "cookies"


@dataclass(frozen=True, slots=True)
class People:
    """What knows who may come in, and what changes that. `cookie_key` signs what browsers keep for a moment."""

    store: PeopleStore
    ring: KeyRing
    teams: Teams
    roster: Roster
    sign_in: SignIn
    cookie_key: bytes

    async def begin(self, settings: Settings, clock: Clock) -> None:
        """Store the tenants that the settings name, and know everyone from now on. Raises ConfigError."""
        names = dict.fromkeys([DEFAULT, *(key.tenant for key in settings.keys)])
        present = {tenant.name for tenant in (await self.store.everyone()).tenants}
        missing = [Tenant(name, created_at=clock.now()) for name in names if name not in present]
        if missing:
            await self.store.add_tenants(missing)
        await self.ring.refresh()


def secret_of(settings: Settings) -> bytes:
    """Return the installation's secret. Raises ConfigError."""
    return load_secret(settings.data, settings.secret.get_secret_value() if settings.secret else None)


def entrance(settings: Settings, *, store: PeopleStore, clock: Clock, directory: TenantDirectory) -> People:
    """Return what knows people, and puts tenants into `directory`. The secret is read, or made, here.

    Raises ConfigError.
    """
    secret = secret_of(settings)
    hasher = KeyedHash(derived(secret, HASHES))
    passwords = Passwords()
    require = settings.require_reason
    roster = Roster(store=store, clock=clock, passwords=passwords, require_reason=require)
    return People(
        store=store,
        ring=KeyRing(store=store, clock=clock, hasher=hasher, rules=rules_of(settings), directory=directory),
        teams=Teams(
            store=store,
            clock=clock,
            hasher=hasher,
            taken=frozenset(key.name for key in settings.keys),
            require_reason=require,
        ),
        roster=roster,
        sign_in=SignIn(
            store=store,
            roster=roster,
            clock=clock,
            hasher=hasher,
            passwords=passwords,
            lasts=timedelta(hours=settings.session_hours),
        ),
        cookie_key=derived(secret, COOKIES),
    )


def rules_of(settings: Settings) -> Rules:
    """Return what the settings say about who may come in."""
    return Rules(
        file_keys=tuple(
            FileKey(key.name, key.key.get_secret_value(), key.tenant, key.lane, key.lanes, key.role)
            for key in settings.keys
        ),
        may_be_open=settings.insecure or is_loopback(settings.host),
        others_sign_in=settings.proxy.header is not None or settings.oidc.issuer is not None,
    )


async def check_secret(people: People, settings: Settings) -> None:
    """Raise ConfigError where the stored keys were made under another secret: none of them would be known."""
    everyone = await people.store.everyone()
    mark = KeyedHash(derived(secret_of(settings), HASHES)).hexdigest(MARK)
    if everyone.keys and everyone.secret_mark != mark:
        raise ConfigError(
            "secret: it is not the one under which this database's keys were made; set TIDEGATE_SECRET to that one, or "
            "copy the file `secret` from the data folder of the installation that made them"
        )


@dataclass(frozen=True, slots=True)
class Doors:
    """What stands before whoever reaches the gateway, and the token of a set-up link where one was asked for."""

    admin: bool
    keys: bool
    set_up: str | None = None

    @property
    def guarded(self) -> bool:
        """Tell whether changing things needs a sign-in, and calling a key."""
        return self.admin and self.keys


async def look_at_doors(people: People, settings: Settings, *, set_up: bool) -> Doors:
    """Tell whether an admin may sign in, and calls need a key; `set_up` makes a set-up link where nobody may yet."""
    everyone = await people.store.everyone()
    admin = any(account.active and account.role is Role.ADMIN for account in everyone.accounts)
    token = await people.sign_in.set_up_token() if set_up else None
    return Doors(admin, bool(everyone.keys or settings.keys), token)
