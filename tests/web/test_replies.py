import asyncio
from typing import Any

import pytest

from core.errors import UpstreamFailed
from core.lanes import Lane
from tests.fakes import call
from web.replies import AsgiReply

pytestmark = pytest.mark.anyio
STREAM = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]


class Sent:
    """What an ASGI server was told to send."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.reply = AsgiReply(send=self, call=call(Lane.BATCH, "req_1"), pool="large")

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return list(self.messages[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def ends(self) -> int:
        return sum(
            message["type"] == "http.response.body" and not message.get("more_body") for message in self.messages
        )


async def test_behind_another_tidegate_every_header_of_ours_is_told_once() -> None:
    sent = Sent()
    await sent.reply.start(200, [*JSON, (b"x-tidegate-lane", b"interactive"), (b"x-request-id", b"theirs")])
    own = [header for header in sent.headers if header[0].startswith(b"x-")]
    assert sorted(own) == [
        (b"x-request-id", b"req_1"),
        (b"x-tidegate-lane", b"batch"),
        (b"x-tidegate-pool", b"large"),
        (b"x-tidegate-queue-ms", b"0"),
    ]


@pytest.mark.parametrize(
    ("given", "told"), [(b"0", b"1"), (b"0.0", b"1"), (b"-1", b"1"), (b" 0 ", b"1"), (b"2", b"2"), (b"soon", b"soon")]
)
async def test_a_refusal_never_asks_a_client_to_come_back_at_once(given: bytes, told: bytes) -> None:
    sent = Sent()
    await sent.reply.start(429, [*JSON, (b"retry-after", given)])
    assert (b"retry-after", told) in sent.headers


@pytest.mark.parametrize(("length", "pieces"), [(0, []), (5, [b"hello"]), (5, [b"he", b"llo"]), (None, [b"hello"])])
async def test_an_answer_of_known_length_ends_with_its_last_byte_and_once(
    length: int | None, pieces: list[bytes]
) -> None:
    sent = Sent()
    await sent.reply.start(200, [*JSON, *([(b"content-length", b"%d" % length)] if length is not None else [])])
    for piece in pieces:
        await sent.reply.send(piece)
    assert sent.ends == (length == 5)
    await sent.reply.finish()
    assert (sent.ends, sent.body) == (1, b"".join(pieces))


async def test_an_answer_that_is_no_stream_after_a_heartbeat_is_an_error_inside_the_stream() -> None:
    sent = Sent()
    await sent.reply.heartbeat()
    await sent.reply.start(200, JSON)
    await sent.reply.send(b'{"choices":[]}')
    await sent.reply.finish()
    told = sent.body.removeprefix(b": waiting\n\n")
    assert told.startswith(b'data: {"error":')
    assert b"something else" in told
    assert told.endswith(b"\n\n")


async def test_a_stream_after_a_heartbeat_goes_on_in_it() -> None:
    sent = Sent()
    await sent.reply.heartbeat()
    await sent.reply.start(200, STREAM)
    await sent.reply.send(b"data: 1\n\n")
    await sent.reply.finish()
    assert sent.body == b": waiting\n\ndata: 1\n\n"


@pytest.mark.parametrize("whole", [True, False])
async def test_an_error_after_all_of_a_streams_announced_length_is_told_inside_it(whole: bool) -> None:
    sent = Sent()
    piece = b'data: {"choices":[]}\n\n'
    await sent.reply.start(200, [(b"content-length", b"%d" % (len(piece) * (1 if whole else 2))), *STREAM])
    await sent.reply.send(piece)
    await sent.reply.fail(UpstreamFailed(502, "upstream_truncated", "It ended before its end mark."))
    assert not any(name == b"content-length" for name, _ in sent.headers)
    assert sent.body.startswith(piece + b'data: {"error":')
    assert sent.ends == 1


async def test_a_heartbeat_that_is_broken_off_before_its_head_went_out_leaves_the_answer_as_it_is() -> None:
    sent = Sent()
    full = asyncio.Event()

    async def waiting(message: Any) -> None:
        await full.wait()
        sent.messages.append(message)

    reply = AsgiReply(send=waiting, call=call(Lane.BATCH, "req_1"), pool="large")
    heart = asyncio.create_task(reply.heartbeat())
    await asyncio.sleep(0)
    heart.cancel()
    full.set()
    await reply.start(400, [*JSON, (b"content-length", b"2")])
    await reply.send(b"{}")
    await reply.finish()
    assert [message["type"] for message in sent.messages] == ["http.response.start", "http.response.body"]
    assert (sent.messages[0]["status"], sent.body, sent.ends) == (400, b"{}", 1)
    assert (b"x-accel-buffering", b"no") not in sent.headers
