import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from core.clock import LoopClock
from core.config import Settings
from core.embedded import Tidegate
from core.errors import Evicted, NotFound, Rejected
from core.simulation.virtual_time import run_virtual
from tests.fakes import settle

EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
Body = Callable[[LoopClock, Tidegate], Coroutine[Any, Any, None]]


def embedded(body: Body, **settings: Any) -> None:
    """Run `body` in virtual time with a Tidegate of 4 slots and a fixed quota of 2; nothing may be left in it."""

    async def main(clock: LoopClock) -> None:
        given = {"slots": 4, "floor": 2, "ceiling": 2, **settings}
        async with Tidegate(Settings(**given), clock=clock) as gate:
            await body(clock, gate)
        await settle()
        assert (gate.pending, gate.active, gate.active_batch) == (0, 0, 0)

    run_virtual(main, EPOCH)


def test_three_interactive_and_ten_batch_calls_share_four_slots_with_a_quota_of_two() -> None:
    started: list[str] = []

    async def body(clock: LoopClock, gate: Tidegate) -> None:
        def work(name: str) -> Callable[[], Coroutine[Any, Any, str]]:
            async def run() -> str:
                started.append(name)
                assert gate.active <= 4
                assert gate.active_batch <= 2
                await clock.sleep(1.0)
                return name

            return run

        batch = [asyncio.ensure_future(gate.submit("batch", work(f"b{n}"))) for n in range(10)]
        await settle()
        assert (gate.pending, gate.active, gate.active_batch) == (8, 2, 2)
        interactive = [asyncio.ensure_future(gate.submit("interactive", work(f"i{n}"))) for n in range(3)]
        await settle()
        assert (gate.pending, gate.active, gate.active_batch) == (9, 4, 2)
        assert await asyncio.gather(*interactive, *batch) == ["i0", "i1", "i2", *(f"b{n}" for n in range(10))]
        assert started[:5] == ["b0", "b1", "i0", "i1", "i2"], "the third interactive call goes before waiting batch"
        assert started[5:] == [f"b{n}" for n in range(2, 10)]

    embedded(body)


def test_a_waiting_and_a_running_call_can_be_cancelled() -> None:
    async def body(clock: LoopClock, gate: Tidegate) -> None:
        ran: list[int] = []

        def work(n: int) -> Callable[[], Coroutine[Any, Any, None]]:
            async def run() -> None:
                ran.append(n)
                await clock.sleep(5.0)

            return run

        calls = [asyncio.ensure_future(gate.submit("batch", work(n))) for n in range(4)]
        await settle()
        for n in (0, 2):
            calls[n].cancel()
        await settle()
        assert ran == [0, 1, 3]
        assert (gate.pending, gate.active) == (0, 2)
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in done] == [asyncio.CancelledError, type(None)] * 2

    embedded(body)


def test_what_a_call_raises_comes_out_and_its_slot_is_free_again() -> None:
    async def body(clock: LoopClock, gate: Tidegate) -> None:
        async def fail() -> None:
            raise ValueError("no")

        for _ in range(6):
            with pytest.raises(ValueError, match="no"):
                await gate.submit("interactive", fail)
        assert gate.active == 0

    embedded(body)


def test_slow_interactive_calls_make_the_quota_fall() -> None:
    async def body(clock: LoopClock, gate: Tidegate) -> None:
        async def slow() -> None:
            await clock.sleep(4.0)

        async def flood() -> None:
            while True:
                await gate.submit("batch", slow)

        floods = [asyncio.ensure_future(flood()) for _ in range(16)]
        await clock.sleep(200.0)
        calm = gate.active_batch
        for _ in range(60):
            await gate.submit("interactive", slow)
        assert gate.active_batch < calm
        for each in floods:
            each.cancel()
        await asyncio.gather(*floods, return_exceptions=True)

    embedded(body, slots=16, floor=1, ceiling=12, tick=1.0)


def test_closing_refuses_what_still_waits() -> None:
    async def main(clock: LoopClock) -> None:
        async def work() -> None:
            await clock.sleep(1.0)

        async with Tidegate(Settings(slots=1), clock=clock) as gate:
            running, waiting = (asyncio.ensure_future(gate.submit("interactive", work)) for _ in range(2))
            await settle()
        with pytest.raises(Evicted, match="shutting_down"):
            await waiting
        await running

    run_virtual(main, EPOCH)


def test_the_model_chooses_the_pool_and_a_full_queue_refuses() -> None:
    pools = [
        {"name": "small", "base_url": "http://a/v1", "slots": 2, "models": ["small-*"], "batch_queue": 1},
        {"name": "large", "base_url": "http://b/v1", "slots": 2, "models": ["large-*"]},
    ]

    async def main(clock: LoopClock) -> None:
        async def work() -> None:
            await clock.sleep(1.0)

        async with Tidegate(Settings(pools=pools), clock=clock) as gate:
            with pytest.raises(NotFound):
                await gate.submit("interactive", work, model="other")
            small = [asyncio.ensure_future(gate.submit("batch", work, model="small-1")) for _ in range(2)]
            large = asyncio.ensure_future(gate.submit("batch", work, model="large-1"))
            await settle()
            assert gate.active_batch == 2
            with pytest.raises(Rejected, match="batch_queue_full"):
                await gate.submit("batch", work, model="small-1")
            await asyncio.gather(*small, large)

    run_virtual(main, EPOCH)
