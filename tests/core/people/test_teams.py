from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from core.errors import InvalidValue, NotFound, StaleVersion
from core.lanes import Lane
from core.people.acting import By, shell
from core.people.audit import BROWSER
from core.people.identity import Role
from core.people.keys import KeyState, NewKey
from core.people.sign_in import Browser
from core.people.teams import TenantPatch
from tests.fakes_people import ADA, HASHER, START, House, house

pytestmark = pytest.mark.anyio


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as running:
        yield running


def all_of(folder: Path) -> bytes:
    """Return what stands in all files of a folder."""
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_a_key_is_shown_once_and_stored_as_a_hash_with_its_beginning(home: House, tmp_path: Path) -> None:
    issued = await home.teams.create_key(NewKey("research", "indexer", lane=Lane.BATCH), by=ADA)
    assert issued.new_tenant
    assert issued.token.startswith("tg_")
    assert len(issued.token) > 40
    assert issued.token not in repr(issued)
    stored = (await home.everyone()).keys[0]
    assert stored.hash == HASHER.hexdigest(issued.token)
    assert stored.hash not in repr(stored)
    assert issued.token.startswith(stored.prefix)
    assert len(stored.prefix) < 12
    written = all_of(tmp_path)
    assert stored.hash.encode() in written
    assert issued.token.encode() not in written
    assert await home.actions() == ["tenant.create", "key.create"]


