"""Whatever arrives, the parsers of bodies and headers answer or refuse; none of them fails."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from core.addresses import base_url, is_forbidden, is_loopback, parse_address
from core.changes import duration
from core.errors import InvalidValue, RequestError
from core.people.identity import OPEN
from core.scheduling.retry_after import retry_after_seconds
from tests.servers import Gate, gate
from web.auth import choose_lane
from web.front import request_id_of
from web.headers import KnownHosts, SecurityHeaders
from web.inference import forwarded, upstream_path
from web.peers import Peers
from web.routing import Routing, read_routing, with_model
from web.schemas import instant_of, patch_of, schedule_of

EXAMPLES = int(os.environ.get("TIDEGATE_TEST_EXAMPLES", "150"))
NOW = datetime(2026, 12, 9, tzinfo=UTC)
bounded = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
VALUES = st.one_of(JSON, st.sampled_from(["m", True, "batch", -1, 2**70, "\0", "\ud800", [], {}, 1e308]))


def objects(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these fields, and others."""
    known = st.dictionaries(st.sampled_from(names), VALUES, max_size=len(names))
    return st.builds(lambda one, other: one | other, known, st.dictionaries(st.text(max_size=6), JSON, max_size=2))


def encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, UnicodeEncodeError):
        return b"{}"


BODIES = st.binary(max_size=200) | objects(
    "model", "stream", "max_tokens", "max_completion_tokens", "service_tier", "messages"
).map(encoded)
TOKENS = st.binary(max_size=60) | st.sampled_from([b"batch", b"0", b"-1", b"1e999", b"nan", b"\xff", b"a" * 5000])
PATHS = st.text(max_size=30).map(lambda text: f"/v1/{text}") | st.text(max_size=30)


@bounded
@given(BODIES, st.sampled_from(["/chat/completions", "/embeddings", "/other"]))
def test_bodies_are_read_or_refused(body: bytes, path: str) -> None:
    found: Routing | RequestError
    try:
        found = read_routing(body, path)
    except RequestError as error:
        found = error
    if isinstance(found, RequestError):
        assert found.status == 400
        assert len(found.message) < 1000
    elif found.model is not None:
        assert msgspec.json.decode(with_model(body, "other"))["model"] == "other"


@pytest.mark.parametrize("depth", [100, 100_000])
def test_bodies_nested_ever_so_deeply_are_read_or_refused(depth: int) -> None:
    with suppress(RequestError):
        read_routing(b'{"model":"m","x":' + b"[" * depth + b"]" * depth + b"}", "/chat/completions")


@bounded
@given(VALUES, VALUES)
def test_lanes_are_chosen_or_refused(asked: object, tier: object) -> None:
    with suppress(RequestError):
        assert choose_lane(OPEN, asked=asked, service_tier=tier) in ("interactive", "batch")


@bounded
@given(st.lists(st.tuples(st.sampled_from([b"host", b"origin", b"sec-fetch-site", b"cookie"]), TOKENS), max_size=6))
def test_hosts_and_origins_pass_or_are_refused(raw: list[tuple[bytes, bytes]]) -> None:
    guard = SecurityHeaders(lambda *_: None, hosts=KnownHosts(["gate.internal"]))  # type: ignore[arg-type,return-value]
    for method, path in (("GET", "/"), ("POST", "/ui/x"), ("POST", "/v1/x")):
        refusal = guard.refusal(method, path, Headers(raw=raw))
        assert refusal is None or len(refusal) == 2


@bounded
@given(st.lists(st.tuples(TOKENS.map(bytes.lower), TOKENS), max_size=8), PATHS)
def test_what_is_forwarded_is_never_a_credential(raw: list[tuple[bytes, bytes]], path: str) -> None:
    passed = dict(forwarded([*raw, (b"authorization", b"x"), (b"cookie", b"x")], "req_1"))
    assert not {b"authorization", b"cookie", b"host"} & set(passed)
    with suppress(RequestError):
        assert ".." not in upstream_path({"path": path}).split("/")


