"""The loop ticks by the clock, whatever the stores and single pools do."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from core.clock import LoopClock
from core.control.decisions import Decision
from core.control.loop import ControlLoop, Outbox
from core.ports import SavedLimit
from core.simulation.virtual_time import run_virtual

EPOCH = datetime(2026, 3, 2, tzinfo=UTC)


class JumpyClock(LoopClock):
    """A clock that can be made to jump ahead, as if the process had been held up."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def decision(n: int = 0) -> Decision:
    return Decision(EPOCH, "main", "controller", "cut", "errors", f"row {n}", (2.0, 1.0), (1, 1))


@dataclass
class Controller:
    """Notes when it was ticked; emits what it is told to."""

    clock: LoopClock
    outbox: Outbox
    limit: float = 16.0
    cut_at: float = -1.0
    emits: int = 0
    fails: bool = False
    ticks: list[float] = field(default_factory=list)
    refreshes: list[float] = field(default_factory=list)
    last_tick: float = 0.0

    def tick(self) -> None:
        self.ticks.append(self.clock.monotonic())
        if self.fails:
            raise RuntimeError("a fault in one pool")
        self.last_tick = self.clock.monotonic()
        for _ in range(self.emits):
            self.outbox.add(decision(len(self.ticks)))

    def refresh(self) -> None:
        self.refreshes.append(self.clock.monotonic())

    def saved(self) -> SavedLimit:
        return SavedLimit(self.limit, self.limit, 0.0, self.clock.now())


@dataclass
class Stores:
    """Both stores; `down` makes them fail, `stuck` makes them hang."""

    down: bool = False
    stuck: bool = False
    rows: list[Decision] = field(default_factory=list)
    limits: list[tuple[str, float]] = field(default_factory=list)

    async def append(self, decisions: Sequence[Decision]) -> None:
        await self._work()
        self.rows.extend(decisions)

    async def save_limit(self, pool: str, saved: SavedLimit) -> None:
        await self._work()
        self.limits.append((pool, saved.limit))

    async def _work(self) -> None:
        if self.down:
            raise OSError("database is down")
        if self.stuck:
            await asyncio.Event().wait()


@dataclass
class Bench:
    clock: JumpyClock
    outbox: Outbox = field(default_factory=Outbox)
    stores: Stores = field(default_factory=Stores)

    def __post_init__(self) -> None:
        self.pools = {name: Controller(self.clock, self.outbox) for name in ("main", "other")}
        self.main = self.pools["main"]
        self.loop = ControlLoop(
            controllers=self.pools,
            clock=self.clock,
            outbox=self.outbox,
            decisions=self.stores,
            settings=self.stores,
        )


def virtually(body: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: LoopClock) -> None:
        bench = Bench(JumpyClock(epoch=EPOCH))
        bench.loop.start()
        await body(bench)
        assert bench.loop.failure is None
        bench.stores.stuck = False
        await bench.loop.stop()

    run_virtual(main, EPOCH)


def test_every_pool_is_ticked_once_per_period() -> None:
    async def body(bench: Bench) -> None:
        await bench.clock.sleep(21)
        for pool in bench.pools.values():
            assert pool.ticks == [0.0, 5.0, 10.0, 15.0, 20.0]
        assert bench.loop.tick_age == 1.0

    virtually(body)


def test_a_wake_refreshes_at_once_and_neither_ticks_nor_shifts_the_ticks() -> None:
    async def body(bench: Bench) -> None:
        await bench.clock.sleep(7)
        for _ in range(3):
            bench.loop.wake()
        await bench.clock.sleep(4)
        assert bench.main.refreshes == [7.0]
        assert bench.main.ticks == [0.0, 5.0, 10.0]

    virtually(body)


def test_a_loop_that_was_held_up_does_not_catch_up_in_a_burst() -> None:
    async def body(bench: Bench) -> None:
        await bench.clock.sleep(6)
        bench.clock.ahead += 30
        await bench.clock.sleep(11)
        assert bench.main.ticks == [0.0, 5.0, 40.0, 45.0]

    virtually(body)


