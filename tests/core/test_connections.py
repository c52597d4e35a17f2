"""Connections to a server that answers in every way a server may, and in some it may not."""

import asyncio
import gzip
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from core.connecting import AddressInfo
from core.connections import KEEP_ALIVE_S, LONGEST_HEAD, MOST_HELD, BrokenOff, Connections, Unreachable

pytestmark = pytest.mark.anyio
REQUEST = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
SHORT = OK + b"content-length: 5\r\n\r\nhello"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n"


CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUWfrwRWOBRhxR/lROzMbGjwnqiKwwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyOTIwMTcxMFoYDzIxMjYxMTA1
MjAxNzEwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQzqz4mOcpGmREECNmCh5pdRw2fGsOwh/yEMiv03qQ9IlbxHgFLv3/8
loB2PRf8feAU5UJPlksLl5NoswdPwZ4Qo28wbTAdBgNVHQ4EFgQUr+qNLcd8B5Bu
uOxFHjqJkTDnQP0wHwYDVR0jBBgwFoAUr+qNLcd8B5BuuOxFHjqJkTDnQP0wDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIgehZMle3RiFAVhTxFhJ1q/bkLqxFA1EBaqL2Bk3CfMl0CIQCq
PrC4YmuTnO9ALAHjU0CvDcrciC2M+o76b/HbELkVTw==
-----END CERTIFICATE-----
"""
CERTIFICATE_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgTGOUWuOgtBt4Jvnz
/swbim6ce1b1IntvJC8eEpMKRvahRANCAAQzqz4mOcpGmREECNmCh5pdRw2fGsOw
h/yEMiv03qQ9IlbxHgFLv3/8loB2PRf8feAU5UJPlksLl5NoswdPwZ4Q
-----END PRIVATE KEY-----
"""  # made for this test alone; it opens nothing


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@dataclass
class Server:
    """Writes `answer` to every request, byte by byte if asked, and closes afterwards if asked."""

    answer: bytes
    one_byte: bool = False
    closes: bool = False
    connections: int = 0
    gone: int = 0
    port: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await self.write(writer)
                if self.closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone += 1
        finally:
            writer.close()

    async def write(self, writer: asyncio.StreamWriter) -> None:
        pieces = [self.answer[place : place + 1] for place in range(len(self.answer))]
        for piece in pieces if self.one_byte else [self.answer]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)


@asynccontextmanager
async def against(
    answer: bytes, *, one_byte: bool = False, closes: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Server, Connections]]:
    server = Server(answer, one_byte, closes)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    connections = Connections(host="127.0.0.1", port=server.port, tls=tls is not None)
    try:
        yield server, connections
    finally:
        await connections.close()
        listening.close()
        for writer in server.writers:
            writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def exchange(connections: Connections) -> tuple[int, bytes]:
    """Send one request, read its answer to the end, give the connection back."""
    async with asyncio.timeout(10):
        connection = await connections.take(5.0)
        try:
            await connection.send(REQUEST)
            body = b""
            while piece := await connection.read():
                body += piece
            return connection.status, body
        finally:
            connections.give_back(connection)


@pytest.mark.parametrize("one_byte", [False, True])
@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (SHORT, b"hello"),
        (CHUNKED, b"hello, world"),
        (OK + b"content-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + SHORT, b"hello"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + CHUNKED, b"hello, world"),
        (CHUNKED.replace(b"0\r\n\r\n", b"0\r\nx-trailer: 1\r\n\r\n"), b"hello, world"),
    ],
)
async def test_answers_come_whole_however_they_are_framed_and_cut(answer: bytes, body: bytes, one_byte: bool) -> None:
    async with against(answer, one_byte=one_byte) as (server, connections):
        for _ in range(3):
            status, read = await exchange(connections)
            assert (status, read) == (204 if b"204" in answer else 200, body)
        assert server.connections == 1


async def test_headers_are_those_of_the_answer_alone_in_lower_case() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + CHUNKED.replace(
        b"0\r\n\r\n", b"0\r\nx-late: 1\r\n\r\n"
    )
    async with against(answer.replace(b"transfer-encoding", b"X-One: a\r\nTransfer-Encoding")) as (_, connections):
        connection = await connections.take(5.0)
        await connection.send(REQUEST)
        while await connection.read():
            pass
        assert connection.headers == [(b"x-one", b"a"), (b"transfer-encoding", b"chunked")]
        connections.give_back(connection)


async def test_a_body_without_a_length_lasts_until_the_server_closes() -> None:
    async with against(OK + b"\r\nall of it", closes=True) as (server, connections):
        for _ in range(2):
            assert await exchange(connections) == (200, b"all of it")
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        OK + b"content-length: 9\r\n\r\nhello",
        CHUNKED[:-5],
        CHUNKED[:-2],
        OK + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b"hello" * 100)[:-9],
        b"SSH-2.0-OpenSSH_9.0\r\n",
        OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello",
        OK + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
)
async def test_what_breaks_off_or_is_no_answer_is_never_a_clean_end(answer: bytes) -> None:
    async with against(answer, closes=True) as (_, connections):
        with pytest.raises(BrokenOff):
            await exchange(connections)


async def test_an_endless_head_is_cut_off() -> None:
    async with against(OK + b"x: " + b"y" * (LONGEST_HEAD + 1)) as (server, connections):
        with pytest.raises(BrokenOff, match="endless head"):
            await exchange(connections)
        await until(lambda: server.gone == 1)


