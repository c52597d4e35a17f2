"""Fakes that several test modules share."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from core.errors import RequestError, UpstreamFailed
from core.lanes import Lane
from core.ports import Clock, UpstreamAnswer, UpstreamRequest
from core.scheduling.calls import Call, Headers
from core.scheduling.tickets import Ticket

JSON_HEAD: Headers = [(b"content-type", b"application/json")]
STREAM_HEAD: Headers = [(b"content-type", b"text/event-stream")]


def event(text: str) -> bytes:
    """Return one chat chunk with content `text`."""
    return b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n' % text.encode()


ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def ticket(lane: Lane, arrived: float = 0.0, **options: object) -> Ticket:
    """Return a ticket that notes in `granted` and `pulled` what happened to it (attributes of its callbacks)."""
    made = Ticket(lane, arrived, lambda: None, lambda cause: None)
    for name, value in options.items():
        setattr(made, name, value)
    return made


@dataclass
class Script:
    """How the scripted server answers one request: wait, then pieces (bytes), pauses (float) or an error."""

    status: int = 200
    headers: Headers = field(default_factory=lambda: list(STREAM_HEAD))
    steps: Sequence[bytes | float | Exception] = ()
    head_after: float = 0.0
    head_error: Exception | None = None


def streamed(tokens: int, *, first: float = 0.1, gap: float = 0.02) -> Script:
    """Return an answer of `tokens` tokens, the first after `first` seconds, the others `gap` apart."""
    steps: list[bytes | float | Exception] = [first, ROLE + event("a")]
    for _ in range(tokens - 1):
        steps += [gap, event("b")]
    return Script(steps=[*steps, STOP])


def whole(after: float = 0.1, *, status: int = 200, body: bytes | None = None, headers: Headers = ()) -> Script:
    """Return a JSON answer that comes whole after `after` seconds."""
    text = body if body is not None else b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}'
    return Script(status=status, headers=[*JSON_HEAD, *headers], steps=[text], head_after=after)


class ScriptedAnswer:
    """Plays one script."""

    def __init__(self, upstream: "ScriptedUpstream", script: Script) -> None:
        self.status = script.status
        self.headers = script.headers
        self._upstream = upstream
        self._steps = list(script.steps)
        self._open = True

    async def read(self) -> bytes:
        while self._steps:
            step = self._steps.pop(0)
            if isinstance(step, bytes):
                return step
            if isinstance(step, Exception):
                raise step
            await self._upstream.clock.sleep(step)
        return b""

    def close(self) -> None:
        if self._open:
            self._open = False
            self._upstream.left(aborted=bool(self._steps))


class ScriptedUpstream:
    """A model server that answers by script and counts what it sees; `answer(request, n)` chooses the n-th script."""

    def __init__(self, clock: Clock, answer: Callable[[UpstreamRequest, int], Script]) -> None:
        self.clock = clock
        self.requests: list[UpstreamRequest] = []
        self.times: list[float] = []
        self.in_flight = 0
        self.most = 0
        self.aborted = 0
        self._answer = answer

    def left(self, *, aborted: bool) -> None:
        self.in_flight -= 1
        self.aborted += aborted

    async def send(self, request: UpstreamRequest) -> UpstreamAnswer:
        self.requests.append(request)
        self.times.append(self.clock.monotonic())
        script = self._answer(request, len(self.requests))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await self.clock.sleep(script.head_after)
            if script.head_error is not None:
                raise script.head_error
        except BaseException as error:
            self.left(aborted=not isinstance(error, UpstreamFailed))
            raise
        return ScriptedAnswer(self, script)

    async def close(self) -> None:
        pass


class KeptReply:
    """A reply that keeps everything it was told, with the clock's times."""

    def __init__(self, clock: Clock) -> None:
        self.started = False
        self.status = 0
        self.body = b""
        self.finished = False
        self.error: RequestError | None = None
        self.heartbeats = 0
        self.ended_at: float | None = None
        self._clock = clock

    async def start(self, status: int, headers: Headers) -> None:
        self.started, self.status = True, status

    async def send(self, piece: bytes) -> None:
        self.body += piece

    async def finish(self) -> None:
        self.finished, self.ended_at = True, self._clock.monotonic()

    async def heartbeat(self) -> None:
        self.heartbeats += 1

    async def fail(self, error: RequestError) -> None:
        self.error, self.ended_at = error, self._clock.monotonic()


def call(lane: Lane = Lane.INTERACTIVE, name: str = "c", **options: object) -> Call:
    """Return a chat call; `options` set further fields."""
    made = Call(name, "t", lane, "m", "/chat/completions", name.encode(), stream=True)
    for key, value in options.items():
        setattr(made, key, value)
    return made


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)
