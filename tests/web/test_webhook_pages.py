"""The Webhooks pages without a browser: what they show, what their forms do, who sees and changes what."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from core.lanes import Lane
from core.people.audit import AuditEntry, AuditQuery
from core.people.identity import Identity, Role
from core.webhooks.values import Endpoint
from tests.servers import running
from tests.web.pages import Site, fields, links, site, text
from web.gate import Gate

pytestmark = pytest.mark.anyio

ANSWER = "what-nobody-may-see"


@pytest.fixture(scope="module")
def receiver() -> Iterator[str]:
    """A tenant's own server: takes what is posted to /hook, and fails on /broken."""

    async def take(request: Request) -> Response:
        await request.body()
        return Response(ANSWER, 500 if request.url.path == "/broken" else 200)

    routes = [Route(path, take, methods=["POST"]) for path in ("/hook", "/broken")]
    with running(Starlette(routes=routes)) as url:
        yield url


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path, webhook_hosts=["127.0.0.1"]) as running_site:
        yield running_site


@contextmanager
def asking(role: Role, tenant: str = "default") -> Iterator[None]:
    """Let all requests come from somebody who has signed in."""
    who = Identity(tenant, Lane.BATCH, frozenset(Lane), role=role, account="anna")

    async def identify(self: Gate, scope: object) -> Identity:
        return who

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "known", lambda self, scope: None)
        patch.setattr(Gate, "identify", identify)
        yield


async def add(home: Site, url: str, **typed: Any) -> httpx2.Response:
    form = fields(await home.get("/webhooks?new="), "webhook-form")
    return await home.post("/ui/webhooks", form | {"url": url} | typed)


async def made(home: Site, url: str, **typed: Any) -> Endpoint:
    assert (await add(home, url, **typed)).status_code == 200
    return (await home.runtime.webhooks.endpoints(None))[-1]


async def send(home: Site, what: str, found: Endpoint, **typed: str) -> httpx2.Response:
    return await home.post(f"/ui/webhooks/{what}", {"id": found.id, **typed})


async def trail(home: Site) -> list[AuditEntry]:
    return [record.entry for record in await home.runtime.audit.audit(AuditQuery(action="webhook"))]


def secret(page: str) -> str:
    return page.partition('id="token" value="')[2].partition('"')[0]


async def test_an_empty_list_says_what_a_webhook_is_and_the_navigation_leads_here(home: Site) -> None:
    assert "/webhooks" in links(await home.get("/"))
    page = await home.get("/webhooks")
    assert "Nobody is told." in text(page)
    assert "/webhooks?new=" in links(page)


async def test_a_new_endpoint_shows_its_secret_this_once(home: Site, receiver: str) -> None:
    answer = await add(home, f"{receiver}/hook", description="on call", events=["batch.failed", "batch.expired"])
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    token = secret(answer.text)
    assert token.startswith("whsec_")
    (found,) = await home.runtime.webhooks.endpoints(None)
    for path in ("/webhooks", f"/webhooks/{found.id}", "/audit", f"/webhooks/rotate?id={found.id}"):
        assert token not in await home.get(path)
    shown = text(await home.get("/webhooks"))
    for part in (f"{receiver}/hook", "on call", "failed, expired", "not used yet", "never", "none"):
        assert part in shown
    (entry,) = await trail(home)
    assert (entry.action, entry.way, entry.after["url"]) == ("webhook.create", "browser", f"{receiver}/hook")


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"url": "http://example.com/"}, "url"),
        ({"url": "https://169.254.169.254/"}, "url"),
        ({"url": ""}, "url"),
        ({"url": "https://example.com/", "events": []}, "events"),
        ({"url": "https://example.com/", "events": ["webhook.test"]}, "events"),
        ({"url": "https://example.com/", "description": "x" * 201}, "description"),
        ({"url": "https://example.com/", "reason": "x" * 201}, "reason"),
    ],
)
async def test_what_is_wrong_stands_at_its_field_and_what_was_typed_stays(
    home: Site, typed: dict[str, Any], field: str
) -> None:
    answer = await add(home, **{"description": "kept", **typed})
    assert answer.status_code == 422
    assert text(answer.text, f"{field}-problem")
    assert fields(answer.text, "webhook-form")["url"] == typed["url"]
    assert await trail(home) == []


async def test_a_test_tells_how_it_went_and_nothing_of_what_was_answered(home: Site, receiver: str) -> None:
    good, bad = await made(home, f"{receiver}/hook"), await made(home, f"{receiver}/broken")
    for found, told, state in ((good, "The test arrived: status 200.", "works"), (bad, "did not arrive", "fails")):
        answer = await send(home, "test", found)
        page = await home.get(answer.headers["location"])
        assert told in text(page)
        assert ANSWER not in page
        assert state in text(await home.get("/webhooks"))
        again = await send(home, "test", found)
        assert (again.status_code, "tested just now" in text(again.text)) == (429, True)
    assert "1 given up" in text(await home.get("/webhooks"))
    assert "The test" not in text(await home.get(f"/webhooks/{good.id}?tested=evt_made_up"))


async def test_an_endpoint_rests_and_is_told_again(home: Site, receiver: str) -> None:
    found = await made(home, f"{receiver}/hook")
    for button, state, kind in (("Disable it", "disabled", "disable"), ("Enable it", "not used yet", "enable")):
        page = await home.get(f"/webhooks/{found.id}")
        assert button in text(page)
        answer = await home.post("/ui/webhooks/switch", fields(page, "switch-form"))
        assert answer.status_code == 303
        assert state in text(await home.get("/webhooks"))
        assert (await trail(home))[0].action == f"webhook.{kind}"


