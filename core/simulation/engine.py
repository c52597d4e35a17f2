"""A model of one continuous-batching model server: steps, chunked prefill, a KV cache and a queue. No clock, no I/O.

In each step every decoding sequence gets one token and the oldest waiting prompts are prefilled up to `chunk` tokens.
A step lasts `base + per_sequence * decoding + per_prefill_token * prefilled + per_cached_token * cached` seconds. Runs
of steps without prefill are worked off in one stretch, and sequences end by a heap keyed by the step in which they do:
the cost of a step does not depend on how many sequences run. The constants resemble a mid-sized model on one GPU.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

KV_WATERMARK = 0.98
"""Prompts are admitted up to this share of the KV cache."""

MIN_PREFILL = 64
"""Prompt tokens that a step always has room for, however many sequences decode."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the server is like. Seconds and tokens; `hidden_limit` 0 means that it refuses nobody.

    `honours_priority` lets lower priorities go first in the queue, and be the last to lose their KV cache.
    """

    base: float = 0.020
    per_sequence: float = 0.00025
    per_prefill_token: float = 0.00012
    per_cached_token: float = 2.5e-8
    chunk: int = 1024
    max_sequences: int = 64
    kv_tokens: int = 110_000
    honours_priority: bool = False
    hidden_limit: int = 0


@dataclass(frozen=True, slots=True)
class Condition:
    """How the server fares now: every step `slow` times longer; `share` of its replicas alive (the work of a step, the
    sequences and the cache are shared out among fewer); its hidden limit times `limit_share`.
    """

    slow: float = 1.0
    share: float = 1.0
    limit_share: float = 1.0


class State(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"
    ABORTED = "aborted"


class OverLimit(Exception):
    """The server refuses a request: as many are in flight as its hidden limit allows (HTTP 429)."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine. `prompt` and `output` in tokens; the rest belongs to the engine."""

    prompt: int
    output: int
    priority: int = 0
    state: State = State.WAITING
    order: int = 0
    to_prefill: int = 0
    cached: int = 0
    left: int = 0
    born: int = 0
    last_step: int = 0

    @property
    def live(self) -> bool:
        """Tell whether it still waits or runs."""
        return self.state not in (State.DONE, State.ABORTED)


