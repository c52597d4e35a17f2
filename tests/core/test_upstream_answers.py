"""The model server's answers, framed in every way a server may frame them, and in some it may not."""

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from core.errors import UpstreamFailed
from core.ports import UpstreamRequest
from core.upstream import LONGEST_HEADER, HttpUpstream

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\n"
SHORT = OK + b"content-length: 5\r\n\r\nhello"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n"
LONG = 8_000_000
ASKED = UpstreamRequest("GET", "/x", b"", ())

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
    over: asyncio.Event = field(default_factory=asyncio.Event)

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
        except asyncio.LimitOverrunError:  # a long request, of which it wants to read no more
            await self.over.wait()
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
) -> AsyncIterator[tuple[Server, HttpUpstream]]:
    server = Server(answer, one_byte, closes)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    scheme = "https" if tls else "http"
    upstream = HttpUpstream(base_url=f"{scheme}://127.0.0.1:{server.port}/v1", api_key=None)
    try:
        yield server, upstream
    finally:
        await upstream.close()
        server.over.set()
        listening.close()
        for writer in server.writers:
            writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def exchange(upstream: HttpUpstream, request: UpstreamRequest = ASKED) -> tuple[int, bytes]:
    """Send one request, read its answer to the end, close it."""
    async with asyncio.timeout(10):
        answer = await upstream.send(request)
        try:
            body = b""
            while piece := await answer.read():
                body += piece
            return answer.status, body
        finally:
            answer.close()


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
    async with against(answer, one_byte=one_byte) as (server, upstream):
        for _ in range(3):
            status, read = await exchange(upstream)
            assert (status, read) == (204 if b"204" in answer else 200, body)
        assert server.connections == 1


async def test_headers_are_those_of_the_answer_alone_in_lower_case() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + CHUNKED.replace(
        b"0\r\n\r\n", b"0\r\nx-late: 1\r\n\r\n"
    )
    async with against(answer.replace(b"transfer-encoding", b"X-One: a\r\nTransfer-Encoding")) as (_, upstream):
        answered = await upstream.send(ASKED)
        while await answered.read():
            pass
        assert answered.headers == [(b"x-one", b"a")]
        answered.close()


async def test_a_body_without_a_length_lasts_until_the_server_closes() -> None:
    async with against(OK + b"\r\nall of it", closes=True) as (server, upstream):
        for _ in range(2):
            assert await exchange(upstream) == (200, b"all of it")
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        OK + b"content-length: 9\r\n\r\nhello",
        CHUNKED[:-5],
        b"SSH-2.0-OpenSSH_9.0\r\n",
        OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\nhello",
        OK + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        OK + b"x: " + b"y" * (LONGEST_HEADER + 1),
    ],
)
async def test_what_breaks_off_or_is_no_answer_is_never_a_clean_end(answer: bytes) -> None:
    async with against(answer, closes=True) as (_, upstream):
        with pytest.raises(UpstreamFailed) as refused:
            await exchange(upstream)
        assert (refused.value.status, refused.value.code) == (502, "upstream_truncated")


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
    async with against(head + packed, one_byte=one_byte) as (_, upstream):
        assert await exchange(upstream) == (200, b"tide " * 50)
        assert await exchange(upstream) == (200, b"tide " * 50)


@pytest.mark.parametrize(
    "answer",
    [
        SHORT.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
        SHORT.replace(b"HTTP/1.1", b"HTTP/1.0"),
        SHORT + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged",
    ],
)
async def test_a_connection_that_cannot_be_trusted_again_is_not_used_again(answer: bytes) -> None:
    async with against(answer) as (server, upstream):
        for _ in range(3):
            assert await exchange(upstream) == (200, b"hello")
        assert server.connections == 3


async def test_data_that_nobody_asked_for_is_never_the_next_answer() -> None:
    async with against(SHORT) as (server, upstream):
        assert await exchange(upstream) == (200, b"hello")
        server.writers[0].write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
        assert upstream._pool is not None
        ((idle, _),) = next(iter(upstream._pool[0]._conns.values()))
        await until(lambda: idle.should_close)
        assert await exchange(upstream) == (200, b"hello")
        assert server.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used() -> None:
    async with against(SHORT) as (server, upstream):
        assert await exchange(upstream) == (200, b"hello")
        server.writers[0].close()
        assert upstream._pool is not None
        ((idle, _),) = next(iter(upstream._pool[0]._conns.values()))
        await until(lambda: not idle.is_connected())
        assert await exchange(upstream) == (200, b"hello")
        assert server.connections == 2


async def test_requests_at_once_have_connections_of_their_own() -> None:
    async with against(CHUNKED) as (server, upstream):
        answers = await asyncio.gather(*(exchange(upstream) for _ in range(20)))
        assert set(answers) == {(200, b"hello, world")}
        assert server.connections == 20
        assert await exchange(upstream) == (200, b"hello, world")
        assert server.connections == 20


async def test_an_answer_that_is_not_read_to_its_end_costs_the_connection() -> None:
    async with against(OK + b"content-length: 100\r\n\r\nhello") as (server, upstream):
        answer = await upstream.send(ASKED)
        assert await answer.read() == b"hello"
        answer.close()
        await until(lambda: server.gone == 1)


async def test_an_answer_that_came_before_the_request_was_out_costs_the_connection() -> None:
    """What is left of the request would be the beginning of the next one."""
    async with against(SHORT) as (server, upstream):
        for count in range(2):
            assert await exchange(upstream, UpstreamRequest("POST", "/x", b"x" * LONG, ())) == (200, b"hello")
            assert server.connections == count + 1


async def test_a_slow_reader_makes_the_server_wait() -> None:
    async with against(OK + b"content-length: %d\r\n\r\n" % LONG + b"x" * LONG) as (server, upstream):
        answer = await upstream.send(ASKED)
        got = largest = 0
        while piece := await answer.read():
            got, largest = got + len(piece), max(largest, len(piece))
            for _ in range(5):
                await asyncio.sleep(0)
        assert got == LONG
        assert largest < LONG // 4
        answer.close()
        assert server.connections == 1


async def test_a_header_cannot_smuggle_another_request_in() -> None:
    async with against(SHORT) as (_, upstream):
        for header in ((b"x-a", b"1\r\n\r\nGET /evil"), (b"x-a", b"1\nb: 2"), (b"x\r", b"1")):
            with pytest.raises(ValueError, match="line break"):
                await upstream.send(UpstreamRequest("POST", "/x", b"", [header]))
        with pytest.raises(ValueError, match="line break"):
            await upstream.send(UpstreamRequest("POST", "/x HTTP/1.1\r\nb: 1", b"", ()))
        assert await exchange(upstream) == (200, b"hello")


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """A server's context, whose certificate stands in tmp_path."""
    (tmp_path / "certificate.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(CERTIFICATE_KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    return context


async def test_over_tls_all_is_the_same(tls: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", trusting)
    async with against(CHUNKED, tls=tls) as (server, upstream):
        for _ in range(3):
            assert await exchange(upstream) == (200, b"hello, world")
        assert server.connections == 1


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls: ssl.SSLContext) -> None:
    async with against(CHUNKED, tls=tls) as (_, upstream):
        with pytest.raises(UpstreamFailed) as refused:
            await exchange(upstream)
        assert refused.value.code == "upstream_unreachable"
