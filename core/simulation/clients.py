"""Who sends requests in a simulation: interactive clients, as real SDKs behave, and a batch backlog without end."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from core.errors import RequestError
from core.lanes import Lane
from core.ports import Clock
from core.scheduling.calls import Call, Headers
from core.scheduling.exchange import Exchange
from core.scheduling.gateway import Gateway
from core.simulation.arrivals import Arrival, Batches
from core.simulation.driver import Generation
from core.simulation.prompts import Prompt

MODEL = "simulated"
MOST_TRIES = 5
"""Sends of one interactive request whose answer is 429; between them the client backs off as SDKs do."""

BACKLOG = 2
"""Batch items that always wait in the gateway, so that a free slot never lacks work."""


@dataclass(slots=True, eq=False)
class Record:
    """What became of one interactive request. Times in the loop's seconds."""

    arrival: Arrival
    generation: Generation | None = None
    failed: bool = False
    done: bool = False

    @property
    def first_token_s(self) -> float | None:
        """From arrival to the first token, streamed or not; `None` while there is none."""
        generation = self.generation
        return None if generation is None or generation.first is None else generation.first - self.arrival.at

    @property
    def total_s(self) -> float:
        """From arrival to the last token."""
        assert self.generation is not None
        assert self.generation.ended is not None
        return self.generation.ended - self.arrival.at

    @property
    def per_token_s(self) -> float | None:
        """The mean time per token after the first; `None` where there are not more than 8."""
        generation, output = self.generation, self.arrival.output
        if generation is None or generation.first is None or generation.ended is None or output <= 8:
            return None
        return (generation.ended - generation.first) / (output - 1)


class Sink:
    """A reply that keeps nothing but how the request ended."""

    def __init__(self) -> None:
        self.started = False
        self.status: int | None = None
        self.error: RequestError | None = None
        self.finished = False

    @property
    def ok(self) -> bool:
        """Tell whether a whole, successful answer came."""
        return self.finished and self.error is None and self.status == 200

    @property
    def refused(self) -> bool:
        """Tell whether the answer was 429."""
        return self.status == 429 or (self.error is not None and self.error.status == 429)

    async def start(self, status: int, headers: Headers) -> None:
        """Take the head."""
        self.started, self.status = True, status

    async def send(self, piece: bytes) -> None:
        """Take a piece."""

    async def finish(self) -> None:
        """Take the end."""
        self.finished = True

    async def heartbeat(self) -> None:
        """Take a sign of life."""

    async def fail(self, error: RequestError) -> None:
        """Take an error."""
        self.error = error


class Desk:
    """Tells each client of the generations that the server runs for it, by the tag in the request."""

    def __init__(self) -> None:
        self.refused = {Lane.INTERACTIVE: 0, Lane.BATCH: 0}
        self._takers: dict[str, Callable[[Generation], None]] = {}

    def open(self, tag: str, taker: Callable[[Generation], None]) -> None:
        """Let `taker` have the generations of the requests tagged `tag`."""
        self._takers[tag] = taker

    def close(self, tag: str) -> None:
        """Forget a tag."""
        del self._takers[tag]

    def note(self, prompt: Prompt, generation: Generation | None) -> None:
        """Take what the server observed (see `core.simulation.upstream.Observer`)."""
        tag = prompt.wishes.tag
        if generation is not None:
            self._takers[tag](generation)
        else:
            self.refused[Lane.INTERACTIVE if tag.startswith("i") else Lane.BATCH] += 1


def _call(lane: Lane, number: int, prompt: int, output: int, *, stream: bool, paced: bool = True) -> Call:
    tag = f"{lane[0]}{number}"
    body = (
        f'{{"model":"{MODEL}","stream":{"true" if stream else "false"},'
        f'"sim":{{"prompt_tokens":{prompt},"output_tokens":{output},"tag":"{tag}"}}}}'
    )
    durable = lane is Lane.BATCH
    return Call(
        id=tag,
        tenant="simulation",
        lane=lane,
        model=MODEL,
        path="/chat/completions",
        body=body.encode(),
        stream=stream,
        max_tokens=output,
        has_tokens=paced,
        durable=durable,
        source=f"batch-{number % 8}" if durable else "",
    )