async def test_two_keys_never_share_a_name_nor_one_with_a_key_of_the_settings(home: House) -> None:
    await home.teams.create_key(NewKey("a", "k"), by=ADA)
    await home.teams.revoke_key("k", by=ADA)
    for name in ("k", "in-file"):
        with pytest.raises(InvalidValue, match="unique"):
            await home.teams.create_key(NewKey("b", name), by=ADA)
    assert [tenant.name for tenant in (await home.everyone()).tenants] == ["a"]


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (NewKey("a", ""), "name"),
        (NewKey("a", "with blank"), "name"),
        (NewKey("../a", "k"), "tenant"),
        (NewKey("a", "k", lane=Lane.INTERACTIVE, lanes=(Lane.BATCH,)), "lane"),
        (NewKey("a", "k", cidrs=("10.0.0.0/99",)), "cidrs"),
        (NewKey("a", "k", models=("x\ny",)), "models"),
        (NewKey("a", "k", expires_at=START), "expires"),
    ],
)
async def test_a_key_that_makes_no_sense_is_refused_by_field(home: House, wanted: NewKey, field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        await home.teams.create_key(wanted, by=ADA)
    assert caught.value.field == field
    assert await home.actions() == []


async def test_rotation_keeps_the_present_secret_for_a_while_and_no_longer_the_one_before(home: House) -> None:
    first = await home.teams.create_key(NewKey("a", "k"), by=ADA)
    second = await home.teams.rotate_key("k", by=ADA, overlap=timedelta(hours=1))
    assert second.key.old_hash == first.key.hash
    assert second.key.overlaps(START + timedelta(minutes=59))
    assert not second.key.overlaps(START + timedelta(hours=1))
    third = await home.teams.rotate_key("k", by=ADA, overlap=timedelta(0))
    assert (third.key.old_hash, third.key.old_until) == (None, None)
    assert len({first.token, second.token, third.token}) == 3
    with pytest.raises(InvalidValue, match="90 days"):
        await home.teams.rotate_key("k", by=ADA, overlap=timedelta(days=91))


async def test_a_revoked_key_stays_listed_and_can_neither_be_rotated_nor_revoked_again(home: House) -> None:
    await home.teams.create_key(NewKey("a", "k"), by=ADA)
    await home.teams.rotate_key("k", by=ADA)
    revoked = await home.teams.revoke_key("k", by=ADA)
    assert revoked.state(START) is KeyState.REVOKED
    assert revoked.old_hash is None
    with pytest.raises(InvalidValue, match="revoked"):
        await home.teams.rotate_key("k", by=ADA)
    with pytest.raises(InvalidValue, match="already"):
        await home.teams.revoke_key("k", by=ADA)
    with pytest.raises(NotFound):
        await home.teams.revoke_key("other", by=ADA)
    assert (await home.actions())[2:] == ["key.rotate", "key.revoke"]


async def test_reset_open_forgets_every_key_so_that_names_are_free_again(home: House) -> None:
    await home.teams.create_key(NewKey("a", "k"), by=ADA)
    await home.teams.create_key(NewKey("a", "l"), by=ADA)
    assert await home.teams.reset_open(by=shell()) == 2
    assert (await home.everyone()).keys == ()
    await home.teams.create_key(NewKey("a", "k"), by=ADA)


async def test_a_tenant_is_made_and_changed_on_the_version_that_was_seen(home: House) -> None:
    made = await home.teams.create_tenant("a", TenantPatch({"weight": 3.0}), by=ADA)
    patch = TenantPatch({"batch_slots": 4, "queued_items": 100, "lanes": (Lane.BATCH,)})
    changed = await home.teams.change_tenant("a", patch, by=ADA, based_on=made.version)
    assert (changed.weight, changed.batch_slots, changed.limits.queued_items) == (3, 4, 100)
    assert (changed.lanes, changed.version) == ((Lane.BATCH,), made.version + 1)
    assert (await home.everyone()).tenants == (changed,)
    with pytest.raises(StaleVersion):
        await home.teams.change_tenant("a", patch, by=ADA, based_on=made.version)
    with pytest.raises(NotFound):
        await home.teams.change_tenant("b", patch, by=ADA, based_on=None)
    with pytest.raises(InvalidValue, match="already"):
        await home.teams.create_tenant("a", TenantPatch({}), by=ADA)
    with pytest.raises(InvalidValue, match="above 0"):
        await home.teams.change_tenant("a", TenantPatch({"weight": -1.0}), by=ADA, based_on=None)


async def test_the_audit_tells_who_what_from_to_and_why_but_no_secret(home: House) -> None:
    issued = await home.teams.create_key(NewKey("a", "k"), by=ADA)
    await home.teams.revoke_key("k", by=By("ops", "api key ops", "leaked"))
    last = (await home.store.audit_chain(after=0, limit=10))[-1].entry
    assert (last.actor, last.action, last.target, last.reason, last.way) == (
        "ops",
        "key.revoke",
        "key:k",
        "leaked",
        "api key ops",
    )
    assert (last.before["state"], last.after["state"]) == ("active", "revoked")
    assert issued.key.hash not in repr(last)
    assert issued.token not in repr(last)


async def test_where_policy_asks_for_a_reason_only_a_command_may_do_without(tmp_path: Path) -> None:
    async with house(tmp_path, require_reason=True) as home:
        silent = By("ada", BROWSER)
        with pytest.raises(InvalidValue) as caught:
            await home.teams.create_key(NewKey("a", "k"), by=silent)
        assert caught.value.field == "reason"
        await home.teams.create_key(NewKey("a", "k"), by=shell())
        await home.teams.revoke_key("k", by=ADA)
        with pytest.raises(InvalidValue):
            await home.roster.create("ann", role="admin", password="long enough", by=silent)  # type: ignore[arg-type]


async def test_where_policy_asks_for_a_reason_nobody_needs_one_for_what_is_his_own(tmp_path: Path) -> None:
    async with house(tmp_path, require_reason=True) as home:
        for name in ("ada", "bob"):
            await home.roster.create(name, role=Role.ADMIN, password="long enough", by=ADA)
            await home.sign_in.with_password(name, "long enough", Browser("127.0.0.1", "x"))
        ada, bob = sorted((await home.everyone()).sessions, key=lambda session: session.account)
        for silent in (By("ada", BROWSER), By("bob", "api key bob")):
            for use in (
                lambda by=silent: home.roster.set_password("bob", "another one", by=by),
                lambda by=silent: home.roster.end_sessions([bob], by=by),
                lambda by=silent: home.roster.end_sessions([ada, bob], by=by),
            ):
                with pytest.raises(InvalidValue, match="required by policy"):
                    await use()
        await home.roster.end_sessions([ada], by=By("ada", BROWSER))
        await home.sign_in.change_password("ada", "long enough", "another one", Browser("127.0.0.1", "x"))
        await home.roster.set_password("bob", "another one", by=ADA)
        await home.roster.set_password("bob", "another one", by=shell("he forgot it"))


async def test_a_reason_has_a_bound() -> None:
    with pytest.raises(InvalidValue, match="200"):
        By("ada", BROWSER, "x" * 201)
