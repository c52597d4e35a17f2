from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.web.pages import Site, fields, site, text

pytestmark = pytest.mark.anyio


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as running:
        yield running


async def make(home: Site, **typed: str) -> httpx2.Response:
    form = fields(await home.get("/tenants?new=key"), "key-form")
    return await home.post("/ui/keys", form | {"name": "indexer"} | typed)


def secret(page: str) -> str:
    return page.partition('id="token" value="')[2].partition('"')[0]


async def test_a_new_key_is_shown_this_once(home: Site) -> None:
    assert "There is no key yet" in await home.get("/tenants")
    answer = await make(home, models="m-*, x", cidrs="10.0.0.0/8", expires="90d", lane="batch")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    token = secret(answer.text)
    assert token.startswith("tg_")
    assert answer.text.count(token) == 1
    page = await home.get("/tenants")
    assert token not in page
    assert "There is no key yet" not in page
    shown = text(page)
    for part in ("indexer", token[:9], "batch only, member", "m-*, x; from 10.0.0.0/8", "never"):
        assert part in shown
    assert home.runtime.people.ring.identify(f"Bearer {token}".encode(), "10.1.1.1").lane == "batch"


async def test_what_is_wrong_stands_at_its_field_and_what_was_typed_stays(home: Site) -> None:
    answer = await make(home, name="with blank", models="m-*")
    assert answer.status_code == 422
    assert "Must be 1 to 64 letters" in text(answer.text, "name-problem")
    assert fields(answer.text, "key-form")["models"] == "m-*"
    for typed, field in (({"expires": "soon"}, "expires"), ({"cidrs": "10/99"}, "cidrs")):
        assert text((await make(home, **typed)).text, f"{field}-problem")
    await make(home)
    assert "unique" in text((await make(home)).text, "name-problem")


async def test_a_rotated_key_shows_its_new_secret_and_how_long_the_old_one_works(home: Site) -> None:
    first = secret((await make(home)).text)
    form = fields(await home.get("/tenants/rotate?key=indexer"), "/ui/keys/rotate")
    assert form["overlap"] == "24h"
    answer = await home.post("/ui/keys/rotate", form)
    second = secret(answer.text)
    assert second != first
    assert f"({first[:9]}…) works until" in text(answer.text)
    assert f"{first[:9]}… until" in text(await home.get("/tenants"))
    ring = home.runtime.people.ring
    assert {ring.identify(f"Bearer {token}".encode()).key for token in (first, second)} == {"indexer"}
    wrong = await home.post("/ui/keys/rotate", form | {"overlap": "long"})
    assert wrong.status_code == 422


async def test_a_key_is_revoked_by_typing_its_name(home: Site) -> None:
    await make(home)
    form = fields(await home.get("/tenants/revoke?key=indexer"), "/ui/keys/revoke")
    wrong = await home.post("/ui/keys/revoke", form | {"confirm": "other"})
    assert wrong.status_code == 422
    assert "Type indexer" in text(wrong.text, "confirm-problem")
    done = await home.post("/ui/keys/revoke", form | {"confirm": "indexer", "reason": "leaked"})
    assert done.status_code == 303
    page = await home.get(done.headers["location"])
    assert "The key is revoked" in page
    assert "indexer (revoked)" in text(page)
    assert "/tenants/revoke?key=indexer" not in page
    again = await home.post("/ui/keys/revoke", form | {"confirm": "indexer"})
    assert (again.status_code, "revoked already" in again.text) == (422, True)


@pytest.mark.parametrize("path", ["/tenants/rotate?key=no", "/tenants/revoke?key=no", "/tenants?edit=no"])
async def test_what_does_not_exist_is_not_found(home: Site, path: str) -> None:
    await home.get(path, status=404)


