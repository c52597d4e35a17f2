"""Who a key stands for, and how soon a change of keys is known."""

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from core.config import Settings
from core.errors import RequestError
from core.lanes import Lane
from core.people.accounts import Account
from core.people.acting import shell
from core.people.identity import GUEST, OPEN, Role
from core.people.keys import NewKey
from core.people.ring import FRESH_S, KeyRing
from core.people.sessions import Way, new_session
from core.people.snapshot import FileKey, Rules
from core.people.tenants import Tenant, TenantDirectory
from core.runtime import Runtime
from tests.fakes_people import HASHER, START, HandClock, ListedPeople, api_key, bearer

pytestmark = pytest.mark.anyio

ANN = Account("ann", Role.ADMIN, created_at=START)


class Ring(KeyRing):
    """A key ring over listed people, with its clock at hand."""

    def __init__(self, rules: Rules | None = None, **stored: Any) -> None:
        self.people, self.time, self.directory = ListedPeople(), HandClock(), TenantDirectory()
        self.people.put(**stored)
        super().__init__(
            store=self.people,  # type: ignore[arg-type]  # only what a ring reads
            clock=self.time,
            hasher=HASHER,
            rules=rules or Rules(),
            directory=self.directory,
        )


async def ring(rules: Rules | None = None, **stored: Any) -> Ring:
    made = Ring(rules, **stored)
    await made.refresh()
    return made


def refused(found: Ring, token: str, address: str | None = None) -> tuple[int, str]:
    with pytest.raises(RequestError) as caught:
        found.identify(bearer(token), address)
    return caught.value.status, caught.value.code


def status_of(replica: Runtime, shown: bytes) -> int:
    """Return what a replica would answer to a call with this key."""
    try:
        replica.people.ring.identify(shown)
    except RequestError as error:
        return error.status
    return 200


async def test_without_any_key_anybody_with_any_bearer_is_tenant_default() -> None:
    found = await ring()
    assert found.identify(None) is OPEN
    assert found.identify(b"Bearer whatever") is OPEN
    assert found.pages_open


async def test_nothing_is_open_to_other_machines() -> None:
    found = await ring(Rules(may_be_open=False))
    assert refused(found, "x") == (401, "invalid_api_key")
    assert not found.pages_open


@pytest.mark.parametrize("change", [{"revoked_at": START}, {"expires_at": START + timedelta(days=1)}])
async def test_from_the_first_key_on_one_is_needed_also_if_it_is_revoked_or_expired(change: dict[str, Any]) -> None:
    found = await ring(keys=(api_key(**change),))
    found.time.pass_(2 * 86400)
    await found.refresh()
    assert refused(found, "tg_other") == (401, "invalid_api_key")
    assert refused(found, "tg_k") == (401, "invalid_api_key")
    with pytest.raises(RequestError):
        found.identify(None)


async def test_a_key_stands_for_its_tenant_lanes_models_and_role() -> None:
    key = api_key(tenant="a", lane=Lane.BATCH, models=("m-*",), role=Role.OPERATOR)
    found = (await ring(keys=(key,), accounts=(ANN,))).identify(b"bearer  tg_k ")
    assert (found.tenant, found.lane, found.lanes, found.key) == ("a", Lane.BATCH, frozenset(Lane), "k")
    assert (found.models, found.role) == (("m-*",), Role.OPERATOR)


async def test_a_key_may_use_no_lane_that_its_tenant_may_not() -> None:
    found = await ring(keys=(api_key(tenant="a"),), tenants=(Tenant("a", lanes=(Lane.BATCH,)),))
    identity = found.identify(bearer("tg_k"))
    assert (identity.lane, identity.lanes) == (Lane.BATCH, frozenset({Lane.BATCH}))


async def test_without_accounts_any_key_may_use_the_operator_api_and_with_them_its_role_counts() -> None:
    found = await ring(keys=(api_key(),))
    assert found.identify(bearer("tg_k")).role is Role.OPERATOR
    found.people.put(accounts=(ANN,))
    await found.refresh()
    assert found.identify(bearer("tg_k")).role is Role.MEMBER


async def test_with_accounts_but_no_key_calls_need_none_but_are_nobody_special() -> None:
    found = await ring(accounts=(ANN,))
    assert found.identify(None) is GUEST
    assert not found.pages_open
    assert (await ring(Rules(others_sign_in=True))).identify(None) is GUEST


