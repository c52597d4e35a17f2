"""The store of people, teams and keys, on both databases."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from core.errors import ConfigError, InvalidValue, NotFound, StaleVersion
from core.lanes import Lane
from core.people.accounts import Account
from core.people.audit import AuditEntry
from core.people.identity import Role
from core.people.keys import ApiKey
from core.people.sessions import Session, Way, new_session
from core.people.store import SetUp
from core.people.tenants import Limits, Tenant
from core.storage.store import SqlStore
from tests.fakes_people import START, api_key

pytestmark = pytest.mark.anyio

FULL_TENANT = Tenant("a", 2.5, 7, Limits(1, 2**40, 3, 2**50), (Lane.BATCH,), START)
FULL_KEY = replace(
    api_key(
        "k", tenant="a", lane=Lane.BATCH, role=Role.ADMIN, models=("m-*", "x"), cidrs=("10.0.0.0/8",),
        expires_at=START + timedelta(days=1),
    ),
    last_used_at=START, old_hash="00", old_prefix="tg_old", old_until=START,
)  # fmt: skip
FULL_ACCOUNT = Account("ann", Role.OPERATOR, "a", "$argon2id$", "issuer|1", START, None, START)


def entry(action: str = "x") -> AuditEntry:
    return AuditEntry(START, "ada", action, "target")


def session(account: str = "ann", *, lasts: int = 3600) -> Session:
    return new_session(
        account, hash="ab", now=START, lasts=timedelta(seconds=lasts), address="::1", agent="b", way=Way.LOCAL
    )


async def add_key(store: SqlStore, key: ApiKey, mark: str = "m") -> bool:
    tenant = Tenant(key.tenant, created_at=START)
    return await store.add_key(key, tenant=tenant, entry=entry("key"), tenant_entry=entry("tenant"), mark=mark)


async def actions(store: SqlStore) -> list[str]:
    return [record.entry.action for record in await store.audit_chain(after=0, limit=100)]


async def test_what_is_stored_comes_back_as_it_was(store: SqlStore) -> None:
    await store.add_tenants([FULL_TENANT])
    await add_key(store, FULL_KEY)
    await store.add_account(FULL_ACCOUNT, entry=entry())
    begun = session()
    await store.add_session(begun, entry=entry())
    everyone = await store.everyone()
    assert everyone.tenants == (FULL_TENANT,)
    assert everyone.keys == (FULL_KEY,)
    assert everyone.accounts == (replace(FULL_ACCOUNT, last_sign_in_at=START),)
    assert everyone.sessions == (begun,)


async def test_each_change_raises_the_revision_and_noting_use_does_not(store: SqlStore) -> None:
    seen = [await store.revision()]
    await store.add_tenants([FULL_TENANT])
    seen.append(await store.revision())
    await add_key(store, FULL_KEY)
    seen.append(await store.revision())
    await store.seen(keys={"k": START + timedelta(hours=1), "gone": START}, sessions={"gone": START})
    seen.append(await store.revision())
    assert seen == [seen[0], seen[0] + 1, seen[0] + 2, seen[0] + 2]
    assert (await store.everyone()).keys[0].last_used_at == START + timedelta(hours=1)


async def test_tenants_that_are_there_are_left_alone(store: SqlStore) -> None:
    await store.add_tenants([FULL_TENANT])
    added = await store.add_tenants(
        [Tenant("a", created_at=START), Tenant("b", created_at=START)], entry=lambda t: entry(t.name)
    )
    assert [each.name for each in added] == ["b"]
    assert (await store.everyone()).tenants[0] == FULL_TENANT
    assert await actions(store) == ["b"]


async def test_a_key_makes_its_tenant_where_that_is_missing(store: SqlStore) -> None:
    assert await add_key(store, FULL_KEY)
    assert not await add_key(store, replace(FULL_KEY, name="l"))
    assert await actions(store) == ["tenant", "key", "key"]
    with pytest.raises(InvalidValue, match="unique"):
        await add_key(store, FULL_KEY)
    assert await actions(store) == ["tenant", "key", "key"]


async def test_keys_are_made_under_one_secret_until_all_are_forgotten(store: SqlStore) -> None:
    await add_key(store, FULL_KEY, "one")
    with pytest.raises(ConfigError, match="TIDEGATE_SECRET"):
        await add_key(store, replace(FULL_KEY, name="l"), "another")
    assert (await store.everyone()).secret_mark == "one"
    assert await store.forget_keys(entry=lambda keys: entry(f"forget {len(keys)}")) == 1
    await add_key(store, FULL_KEY, "another")


async def test_a_change_of_a_tenant_needs_the_version_it_is_based_on(store: SqlStore) -> None:
    await store.add_tenants([FULL_TENANT])

    def heavier(tenant: Tenant) -> Tenant:
        return replace(tenant, weight=tenant.weight + 1)

    changed = await store.change_tenant("a", heavier, based_on=1, entry=lambda before, after: entry())
    assert (changed.weight, changed.version) == (3.5, 2)
    with pytest.raises(StaleVersion):
        await store.change_tenant("a", heavier, based_on=1, entry=lambda before, after: entry())
    with pytest.raises(NotFound):
        await store.change_tenant("z", heavier, based_on=None, entry=lambda before, after: entry())


async def test_changes_side_by_side_all_count(store: SqlStore) -> None:
    await store.add_tenants([FULL_TENANT])

    async def heavier() -> None:
        await store.change_tenant(
            "a", lambda tenant: replace(tenant, weight=tenant.weight + 1), based_on=None, entry=lambda b, a: entry()
        )

    before = await store.revision()
    await asyncio.gather(*(heavier() for _ in range(8)))
    assert (await store.everyone()).tenants[0].weight == FULL_TENANT.weight + 8
    assert await store.revision() == before + 8
    assert len(await actions(store)) == 8


async def test_what_a_change_raises_leaves_everything_as_it_was(store: SqlStore) -> None:
    await add_key(store, FULL_KEY)
    before, told = await store.everyone(), await actions(store)

    def refuse(key: ApiKey) -> ApiKey:
        raise InvalidValue("name", "no")

    with pytest.raises(InvalidValue):
        await store.change_key("k", refuse, entry=lambda b, a: entry())
    with pytest.raises(NotFound):
        await store.change_key("z", lambda key: key, entry=lambda b, a: entry())
    assert await store.everyone() == before
    assert await actions(store) == told


async def test_a_change_of_an_account_sees_all_others_and_may_sign_out(store: SqlStore) -> None:
    await store.add_account(FULL_ACCOUNT, entry=entry())
    await store.add_account(replace(FULL_ACCOUNT, name="bob", subject=None), entry=entry())
    await store.add_session(session(), entry=entry())
    seen: list[Sequence[Account]] = []

    def change(account: Account, others: Sequence[Account]) -> Account:
        seen.append(others)
        return replace(account, role=Role.VIEWER)

    changed = await store.change_account("ann", change, entry=None, sign_out=True)
    assert changed.role is Role.VIEWER
    assert [each.name for each in seen[0]] == ["bob"]
    assert (await store.everyone()).sessions == ()
    with pytest.raises(NotFound):
        await store.change_account("eve", change, entry=None)


async def test_an_account_is_added_once_and_only_where_nothing_speaks_against_it(store: SqlStore) -> None:
    def alone(there: Sequence[Account]) -> None:
        if there:
            raise InvalidValue("name", "not alone")

    await store.add_account(FULL_ACCOUNT, entry=entry(), only=alone)
    with pytest.raises(InvalidValue, match="not alone"):
        await store.add_account(replace(FULL_ACCOUNT, name="bob", subject=None), entry=entry(), only=alone)
    with pytest.raises(InvalidValue, match="already"):
        await store.add_account(FULL_ACCOUNT, entry=entry())


async def test_sessions_that_are_over_go_when_the_next_begins(store: SqlStore) -> None:
    await store.add_account(FULL_ACCOUNT, entry=entry())
    old = session(lasts=0)
    await store.add_session(old, entry=entry())
    fresh = session()
    await store.add_session(fresh, entry=entry())
    assert (await store.everyone()).sessions == (fresh,)
    assert await store.end_sessions([fresh.id, "gone"], entry=entry("end")) == 1
    assert await store.end_sessions([fresh.id], entry=entry("end")) == 0
    assert (await actions(store)).count("end") == 1
    with pytest.raises(NotFound):
        await store.add_session(session("nobody"), entry=entry())


async def test_there_is_one_set_up_link_and_none_once_there_is_an_account(store: SqlStore) -> None:
    assert await store.set_up() is None
    for hash in ("one", "two"):
        await store.put_set_up(SetUp(hash, START))
    assert await store.set_up() == SetUp("two", START)
    await store.add_account(FULL_ACCOUNT, entry=entry())
    assert await store.set_up() is None
    await store.put_set_up(None)


async def test_notes_of_what_changed_nothing_raise_no_revision(store: SqlStore) -> None:
    before = await store.revision()
    await store.note(entry("failed"), entry("failed"))
    assert await store.revision() == before
    assert await actions(store) == ["failed", "failed"]
