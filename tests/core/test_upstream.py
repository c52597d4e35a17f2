"""The HTTP client of the model server, against a real one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import httpx2
import pytest

from core.errors import UpstreamFailed
from core.ports import UpstreamRequest
from core.upstream import LONGEST_ERROR, HttpUpstream
from tests.servers import running
from web import mock_server

STREAM = b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":2000}'
JSON = [(b"content-type", b"application/json")]
CANARY = "sk-canary-7731"
LONG_CANARY = f"{CANARY}-0123456789"

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with running(mock_server.create_app(speed=20.0), lifespan="off") as url:
        yield url


@pytest.fixture
async def upstream(model: str) -> AsyncIterator[HttpUpstream]:
    made = HttpUpstream(base_url=f"{model}/v1", api_key=CANARY)
    yield made
    await made.close()


def chat(body: bytes = STREAM) -> UpstreamRequest:
    return UpstreamRequest("POST", "/chat/completions", body, JSON)


async def in_flight(model: str) -> int:
    async with httpx2.AsyncClient() as http:
        return int((await http.get(f"{model}/sim")).json()["in_flight"])


async def test_streams_cancelled_twice_lose_no_connection(model: str, upstream: HttpUpstream) -> None:
    """R20 encode/httpx#3782: 30 double-cancelled streams, and the 31st call answers."""

    async def read_for_ever() -> None:
        answer = await upstream.send(chat())
        try:
            while await answer.read():
                pass
        finally:
            answer.close()

    for _ in range(30):
        task = asyncio.ensure_future(read_for_ever())
        while await in_flight(model) == 0:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        while await in_flight(model):
            await asyncio.sleep(0)
    answer = await upstream.send(chat(STREAM.replace(b"2000", b"2")))
    assert answer.status == 200
    while await answer.read():
        pass
    answer.close()


async def test_a_finished_answer_gives_its_connection_back(model: str, upstream: HttpUpstream) -> None:
    seen = set()
    for _ in range(5):
        answer = await upstream.send(chat(STREAM.replace(b"2000", b"2")))
        while await answer.read():
            pass
        answer.close()
        answer.close()
        seen.add(answer.status)
    assert upstream._pool is not None
    connector, _ = upstream._pool
    assert len(connector._acquired) == 0
    assert sum(len(pooled) for pooled in connector._conns.values()) == 1
    assert seen == {200}


async def test_nobody_there_is_unreachable_and_the_key_is_nowhere_in_the_error() -> None:
    """R99 BerriAI/litellm#8075."""
    upstream = HttpUpstream(base_url="http://127.0.0.1:9/v1", api_key=CANARY)
    with pytest.raises(UpstreamFailed) as failed:
        await upstream.send(chat())
    await upstream.close()
    assert (failed.value.status, failed.value.code) == (502, "upstream_unreachable")
    chain: BaseException | None = failed.value
    while chain is not None:
        assert CANARY not in repr(chain)
        assert CANARY not in str(chain)
        chain = chain.__cause__


async def test_its_own_key_replaces_whatever_was_sent() -> None:
    """The client adds nothing else of its own: no user agent, no content type, no cookies."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        upstream = HttpUpstream(base_url=f"http://127.0.0.1:{port}/v1", api_key=CANARY)
        for _ in range(2):
            (await upstream.send(UpstreamRequest("POST", "/chat/completions?a=b", b"{}", [(b"x-a", b"1")]))).close()
        await upstream.close()
    lines = heads[1].lower().split(b"\r\n")
    assert lines[0] == b"post /v1/chat/completions?a=b http/1.1"
    assert sorted(lines[1:-2]) == [
        b"accept-encoding: identity",
        b"authorization: bearer " + CANARY.encode(),
        b"content-length: 2",
        b"host: 127.0.0.1:%d" % port,
        b"x-a: 1",
    ]


@contextlib.asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[HttpUpstream]:
    """An upstream whose server answers each request with these bytes and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        with suppress(ConnectionError):  # a client that has read enough of an error leaves
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        upstream = HttpUpstream(base_url=f"http://127.0.0.1:{port}/v1", api_key=LONG_CANARY)
        yield upstream
        await upstream.close()


async def body_of(upstream: HttpUpstream) -> tuple[int, dict[bytes, bytes], bytes]:
    answer = await upstream.send(UpstreamRequest("GET", "/models", b""))
    body = b""
    while piece := await answer.read():
        body += piece
    answer.close()
    return answer.status, dict(answer.headers), body


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_a_provider_that_echoes_the_key_in_an_error_does_not_give_it_away(status: int) -> None:
    """R99 BerriAI/litellm#15799: in body and headers, with a length that is right."""
    body = b'{"error":{"message":"Incorrect API key provided: %s"}}' % LONG_CANARY.encode()
    head = b"HTTP/1.1 %d X\r\nx-debug: Bearer %s\r\nx-of-%s: 1\r\ncontent-length: %d\r\n\r\n"
    async with answering(head % (status, LONG_CANARY.encode(), LONG_CANARY.encode(), len(body)) + body) as upstream:
        told, headers, passed = await body_of(upstream)
    assert told == status
    assert LONG_CANARY.encode() not in passed + repr(headers).encode()
    assert headers[b"x-of-********"] == b"1"
    assert headers[b"content-length"] == str(len(passed)).encode()
    assert b"Incorrect API key provided: ********" in passed


async def test_a_key_echoed_inside_a_stream_is_masked() -> None:
    event = b'data: {"error":{"message":"key %s"}}\n\n' % LONG_CANARY.encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    async with answering(head + event) as upstream:
        _, _, passed = await body_of(upstream)
    assert passed == b'data: {"error":{"message":"key ********"}}\n\n'


async def test_an_error_body_is_bounded() -> None:
    """R45 awsl-project/maxx PR#833: whoever stores it, stores no more."""
    head = b"HTTP/1.1 500 Oops\r\ncontent-length: 5000000\r\n\r\n"
    async with answering(head + b"x" * 5_000_000) as upstream:
        _, headers, passed = await body_of(upstream)
    assert len(passed) == LONGEST_ERROR
    assert headers[b"content-length"] == str(LONGEST_ERROR).encode()


async def test_a_redirect_is_not_followed() -> None:
    """R102 tashfeenahmed/freellmapi#443: a redirect to a metadata address."""
    hits: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hits.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        upstream = HttpUpstream(base_url=f"http://127.0.0.1:{port}/v1", api_key=CANARY)
        answer = await upstream.send(UpstreamRequest("GET", "/models", b""))
        answer.close()
        await upstream.close()
    assert answer.status == 302
    assert len(hits) == 1


async def test_headers_for_the_connection_alone_stay_and_an_encoding_that_is_not_undone_is_told() -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\n"
    async with answering(head + b"Content-Encoding: wat\r\nContent-Length: 2\r\n\r\nok") as upstream:
        status, headers, body = await body_of(upstream)
    assert (status, body) == (200, b"ok")
    assert headers == {b"x-kept": b"2", b"content-encoding": b"wat", b"content-length": b"2"}
