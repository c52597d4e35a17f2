"""When requests arrive and how long they are: bursty, diurnal interactive traffic, batch lengths, waves, traces.

Interactive arrivals are Gamma gaps (burstier than Poisson) in operational time, whose rate follows the time of day and
a two-state Markov process (calm, burst). The same seed gives the same trace, whatever serves it.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from core.errors import InvalidValue

GRID = 0.25
"""Seconds in which the rate is taken as constant."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal lengths in tokens, cut to `shortest` .. `longest`."""

    median: float
    sigma: float
    shortest: int
    longest: int

    def draw(self, random: Random, times: float = 1.0) -> int:
        """Return one length; `times` stretches the distribution before it is cut."""
        drawn = times * random.lognormvariate(math.log(self.median), self.sigma)
        return int(min(self.longest, max(self.shortest, drawn)))


@dataclass(frozen=True, slots=True)
class Change:
    """From `start` until `end` (seconds) something is `factor` times what it was."""

    start: float
    end: float
    factor: float

    def at(self, time: float) -> float:
        """Return the factor in force at `time`."""
        return self.factor if self.start <= time < self.end else 1.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Interactive traffic. Rates in requests per second, times in seconds.

    The rate goes from `low` to `high` and back over `day` (constant `high` where `flat`), is 0 in `quiet` spans, and
    `burst` times as high in bursts of mean length `burst_on`, `burst_off` apart. `gap_cv` is the coefficient of
    variation of the gaps. `streamed` is the share of requests that stream; `longer` stretches the outputs.
    """

    seconds: float = 3 * 3600.0
    day: float = 3 * 3600.0
    low: float = 0.08
    high: float = 1.4
    flat: bool = False
    burst: float = 2.2
    burst_on: float = 45.0
    burst_off: float = 240.0
    gap_cv: float = 1.6
    quiet: tuple[tuple[float, float], ...] = ()
    streamed: float = 1.0
    longer: tuple[Change, ...] = ()
    prompts: Lengths = Lengths(500, 0.9, 8, 6000)
    outputs: Lengths = Lengths(150, 0.8, 2, 2000)

    def rate(self, time: float) -> float:
        """Return the calm rate at `time`."""
        if any(start <= time < end for start, end in self.quiet):
            return 0.0
        if self.flat:
            return self.high
        return self.low + (self.high - self.low) * (0.5 - 0.5 * math.cos(2 * math.pi * time / self.day))


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """One interactive request: when (seconds), how long (tokens), and whether its client streams."""

    at: float
    prompt: int
    output: int
    streamed: bool = True


@dataclass(frozen=True, slots=True)
class Batches:
    """Batch work without end; only in waves of (on, off) seconds where `waves` says so. `longer` stretches prompts."""

    prompts: Lengths = Lengths(1100, 0.7, 16, 8000)
    outputs: Lengths = Lengths(220, 0.7, 2, 2000)
    longer: tuple[Change, ...] = ()
    waves: tuple[float, float] | None = None

    def available(self, time: float) -> bool:
        """Tell whether there is batch work at `time`."""
        return self.waves is None or time % sum(self.waves) < self.waves[0]

    def next_start(self, time: float) -> float:
        """Return when the next wave begins, at `time` outside of one."""
        if self.waves is None:
            return time
        return (time // sum(self.waves) + 1) * sum(self.waves)

    def draw(self, random: Random, time: float) -> tuple[int, int]:
        """Return prompt and output length of one item."""
        times = math.prod(change.at(time) for change in self.longer)
        return self.prompts.draw(random, times), self.outputs.draw(random)


@dataclass(slots=True)
class _Bursts:
    """The bursts of a trace, asked for in order of time."""

    traffic: Traffic
    spans: list[tuple[float, float]] = field(default_factory=list)
    place: int = 0

    def fill(self, random: Random) -> None:
        time = random.expovariate(1 / self.traffic.burst_off)
        while time < self.traffic.seconds:
            end = time + random.expovariate(1 / self.traffic.burst_on)
            self.spans.append((time, end))
            time = end + random.expovariate(1 / self.traffic.burst_off)

    def factor(self, time: float) -> float:
        while self.place < len(self.spans) and self.spans[self.place][1] <= time:
            self.place += 1
        inside = self.place < len(self.spans) and self.spans[self.place][0] <= time
        return self.traffic.burst if inside else 1.0


def arrivals(traffic: Traffic, seed: int) -> list[Arrival]:
    """Return the interactive requests of `traffic` in order of time; the same ones for the same seed."""
    random = Random(seed * 7919 + 1)
    bursts = _Bursts(traffic)
    bursts.fill(random)
    return sorted(_generate(traffic, bursts, random))


def _generate(traffic: Traffic, bursts: _Bursts, random: Random) -> Iterator[Arrival]:
    shape = 1.0 / traffic.gap_cv**2
    gap = random.gammavariate(shape, 1 / shape)
    passed = 0.0
    for cell in range(int(traffic.seconds / GRID)):
        time = cell * GRID
        passed += traffic.rate(time) * bursts.factor(time) * GRID
        while passed >= gap:
            passed -= gap
            gap = random.gammavariate(shape, 1 / shape)
            yield _draw(traffic, time, random)


def _draw(traffic: Traffic, time: float, random: Random) -> Arrival:
    prompt = traffic.prompts.draw(random)
    output = traffic.outputs.draw(random)
    for change in traffic.longer:
        output = min(4 * traffic.outputs.longest, int(output * change.at(time)))
    streamed = random.random() < traffic.streamed
    return Arrival(time + random.random() * GRID, prompt, output, streamed)


def read_trace(path: Path, *, faster: float = 1.0) -> list[Arrival]:
    """Read a CSV of `offset_s,input_tokens,output_tokens`; `faster` divides the offsets.

    A file without offsets holds lengths alone: all arrive at 0. Raises InvalidValue naming the line.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        missing = {"input_tokens", "output_tokens"} - set(rows.fieldnames or ())
        if missing:
            raise InvalidValue(path.name, f"line 1: the columns {', '.join(sorted(missing))} are missing")
        return [_read_row(path.name, rows.line_num, row, faster) for row in rows]


def _read_row(name: str, line: int, row: dict[str, str], faster: float) -> Arrival:
    try:
        at = float(row.get("offset_s") or 0.0) / faster
        return Arrival(at, int(row["input_tokens"]), int(row["output_tokens"]))
    except (TypeError, ValueError) as error:
        raise InvalidValue(name, f"line {line}: {error}") from None
