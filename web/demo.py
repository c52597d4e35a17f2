"""`tidegate demo`: chat users and a batch flood before a simulated server that loses half its capacity for a while.

The server is a process of its own; the gateway is the one that `serve` runs, in this process.
"""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2

from core.config import BudgetConfig, Settings
from core.overview import Reading
from core.runtime import http_upstream
from core.simulation.arrivals import Arrival, Batches, Lengths, Traffic, arrivals
from core.simulation.clients import MODEL
from core.simulation.load import Caller, ChatUsers, Flood, Shot
from web.serving import run_to_end
from web.simulated import simulated_upstream
from web.stage import Stage, gateway, play

POOL = "default"
LOSS_AFTER, LOSS_LASTS, CYCLE = 60.0, 90.0, 240.0
"""Seconds: when the capacity goes, for how long, and after how long all begins again."""
LEFT = 0.5
"""The share of the server that is left meanwhile."""
PAINT_EVERY = 0.5
FLOOD_PER_SLOT = 3
CHAT = Traffic(seconds=3600.0, flat=True, high=1.0, outputs=Lengths(100, 0.7, 8, 600))
ITEMS = Batches()


@dataclass(frozen=True, slots=True)
class Play:
    """How the demo runs. `seconds` is when it ends by itself; `data` the folder for state, `None` a passing one."""

    port: int = 3456
    slots: int = 16
    speed: float = 1.0
    seconds: float | None = None
    data: Path | None = None

    def settings(self, upstream: str, data: Path) -> Settings:
        """Return the gateway's settings; budgets and tick are as much shorter as all goes faster."""
        return Settings(
            upstream=upstream,
            slots=self.slots,
            data=data,
            port=self.port,
            tick=max(0.05, 5.0 / self.speed),
            budgets=BudgetConfig(first_token_s=1.0 / self.speed, per_token_ms=75.0 / self.speed),
        )

    def capacity(self, passed: float) -> float:
        """Return the share of the server that lives `passed` seconds after the start."""
        return LEFT if LOSS_AFTER <= passed * self.speed % CYCLE < LOSS_AFTER + LOSS_LASTS else 1.0


@dataclass(frozen=True, slots=True)
class Picture:
    """What there is to see now. `passed` in seconds; `capacity` is the share of the server that lives.

    `why` is what the controller says of its last look, `decision` the newest row of its log.
    """

    address: str
    passed: float
    capacity: float
    reading: Reading
    why: str
    decision: str
    chats: int
    items: int
    failures: int


Show = Callable[[Picture], None]


class Demo:
    """Plays the traffic, the loss of capacity and the painting."""

    def __init__(self, *, script: Play, stage: Stage, upstream: str, show: Show) -> None:
        self._script = script
        self._stage = stage
        self._clock = stage.runtime.clock
        self._sim = upstream.removesuffix("/v1") + "/sim"
        self._show = show
        self._capacity = 1.0
        self._chats: list[Shot] = []
        self._items = 0
        self._failures = 0

    async def run(self) -> None:
        """Play until the time is over or a signal came."""
        upstream = http_upstream(f"{self._stage.address}/v1", None)
        caller = Caller(upstream=upstream, clock=self._clock, model=MODEL)
        width = FLOOD_PER_SLOT * self._script.slots
        flood = Flood(caller=caller, batches=ITEMS, width=width, on_end=self._item_ended)
        await self._server_is_up()
        start = self._clock.monotonic()
        try:
            acts = (self._chat(caller), flood.run(), self._weather(start), self._paint(start))
            await play(self._stage, *acts, seconds=self._script.seconds)
        finally:
            await upstream.close()

    async def _server_is_up(self) -> None:
        async with httpx2.AsyncClient() as client:
            await client.get(self._sim)

    async def _chat(self, caller: Caller) -> None:
        seed = 1
        while True:
            calls = [Arrival(a.at / self._script.speed, a.prompt, a.output) for a in arrivals(CHAT, seed)]
            self._chats.clear()
            await ChatUsers(caller=caller, arrivals=calls, on_send=self._chats.append).run()
            seed += 1

    def _item_ended(self, shot: Shot) -> None:
        self._items += shot.error is None
        self._failures += shot.error is not None

    async def _weather(self, start: float) -> None:
        """Let the server lose capacity, and have it back."""
        async with httpx2.AsyncClient() as client:
            while True:
                wanted = self._script.capacity(self._clock.monotonic() - start)
                if wanted != self._capacity:
                    (await client.post(self._sim, json={"share": wanted})).raise_for_status()
                    self._capacity = wanted
                await self._clock.sleep(0.1)

    async def _paint(self, start: float) -> None:
        while True:
            self._show(await self._picture(self._clock.monotonic() - start))
            await self._clock.sleep(PAINT_EVERY)

    async def _picture(self, passed: float) -> Picture:
        runtime = self._stage.runtime
        last = await runtime.decisions.recent(pool=POOL, limit=1)
        failed = sum(shot.error is not None for shot in self._chats)
        return Picture(
            address=self._stage.address,
            passed=passed,
            capacity=self._capacity,
            reading=runtime.reading(runtime.pools[POOL]),
            why=runtime.pools[POOL].controller.why,
            decision=last[0].sentence if last else "",
            chats=len(self._chats),
            items=self._items,
            failures=self._failures + failed,
        )


def demo(script: Play, *, show: Show) -> None:
    """Play the demo until it is over or Ctrl-C. Raises ConfigError."""

    async def main(upstream: str, data: Path) -> None:
        async with gateway(script.settings(upstream, data)) as stage:
            await Demo(script=script, stage=stage, upstream=upstream, show=show).run()

    with ExitStack() as stack:
        data = script.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-demo-")))
        upstream = stack.enter_context(simulated_upstream(slots=script.slots, speed=script.speed))
        run_to_end(main(upstream, data))
