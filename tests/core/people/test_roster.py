import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.errors import InvalidValue, NotFound
from core.people.identity import Role
from core.people.roster import AccountPatch
from core.people.sign_in import Browser
from tests.fakes_people import ADA, House, house, quick_passwords

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse"
HERE = Browser("127.0.0.1", "a browser")


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as running:
        yield running


async def test_a_password_is_stored_as_argon2id_and_told_nowhere(home: House) -> None:
    account = await home.roster.create("Ann", role=Role.ADMIN, password=PASSWORD, by=ADA)
    assert account.name == "ann"
    assert (account.password or "").startswith("$argon2id$")
    assert PASSWORD not in repr(account)
    assert "argon2" not in repr(account)
    entry = (await home.store.audit_chain(after=0, limit=1))[0].entry
    assert "argon2" not in repr(entry)
    with pytest.raises(InvalidValue, match="already"):
        await home.roster.create("ANN", role=Role.VIEWER, password=PASSWORD, by=ADA)


@pytest.mark.parametrize(
    ("name", "password", "field"),
    [
        ("", PASSWORD, "name"),
        ("a b", PASSWORD, "name"),
        ("<b>", PASSWORD, "name"),
        ("ann", "short", "password"),
        ("ann", "x" * 1025, "password"),
        ("longname", "LongName", "password"),
    ],
)
async def test_names_and_passwords_that_are_none_are_refused(home: House, name: str, password: str, field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        await home.roster.create(name, role=Role.ADMIN, password=password, by=ADA)
    assert caught.value.field == field


async def test_the_last_admin_stays_one(home: House) -> None:
    await home.roster.create("ann", role=Role.ADMIN, password=PASSWORD, by=ADA)
    await home.roster.create("bob", role=Role.OPERATOR, password=PASSWORD, by=ADA)
    for patch in (AccountPatch(disabled=True), AccountPatch(role=Role.OPERATOR)):
        with pytest.raises(InvalidValue, match="last admin"):
            await home.roster.change("ann", patch, by=ADA)
    await home.roster.change("bob", AccountPatch(role=Role.ADMIN), by=ADA)
    results = await asyncio.gather(
        *(home.roster.change(name, AccountPatch(disabled=True), by=ADA) for name in ("ann", "bob")),
        return_exceptions=True,
    )
    assert sum(isinstance(each, InvalidValue) for each in results) == 1


async def test_who_is_disabled_is_signed_out_and_may_come_back(home: House) -> None:
    await home.roster.create("ann", role=Role.ADMIN, password=PASSWORD, by=ADA)
    await home.roster.create("bob", role=Role.VIEWER, password=PASSWORD, by=ADA)
    await home.sign_in.with_password("bob", PASSWORD, HERE)
    disabled = await home.roster.change("bob", AccountPatch(disabled=True), by=ADA)
    assert not disabled.active
    assert (await home.everyone()).sessions == ()
    assert (await home.roster.change("bob", AccountPatch(disabled=False, tenant="a"), by=ADA)).active
    await home.sign_in.with_password("bob", PASSWORD, HERE)
    with pytest.raises(InvalidValue, match="nothing"):
        await home.roster.change("bob", AccountPatch(), by=ADA)
    with pytest.raises(NotFound):
        await home.roster.change("eve", AccountPatch(disabled=True), by=ADA)


async def test_a_new_password_signs_out_everywhere(home: House) -> None:
    await home.roster.create("ann", role=Role.ADMIN, password=PASSWORD, by=ADA)
    await home.sign_in.with_password("ann", PASSWORD, HERE)
    await home.roster.set_password("ann", "another one", by=ADA)
    assert (await home.everyone()).sessions == ()
    await home.sign_in.with_password("ann", "another one", HERE)


async def test_single_sessions_are_ended(home: House) -> None:
    await home.roster.create("ann", role=Role.ADMIN, password=PASSWORD, by=ADA)
    first, second = [(await home.sign_in.with_password("ann", PASSWORD, HERE)).session for _ in range(2)]
    assert await home.roster.end_sessions([first], by=ADA) == 1
    assert [each.id for each in (await home.everyone()).sessions] == [second.id]
    assert await home.roster.end_sessions([first], by=ADA) == 0
    assert await home.roster.end_sessions([], by=ADA) == 0
    assert (await home.actions()).count("sign-in.ended") == 1


async def test_checking_the_password_of_nobody_takes_the_same_work() -> None:
    passwords = quick_passwords()
    stored = await passwords.hash(PASSWORD)
    assert await passwords.verify(stored, PASSWORD)
    assert not await passwords.verify(stored, "wrong")
    assert not await passwords.verify(None, PASSWORD)
    assert not await passwords.verify(None, "nobody's")
    assert not await passwords.verify("no hash", PASSWORD)