@dataclass(slots=True)
class Stretch:
    """Steps under way: `steps` of them, the first `first` seconds long, each later one longer by `growth`."""

    steps: int
    first: float
    growth: float = 0.0
    prefilled: list[Sequence] = field(default_factory=list)

    def seconds(self, steps: int) -> float:
        """Return how long the first `steps` steps last."""
        return steps * self.first + self.growth * steps * (steps - 1) / 2

    def whole_steps(self, elapsed: float) -> int:
        """Return how many steps are over after `elapsed` seconds; at least the last one never is."""
        if self.steps == 1 or elapsed < self.first:
            return 0
        linear = self.first - self.growth / 2
        root = math.sqrt(linear * linear + 2 * self.growth * elapsed)
        return min(int(2 * elapsed / (linear + root)), self.steps - 1)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a stretch brought: sequences with their first token, and sequences with their last."""

    first: list[Sequence]
    finished: list[Sequence]


class Engine:
    """The server's scheduler and its costs.

    The owner tells time: `begin` starts a stretch and says how long it takes, `complete` ends it, `settle` books the
    steps of a stretch that are already over (call it before anything is changed while a stretch is under way).
    """

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.step = 0
        self.cached = 0
        self.running = 0
        self.decoding = 0
        self.recomputed = 0
        self.in_flight = 0
        self.stretch: Stretch | None = None
        self._order = 0
        self._front = 0
        self._queue: list[tuple[int, int, Sequence]] = []
        self._prefill: deque[Sequence] = deque()
        self._ends: list[tuple[int, int, Sequence]] = []
        self.condition = Condition()
        self.become(self.condition)

    def become(self, condition: Condition) -> None:
        """Let `condition` hold from the next stretch on. Running sequences are left alone."""
        self.condition = condition
        self._sequence_cap = max(1, int(self.settings.max_sequences * condition.share))
        self._kv_cap = int(self.settings.kv_tokens * condition.share)

    def configure(self, settings: EngineSettings) -> None:
        """Let `settings` be in force from the next stretch on."""
        self.settings = settings
        self.become(self.condition)

    @property
    def waiting(self) -> int:
        """The requests that no slot of the engine runs yet."""
        return self.in_flight - self.running

    def submit(self, prompt: int, output: int, priority: int = 0) -> Sequence:
        """Queue a request of `prompt` tokens that will generate `output` (both at least 1). Raises OverLimit."""
        limit = self.settings.hidden_limit * self.condition.limit_share
        if limit and self.in_flight >= limit:
            raise OverLimit
        self._order += 1
        output = max(1, output)
        sequence = Sequence(max(1, prompt), output, priority, order=self._order, left=output)
        sequence.to_prefill = sequence.prompt
        self.in_flight += 1
        self._enqueue(sequence, self._order)
        return sequence

    def tokens(self, sequence: Sequence) -> int:
        """Return how many tokens `sequence` has generated so far."""
        made = sequence.output - sequence.left
        return made + self.step - sequence.born if sequence.state is State.DECODE else made

    def abort(self, sequence: Sequence) -> None:
        """Drop `sequence` wherever it is and free what it holds at once. Nothing happens where it has ended."""
        if not sequence.live:
            return
        sequence.left = sequence.output - self.tokens(sequence)
        if sequence.state is not State.WAITING:
            self._vacate(sequence)
        sequence.state = State.ABORTED
        self.in_flight -= 1

    def begin(self, horizon: float = 0.0) -> float | None:
        """Start the next stretch and return its seconds, `None` where there is nothing to do.

        It is one step if prompts are prefilled, else as many as fit into `horizon` seconds before a sequence ends.
        """
        self._admit()
        if not self.running:
            return None
        self._make_room()
        prefilled, work = self._take_prefill()
        first = self._step_seconds(work)
        if work:
            self.stretch = Stretch(1, first, prefilled=prefilled)
            return first
        growth = self.settings.per_cached_token * self.decoding * self.condition.slow / self.condition.share
        self.stretch = Stretch(self._free_steps(horizon, first), first, growth)
        return self.stretch.seconds(self.stretch.steps)

    def settle(self, elapsed: float) -> float:
        """Book the whole steps that are over `elapsed` seconds into the stretch, and leave one step of it to complete.

        Returns how many seconds into the stretch that step began; its length is `stretch.first`.
        """
        stretch = self.stretch
        if stretch is None:
            return 0.0
        done = stretch.whole_steps(elapsed)
        began = stretch.seconds(done)
        self.step += done
        self.cached += self.decoding * done
        self.stretch = Stretch(1, stretch.first + stretch.growth * done, prefilled=stretch.prefilled)
        return began

    def complete(self) -> Progress:
        """End the stretch and return what it brought."""
        stretch, self.stretch = self.stretch, None
        if stretch is None:
            return Progress([], [])
        self.step += stretch.steps
        self.cached += self.decoding * stretch.steps
        first: list[Sequence] = []
        finished: list[Sequence] = []
        for sequence in stretch.prefilled:
            if sequence.state is State.PREFILL:
                self._start_decode(sequence, first, finished)
        ends = self._ends
        while ends and ends[0][0] <= self.step:
            step, _, sequence = heapq.heappop(ends)
            if sequence.state is State.DECODE and sequence.last_step == step:
                self._finish(sequence, finished)
        return Progress(first, finished)

    def _enqueue(self, sequence: Sequence, place: int) -> None:
        sequence.state = State.WAITING
        heapq.heappush(self._queue, (self._rank(sequence), place, sequence))

    def _rank(self, sequence: Sequence) -> int:
        return sequence.priority if self.settings.honours_priority else 0

    def _admit(self) -> None:
        queue = self._queue
        while queue and self.running < self._sequence_cap:
            sequence = queue[0][2]
            if sequence.state is State.WAITING:
                if self.running and self.cached + sequence.to_prefill > self._kv_cap * KV_WATERMARK:
                    return
                sequence.state, sequence.cached = State.PREFILL, 0
                self.running += 1
                self._prefill.append(sequence)
            heapq.heappop(queue)

    def _make_room(self) -> None:
        while self.decoding > 1 and self.cached + self.decoding > self._kv_cap:
            decoding = (entry[2] for entry in self._ends if entry[2].state is State.DECODE)
            self._recompute(max(decoding, key=lambda sequence: (self._rank(sequence), sequence.order)))

    def _recompute(self, sequence: Sequence) -> None:
        """Take the cache away from `sequence` and put it at the head of the queue, to be prefilled anew."""
        made = self.step - sequence.born
        self._vacate(sequence)
        sequence.to_prefill = sequence.cached + made
        sequence.left = max(1, sequence.left - made)
        self.recomputed += 1
        self._front -= 1
        self._enqueue(sequence, self._front)

    def _vacate(self, sequence: Sequence) -> None:
        self.running -= 1
        self.cached -= sequence.cached
        if sequence.state is State.DECODE:
            self.decoding -= 1
            self.cached -= self.step - sequence.born

    def _take_prefill(self) -> tuple[list[Sequence], int]:
        budget = max(MIN_PREFILL, self.settings.chunk - self.decoding)
        work = 0
        ready: list[Sequence] = []
        while self._prefill and work < budget:
            sequence = self._prefill[0]
            if sequence.state is State.PREFILL:
                take = min(budget - work, sequence.to_prefill - sequence.cached)
                sequence.cached += take
                work += take
                if sequence.cached < sequence.to_prefill:
                    break
                ready.append(sequence)
            self._prefill.popleft()
        self.cached += work
        return ready, work

    def _step_seconds(self, prefill: int) -> float:
        costs = self.settings
        work = costs.per_sequence * self.decoding + costs.per_prefill_token * prefill
        work += costs.per_cached_token * self.cached
        return (costs.base + work / self.condition.share) * self.condition.slow

    def _free_steps(self, horizon: float, first: float) -> int:
        ends = self._ends
        while ends and (ends[0][2].state is not State.DECODE or ends[0][2].last_step != ends[0][0]):
            heapq.heappop(ends)
        to_end = ends[0][0] - self.step if ends else 1
        room = (self._kv_cap - self.cached) // max(1, self.decoding)
        return max(1, min(to_end, int(horizon / first), room))

    def _start_decode(self, sequence: Sequence, first: list[Sequence], finished: list[Sequence]) -> None:
        if sequence.left == sequence.output:
            first.append(sequence)
        sequence.left -= 1
        if sequence.left <= 0:
            self._finish(sequence, finished)
            return
        sequence.state, sequence.born = State.DECODE, self.step
        sequence.last_step = self.step + sequence.left
        self.decoding += 1
        heapq.heappush(self._ends, (sequence.last_step, sequence.order, sequence))

    def _finish(self, sequence: Sequence, finished: list[Sequence]) -> None:
        self._vacate(sequence)
        sequence.left, sequence.state = 0, State.DONE
        self.in_flight -= 1
        finished.append(sequence)
