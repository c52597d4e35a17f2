"""`tidegate bench`: the same interactive trace alone, with a flood straight to the server, and through Tidegate.

Afterwards every fixed quota is tried for a shorter time, so that what the controller found can be held against the
best of them. All runs have the same slots, reserve and ceiling, and the same items in the flood.
"""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import httpx2
from pydantic import SecretStr

from core.changes import FOREVER, PoolPatch
from core.config import BudgetConfig, Settings
from core.ports import Upstream
from core.quotas import default_reserve
from core.runtime import http_upstream
from core.simulation.arms import Arm, Run, Server, Span, Target, targets
from core.simulation.arrivals import Arrival, Batches, Lengths, Traffic, arrivals, read_trace
from core.simulation.clients import MODEL
from core.simulation.load import Caller, ChatUsers, Flood, Shot
from web.serving import run_to_end
from web.simulated import simulated_upstream
from web.stage import Stage, gateway, play

POOL = "default"
HELD_WARM_UP = 8.0
"""Seconds at the start of a run under a fixed quota that do not count: there is nothing to be found."""
PATIENCE = 60.0
"""Seconds after a run's end within which its last interactive calls are awaited, the flood going on."""
FLOOD_PER_SLOT = 4
CHAT = Lengths(80, 0.6, 8, 400)
ITEMS = Batches(prompts=Lengths(800, 0.6, 16, 4000), outputs=Lengths(120, 0.6, 8, 600))


Progress = Callable[[str, float], None]
"""Is told how the bench gets on: the run's name, and the seconds of it that have passed."""


class Interrupted(Exception):
    """A signal asked the bench to stop."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. `seconds` is how long each of the three arms counts, after `warm_up` seconds (of a server as
    fast as a real one) in which the flood fills up and the controller finds its limit. Every fixed quota runs on the
    first half of what counts.

    `rate` is interactive calls per second (`None`: one per 8 slots, or the trace's own). `upstream` is a real server's
    base URL, `None` for the simulated one, `speed` times as fast as a real one. `stream` lets the flood stream too.
    """

    slots: int = 8
    seconds: float = 60.0
    warm_up: float = 20.0
    rate: float | None = None
    trace: Path | None = None
    upstream: str | None = None
    model: str = MODEL
    api_key: str | None = None
    speed: float = 1.0
    stream: bool = False
    scan: bool = True

    def settings(self, upstream: str, data: Path) -> Settings:
        """Return the gateway's settings; budgets and tick are as much shorter as the simulated server is faster."""
        reserve = default_reserve(self.slots)
        return Settings(
            upstream=upstream,
            upstream_key=SecretStr(self.api_key) if self.api_key else None,
            slots=self.slots,
            reserve=reserve,
            ceiling=self.slots - reserve,
            data=data,
            port=0,
            tick=max(0.05, 5.0 / self.speed),
            budgets=BudgetConfig(first_token_s=1.0 / self.speed, per_token_ms=75.0 / self.speed),
        )

    def lead(self, *, held: bool) -> float:
        """Return the seconds at the start of a run that do not count, with or without a fixed quota."""
        return (min(HELD_WARM_UP, self.warm_up) if held else self.warm_up) / self.speed

    def counted(self, *, held: bool) -> float:
        """Return the seconds of a run that count, with or without a fixed quota."""
        return self.seconds / 2 if held else self.seconds

    def part(self, *, held: bool) -> list[Arrival]:
        """Return the interactive calls of a run. What counts begins at the same call in every run."""
        skipped = self.lead(held=False) - self.lead(held=held)
        calls = self.arrivals(self.lead(held=False) + self.counted(held=held))
        return [replace(call, at=call.at - skipped) for call in calls if call.at >= skipped]

    def arrivals(self, seconds: float) -> list[Arrival]:
        """Return the interactive calls of the first `seconds`. Raises InvalidValue for a malformed trace."""
        span = seconds * self.speed
        return [replace(each, at=each.at / self.speed) for each in self._calls(span) if each.at < span]

    def _calls(self, span: float) -> list[Arrival]:
        if self.trace is None:
            rate = self.rate or self.slots / 8
            return arrivals(Traffic(seconds=span, flat=True, high=rate, gap_cv=1.1, burst=1.5, outputs=CHAT), 1)
        calls = read_trace(self.trace)
        length = calls[-1].at if calls else 0.0
        faster = self.rate * length / len(calls) if self.rate and length else 1.0
        return [replace(each, at=each.at / faster) for each in calls]


@dataclass(frozen=True, slots=True)
class Report:
    """All that the bench measured."""

    plan: Plan
    arms: Sequence[Arm]
    scan: Sequence[Arm]
    targets: Sequence[Target]


def total_seconds(plan: Plan, quotas: int) -> float:
    """Return about how long the bench takes."""
    arm, held = (plan.lead(held=held) + plan.counted(held=held) for held in (False, True))
    return 3 * arm + (quotas * held if plan.scan else 0.0)