@pytest.mark.parametrize("one_byte", [False, True])
@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (b"gzip", gzip.compress(b"tide " * 50)),
        (b"GZIP", gzip.compress(b"tide " * 50)),
        (b"deflate", zlib.compress(b"tide " * 50)),
        (b"deflate", zlib.compress(b"tide " * 50, wbits=-15)),
    ],
)
async def test_compressed_bodies_are_decoded(encoding: bytes, packed: bytes, one_byte: bool) -> None:
    head = OK + b"content-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (encoding, len(packed))
    async with against(head + packed, one_byte=one_byte) as (_, connections):
        assert await exchange(connections) == (200, b"tide " * 50)
        assert await exchange(connections) == (200, b"tide " * 50)


async def test_an_unknown_encoding_passes_as_it_is() -> None:
    async with against(OK + b"content-encoding: br\r\ncontent-length: 3\r\n\r\nabc") as (_, connections):
        assert await exchange(connections) == (200, b"abc")


@pytest.mark.parametrize(
    "answer",
    [
        SHORT.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
        SHORT.replace(b"HTTP/1.1", b"HTTP/1.0"),
        SHORT + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged",
        SHORT + b"rubbish",
    ],
)
async def test_a_connection_that_cannot_be_trusted_again_is_not_used_again(answer: bytes) -> None:
    async with against(answer) as (server, connections):
        for _ in range(3):
            assert await exchange(connections) == (200, b"hello")
        assert server.connections == 3


async def test_data_that_nobody_asked_for_ends_an_idle_connection() -> None:
    async with against(SHORT) as (server, connections):
        assert await exchange(connections) == (200, b"hello")
        server.writers[0].write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
        await until(lambda: server.gone == 1)
        assert await exchange(connections) == (200, b"hello")
        assert server.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used() -> None:
    async with against(SHORT) as (server, connections):
        assert await exchange(connections) == (200, b"hello")
        server.writers[0].close()
        connection = connections._idle[0]
        await until(lambda: not connection.reusable)
        assert await exchange(connections) == (200, b"hello")
        assert server.connections == 2


async def test_an_old_idle_connection_is_not_used_and_in_time_closed() -> None:
    async with against(SHORT) as (server, connections):
        assert await exchange(connections) == (200, b"hello")
        connections._idle[0].idle_since -= KEEP_ALIVE_S + 1
        assert await exchange(connections) == (200, b"hello")
        assert server.connections == 2
        connections._idle[0].idle_since -= KEEP_ALIVE_S + 1
        connections._close_old()
        assert not connections._idle
        await until(lambda: server.gone == 2)


async def test_requests_at_once_have_connections_of_their_own() -> None:
    async with against(CHUNKED) as (server, connections):
        answers = await asyncio.gather(*(exchange(connections) for _ in range(20)))
        assert set(answers) == {(200, b"hello, world")}
        assert server.connections == 20
        assert len(connections._idle) == 20


async def test_an_answer_that_is_not_read_to_its_end_costs_the_connection() -> None:
    async with against(OK + b"content-length: 100\r\n\r\nhello") as (server, connections):
        connection = await connections.take(5.0)
        await connection.send(REQUEST)
        assert await connection.read() == b"hello"
        connections.give_back(connection)
        await until(lambda: server.gone == 1)
        assert not connections._idle


async def test_a_slow_reader_makes_the_server_wait() -> None:
    size = 40 * MOST_HELD
    async with against(OK + b"content-length: %d\r\n\r\n" % size + b"x" * size) as (server, connections):
        connection = await connections.take(5.0)
        await connection.send(REQUEST)
        await until(lambda: connection._paused)
        assert connection._held < size // 2
        got = 0
        while piece := await connection.read():
            got += len(piece)
        assert got == size
        connections.give_back(connection)
        assert server.connections == 1


async def test_nobody_there_and_nobody_who_answers_in_time_are_unreachable() -> None:
    with pytest.raises(Unreachable):
        await Connections(host="127.0.0.1", port=9, tls=False).take(5.0)
    with pytest.raises(Unreachable):
        await Connections(host="127.0.0.1", port=9, tls=False).take(0.0)


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """A server's context, whose certificate stands in tmp_path."""
    (tmp_path / "certificate.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(CERTIFICATE_KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    return context


async def test_over_tls_all_is_the_same(tls: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    async with against(CHUNKED, tls=tls) as (server, connections):
        for _ in range(3):
            assert await exchange(connections) == (200, b"hello, world")
        assert server.connections == 1


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls: ssl.SSLContext) -> None:
    async with against(CHUNKED, tls=tls) as (_, connections):
        with pytest.raises(Unreachable, match="SSLCertVerificationError"):
            await exchange(connections)


async def test_a_certificate_of_another_name_is_refused(
    tls: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))

    async def here(host: str, port: int) -> list[AddressInfo]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    async with against(CHUNKED, tls=tls) as (server, _):
        with pytest.raises(Unreachable, match="SSLCertVerificationError"):
            await exchange(Connections(host="models.example", port=server.port, tls=True, resolve=here))


async def test_of_several_addresses_the_first_that_answers_is_taken() -> None:
    async with against(SHORT) as (server, _):

        async def several(host: str, port: int) -> list[AddressInfo]:
            addresses = [("169.254.169.254", port), ("127.0.0.1", 9), ("127.0.0.1", server.port)]
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in addresses]

        connections = Connections(host="models.example", port=80, tls=False, resolve=several)
        assert await exchange(connections) == (200, b"hello")
        await connections.close()
