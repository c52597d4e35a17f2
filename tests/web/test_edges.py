"""The outermost edge, over real sockets."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from core.config import Settings
from tests.servers import DEADLINE_S, gate, until
from web.app import create_app
from web.edges import CONNECTION, LONGEST_HEAD, MOST_HEADERS, AllowedAddresses, EdgeProtocol
from web.peers import Peers
from web.serving import server_config

STALL_S = 0.3


@contextmanager
def serving(
    app: Any, *, lifespan: str = "off", keep_alive: float | None = None, **changes: float
) -> Iterator[tuple[str, int]]:
    """Serve `app` as the gateway does; yields host and port."""
    config = server_config(app, 1, stall=STALL_S)
    config.timeout_keep_alive = keep_alive or config.timeout_keep_alive  # type: ignore[assignment]  # fractions do
    config.lifespan = lifespan  # type: ignore[assignment]
    assert isinstance(config.http, type)
    for name, value in changes.items():
        setattr(config.http, name, value)
    config.port = 0
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield "127.0.0.1", server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


class Told:
    """An app that streams for ever, or reads its body, and notes how its requests ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/body":
            await self._read(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/endless":
            await self._stream(receive, send)
        await send({"type": "http.response.body", "body": b"ok"})

    async def _read(self, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.ended.append("left")
                return
            if not message.get("more_body"):
                self.ended.append("whole")
                return

    async def _stream(self, receive: Receive, send: Send) -> None:
        await receive()
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        self.ended.append("left")


@pytest.fixture
def told() -> Told:
    return Told()


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    connection.settimeout(DEADLINE_S)
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def ask(address: tuple[str, int], *pieces: bytes) -> bytes:
    with socket.create_connection(address) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return everything(connection)


GOOD = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\nx-long: " + b"a" * (LONGEST_HEAD + 1) + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx-endless: " + b"a" * (2 * LONGEST_HEAD),
        b"GET /" + b"a" * LONGEST_HEAD + b" HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a: b\r\n" * MOST_HEADERS + b"\r\n",
    ],
    ids=["long", "endless", "path", "many"],
)
def test_a_head_that_is_too_large_is_431_and_the_connection_closed(told: Told, head: bytes) -> None:
    with serving(told) as address:
        answer = ask(address, head)
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
        assert ask(address, GOOD).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("address", [b"/batches/%00", b"/batches?q=a%00b"])
