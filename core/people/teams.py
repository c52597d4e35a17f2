"""The one road for changes of tenants and keys, for API, pages and command line alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from core.errors import InvalidValue
from core.lanes import Lane
from core.people.acting import By
from core.people.audit import COMMAND_LINE, AuditEntry, check_reason
from core.people.keys import DEFAULT_OVERLAP, ApiKey, Issued, KeyState, NewKey, made, new_token, rotated
from core.people.secret import KeyedHash
from core.people.store import PeopleStore
from core.people.tenants import Limits, Tenant, checked_tenant
from core.people.told import key_json, tenant_json
from core.ports import Clock

MARK = "which secret"


@dataclass(frozen=True, slots=True)
class TenantPatch:
    """What to change of a tenant, by field name: weight, batch_slots, lanes, and the fields of `Limits`."""

    given: dict[str, Any]

    def apply(self, tenant: Tenant) -> Tenant:
        """Return the changed tenant. Raises InvalidValue, naming the field."""
        own = {name: value for name, value in self.given.items() if name in ("weight", "batch_slots", "lanes")}
        limits = {name: value for name, value in self.given.items() if name in Limits.__slots__}
        unknown = set(self.given) - set(own) - set(limits)
        if unknown:
            raise InvalidValue(min(unknown), "is nothing that a tenant has")
        if "lanes" in own:
            own["lanes"] = tuple(lane for lane in Lane if lane in own["lanes"])
        return checked_tenant(replace(tenant, **own, limits=replace(tenant.limits, **limits)))


class Teams:
    """Makes and changes tenants and keys; each change is in force here when it returns, elsewhere within 5 s.

    `taken` are names that keys of the settings file have. Raises InvalidValue, naming the field, and NotFound.
    """

    def __init__(
        self,
        *,
        store: PeopleStore,
        clock: Clock,
        hasher: KeyedHash,
        taken: frozenset[str] = frozenset(),
        require_reason: bool = False,
    ) -> None:
        self._store = store
        self._clock = clock
        self._hasher = hasher
        self._taken = taken
        self._require_reason = require_reason

    async def create_tenant(self, name: str, patch: TenantPatch, *, by: By) -> Tenant:
        """Make a tenant."""
        self._check(by)
        now = self._clock.now()
        tenant = replace(patch.apply(checked_tenant(Tenant(name))), created_at=now)
        entry = by.entry(now, "tenant.create", f"tenant:{name}", after=tenant_json(tenant))
        if not await self._store.add_tenants([tenant], entry=lambda _: entry):
            raise InvalidValue("name", f"there is a tenant named {name} already")
        return tenant

    async def change_tenant(self, name: str, patch: TenantPatch, *, by: By, based_on: int | None) -> Tenant:
        """Change a tenant. Raises StaleVersion where `based_on` is not its present version."""
        self._check(by)
        now = self._clock.now()

        def entry(before: Tenant, after: Tenant) -> AuditEntry:
            told = tenant_json(before), tenant_json(after)
            return by.entry(now, "tenant.change", f"tenant:{name}", before=told[0], after=told[1])

        return await self._store.change_tenant(name, patch.apply, based_on=based_on, entry=entry)

    async def create_key(self, wanted: NewKey, *, by: By) -> Issued:
        """Make a key, and its tenant where there is none of that name; its secret is in the answer and nowhere else."""
        self._check(by)
        now, token = self._clock.now(), new_token()
        key = made(wanted, token=token, hasher=self._hasher, now=now)
        if key.name in self._taken:
            raise InvalidValue("name", f"there is a key named {key.name} in the settings; names are unique")
        tenant = Tenant(key.tenant, created_at=now)
        new_tenant = await self._store.add_key(
            key,
            tenant=tenant,
            entry=by.entry(now, "key.create", f"key:{key.name}", after=key_json(key, now)),
            tenant_entry=by.entry(now, "tenant.create", f"tenant:{tenant.name}", after=tenant_json(tenant)),
            mark=self._hasher.hexdigest(MARK),
        )
        return Issued(key, token, new_tenant)

    async def rotate_key(self, name: str, *, by: By, overlap: timedelta = DEFAULT_OVERLAP) -> Issued:
        """Give a key a new secret; its present one is taken for `overlap` more, one from before that no longer."""
        self._check(by)
        now, token = self._clock.now(), new_token()

        def change(key: ApiKey) -> ApiKey:
            return rotated(key, token=token, hasher=self._hasher, now=now, overlap=overlap)

        key = await self._store.change_key(name, change, entry=self._key_entry(by, "key.rotate", now))
        return Issued(key, token)

    async def revoke_key(self, name: str, *, by: By) -> ApiKey:
        """Let a key never be taken again. Answers that are running come to their end."""
        self._check(by)
        now = self._clock.now()

        def change(key: ApiKey) -> ApiKey:
            if key.state(now) is KeyState.REVOKED:
                raise InvalidValue("name", f"key {name} is revoked already")
            return replace(key, revoked_at=now, old_hash=None, old_prefix=None, old_until=None)

        return await self._store.change_key(name, change, entry=self._key_entry(by, "key.revoke", now))

    async def reset_open(self, *, by: By) -> int:
        """Forget every stored key, so that none is needed; return how many there were."""
        self._check(by)
        now = self._clock.now()

        def entry(keys: Sequence[ApiKey]) -> AuditEntry:
            return by.entry(now, "key.reset_open", "keys", before=[key_json(key, now) for key in keys])

        return await self._store.forget_keys(entry=entry)

    def _check(self, by: By) -> None:
        check_reason(by.reason, required=self._require_reason and by.way != COMMAND_LINE)

    def _key_entry(self, by: By, action: str, now: datetime) -> Callable[[ApiKey, ApiKey], AuditEntry]:
        def entry(before: ApiKey, after: ApiKey) -> AuditEntry:
            told = key_json(before, now), key_json(after, now)
            return by.entry(now, action, f"key:{after.name}", before=told[0], after=told[1])

        return entry