async def test_an_expired_key_is_refused_at_the_very_second() -> None:
    found = await ring(keys=(api_key(expires_at=START + timedelta(seconds=3)),))
    assert found.identify(bearer("tg_k")).key == "k"
    found.time.pass_(3)
    assert refused(found, "tg_k") == (401, "invalid_api_key")


async def test_a_key_is_taken_only_from_its_addresses() -> None:
    found = await ring(keys=(api_key(cidrs=("10.0.0.0/8", "fd00::/8")),))
    for address in ("10.2.3.4", "fd00::1", "::ffff:10.0.0.1"):
        assert found.identify(bearer("tg_k"), address).key == "k"
    for other in ("11.0.0.1", "fe80::1", "", None, "unknown"):
        assert refused(found, "tg_k", other) == (403, "address_not_allowed")


async def test_after_a_rotation_both_secrets_are_taken_until_the_overlap_is_over() -> None:
    old = HASHER.hexdigest("tg_old")
    found = await ring(keys=(api_key(old_hash=old, old_until=START + timedelta(seconds=10)),))
    assert found.identify(bearer("tg_old")) == found.identify(bearer("tg_k"))
    found.time.pass_(10)
    await found.refresh()
    assert refused(found, "tg_old") == (401, "invalid_api_key")
    assert found.identify(bearer("tg_k")).key == "k"


async def test_what_the_store_cannot_confirm_for_5_s_is_not_taken() -> None:
    found = await ring(Rules(file_keys=(FileKey("f", "from the file"),)), keys=(api_key(),))
    found.people.down = True
    found.time.pass_(FRESH_S)
    assert found.identify(bearer("tg_k")).key == "k"
    found.time.pass_(0.01)
    await found.look_again()
    assert refused(found, "tg_k") == (503, "keys_not_checked")
    assert refused(found, "tg_unknown") == (401, "invalid_api_key")
    assert found.identify(bearer("from the file")).key == "f"
    found.people.down = False
    await found._look()
    assert found.identify(bearer("tg_k")).key == "k"


async def test_while_the_store_hangs_nobody_waits_for_it_and_keys_of_the_file_are_taken_at_once() -> None:
    found = await ring(Rules(file_keys=(FileKey("f", "from the file"),)), keys=(api_key(),))
    found.time.pass_(FRESH_S + 0.01)
    asked, answers = 0, asyncio.Event()

    async def hangs() -> int:
        nonlocal asked
        asked += 1
        await answers.wait()
        raise OSError("down")

    found.people.revision = hangs  # type: ignore[method-assign]
    waiting = [asyncio.create_task(found.look_again()) for _ in range(20)]
    while not asked:
        await asyncio.sleep(0)
    known = found.quick(bearer("from the file"))
    assert known is not None
    assert known.key == "f"
    assert found.quick(bearer("tg_k")) is None
    answers.set()
    await asyncio.gather(*waiting)
    await found.look_again()
    assert asked == 1
    assert refused(found, "tg_k") == (503, "keys_not_checked")


async def test_a_store_that_fails_is_told_once_and_looked_at_again(caplog: pytest.LogCaptureFixture) -> None:
    found = await ring(keys=(api_key(),))
    found.people.down = True
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await found._look()
    found.people.down = False
    found.people.put(keys=(api_key(revoked_at=START),))
    await found._look()
    assert refused(found, "tg_k") == (401, "invalid_api_key")


async def test_only_another_revision_is_read_whole() -> None:
    found = await ring(keys=(api_key(),))
    for _ in range(5):
        await found.refresh()
    assert found.people.reads == 1
    found.people.put()
    await found.refresh()
    assert found.people.reads == 2


async def test_a_key_holds_until_it_is_revoked_or_expires_or_may_something_else() -> None:
    expires = START + timedelta(hours=1)
    found = await ring(keys=(api_key("a", expires_at=expires), api_key("b"), api_key("c")))
    known = {name: found.identify(bearer(f"tg_{name}")) for name in "abc"}
    assert all(found.holds(identity) for identity in known.values())
    found.people.put(
        keys=(api_key("a", expires_at=expires), api_key("b", revoked_at=START), api_key("c", role=Role.ADMIN))
    )
    await found.refresh()
    assert [found.holds(identity) for identity in known.values()] == [True, False, False]
    found.time.pass_(3600)
    assert not found.holds(known["a"])