def test_an_address_with_a_nul_is_no_address(told: Told, address: bytes) -> None:
    with serving(told) as server:
        assert ask(server, b"GET " + address + b" HTTP/1.1\r\nhost: a\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        assert ask(server, GOOD).startswith(b"HTTP/1.1 200 ")


def test_the_largest_head_that_is_allowed_passes_whole_or_in_pieces(told: Told) -> None:
    head = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-long: " + b"a" * (LONGEST_HEAD - 200) + b"\r\n\r\n"
    with serving(told) as address:
        assert ask(address, head).startswith(b"HTTP/1.1 200 ")
        assert ask(address, head[:30000], head[30000:]).startswith(b"HTTP/1.1 200 ")


def test_a_large_body_beside_a_small_head_is_no_large_head(told: Told) -> None:
    body = b"x" * (3 * LONGEST_HEAD)
    head = b"POST /body HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    with serving(told) as address:
        assert ask(address, head + body).startswith(b"HTTP/1.1 200 ")
    assert told.ended == ["whole"]


def test_a_client_that_never_finishes_its_head_is_cut_off(told: Told) -> None:
    with serving(told, head_time=STALL_S) as address, socket.create_connection(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n")
        assert everything(connection) == b""


def test_a_client_that_drips_its_head_is_cut_off_all_the_same(told: Told) -> None:
    with serving(told, head_time=STALL_S) as address, socket.create_connection(address) as connection:
        connection.settimeout(0.05)
        connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\nx: ")

        def closed() -> bool:
            try:
                connection.sendall(b"y")
                return connection.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(closed)


def test_a_client_that_stops_in_the_middle_of_its_body_is_cut_off(told: Told) -> None:
    with serving(told) as address, socket.create_connection(address) as connection:
        connection.sendall(b"POST /body HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf")
        until(lambda: told.ended == ["left"])
        assert everything(connection) == b""


def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(told: Told) -> None:
    with serving(told) as address, socket.create_connection(address) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n")
        until(lambda: told.ended == ["left"])


class Buffer:
    """A transport whose buffer has one size after the other."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = list(sizes)
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return self.sizes.pop(0)

    def abort(self) -> None:
        self.aborted.set()


@pytest.mark.anyio
async def test_a_client_that_takes_little_by_little_is_left_alone_until_it_takes_nothing() -> None:
    buffer = Buffer(400, 300, 200, 200, 100)
    protocol = EdgeProtocol.__new__(EdgeProtocol)
    protocol.stall, protocol.loop, protocol.transport = 0.001, asyncio.get_running_loop(), buffer  # type: ignore[assignment]
    protocol._watch_writing(500)
    async with asyncio.timeout(DEADLINE_S):
        await buffer.aborted.wait()
    assert buffer.sizes == [100]


class Watching:
    """An app that waits until its client has left, or answers at once; notes which clients left."""

    def __init__(self) -> None:
        self.left: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, gone = scope["path"], asyncio.Event()

        def leave() -> None:
            self.left.append(path)
            gone.set()

        if path == "/late":
            while (await receive())["type"] != "http.disconnect":
                pass
        if path == "/body":
            while (await receive()).get("more_body"):
                pass
        scope[CONNECTION].watch(scope, leave)
        if path != "/answered":
            await gone.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("path", ["/waits", "/late"])
def test_who_watches_is_told_once_when_the_client_leaves(path: str) -> None:
    app = Watching()
    with serving(app) as address, socket.create_connection(address) as connection:
        connection.sendall(b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n" % path.encode())
        connection.close()
        until(lambda: app.left)
    assert app.left == [path]


def test_a_client_that_leaves_is_noticed_also_when_it_has_asked_for_more_already(told: Told) -> None:
    with serving(told) as address, socket.create_connection(address) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nhost: a\r\n\r\n" * 2)
        assert connection.recv(65536)
        connection.close()
        until(lambda: told.ended)
    assert told.ended == ["left"]


@pytest.mark.parametrize("size", [70_000, 150_000, 300_000])
def test_a_client_that_leaves_after_a_large_body_is_noticed_too(size: int) -> None:
    app = Watching()
    with serving(app) as address, socket.create_connection(address) as connection:
        connection.sendall(b"POST /body HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size + b"x")
        connection.sendall(b"x" * (size - 1))
        connection.close()
        until(lambda: app.left)


def test_who_was_answered_and_leaves_then_is_not_told_of() -> None:
    app = Watching()
    with serving(app) as address:
        with socket.create_connection(address) as connection:
            for _ in range(2):
                connection.sendall(b"GET /answered HTTP/1.1\r\nhost: a\r\n\r\n")
                while not connection.recv(65536).endswith(b"ok"):
                    pass
            connection.sendall(b"GET /waits HTTP/1.1\r\nhost: a\r\n\r\n")
        until(lambda: app.left)
    assert app.left == ["/waits"]


def test_connections_are_kept_alive_for_more_requests(told: Told) -> None:
    with serving(told) as (host, port), httpx2.Client(base_url=f"http://{host}:{port}") as client:
        for _ in range(3):
            assert client.post("/body", content=b"x" * 100_000).text == "ok"
    assert told.ended == ["whole"] * 3


@pytest.mark.parametrize("rest", [b"", b"x", b"x" * 4999, b"x" * 5000 + b"\r\n"])
def test_a_connection_whose_client_goes_silent_after_an_early_answer_is_closed_all_the_same(
    told: Told, rest: bytes
) -> None:
    with serving(told, keep_alive=0.2) as address, socket.create_connection(address) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5000\r\n\r\n")
        connection.settimeout(DEADLINE_S)
        received = b""
        while not received.endswith(b"ok\r\n0\r\n\r\n"):
            received += connection.recv(65536)
        connection.sendall(rest)
        assert everything(connection) == b""


def test_a_slow_client_holds_no_slot(tmp_path: Path) -> None:
    """A model server that streams fast, a client that takes nothing: slot and upstream connection are freed."""
    piece = b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 60_000}}]}).encode() + b"\n\n"
    open_streams: list[int] = []

    async def model(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/v1/chat/completions":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b'{"data":[]}'})
            return
        open_streams.append(1)
        await receive()
        gone = asyncio.ensure_future(receive())
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while not gone.done():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        open_streams.pop()

    body = json.dumps({"model": "m", "messages": [], "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body)
    with serving(model) as (host, port):
        app = create_app(Settings(upstream=f"http://{host}:{port}", data=tmp_path, slots=2))
        with serving(app, lifespan="on") as address, socket.create_connection(address) as connection:
            connection.sendall(head + body)
            until(lambda: open_streams)
            until(lambda: not open_streams)
            pool = app.state.runtime.pools["default"]
            until(lambda: pool.counts.interactive == 0)


def test_only_allowed_addresses_are_answered_at_all(tmp_path: Path) -> None:
    with gate(tmp_path / "data", allowed_addresses=["10.0.0.0/8"]) as running:
        for path in ("/", "/healthz", "/metrics", "/v1/models", "/api/pools"):
            answer = httpx2.get(running.url + path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "address_not_allowed")
    with gate(tmp_path / "data", allowed_addresses=["10.0.0.0/8", "127.0.0.1"]) as running:
        assert running.chat(max_tokens=3).status_code == 200


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("client", "status"),
    [
        (("10.1.2.3", 1), 204),
        (("::ffff:10.1.2.3", 1), 204),
        (("fd00::1", 1), 204),
        (("192.168.0.1", 1), 403),
        (("11.0.0.1", 1), 403),
        (None, 403),
    ],
)
async def test_addresses_count_in_any_spelling_and_unknown_ones_are_refused(client: Any, status: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    guard = AllowedAddresses(app, ranges=["10.0.0.0/8", "fd00::/8"], peers=Peers())
    scope = {"type": "http", "client": client, "headers": []}
    await guard(scope, lambda: None, send)  # type: ignore[arg-type,return-value]
    assert sent[0]["status"] == status


def test_the_servers_protocol_is_the_guarded_one() -> None:
    config = server_config(create_app(Settings(upstream="http://127.0.0.1:9")), 1, stall=7.0)
    assert issubclass(config.http, EdgeProtocol)  # type: ignore[arg-type]
    assert config.http.stall == 7.0  # type: ignore[union-attr]