class InteractiveClients:
    """Sends each arrival at its time and keeps a record of it.

    `on_first` and `on_done` are told of first tokens of streams and of ended requests as they come.
    """

    def __init__(
        self,
        *,
        gateway: Gateway,
        clock: Clock,
        desk: Desk,
        arrivals: Sequence[Arrival],
        random: Random,
        on_first: Callable[[Record], None],
        on_done: Callable[[Record], None],
    ) -> None:
        self.records: list[Record] = []
        self._gateway = gateway
        self._clock = clock
        self._desk = desk
        self._arrivals = arrivals
        self._random = random
        self._on_first = on_first
        self._on_done = on_done

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Send them all, each in a task of its own."""
        for number, arrival in enumerate(self._arrivals):
            await self._clock.sleep(arrival.at - self._clock.monotonic())
            record = Record(arrival)
            self.records.append(record)
            tasks.create_task(self._ask(number, record))

    async def _ask(self, number: int, record: Record) -> None:
        arrival = record.arrival
        call = _call(Lane.INTERACTIVE, number, arrival.prompt, arrival.output, stream=arrival.streamed)
        self._desk.open(call.id, lambda generation: self._began(record, generation))
        for attempt in range(MOST_TRIES):
            sink = Sink()
            await Exchange(self._gateway, call, sink).run()
            if not sink.refused or attempt == MOST_TRIES - 1:
                break
            await self._clock.sleep(min(8.0, 0.5 * 2**attempt) * (0.5 + self._random.random()))
        self._desk.close(call.id)
        record.failed, record.done = not sink.ok, True
        self._on_done(record)

    def _began(self, record: Record, generation: Generation) -> None:
        record.generation = generation
        if record.arrival.streamed:
            generation.on_first = lambda _: self._on_first(record)


@dataclass(slots=True, eq=False)
class Item:
    """One batch item; `generation` is its present one."""

    prompt: int
    output: int
    generation: Generation | None = None

    @property
    def running(self) -> bool:
        """Tell whether the server works on it."""
        return self.generation is not None and self.generation.ended is None


class BatchSource:
    """Keeps a few durable items waiting in the gateway whenever there is batch work; retries what failed.

    Where `paced` is False the items are declared to have no tokens, which the dispatcher does not pace.
    `finished` lists (time, output tokens, prompt tokens) of each item that is done.
    """

    def __init__(
        self,
        *,
        gateway: Gateway,
        clock: Clock,
        desk: Desk,
        batches: Batches,
        random: Random,
        paced: bool = True,
    ) -> None:
        self.finished: list[tuple[float, int, int]] = []
        self._gateway = gateway
        self._clock = clock
        self._desk = desk
        self._batches = batches
        self._random = random
        self._paced = paced
        self._out: set[Item] = set()
        self._again: list[Item] = []
        self._not_before = 0.0
        self._number = 0
        self._work = asyncio.Event()

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Feed the gateway for ever."""
        while True:
            self._work.clear()
            now = self._clock.monotonic()
            if now < self._not_before:
                await self._clock.sleep(self._not_before - now)
            elif not self._batches.available(now):
                await self._clock.sleep(self._batches.next_start(now) - now)
            else:
                self._fill(tasks, now)
                await self._work.wait()

    def _fill(self, tasks: asyncio.TaskGroup, now: float) -> None:
        waiting = sum(not item.running for item in self._out)
        for _ in range(BACKLOG - waiting):
            item = self._again.pop() if self._again else Item(*self._batches.draw(self._random, now))
            self._out.add(item)
            tasks.create_task(self._work_on(item))

    async def _work_on(self, item: Item) -> None:
        self._number += 1
        call = _call(Lane.BATCH, self._number, item.prompt, item.output, stream=True, paced=self._paced)
        self._desk.open(call.id, lambda generation: self._began(item, generation))
        sink = Sink()
        await Exchange(self._gateway, call, sink).run()
        self._desk.close(call.id)
        self._out.discard(item)
        self._ended(item, sink)
        self._work.set()

    def _began(self, item: Item, generation: Generation) -> None:
        item.generation = generation
        self._work.set()

    def _ended(self, item: Item, sink: Sink) -> None:
        now = self._clock.monotonic()
        if sink.ok:
            self.finished.append((now, item.output, item.prompt))
            return
        item.generation = None
        self._again.append(item)
        if sink.refused:
            self._not_before = now + 1.0 + self._random.random()
