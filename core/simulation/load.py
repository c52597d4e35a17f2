"""Clients that put load on a real server over its API: chat users that follow a trace, and a flood of batch calls."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from core.errors import RequestError
from core.lanes import Lane
from core.ports import Clock, Upstream, UpstreamAnswer, UpstreamRequest
from core.scheduling.answer_scan import BodyScan, StreamScan
from core.simulation.arrivals import Arrival, Batches
from core.simulation.prompts import BYTES_PER_TOKEN

PATH = "/chat/completions"
AFTER_REFUSAL_S = 0.5
_HEADERS = {
    Lane.INTERACTIVE: ((b"content-type", b"application/json"),),
    Lane.BATCH: ((b"content-type", b"application/json"), (b"x-tidegate-lane", b"batch")),
}


@dataclass(slots=True)
class Shot:
    """One call and what became of it. Times in the clock's seconds; `due` is when its trace wanted it sent.

    `first` is the first piece of content of a stream. `error` is a stable word, `None` where all went well. `tokens`
    are those of the server's usage, or else the content pieces.
    """

    lane: Lane
    due: float
    first: float | None = None
    ended: float | None = None
    error: str | None = None
    tokens: int = 0


class Caller:
    """Sends chat calls to one server and notes how they went. Prompts differ, so that no cache answers for them."""

    def __init__(self, *, upstream: Upstream, clock: Clock, model: str) -> None:
        self.clock = clock
        self._upstream = upstream
        self._model = model

    async def ask(self, shot: Shot, *, number: int, prompt: int, output: int, stream: bool) -> None:
        """Send one call of `prompt` tokens that wants `output` tokens, and fill in `shot`; raises no RequestError."""
        body = chat_body(self._model, number, prompt, output, stream=stream)
        try:
            answer = await self._upstream.send(UpstreamRequest("POST", PATH, body, _HEADERS[shot.lane]))
            try:
                await self._read(answer, shot, stream=stream)
            finally:
                answer.close()
        except RequestError as error:
            shot.error = error.code
        shot.ended = self.clock.monotonic()

    async def _read(self, answer: UpstreamAnswer, shot: Shot, *, stream: bool) -> None:
        scan = StreamScan(PATH) if stream else BodyScan()
        while piece := await answer.read():
            if scan.feed(piece) and shot.first is None:
                shot.first = self.clock.monotonic()
        if isinstance(scan, BodyScan):
            scan.finish()
        shot.tokens = scan.pieces if scan.output_tokens is None else scan.output_tokens
        if answer.status != 200:
            shot.error = f"http_{answer.status}"
        elif not scan.complete:
            shot.error = "incomplete"


class ChatUsers:
    """Sends each arrival of a trace when it is due, whatever became of those before.

    `on_send` is given every call as it is sent, to be read later.
    """

    def __init__(self, *, caller: Caller, arrivals: Sequence[Arrival], on_send: Callable[[Shot], object]) -> None:
        self._caller = caller
        self._arrivals = arrivals
        self._on_send = on_send

    async def run(self) -> None:
        """Send them all and wait for every answer."""
        clock = self._caller.clock
        start = clock.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number, arrival in enumerate(self._arrivals):
                shot = Shot(Lane.INTERACTIVE, start + arrival.at)
                await clock.sleep(max(0.0, shot.due - clock.monotonic()))
                self._on_send(shot)
                asked = self._caller.ask(
                    shot, number=number, prompt=arrival.prompt, output=arrival.output, stream=arrival.streamed
                )
                tasks.create_task(asked, name=f"chat user {number}")


class Flood:
    """Keeps `width` batch calls open at all times, for ever: the same items in the same order each time.

    Whoever's call fails waits for `AFTER_REFUSAL_S` before the next. `on_end` is given every call that ended.
    """

    def __init__(
        self,
        *,
        caller: Caller,
        batches: Batches,
        width: int,
        on_end: Callable[[Shot], object],
        stream: bool = False,
    ) -> None:
        self._caller = caller
        self._width = width
        self._stream = stream
        self._on_end = on_end
        self._items = _items(batches)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for place in range(self._width):
                tasks.create_task(self._work(), name=f"flood {place}")

    async def _work(self) -> None:
        clock = self._caller.clock
        for number, prompt, output in self._items:
            shot = Shot(Lane.BATCH, clock.monotonic())
            await self._caller.ask(shot, number=number, prompt=prompt, output=output, stream=self._stream)
            self._on_end(shot)
            if shot.error is not None:
                await clock.sleep(AFTER_REFUSAL_S)


def chat_body(model: str, number: int, prompt: int, output: int, *, stream: bool) -> bytes:
    """Return a chat call whose body is about `prompt` tokens long and which asks for `output` tokens."""
    around = len(_chat(model, f"{number} ", output, stream=stream))
    padding = "tide " * max(0, (prompt * BYTES_PER_TOKEN - around) // len("tide "))
    return _chat(model, f"{number} {padding}", output, stream=stream)


def _chat(model: str, text: str, output: int, *, stream: bool) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": output, "stream": stream}).encode()


def _items(batches: Batches) -> Iterator[tuple[int, int, int]]:
    random, number = Random(1), 0
    while True:
        prompt, output = batches.draw(random, 0.0)
        yield number, prompt, output
        number += 1