async def test_who_came_with_nothing_holds_until_the_first_account_is_made() -> None:
    found = await ring()
    assert found.holds(OPEN)
    found.people.put(accounts=(ANN,))
    await found.refresh()
    assert not found.holds(OPEN)


async def test_who_changes_team_or_role_holds_no_longer_with_the_one_from_before() -> None:
    session = new_session(
        "ann", hash=HASHER.hexdigest("cookie"), now=START, lasts=timedelta(hours=1), address="", agent="", way=Way.LOCAL
    )
    found = await ring(accounts=(ANN,), sessions=(session,))
    identity = found.session("cookie")
    assert identity is not None
    for changed in (replace(ANN, tenant="other"), replace(ANN, role=Role.VIEWER)):
        found.people.put(accounts=(changed,))
        await found.refresh()
        assert not found.holds(identity)
        assert not found.holds(replace(identity, session=None))
    found.people.put(accounts=(ANN,))
    await found.refresh()
    assert found.holds(identity)
    assert found.holds(replace(identity, session=None))
    found.time.pass_(3600)
    assert not found.holds(identity)


async def test_sessions_are_known_until_they_end_or_their_account_is_disabled() -> None:
    session = new_session(
        "ann",
        hash=HASHER.hexdigest("cookie"),
        now=START,
        lasts=timedelta(hours=1),
        address="",
        agent="",
        way=Way.LOCAL,
    )
    found = await ring(accounts=(ANN,), sessions=(session,))
    identity = found.session("cookie")
    assert identity is not None
    assert (identity.account, identity.role, identity.session) == ("ann", Role.ADMIN, session.id)
    assert found.holds(identity)
    assert found.session("guess") is None
    found.people.put(sessions=())
    await found.refresh()
    assert found.session("cookie") is None
    assert not found.holds(identity)
    found.people.put(sessions=(session,), accounts=(Account("ann", Role.ADMIN, disabled_at=START),))
    await found.refresh()
    assert found.session("cookie") is None
    found.people.put(accounts=(ANN,))
    await found.refresh()
    found.time.pass_(3600)
    await found.refresh()
    assert found.session("cookie") is None


async def test_when_a_key_was_used_is_noted_now_and_then_not_at_each_use() -> None:
    found = await ring(keys=(api_key(),))
    for _ in range(10):
        found.identify(bearer("tg_k"))
    await found._look()
    found.identify(bearer("tg_k"))
    await found._look()
    assert found.people.noted == [({"k": START}, {})]
    found.time.pass_(31)
    await found._look()
    assert [sorted(keys) for keys, _ in found.people.noted] == [["k"], ["k"]]


async def test_tenants_are_put_in_force_with_the_keys() -> None:
    found = await ring(tenants=(Tenant("a", weight=3),))
    assert found.directory.weight("a") == 3
    found.people.put(tenants=(Tenant("a", weight=5),))
    await found.refresh()
    assert dict(found.directory.weights) == {"a": 5}


async def test_a_revoked_key_is_refused_on_every_replica_within_5_s(tmp_path: Path) -> None:
    """R106 weave-os/router#473; e2b-dev/infra PR#3324; LIT-Protocol/chipotle#631: a revoked key works for minutes."""
    common = {"upstream": "http://127.0.0.1:9/v1", "database": f"sqlite:///{tmp_path / 'one.db'}", "secret": "s" * 32}
    replicas = [Runtime(settings=Settings(data=tmp_path / name, **common)) for name in ("a", "b")]  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    try:
        for replica in replicas:
            await replica.start()
        one, other = replicas
        issued = await one.people.teams.create_key(NewKey("team", "k"), by=shell())
        shown = bearer(issued.token)
        await one.people.ring.refresh()
        made_at = loop.time()
        while other.people.ring.snapshot.anyone is not None:
            assert loop.time() - made_at < FRESH_S
            await asyncio.sleep(0.02)
        assert {replica.people.ring.identify(shown).key for replica in replicas} == {"k"}
        revoked_at = loop.time()
        await one.people.teams.revoke_key("k", by=shell())
        await one.people.ring.refresh()
        with pytest.raises(RequestError):
            one.people.ring.identify(shown)
        while status_of(other, shown) == 200:
            assert loop.time() - revoked_at <= FRESH_S
            await asyncio.sleep(0.02)
        assert status_of(other, shown) == 401
    finally:
        for replica in replicas:
            await replica.stop()
