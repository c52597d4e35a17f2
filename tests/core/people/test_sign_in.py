import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from core.errors import InvalidValue, RequestError
from core.people.identity import Role
from core.people.roster import AccountPatch
from core.people.sessions import Way
from core.people.sign_in import Browser, SignedIn, Vouched
from tests.fakes_people import ADA, HASHER, House, house

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse"
HERE = Browser("127.0.0.1", "a browser\nof mine" + "x" * 500)


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as running:
        await running.roster.create("ann", role=Role.ADMIN, password=PASSWORD, by=ADA)
        yield running


@pytest.fixture
async def empty(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as running:
        yield running


async def failure(attempt: "asyncio.Future[SignedIn] | object") -> RequestError:
    with pytest.raises(RequestError) as caught:
        await attempt  # type: ignore[misc]
    return caught.value


async def test_a_session_is_stored_as_a_hash_of_what_the_browser_gets(home: House) -> None:
    signed_in = await home.sign_in.with_password(" ANN ", PASSWORD, HERE)
    stored = (await home.everyone()).sessions
    assert [each.hash for each in stored] == [HASHER.hexdigest(signed_in.cookie)]
    assert signed_in.cookie not in repr(signed_in)
    assert stored[0].expires_at - stored[0].created_at == timedelta(hours=24)
    assert (stored[0].address, stored[0].way) == ("127.0.0.1", Way.LOCAL)
    assert len(stored[0].agent) == 200
    assert "\n" not in stored[0].agent
    assert (await home.everyone()).accounts[0].last_sign_in_at == home.clock.now()
    assert (await home.actions())[-1] == "sign-in"


@pytest.mark.parametrize(("name", "password"), [("ann", "guessed it"), ("eve", PASSWORD), ("", ""), ("a\0b", PASSWORD)])
async def test_a_failure_does_not_tell_what_was_wrong_but_the_audit_does(home: House, name: str, password: str) -> None:
    error = await failure(home.sign_in.with_password(name, password, HERE))
    assert (error.status, error.code) == (401, "sign_in_failed")
    assert error.message == "The name or the password is wrong."
    entry = (await home.store.audit_chain(after=0, limit=10))[-1].entry
    assert (entry.action, entry.actor) == ("sign-in.failed", "-")
    assert entry.reason.startswith("wrong password" if name == "ann" else "no such account")
    assert password not in repr(entry) or not password


async def test_a_disabled_account_cannot_sign_in_even_with_its_password(home: House) -> None:
    await home.roster.create("bob", role=Role.VIEWER, password=PASSWORD, by=ADA)
    await home.roster.change("bob", AccountPatch(disabled=True), by=ADA)
    assert (await failure(home.sign_in.with_password("bob", PASSWORD, HERE))).status == 401


async def test_after_five_failures_even_the_right_password_must_wait_and_the_wait_is_told(home: House) -> None:
    for _ in range(5):
        assert (await failure(home.sign_in.with_password("ann", "wrong", HERE))).status == 401
    error = await failure(home.sign_in.with_password("ann", PASSWORD, HERE))
    assert (error.status, error.code, error.retry_after) == (429, "slow_down", 300)
    assert error.message == "Too many attempts failed. Try again in 5 minutes."
    home.clock.pass_(290)
    assert "in 10 s" in (await failure(home.sign_in.with_password("ann", PASSWORD, HERE))).message
    await home.sign_in.with_password("ann", PASSWORD, Browser("10.0.0.9"))
    home.clock.pass_(10)
    await home.sign_in.with_password("ann", PASSWORD, HERE)


async def test_attempts_side_by_side_count_each_other(home: House) -> None:
    attempts = [home.sign_in.with_password("ann", f"guess {n}", HERE) for n in range(30)]
    results = await asyncio.gather(*attempts, return_exceptions=True)
    tried = [each for each in results if isinstance(each, RequestError) and each.status == 401]
    assert len(tried) == 5


async def test_ones_own_password_is_changed_with_the_old_one(home: House) -> None:
    await home.sign_in.with_password("ann", PASSWORD, HERE)
    assert (await failure(home.sign_in.change_password("ann", "wrong", "new password", HERE))).status == 401
    with pytest.raises(InvalidValue):
        await home.sign_in.change_password("ann", PASSWORD, "short", HERE)
    signed_in = await home.sign_in.change_password("ann", PASSWORD, "new password", HERE)
    assert [each.id for each in (await home.everyone()).sessions] == [signed_in.session.id]


async def test_the_set_up_link_makes_the_first_admin_once(empty: House) -> None:
    first, token = await empty.sign_in.set_up_token(), await empty.sign_in.set_up_token()
    assert token is not None
    assert not await empty.sign_in.may_set_up(first or "")
    assert await empty.sign_in.may_set_up(token)
    with pytest.raises(InvalidValue):
        await empty.sign_in.set_up(token, "ann", "short", HERE)
    signed_in = await empty.sign_in.set_up(token, "ann", PASSWORD, HERE)
    assert signed_in.session.way is Way.SET_UP
    assert (await empty.everyone()).accounts[0].role is Role.ADMIN
    assert (await failure(empty.sign_in.set_up(token, "eve", PASSWORD, HERE))).code == "not_allowed"
    assert await empty.sign_in.set_up_token() is None


async def test_a_set_up_link_is_void_after_a_day_or_once_there_is_an_account(empty: House) -> None:
    token = await empty.sign_in.set_up_token() or ""
    empty.clock.pass_(24 * 3600)
    assert not await empty.sign_in.may_set_up(token)
    token = await empty.sign_in.set_up_token() or ""
    await empty.roster.create("bob", role=Role.ADMIN, password=PASSWORD, by=ADA)
    assert not await empty.sign_in.may_set_up(token)


async def test_whom_a_provider_vouches_for_keeps_one_account_whatever_the_name_becomes(home: House) -> None:
    first = await home.sign_in.vouched(Vouched("Bob@Example.org", "issuer|1"), HERE, new_role=Role.VIEWER)
    again = await home.sign_in.vouched(Vouched("robert@example.org", "issuer|1"), HERE, new_role=Role.VIEWER)
    assert first.session.account == again.session.account == "bob@example.org"
    assert first.session.way is Way.PROVIDER


async def test_no_provider_takes_over_the_account_of_somebody_else(home: House) -> None:
    error = await failure(home.sign_in.vouched(Vouched("ann", "issuer|1"), HERE, new_role=Role.ADMIN))
    assert (error.status, error.code) == (403, "not_allowed")
    await home.sign_in.known(Vouched("bob", "issuer|1"), new_role=Role.VIEWER)
    assert (await failure(home.sign_in.known(Vouched("bob", "issuer|2"), new_role=Role.VIEWER))).status == 403
    assert (await failure(home.sign_in.with_password("bob", "", HERE))).status == 401


async def test_an_account_made_beforehand_without_a_password_waits_for_its_person(home: House) -> None:
    await home.roster.create("bob", role=Role.OPERATOR, password=None, by=ADA)
    account = await home.sign_in.known(Vouched("bob", "proxy|bob"), new_role=None)
    assert (account.role, account.subject) == (Role.OPERATOR, "proxy|bob")


async def test_without_a_role_nobody_new_comes_in_and_a_told_role_is_followed(home: House) -> None:
    assert (await failure(home.sign_in.known(Vouched("bob", "issuer|1"), new_role=None))).code == "not_allowed"
    account = await home.sign_in.known(Vouched("bob", "issuer|1", Role.MEMBER), new_role=None)
    assert account.role is Role.MEMBER
    account = await home.sign_in.known(Vouched("bob", "issuer|1", Role.ADMIN), new_role=None)
    assert account.role is Role.ADMIN
    await home.roster.change("bob", AccountPatch(disabled=True), by=ADA)
    assert "disabled" in (await failure(home.sign_in.known(Vouched("bob", "issuer|1"), new_role=None))).message