async def test_a_rotated_secret_is_shown_once_with_how_long_the_old_one_signs(home: Site, receiver: str) -> None:
    first = secret((await add(home, f"{receiver}/hook")).text)
    (found,) = await home.runtime.webhooks.endpoints(None)
    form = fields(await home.get(f"/webhooks/rotate?id={found.id}"), "/ui/webhooks/rotate")
    answer = await home.post("/ui/webhooks/rotate", form)
    assert secret(answer.text) not in ("", first)
    assert "a signature by the secret from before" in text(answer.text)
    assert "Old secret signs until" in text(await home.get(f"/webhooks/{found.id}"))
    wrong = await home.post("/ui/webhooks/rotate", form | {"overlap": "soon"})
    assert (wrong.status_code, bool(text(wrong.text, "overlap-problem"))) == (422, True)


async def test_who_deletes_types_the_host(home: Site, receiver: str) -> None:
    found, host = await made(home, f"{receiver}/hook"), receiver.removeprefix("http://")
    page = await home.get(f"/webhooks/delete?id={found.id}")
    assert f"Type {host}" in text(page)
    wrong = await send(home, "delete", found, confirm="other")
    assert (wrong.status_code, bool(text(wrong.text, "confirm-problem"))) == (422, True)
    answer = await send(home, "delete", found, confirm=host.upper())
    assert "deleted" in text(await home.get(answer.headers["location"]))
    assert "Nobody is told." in text(await home.get("/webhooks"))
    assert [entry.action for entry in await trail(home)] == ["webhook.delete", "webhook.create"]


async def test_where_policy_asks_for_a_reason_every_form_has_its_field(tmp_path: Path, receiver: str) -> None:
    async with site(tmp_path, webhook_hosts=["127.0.0.1"], require_reason=True) as home:
        assert text((await add(home, f"{receiver}/hook")).text, "reason-problem")
        found = await made(home, f"{receiver}/hook", reason="told")
        host = receiver.removeprefix("http://")
        uses = (
            ("switch", f"/webhooks/{found.id}", {"on": ""}),
            ("rotate", f"/webhooks/rotate?id={found.id}", {"overlap": "24h"}),
            ("delete", f"/webhooks/delete?id={found.id}", {"confirm": host}),
        )
        for what, path, typed in uses:
            assert "reason" in fields(await home.get(path), f"/ui/webhooks/{what}")
            refused = await send(home, what, found, **typed)
            assert (refused.status_code, bool(text(refused.text, "reason-problem"))) == (422, True)
            assert (await send(home, what, found, reason="why not", **typed)).status_code in (200, 303)
        assert [entry.reason for entry in await trail(home)] == ["why not"] * 3 + ["told"]


async def test_a_team_sees_and_changes_only_its_own_and_admins_all(home: Site, receiver: str) -> None:
    theirs = await made(home, f"{receiver}/hook")
    for role in (Role.MEMBER, Role.OPERATOR):
        with asking(role, "other"):
            assert theirs.id not in await home.get("/webhooks")
            for path in (
                f"/webhooks/{theirs.id}",
                f"/webhooks/rotate?id={theirs.id}",
                f"/webhooks/delete?id={theirs.id}",
            ):
                await home.get(path, 404)
            for what, typed in (("test", {}), ("switch", {"on": ""}), ("rotate", {"overlap": "0"}), ("delete", {})):
                assert (await send(home, what, theirs, **typed)).status_code == 404
            refused = await add(home, f"{receiver}/hook", tenant="default")
            assert (refused.status_code, "your own team" in text(refused.text)) == (422, True)
            mine = await made(home, f"{receiver}/hook")
            assert mine.tenant == "other"
    with asking(Role.ADMIN, "other"):
        shown = text(await home.get("/webhooks"))
        assert "default" in shown
        assert "other" in shown
        assert (await made(home, f"{receiver}/hook", tenant="default")).tenant == "default"
        assert (await send(home, "switch", theirs, on="")).status_code == 303
    assert len(await trail(home)) == 5


async def test_who_may_only_look_gets_no_buttons(home: Site, receiver: str) -> None:
    found = await made(home, f"{receiver}/hook")
    with asking(Role.VIEWER):
        for path in ("/webhooks", f"/webhooks/{found.id}"):
            page = await home.get(path)
            assert receiver in page
            assert "<form" not in page.split("<main")[1]
            assert not any("new" in link or "delete" in link or "rotate" in link for link in links(page))
        for path in (f"/webhooks/rotate?id={found.id}", f"/webhooks/delete?id={found.id}"):
            await home.get(path, 403)
        assert (await send(home, "test", found)).status_code == 403


async def test_what_tenants_write_is_shown_not_run(home: Site) -> None:
    evil = "<script>alert(1)</script>"
    found = await made(home, "https://example.com/?<b>x</b>", description=evil)
    for path in ("/webhooks", f"/webhooks/{found.id}", f"/webhooks/delete?id={found.id}", "/audit"):
        page = await home.get(path)
        assert "<script>alert" not in page
        assert "<b>x</b>" not in page


async def test_there_is_no_page_of_a_webhook_that_is_not(home: Site) -> None:
    for path in ("/webhooks/we_0", "/webhooks/rotate?id=", "/webhooks/delete?id=we_0"):
        await home.get(path, 404)
