"""Load on a server over its API: what is sent, when, and what is noted of the answers."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from core.clock import SystemClock
from core.errors import UpstreamFailed
from core.lanes import Lane
from core.ports import UpstreamRequest
from core.simulation.arrivals import Arrival, Batches, Lengths
from core.simulation.load import Caller, ChatUsers, Flood, Shot, chat_body
from core.simulation.prompts import BYTES_PER_TOKEN

pytestmark = pytest.mark.anyio
SSE = [(b"content-type", b"text/event-stream")]
EVENT = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}'


@dataclass
class Answer:
    pieces: list[bytes]
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    closed: int = 0

    async def read(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def close(self) -> None:
        self.closed += 1


@dataclass
class Server:
    """Answers each request with the next of `answers`, the last one for ever; or fails."""

    answers: list[Answer | UpstreamFailed]
    requests: list[UpstreamRequest] = field(default_factory=list)

    async def send(self, request: UpstreamRequest) -> Answer:
        self.requests.append(request)
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, UpstreamFailed):
            raise answer
        return Answer([*answer.pieces], answer.status)

    async def close(self) -> None: ...


async def asked(server: Server, *, stream: bool = True, lane: Lane = Lane.INTERACTIVE) -> Shot:
    shot = Shot(lane, 0.0)
    caller = Caller(upstream=server, clock=SystemClock(), model="m")
    await caller.ask(shot, number=1, prompt=50, output=4, stream=stream)
    return shot


async def test_a_stream_is_timed_by_its_first_content_and_its_end() -> None:
    shot = await asked(Server([Answer([b": waiting\n\n", EVENT, EVENT, DONE])]))
    assert shot.error is None
    assert shot.tokens == 2
    assert shot.first is not None
    assert shot.ended is not None
    assert shot.first <= shot.ended


async def test_a_whole_answer_has_no_first_token_but_the_servers_usage() -> None:
    shot = await asked(Server([Answer([WHOLE[:20], WHOLE[20:]])]), stream=False)
    assert (shot.first, shot.tokens, shot.error) == (None, 7, None)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer([EVENT]), "incomplete"),
        (Answer([b'{"error":{}}'], status=429), "http_429"),
        (UpstreamFailed(502, "upstream_truncated", "broke off"), "upstream_truncated"),
    ],
)
async def test_what_went_wrong_is_a_word(answer: Answer | UpstreamFailed, error: str) -> None:
    assert (await asked(Server([answer]))).error == error


async def test_only_the_flood_asks_for_the_batch_lane() -> None:
    server = Server([Answer([EVENT, DONE])])
    for lane in Lane:
        await asked(server, lane=lane)
    lanes = [dict(request.headers).get(b"x-tidegate-lane") for request in server.requests]
    assert lanes == [None, b"batch"]


@pytest.mark.parametrize("tokens", [100, 700, 4000])
def test_a_body_has_about_the_tokens_asked_for_and_no_other_has_the_same(tokens: int) -> None:
    one, other = (chat_body("m", number, tokens, 9, stream=True) for number in (1, 2))
    assert abs(len(one) / BYTES_PER_TOKEN - tokens) <= 2
    assert one != other
    assert json.loads(one)["max_tokens"] == 9


async def test_chat_users_keep_to_the_trace_whatever_the_answers_take() -> None:
    sent: list[Shot] = []
    server = Server([Answer([EVENT, DONE])])
    caller = Caller(upstream=server, clock=SystemClock(), model="m")
    trace = [Arrival(0.0, 10, 2), Arrival(0.02, 10, 2), Arrival(0.05, 10, 2)]
    await ChatUsers(caller=caller, arrivals=trace, on_send=sent.append).run()
    start = sent[0].due
    assert [round(shot.due - start, 6) for shot in sent] == [0.0, 0.02, 0.05]
    assert all(shot.ended is not None and shot.ended >= shot.due for shot in sent)


async def test_a_flood_sends_the_same_items_each_time_and_keeps_its_width() -> None:
    bodies = []
    for _ in range(2):
        server, ended = Server([Answer([WHOLE])]), asyncio.Event()
        shots: list[Shot] = []

        def note(shot: Shot, shots: list[Shot] = shots, ended: asyncio.Event = ended) -> None:
            shots.append(shot)
            if len(shots) == 9:
                ended.set()

        caller = Caller(upstream=server, clock=SystemClock(), model="m")
        short = Batches(prompts=Lengths(50, 0.5, 16, 90))
        flood = asyncio.ensure_future(Flood(caller=caller, batches=short, width=3, on_end=note).run())
        await ended.wait()
        flood.cancel()
        await asyncio.wait({flood})
        bodies.append([request.body for request in server.requests[:9]])
    assert bodies[0] == bodies[1]
    assert len(set(bodies[0])) == 9