async def test_a_tenant_is_made_and_edited_on_the_version_that_was_seen(home: Site) -> None:
    form = fields(await home.get("/tenants?edit="), "tenant-form")
    assert form["lanes"] == ["interactive", "batch"]
    made = await home.post("/ui/tenants", form | {"name": "research", "weight": "3", "queued_items": "5000"})
    assert made.status_code == 303
    assert "Queued items at most 5,000" in text(await home.get("/tenants"))
    seen = fields(await home.get("/tenants?edit=research"), "tenant-form")
    assert (seen["weight"], seen["queued_items"], seen["batch_slots"]) == ("3", "5000", "")
    done = await home.post("/ui/tenants", seen | {"batch_slots": "12", "queued_items": "", "lanes": ["batch"]})
    assert done.status_code == 303
    assert home.runtime.tenants.batch_slots("research") == 12
    assert home.runtime.tenants.tenant("research").lanes == ("batch",)
    stale = await home.post("/ui/tenants", seen | {"weight": "9"})
    assert stale.status_code == 409
    assert "Somebody changed research" in stale.text
    again = fields(stale.text, "tenant-form")
    assert again["weight"] == "9"
    assert (await home.post("/ui/tenants", again)).status_code == 303
    assert home.runtime.tenants.weight("research") == 9


async def test_a_tenant_that_makes_no_sense_is_refused_by_field(home: Site) -> None:
    form = fields(await home.get("/tenants?edit="), "tenant-form")
    for typed, field in (
        ({"name": "default"}, "name"),
        ({"name": "x", "weight": "0"}, "weight"),
        ({"name": "x", "tokens_per_minute": "many"}, "tokens_per_minute"),
        ({"name": "x", "lanes": []}, "lanes"),
    ):
        answer = await home.post("/ui/tenants", form | typed)
        assert answer.status_code == 422
        assert text(answer.text, f"{field}-problem"), field


async def test_where_policy_asks_for_a_reason_each_form_does(tmp_path: Path) -> None:
    async with site(tmp_path, require_reason=True) as home:
        answer = await make(home)
        assert answer.status_code == 422
        assert text(answer.text, "reason-problem")
        assert (await make(home, reason="a new indexer")).status_code == 200
        assert 'name="reason" type="text" value="" required' in await home.get("/tenants/revoke?key=indexer")


async def test_keys_of_the_settings_are_shown_but_not_to_be_changed(tmp_path: Path) -> None:
    async with site(tmp_path, keys=[{"name": "in-file", "key": "tg_from_the_file", "tenant": "ops"}]) as home:
        page = await home.get("/tenants")
        assert "in-file" in page
        assert "in the settings" in page
        assert "tg_from_the_file" not in page
        assert (await make(home, name="in-file")).status_code == 422


@pytest.mark.parametrize(
    ("path", "typed"),
    [
        ("/ui/keys/rotate", {"overlap": "soon"}),
        ("/ui/keys/rotate", {"overlap": "1h"}),
        ("/ui/keys/revoke", {"confirm": "other"}),
        ("/ui/keys/revoke", {"confirm": "nobody"}),
        ("/ui/accounts/change", {"role": "king"}),
        ("/ui/accounts/change", {"role": "admin"}),
        ("/ui/accounts/password", {"password": "short"}),
        ("/ui/accounts/password", {"password": "long enough"}),
        ("/ui/webhooks/rotate", {"overlap": "soon"}),
        ("/ui/webhooks/switch", {"reason": "x" * 201}),
    ],
)
async def test_a_form_about_what_is_not_there_is_404_whatever_else_is_wrong(
    home: Site, path: str, typed: dict[str, str]
) -> None:
    nobody = {"key": "nobody", "name": "nobody", "id": "nobody"}
    assert (await home.post(path, nobody | typed)).status_code == 404


async def test_a_nul_in_a_form_is_dropped_before_it_reaches_a_database_that_knows_none(home: Site) -> None:
    await make(home, name="in\0dexer")
    assert [key.name for key in (await home.runtime.people.store.everyone()).keys] == ["indexer"]