class Bench:
    """Runs every arm on one trace, one after the other."""

    def __init__(self, *, plan: Plan, stage: Stage, upstream: str, progress: Progress) -> None:
        self._plan = plan
        self._stage = stage
        self._simulated = plan.upstream is None
        self._sim = upstream.removesuffix("/v1") + "/sim"
        self._straight = http_upstream(upstream, plan.api_key)
        self._through = http_upstream(f"{stage.address}/v1", None)
        self._progress = progress

    async def __aenter__(self) -> "Bench":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._straight.close()
        await self._through.close()

    async def run(self) -> Report:
        """Measure everything."""
        plan = self._plan
        alone = await self._arm("alone", self._straight, width=0)
        width = FLOOD_PER_SLOT * plan.slots
        straight = await self._arm("flood straight", self._straight, width=width)
        through = await self._arm("flood through Tidegate", self._through, width=width)
        scan = [await self._held(quota, width) for quota in self.quotas] if plan.scan else []
        return Report(
            plan=plan,
            arms=[alone.arm(), straight.arm(), through.arm()],
            scan=[held.arm() for held in scan],
            targets=targets(alone=alone, through=through, scan=scan, slots=plan.slots),
        )

    @property
    def quotas(self) -> Sequence[int]:
        """The fixed quotas that are tried."""
        return range(1, self._stage.runtime.pools[POOL].settings.batch_max + 1)

    async def _held(self, quota: int, width: int) -> Run:
        await self._change(PoolPatch(hold=quota, hold_for=FOREVER, reason="the bench tries every fixed quota"))
        try:
            return await self._arm(f"quota fixed at {quota}", self._through, width=width, quota=quota)
        finally:
            await self._change(PoolPatch(auto=True))

    async def _change(self, patch: PoolPatch) -> None:
        runtime = self._stage.runtime
        await runtime.operations.change_pool(POOL, patch, by="bench", based_on=None)
        await runtime.reload()

    async def _arm(self, name: str, upstream: Upstream, *, width: int, quota: int | None = None) -> Run:
        plan, clock, held = self._plan, self._stage.runtime.clock, quota is not None
        caller = Caller(upstream=upstream, clock=clock, model=plan.model)
        lead = plan.lead(held=held)
        seconds = lead + plan.counted(held=held)
        chat: list[Shot] = []
        batch: list[Shot] = []
        users = ChatUsers(caller=caller, arrivals=plan.part(held=held), on_send=chat.append)
        flood = Flood(caller=caller, batches=ITEMS, width=width, stream=plan.stream, on_end=batch.append)
        await self._reset_counts()
        start = clock.monotonic()
        acts = [self._until_answered(users, seconds), self._tick(name, seconds)]
        if width:
            acts.append(flood.run())
        await play(self._stage, *acts, seconds=seconds + PATIENCE / plan.speed)
        if self._stage.stopped.is_set():
            raise Interrupted
        ended, server = clock.monotonic(), await self._server_counts()
        await self._settled()
        span = Span(start + lead, start + seconds)
        return Run(name, chat, batch, span=span, ended=ended, quota=quota, server=server)

    async def _until_answered(self, users: ChatUsers, seconds: float) -> None:
        """End when the users have had all their answers, but not before `seconds` are over."""
        await asyncio.gather(users.run(), self._stage.runtime.clock.sleep(seconds))

    async def _tick(self, name: str, seconds: float) -> None:
        clock = self._stage.runtime.clock
        start = clock.monotonic()
        while True:
            self._progress(name, min(seconds, clock.monotonic() - start))
            await clock.sleep(0.25)

    async def _settled(self) -> None:
        """Wait until the gateway and the simulated server are empty, so that one run leaves nothing to the next."""
        pool = self._stage.runtime.pools[POOL]
        for _ in range(200):
            if not (pool.counts.interactive + pool.counts.batch or await self._in_flight()):
                return
            await asyncio.sleep(0.05)

    async def _in_flight(self) -> int:
        return int((await self._ask_server()).get("in_flight", 0)) if self._simulated else 0

    async def _server_counts(self) -> Server | None:
        if not self._simulated:
            return None
        told = await self._ask_server()
        return Server(told["max_in_flight"], told["over_slots"])

    async def _reset_counts(self) -> None:
        if self._simulated:
            async with httpx2.AsyncClient() as client:
                (await client.post(self._sim, json={"reset_counts": True})).raise_for_status()

    async def _ask_server(self) -> dict[str, int]:
        async with httpx2.AsyncClient() as client:
            told: dict[str, int] = (await client.get(self._sim)).raise_for_status().json()
        return told


def bench(plan: Plan, *, progress: Callable[[float], Progress]) -> Report:
    """Measure what `plan` says; `progress` is given the seconds that it takes. Raises ConfigError, Interrupted."""
    found: list[Report] = []

    async def main(upstream: str, data: Path) -> None:
        async with gateway(plan.settings(upstream, data)) as stage:
            quotas = stage.runtime.pools[POOL].settings.batch_max
            told = progress(total_seconds(plan, quotas))
            async with Bench(plan=plan, stage=stage, upstream=upstream, progress=told) as running:
                found.append(await running.run())

    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-bench-")))
        upstream = plan.upstream or stack.enter_context(simulated_upstream(slots=plan.slots, speed=plan.speed))
        run_to_end(main(upstream, data))
    return found[0]
