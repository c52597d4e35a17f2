"""Who is who at one revision, laid out for looking up in the hot path."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from core.lanes import Lane
from core.people.accounts import Account
from core.people.identity import GUEST, OPEN, Identity, Role
from core.people.keys import ApiKey, KeyState, Network, network
from core.people.secret import KeyedHash
from core.people.sessions import Session
from core.people.store import Everyone
from core.people.tenants import Tenant


@dataclass(frozen=True, slots=True)
class FileKey:
    """A key of the settings file; its state is always known."""

    name: str
    token: str = field(repr=False)
    tenant: str = "default"
    lane: Lane = Lane.INTERACTIVE
    lanes: tuple[Lane, ...] = (Lane.INTERACTIVE, Lane.BATCH)
    role: Role = Role.MEMBER


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One secret that is taken, or known and refused. `until` is seconds since 1970; `stored` false: from the file."""

    identity: Identity
    stored: bool
    until: float | None = None
    networks: tuple[Network, ...] = ()
    revoked: bool = False

    @property
    def plain(self) -> bool:
        """Tell whether nothing but the store could speak against it: it is taken at any time, from anywhere."""
        return self.until is None and not self.networks and not self.revoked


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One session of an account that may sign in; `until` is seconds since 1970."""

    identity: Identity
    id: str
    until: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everyone, by the hash of what they show. `plain` are the keys of which nothing else must be asked.

    `anyone` is who shows nothing; `None`: nobody may.
    """

    revision: int = 0
    keys: Mapping[bytes, KeyEntry] = field(default_factory=dict)
    plain: Mapping[bytes, Identity] = field(default_factory=dict)
    sessions: Mapping[bytes, SessionEntry] = field(default_factory=dict)
    listed: tuple[Session, ...] = ()
    accounts: Mapping[str, Account] = field(default_factory=dict)
    identities: Mapping[str, Identity] = field(default_factory=dict)
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    anyone: Identity | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What the settings say. `may_be_open`: reachable from this machine alone, or meant so.

    `others_sign_in`: people come through a proxy or provider, so that pages are never open.
    """

    file_keys: tuple[FileKey, ...] = ()
    may_be_open: bool = True
    others_sign_in: bool = False


def build(everyone: Everyone, rules: Rules, *, hasher: KeyedHash, now: datetime) -> Snapshot:
    """Return the snapshot of what is stored, with the keys of the file."""
    tenants = {tenant.name: tenant for tenant in everyone.tenants}
    accounts = {account.name: account for account in everyone.accounts}
    with_accounts = bool(accounts) or rules.others_sign_in
    least = Role.VIEWER if with_accounts else Role.OPERATOR
    keys: dict[bytes, KeyEntry] = {}
    for key in everyone.keys:
        keys |= _stored_entries(key, tenants, least, now)
    for given in rules.file_keys:
        identity = _identity(given.tenant, given.lane, given.lanes, tenants, role=_raised(given.role, least))
        keys[hasher.digest(given.token.encode())] = KeyEntry(replace(identity, key=given.name), stored=False)
    identities = {name: _person(account, tenants) for name, account in accounts.items() if account.active}
    anyone = None
    if rules.may_be_open and not keys:
        anyone = GUEST if with_accounts else OPEN
    return Snapshot(
        revision=everyone.revision,
        keys=keys,
        plain={hash: entry.identity for hash, entry in keys.items() if entry.plain},
        sessions=dict(_sessions(everyone.sessions, identities)),
        listed=everyone.sessions,
        accounts=accounts,
        identities=identities,
        tenants=tenants,
        models={key.name: key.models for key in everyone.keys},
        anyone=anyone,
    )


def _stored_entries(key: ApiKey, tenants: Mapping[str, Tenant], least: Role, now: datetime) -> dict[bytes, KeyEntry]:
    """Return a key's entry, and that of the secret from before its last rotation while that is taken."""
    identity = _identity(key.tenant, key.lane, key.lanes, tenants, role=_raised(key.role, least))
    until = key.expires_at.timestamp() if key.expires_at is not None else None
    entry = KeyEntry(
        replace(identity, key=key.name, models=key.models),
        stored=True,
        until=until,
        networks=tuple(map(network, key.cidrs)),
        revoked=key.state(now) is KeyState.REVOKED,
    )
    entries = {bytes.fromhex(key.hash): entry}
    if key.old_hash is not None and key.old_until is not None:
        old_until = key.old_until.timestamp()
        entries[bytes.fromhex(key.old_hash)] = replace(entry, until=min(old_until, until or old_until))
    return entries


def _raised(role: Role, least: Role) -> Role:
    """Without accounts any key may use the operator API: nobody else could be asked to."""
    return role if role.includes(least) else least


def _identity(tenant: str, lane: Lane, lanes: Iterable[Lane], tenants: Mapping[str, Tenant], *, role: Role) -> Identity:
    """Return who a key stands for. Its lanes are those that the tenant may use too."""
    known = tenants.get(tenant)
    allowed = [each for each in lanes if known is None or each in known.lanes]
    own = lane if lane in allowed or not allowed else allowed[0]
    return Identity(tenant, own, frozenset(allowed), role=role)


def _person(account: Account, tenants: Mapping[str, Tenant]) -> Identity:
    identity = _identity(account.tenant, Lane.INTERACTIVE, tuple(Lane), tenants, role=account.role)
    return replace(identity, account=account.name)


def _sessions(sessions: Sequence[Session], identities: Mapping[str, Identity]) -> Iterable[tuple[bytes, SessionEntry]]:
    for session in sessions:
        identity = identities.get(session.account)
        if identity is not None:
            entry = SessionEntry(replace(identity, session=session.id), session.id, session.expires_at.timestamp())
            yield bytes.fromhex(session.hash), entry