def test_pools_may_come_and_go_while_the_loop_runs() -> None:
    async def body(bench: Bench) -> None:
        await bench.clock.sleep(1)
        del bench.pools["other"]
        bench.pools["third"] = Controller(bench.clock, bench.outbox)
        await bench.clock.sleep(5)
        assert bench.pools["third"].ticks == [5.0]

    virtually(body)


def test_r27_a_pool_whose_tick_fails_stops_neither_the_others_nor_itself() -> None:
    """R27 resilience4j/resilience4j#2489: one fault, and the refresh task never runs again."""

    async def body(bench: Bench) -> None:
        bench.main.fails = True
        with structlog.testing.capture_logs() as logs:
            await bench.clock.sleep(21)
        assert bench.pools["other"].ticks == bench.main.ticks == [0.0, 5.0, 10.0, 15.0, 20.0]
        assert [entry["what"] for entry in logs] == ["tick of main"]
        assert bench.loop.stale
        bench.main.fails = False
        await bench.clock.sleep(5)
        assert not bench.loop.stale

    virtually(body)


def test_decisions_are_stored_in_order_and_limits_at_each_cut_and_every_minute() -> None:
    async def body(bench: Bench) -> None:
        bench.main.emits = 1
        await bench.clock.sleep(11)
        assert [row.sentence for row in bench.stores.rows] == ["row 1", "row 2", "row 3"]
        assert bench.stores.limits == [("main", 16.0), ("other", 16.0)]
        bench.main.cut_at, bench.main.limit = 12.0, 8.0
        await bench.clock.sleep(5)
        assert bench.stores.limits[2:] == [("main", 8.0)]
        await bench.clock.sleep(65)
        assert sorted(bench.stores.limits[3:]) == [("main", 8.0), ("other", 16.0)]

    virtually(body)


def test_a_store_that_is_down_is_told_once_and_loses_nothing() -> None:
    async def body(bench: Bench) -> None:
        bench.stores.down, bench.main.emits = True, 2
        with structlog.testing.capture_logs() as logs:
            await bench.clock.sleep(16)
        assert bench.main.ticks == [0.0, 5.0, 10.0, 15.0]
        assert len([entry for entry in logs if entry["what"] == "storing decisions"]) == 1
        assert len(bench.outbox) == 8
        bench.stores.down = False
        await bench.clock.sleep(5)
        assert [row.sentence for row in bench.stores.rows] == [f"row {n}" for n in range(1, 6) for _ in range(2)]

    virtually(body)


def test_a_store_that_hangs_delays_no_tick_and_loses_nothing_at_the_stop() -> None:
    async def body(bench: Bench) -> None:
        bench.stores.stuck, bench.main.emits = True, 1
        await bench.clock.sleep(21)
        assert bench.main.ticks == [0.0, 5.0, 10.0, 15.0, 20.0]
        assert not bench.loop.stale
        bench.stores.stuck = False
        await bench.loop.stop()
        assert [row.sentence for row in bench.stores.rows] == [f"row {n}" for n in range(1, 6)]

    virtually(body)


def test_the_last_limit_is_saved_at_the_stop() -> None:
    async def body(bench: Bench) -> None:
        await bench.clock.sleep(12)
        bench.main.limit = 31.0
        await bench.loop.stop()
        assert bench.stores.limits[-2:] == [("main", 31.0), ("other", 16.0)]
        await bench.loop.stop()

    virtually(body)


def test_without_pools_nothing_is_stale() -> None:
    async def body(bench: Bench) -> None:
        bench.pools.clear()
        await bench.clock.sleep(60)
        assert (bench.loop.tick_age, bench.loop.stale) == (0.0, False)

    virtually(body)


@pytest.mark.parametrize("room", [1, 3])
def test_an_outbox_that_is_full_drops_the_oldest_and_counts_them(room: int) -> None:
    outbox = Outbox(capacity=room)
    for n in range(5):
        outbox.add(decision(n))
    taken = outbox.take()
    outbox.add(decision(5))
    outbox.put_back(taken)
    kept = [row.sentence for row in outbox.take()]
    assert kept == [f"row {n}" for n in range(6 - room, 6)]
    assert outbox.dropped == 6 - room