@bounded
@given(TOKENS)
def test_request_ids_are_ours_or_decent(given_id: bytes) -> None:
    made = request_id_of({b"x-request-id": given_id})
    assert 0 < len(made) <= 64
    assert made.isascii()
    assert made.isprintable()


@bounded
@given(st.text(max_size=40), st.text(max_size=40))
def test_addresses_of_proxies_are_read_whatever_they_say(peer: str, forwarded_for: str) -> None:
    named = [(b"x-forwarded-for", forwarded_for.encode("utf-8", "replace"))]
    scope = {"client": (peer, 1), "headers": named, "scheme": "http"}
    assert isinstance(Peers(["127.0.0.0/8"]).address(scope), str)


@pytest.mark.parametrize(
    "read",
    [
        lambda text: base_url(text),
        lambda text: base_url(f"http://{text}/v1"),
        lambda text: (parse_address(text), is_forbidden(text), is_loopback(text)),
        lambda text: retry_after_seconds(text, NOW),
        lambda text: duration(text),
        lambda text: instant_of(text, "at"),
    ],
    ids=["base_url", "host", "address", "retry_after", "duration", "instant"],
)
@bounded
@given(text=st.text(max_size=40) | st.from_regex(r"[0-9.:xX\[\]%a-f-]{1,30}", fullmatch=True))
def test_texts_are_read_or_refused(read: Callable[[str], object], text: str) -> None:
    with suppress(ValueError, InvalidValue):
        read(text)


@bounded
@given(objects("hold", "for", "auto", "pause", "slots", "reserve", "floor", "ceiling", "budgets", "reason"))
def test_changes_of_a_pool_are_read_or_refused(body: dict[str, Any]) -> None:
    with suppress(InvalidValue):
        patch_of(body)


@bounded
@given(
    st.fixed_dictionaries(
        {"zone": VALUES},
        optional={
            "windows": st.lists(objects("name", "days", "start", "end", "floor", "budgets", "zone"), max_size=2),
            "one_offs": st.lists(objects("name", "start", "end", "pools"), max_size=2),
            "version": VALUES,
        },
    )
    | objects("zone", "windows", "one_offs")
)
def test_schedules_are_read_or_refused(body: dict[str, Any]) -> None:
    with suppress(InvalidValue):
        schedule_of(body)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("data"), interactive_max_wait=2.0) as running:
        yield running


LINES = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(
        [
            b"GET / HTTP/1.1",
            b"POST /v1/chat/completions HTTP/1.1",
            b"GET http://[ HTTP/1.1",
            b"GET /%ff%00 HTTP/1.1",
            b"host: 127.0.0.1",
            b"content-length: -1",
            b"content-length: 5",
            b"content-length: 99999999999999999999",
            b"transfer-encoding: chunked",
            b"transfer-encoding: chunked, identity",
            b"connection: close",
            b"expect: 100-continue",
            b"upgrade: websocket",
            b"connection: upgrade",
            b"",
            b"5",
            b"{}",
        ]
    ),
)


def test_no_bytes_on_the_wire_make_the_server_fail(house: Gate) -> None:
    address = ("127.0.0.1", int(house.url.rpartition(":")[2]))

    @settings(bounded, max_examples=min(EXAMPLES, 400))
    @given(st.lists(LINES, max_size=8))
    def send(lines: list[bytes]) -> None:
        with socket.create_connection(address) as connection:
            connection.settimeout(10)
            with suppress(OSError):
                connection.sendall(b"\r\n".join(lines))
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(65536)
                assert not answer.startswith(b"HTTP/1.1 5"), answer[:200]

    send()
    assert httpx2.get(f"{house.url}/healthz").status_code == 200
    assert house.chat(max_tokens=2).status_code == 200
