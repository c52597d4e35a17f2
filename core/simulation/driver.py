"""Runs an engine on a clock, real or virtual, and hands its tokens to whoever waits for them."""

import asyncio
from collections.abc import Callable
from random import Random

from core.ports import Clock, TimerHandle
from core.simulation.engine import Condition, Engine, EngineSettings, Sequence, State


class GenerationLost(Exception):
    """The server lost a generation it had accepted (a replica died)."""


class Generation:
    """One request at the server, as its client sees it. Times are the clock's monotonic seconds.

    One task may wait for it at a time. `on_first` and `on_end` are called synchronously, if set.
    """

    __slots__ = (
        "_driver",
        "_reported",
        "_waiter",
        "ended",
        "first",
        "lost",
        "on_end",
        "on_first",
        "sequence",
        "submitted",
    )

    def __init__(self, driver: "EngineDriver", sequence: Sequence, submitted: float) -> None:
        self.sequence = sequence
        self.submitted = submitted
        self.first: float | None = None
        self.ended: float | None = None
        self.lost = False
        self.on_first: Callable[[Generation], None] | None = None
        self.on_end: Callable[[Generation], None] | None = None
        self._driver = driver
        self._reported = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Tell whether the last token came."""
        return self.sequence.state is State.DONE

    @property
    def tokens(self) -> int:
        """The tokens generated so far."""
        return self._driver.engine.tokens(self.sequence)

    async def more(self) -> int:
        """Wait for news and return how many tokens came since the last call; 0 is the end. Raises GenerationLost."""
        while True:
            if self.lost:
                raise GenerationLost
            new = self.tokens - self._reported
            if new or not self.sequence.live:
                self._reported += new
                return new
            await self._wait(streaming=True)

    async def complete(self) -> None:
        """Wait for the last token. Raises GenerationLost."""
        while self.sequence.live:
            await self._wait(streaming=False)
        if self.lost:
            raise GenerationLost

    def abort(self) -> None:
        """Stop generating; the engine's slot is free at once. Legal at any time."""
        self._driver.abort(self)

    async def _wait(self, *, streaming: bool) -> None:
        self._waiter = self._driver.waiter(self, streaming=streaming)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Let the waiting task, if any, look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineDriver:
    """Steps the engine as time passes, idle while there is nothing to do.

    `report_every` is how often, in seconds, waiting streams learn of new tokens: 0 is at each step; virtual time uses
    1 or more, so that hours stay cheap (first and last token are always told at once). `speed` makes every step that
    many times shorter.
    """

    def __init__(self, *, engine: Engine, clock: Clock, report_every: float = 0.0, speed: float = 1.0) -> None:
        self.engine = engine
        self.speed = speed
        self.requests = 0
        self.refused = 0
        self.aborted = 0
        self.lost = 0
        self.wasted_tokens = 0
        self.generated_tokens = 0
        self.max_in_flight = 0
        self._clock = clock
        self._report_every = report_every
        self._reported_at = 0.0
        self._began = 0.0
        self._timer: TimerHandle | None = None
        self._paused = False
        self._live: dict[Sequence, Generation] = {}
        self._streaming: set[Generation] = set()

    @property
    def paused(self) -> bool:
        """Tell whether the engine stands still."""
        return self._paused

    def submit(self, prompt: int, output: int, *, priority: int = 0) -> Generation:
        """Hand a request (in tokens) to the engine. Raises OverLimit."""
        self._settle()
        self.requests += 1
        try:
            sequence = self.engine.submit(prompt, output, priority)
        except Exception:
            self.refused += 1
            raise
        generation = Generation(self, sequence, self._clock.monotonic())
        self._live[sequence] = generation
        self.max_in_flight = max(self.max_in_flight, self.engine.in_flight)
        self._go_on()
        return generation

    def abort(self, generation: Generation) -> None:
        """Drop a generation at its client's wish. Nothing happens where it has ended."""
        if self._drop(generation):
            self.aborted += 1
            self.wasted_tokens += generation.tokens

    def kill(self, share: float, random: Random) -> int:
        """Lose each live generation with probability `share`, as a dying replica does; return how many."""
        victims = [generation for generation in self._live.values() if random.random() < share]
        for generation in victims:
            generation.lost = True
            self._drop(generation)
        self.lost += len(victims)
        return len(victims)

    def become(self, condition: Condition) -> None:
        """Let the server fare as `condition` says, from the next step on."""
        self._settle()
        self.engine.become(condition)

    def configure(self, settings: EngineSettings) -> None:
        """Let the engine have `settings`, from the next step on."""
        self._settle()
        self.engine.configure(settings)

    def pause(self) -> None:
        """Stand still: requests are taken, nothing is generated."""
        self._settle()
        self._paused = True
        self._disarm()

    def resume(self) -> None:
        """Go on after `pause`; the step that was under way starts again."""
        self._paused = False
        self._go_on()

    def waiter(self, generation: Generation, *, streaming: bool) -> "asyncio.Future[None]":
        """Return a future that is done when `generation` has news (`streaming`) or has ended."""
        if streaming and generation.first is not None:
            self._streaming.add(generation)
        return asyncio.get_running_loop().create_future()

    def _drop(self, generation: Generation) -> bool:
        if not generation.sequence.live:
            return False
        self._settle()
        self.engine.abort(generation.sequence)
        self._end(generation)
        return True

    def _settle(self) -> None:
        """Book what the engine has done until now, so that it may be changed."""
        stretch = self.engine.stretch
        if stretch is None or stretch.steps == 1 or self._timer is None:
            return
        elapsed = (self._clock.monotonic() - self._began) * self.speed
        self._began += self.engine.settle(elapsed) / self.speed
        step = self.engine.stretch
        assert step is not None
        self._arm(self._began + step.first / self.speed - self._clock.monotonic())

    def _go_on(self) -> None:
        if self._timer is not None or self._paused:
            return
        stretch = self.engine.stretch
        seconds = stretch.seconds(stretch.steps) if stretch else self.engine.begin(self._report_every * self.speed)
        if seconds is not None:
            self._began = self._clock.monotonic()
            self._arm(seconds / self.speed)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self._clock.call_later(max(0.0, seconds), self._complete)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _complete(self) -> None:
        self._timer = None
        progress = self.engine.complete()
        now = self._clock.monotonic()
        for sequence in progress.first:
            # A listener of an earlier one may have aborted it in this very moment.
            if sequence in self._live:
                self._first(self._live[sequence], now)
        for sequence in progress.finished:
            self._end(self._live[sequence])
            self.generated_tokens += sequence.output
        if now - self._reported_at >= self._report_every:
            self._report(now)
        self._go_on()

    def _first(self, generation: Generation, now: float) -> None:
        generation.first = now
        if generation.on_first is not None:
            generation.on_first(generation)
        generation.wake()

    def _end(self, generation: Generation) -> None:
        del self._live[generation.sequence]
        self._streaming.discard(generation)
        generation.ended = self._clock.monotonic()
        if generation.on_end is not None:
            generation.on_end(generation)
        generation.wake()

    def _report(self, now: float) -> None:
        self._reported_at = now
        told, self._streaming = self._streaming, set()
        for generation in told:
            generation.wake()
