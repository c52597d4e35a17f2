import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from core.clock import LoopClock
from core.errors import Rejected
from core.lanes import Lane, Outcome, PullBack
from core.quotas import PoolLimits
from core.scheduling.dispatcher import ABORT_GRACE_S, Dispatcher
from core.scheduling.limiter import Limiter
from core.scheduling.tickets import Ticket
from core.simulation.virtual_time import run_virtual

EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
INTERACTIVE, BATCH = Lane.INTERACTIVE, Lane.BATCH


@dataclass
class Bench:
    """A dispatcher on virtual time, and tickets that note the order of their starts and pull-backs."""

    clock: LoopClock
    limits: PoolLimits
    options: dict[str, Any] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    pulled: list[tuple[str, PullBack]] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = Limiter(limits=self.limits)
        self.dispatcher = Dispatcher(limits=self.limits, slots=self.slots, clock=self.clock, **self.options)

    def ticket(self, lane: Lane, name: str, **options: Any) -> Ticket:
        return Ticket(
            lane,
            self.clock.monotonic(),
            lambda: self.started.append(name),
            lambda cause: self.pulled.append((name, cause)),
            **{"durable": lane is BATCH, "streamed": False, **options},
        )

    def submit(self, lane: Lane, name: str, **options: Any) -> Ticket:
        made = self.ticket(lane, name, **options)
        self.tickets.append(made)
        self.dispatcher.submit(made)
        return made

    def slots_held(self) -> list[Ticket]:
        return [ticket for ticket in self.tickets if ticket.lease is not None and not ticket.lease.released]

    def apply(self, **changes: Any) -> None:
        self.dispatcher.apply(replace(self.dispatcher.limits, **changes))


def limits(slots: int = 4, reserve: int = 1, **options: Any) -> PoolLimits:
    given = {"headroom": 0, "floor": 1, "ceiling": slots - reserve, "limit": float(slots), **options}
    return PoolLimits(slots, reserve, **given)


def virtually(given: PoolLimits, body: Callable[[Bench], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main(clock: LoopClock) -> None:
        await body(Bench(clock, given, options))

    run_virtual(main, EPOCH)


def test_interactive_goes_before_batch_that_waited_longer() -> None:
    """R4 BerriAI/litellm#6867: 1 slot, 10 batch then 10 interactive: at most 1 batch, 10 interactive, then batch."""

    async def body(bench: Bench) -> None:
        running = [bench.submit(BATCH, f"b{n}", has_tokens=False) for n in range(10)]
        running += [bench.submit(INTERACTIVE, f"i{n}") for n in range(10)]
        while len(bench.started) < 20:
            for ticket in [t for t in running if t.lease is not None and not t.lease.released]:
                bench.dispatcher.release(ticket, Outcome.SUCCESS)
        assert bench.started == ["b0", *(f"i{n}" for n in range(10)), *(f"b{n}" for n in range(1, 10))]

    virtually(limits(1, 0), body, pull_backs=False)


def test_batch_never_takes_the_reserve_not_even_under_a_hold_of_all_slots() -> None:
    async def body(bench: Bench) -> None:
        for n in range(10):
            bench.submit(BATCH, f"b{n}", has_tokens=False)
        assert bench.slots.in_flight[BATCH] == 3
        bench.apply(hold=4)
        assert bench.slots.in_flight[BATCH] == 3
        assert bench.submit(INTERACTIVE, "i").lease is not None

    virtually(limits(4, 1), body)


def test_a_change_acts_on_the_next_dispatch_and_never_kills_running_work() -> None:
    async def body(bench: Bench) -> None:
        running = [bench.submit(BATCH, f"b{n}", has_tokens=False) for n in range(8)]
        assert bench.slots.in_flight[BATCH] == 7
        bench.apply(hold=2)
        assert (bench.slots.in_flight[BATCH], bench.dispatcher.settling(), bench.pulled) == (7, 5, [])
        for ticket in running[:5]:
            bench.dispatcher.release(ticket, Outcome.SUCCESS)
        assert (bench.slots.in_flight[BATCH], bench.dispatcher.settling()) == (2, 0)
        bench.apply(hold=None)
        assert bench.slots.in_flight[BATCH] == 3

    virtually(limits(8, 1), body)


def test_quick_clicks_end_at_the_last_value() -> None:
    """R29 MassTransit/MassTransit#1671: 1, 3, 1, 1 is 1."""

    async def body(bench: Bench) -> None:
        for hold in (1, 3, 1, 1):
            bench.apply(hold=hold)
        for n in range(5):
            bench.submit(BATCH, f"b{n}", has_tokens=False)
        assert bench.started == ["b0"]
        assert bench.dispatcher.quota() == 1

    virtually(limits(8, 1), body)


def test_a_full_queue_refuses_at_once_with_an_honest_time() -> None:
    async def body(bench: Bench) -> None:
        bench.submit(INTERACTIVE, "running")
        for n in range(2):
            bench.submit(INTERACTIVE, f"waiting{n}")
        with pytest.raises(Rejected) as refused:
            bench.submit(INTERACTIVE, "too much")
        error = refused.value
        assert (error.status, error.code, error.position) == (429, "interactive_queue_full", 3)
        assert error.retry_after is not None
        assert 1 <= error.retry_after <= 60
        assert bench.dispatcher.counts().interactive_waiting == 2
        with pytest.raises(Rejected, match="batch_queue_full"):
            bench.submit(BATCH, "none may wait")

    virtually(limits(1, 0), body, interactive_queue=2, batch_queue=0)


def test_paused_batch_is_refused_what_waits_stays_and_interactive_goes_on() -> None:
    async def body(bench: Bench) -> None:
        bench.apply(paused=True)
        with pytest.raises(Rejected) as refused:
            bench.submit(BATCH, "sync", durable=False)
        assert (refused.value.status, refused.value.code, refused.value.should_retry) == (503, "batch_paused", False)
        bench.submit(BATCH, "item")
        bench.submit(INTERACTIVE, "i")
        assert bench.started == ["i"]
        bench.apply(paused=False)
        assert bench.started == ["i", "item"]

    virtually(limits(), body)


def test_no_queue_at_all_still_starts_what_finds_a_slot() -> None:
    async def body(bench: Bench) -> None:
        assert bench.submit(INTERACTIVE, "i").lease is not None
        with pytest.raises(Rejected):
            bench.submit(INTERACTIVE, "second")

    virtually(limits(1, 0), body, interactive_queue=0)


def test_overdue_batch_moves_before_waiting_interactive_and_is_never_pulled_back() -> None:
    async def body(bench: Bench) -> None:
        first = bench.submit(INTERACTIVE, "i0")
        second = bench.submit(INTERACTIVE, "i1")
        bench.submit(BATCH, "old", has_tokens=False)
        bench.submit(BATCH, "older", has_tokens=False)
        await bench.clock.sleep(601)
        bench.submit(INTERACTIVE, "i2")
        bench.dispatcher.release(first, Outcome.SUCCESS)
        assert bench.started[-1] == "old"
        assert bench.dispatcher.stats.overdue_started == 1
        bench.dispatcher.release(second, Outcome.SUCCESS)
        assert bench.started[-1] == "i2", "one overdue batch request at a time for a floor of 1"
        bench.submit(INTERACTIVE, "i3")
        assert bench.pulled == []

    virtually(limits(2, 1), body)


@pytest.mark.parametrize("block", ["paused", "hold", "retry_after"])
def test_nothing_is_overdue_while_batch_is_stopped_on_purpose(block: str) -> None:
    async def body(bench: Bench) -> None:
        running = bench.submit(INTERACTIVE, "i0")
        bench.submit(BATCH, "old", has_tokens=False)
        await bench.clock.sleep(601)
        if block == "retry_after":
            bench.dispatcher.back_off(30)
        else:
            bench.apply(**{"paused": {"paused": True}, "hold": {"hold": 0}}[block])
        bench.dispatcher.release(running, Outcome.SUCCESS)
        assert bench.started == ["i0"]

    virtually(limits(1, 0), body)


def test_interactive_that_finds_no_slot_pulls_the_youngest_batch_back_once() -> None:
    async def body(bench: Bench) -> None:
        old = bench.submit(BATCH, "old", has_tokens=False)
        await bench.clock.sleep(1)
        young = bench.submit(BATCH, "young", has_tokens=False)
        interactive = [bench.submit(INTERACTIVE, f"i{n}") for n in range(2)]
        assert bench.pulled == [("young", PullBack.SLOTS_FULL)]
        bench.dispatcher.pump()
        assert len(bench.pulled) == 1, "a pull-back under way is not asked for again"
        bench.dispatcher.put_back(young)
        await bench.clock.sleep(ABORT_GRACE_S * 2)
        assert interactive[1].lease is not None
        assert young.lease is None
        assert young.pull_backs == 1
        bench.dispatcher.release(old, Outcome.SUCCESS)
        assert bench.started[-1] == "young", "it stood at the head of its queue"

    virtually(limits(3, 1), body)


def test_a_request_pulled_back_twice_or_already_answered_is_left_alone() -> None:
    async def body(bench: Bench) -> None:
        bench.submit(BATCH, "twice", has_tokens=False, pull_backs=2)
        answered = bench.submit(BATCH, "answered", has_tokens=False, durable=False)
        answered.answered = True
        for n in range(3):
            bench.submit(INTERACTIVE, f"i{n}")
        assert bench.pulled == []

    virtually(limits(3, 1), body)


def test_where_pull_backs_are_off_none_happens() -> None:
    async def body(bench: Bench) -> None:
        for n in range(2):
            bench.submit(BATCH, f"b{n}", has_tokens=False)
        for n in range(3):
            bench.submit(INTERACTIVE, f"i{n}")
        assert bench.pulled == []

    virtually(limits(3, 1), body, pull_backs=False)


def test_an_overdue_interactive_request_pulls_back_batch_before_it_that_has_no_first_token() -> None:
    async def body(bench: Bench) -> None:
        ahead = bench.submit(BATCH, "ahead", streamed=True)
        await bench.clock.sleep(0.1)
        bench.submit(INTERACTIVE, "i", streamed=True)
        await bench.clock.sleep(0.49)
        assert bench.pulled == []
        await bench.clock.sleep(0.02)
        assert bench.pulled == [("ahead", PullBack.FIRST_TOKEN_OVERDUE)]
        bench.dispatcher.put_back(ahead)
        await bench.clock.sleep(0.3)
        assert bench.started == ["ahead", "i"], "batch is held for half a second"
        await bench.clock.sleep(0.3)
        assert bench.started == ["ahead", "i", "ahead"]

    virtually(limits(4, 1), body)


@pytest.mark.parametrize(
    ("earlier", "answered", "pulled"), [(0.51, False, ["young"]), (0.49, False, []), (0.51, True, [])]
)
def test_where_the_server_lets_interactive_requests_queue_the_youngest_batch_makes_room(
    earlier: float, answered: bool, pulled: list[str]
) -> None:
    """One slow prefill is no queue; a request sent half a budget earlier is one, unless its answer has begun."""

    async def body(bench: Bench) -> None:
        for name in ("old", "young"):
            bench.dispatcher.first_token(bench.submit(BATCH, name, streamed=True))
            await bench.clock.sleep(0.1)
        waiting = [bench.submit(INTERACTIVE, "i0", streamed=True, answered=answered)]
        await bench.clock.sleep(earlier)
        waiting.append(bench.submit(INTERACTIVE, "i1", streamed=True))
        await bench.clock.sleep(0.51)
        assert [name for name, _ in bench.pulled] == pulled
        for ticket in waiting:
            bench.dispatcher.first_token(ticket)
        bench.submit(INTERACTIVE, "i2", streamed=True)
        await bench.clock.sleep(0.51)
        assert [name for name, _ in bench.pulled] == pulled

    virtually(limits(8, 1), body)


def test_a_refusal_by_the_provider_pulls_back_what_runs_above_the_quota_and_one_more() -> None:
    async def body(bench: Bench) -> None:
        for n in range(4):
            bench.submit(BATCH, f"b{n}", has_tokens=False)
            await bench.clock.sleep(0.1)
        for n in range(2):
            bench.submit(INTERACTIVE, f"i{n}")
        assert bench.dispatcher.settling() == 2
        assert bench.dispatcher.pull_back_for_refusal()
        assert bench.pulled == [(f"b{n}", PullBack.PROVIDER_429) for n in (3, 2, 1)]
        bench.apply(limit=8.0)
        waiting = bench.submit(BATCH, "b4", has_tokens=False)
        await bench.clock.sleep(0.9)
        assert waiting.lease is None, "batch is held for a second"
        await bench.clock.sleep(0.2)
        assert waiting.lease is not None

    virtually(limits(8, 1, limit=4.0), body)


def test_one_batch_request_at_a_time_waits_for_its_first_token() -> None:
    async def body(bench: Bench) -> None:
        tickets = [bench.submit(BATCH, f"b{n}", streamed=True) for n in range(3)]
        assert bench.started == ["b0"]
        bench.dispatcher.first_token(tickets[0])
        assert bench.started == ["b0", "b1"]
        bench.dispatcher.release(tickets[1], Outcome.UPSTREAM_ERROR)
        assert bench.started == ["b0", "b1", "b2"]

    virtually(limits(8, 1), body)


@pytest.mark.parametrize(("first", "rest", "streamed"), [(0.25, 0.0, False), (0.4, 0.1, True)])
def test_pacing_never_keeps_batch_under_its_ceiling(first: float, rest: float, streamed: bool) -> None:
    """64 slots, 0.25 s unstreamed calls (or 0.4 s first token and 0.1 s of decoding): the ceiling within 60 s."""

    async def body(bench: Bench) -> None:
        async def item(n: int) -> None:
            granted = asyncio.Event()
            ticket = bench.ticket(BATCH, f"b{n}", streamed=streamed)
            ticket.on_grant = granted.set
            bench.dispatcher.submit(ticket)
            await granted.wait()
            await bench.clock.sleep(first)
            if streamed:
                bench.dispatcher.first_token(ticket)
            await bench.clock.sleep(rest)
            bench.dispatcher.release(ticket, Outcome.SUCCESS)

        tasks = [asyncio.ensure_future(item(n)) for n in range(5000)]
        highest = 0
        while bench.clock.monotonic() < 60 and highest < 63:
            await bench.clock.sleep(0.05)
            highest = max(highest, bench.slots.in_flight[BATCH])
        assert highest == 63
        for task in tasks:
            task.cancel()

    virtually(limits(64, 1), body, batch_queue=10_000)


def test_embeddings_are_not_paced() -> None:
    async def body(bench: Bench) -> None:
        for n in range(5):
            bench.submit(BATCH, f"b{n}", has_tokens=False)
        assert len(bench.started) == 5

    virtually(limits(8, 1), body)


def test_bound_means_stopped_by_the_limit_alone() -> None:
    async def body(bench: Bench) -> None:
        bench.submit(BATCH, "only", has_tokens=False)
        assert not bench.dispatcher.take_bound(), "an empty queue binds nothing"
        for n in range(9):
            bench.submit(BATCH, f"b{n}", has_tokens=False)
        assert bench.dispatcher.take_bound()
        assert not bench.dispatcher.take_bound(), "told once"
        bench.apply(ceiling=2)
        bench.submit(BATCH, "more", has_tokens=False)
        assert not bench.dispatcher.take_bound(), "the ceiling stops it, not the limit"
        bench.apply(ceiling=7, hold=3)
        assert not bench.dispatcher.take_bound(), "a person stops it"

    virtually(limits(8, 1, limit=4.0), body)


def test_rates_bound_the_starts_of_batch() -> None:
    async def body(bench: Bench) -> None:
        for n in range(20):
            bench.submit(BATCH, f"b{n}", has_tokens=False)
        assert len(bench.started) == 2
        await bench.clock.sleep(2.01)
        assert len(bench.started) == 6

    virtually(limits(64, 1), body, batch_rps=2.0)


def test_batch_that_waited_too_long_keeps_to_the_rates_too() -> None:
    async def body(bench: Bench) -> None:
        for n in range(15):
            bench.submit(BATCH, f"b{n}", has_tokens=False)
        for _ in range(5):
            await bench.clock.sleep(1.01)
            for ticket in list(bench.slots_held()):
                bench.dispatcher.release(ticket, Outcome.SUCCESS)
        assert 5 <= len(bench.started) <= 7

    virtually(limits(64, 1), body, batch_rps=1.0, batch_max_wait=2.0)


def test_however_many_arrive_while_the_rates_hold_overdue_batch_back_one_timer_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(bench: Bench) -> None:
        timers: list[float] = []
        set_timer = bench.clock.call_later

        def noted(seconds: float, *what: Any) -> Any:
            timers.append(seconds)
            return set_timer(seconds, *what)

        for n in range(3):
            bench.submit(BATCH, f"b{n}", has_tokens=False)
        await bench.clock.sleep(5)
        monkeypatch.setattr(bench.clock, "call_later", noted)
        for n in range(200):
            bench.dispatcher.release(bench.submit(INTERACTIVE, f"i{n}"), Outcome.SUCCESS)
        assert len(timers) <= 1
        await bench.clock.sleep(21)
        assert [name for name in bench.started if name[0] == "b"] == ["b0", "b1", "b2"]
        assert len(timers) <= 8

    virtually(limits(64, 1, floor=4), body, batch_rps=0.1, batch_max_wait=2.0)


def test_spent_tokens_hold_the_next_start_back() -> None:
    async def body(bench: Bench) -> None:
        first = bench.submit(BATCH, "b0", has_tokens=False)
        bench.dispatcher.release(first, Outcome.SUCCESS, tokens=120)
        bench.submit(BATCH, "b1", has_tokens=False)
        assert bench.started == ["b0"]
        await bench.clock.sleep(61)
        assert bench.started == ["b0", "b1"]

    virtually(limits(), body, batch_tpm=60.0)


def test_where_pull_backs_are_off_the_quota_leaves_room_for_the_recent_peak() -> None:
    async def body(bench: Bench) -> None:
        for ticket in [bench.submit(INTERACTIVE, f"i{n}") for n in range(5)]:
            bench.dispatcher.release(ticket, Outcome.SUCCESS)
        assert bench.dispatcher.quota() == 3
        await bench.clock.sleep(299)
        assert bench.dispatcher.quota() == 3
        await bench.clock.sleep(2)
        assert bench.dispatcher.quota() == 7

    virtually(limits(8, 1, room_for_peak=True), body, pull_backs=False)


def test_a_ticket_cancelled_while_it_is_put_back_gives_its_slot_back_and_never_starts_again() -> None:
    async def body(bench: Bench) -> None:
        ticket = bench.submit(BATCH, "b", has_tokens=False)
        bench.dispatcher.put_back(ticket)
        bench.dispatcher.cancel(ticket)
        await bench.clock.sleep(1)
        counts = bench.dispatcher.counts()
        assert (counts.batch, counts.backlog, bench.started) == (0, 0, ["b"])

    virtually(limits(), body)


def test_waits_are_those_of_the_last_minute() -> None:
    async def body(bench: Bench) -> None:
        assert bench.dispatcher.waits(INTERACTIVE) == (None, None)
        running = bench.submit(INTERACTIVE, "a")
        bench.submit(INTERACTIVE, "b")
        await bench.clock.sleep(3)
        bench.dispatcher.release(running, Outcome.SUCCESS)
        assert bench.dispatcher.waits(INTERACTIVE) == (0.0, 3.0)
        await bench.clock.sleep(61)
        assert bench.dispatcher.waits(INTERACTIVE) == (None, None)

    virtually(limits(1, 0), body)


def test_there_is_room_for_what_may_run_and_one_standing_by() -> None:
    async def body(bench: Bench) -> None:
        dispatcher = bench.dispatcher
        assert dispatcher.room() == 4
        running = [bench.submit(BATCH, f"b{n}", has_tokens=False) for n in range(3)]
        assert dispatcher.room() == 1
        waiting = bench.submit(BATCH, "standing by", has_tokens=False)
        assert dispatcher.room() == 0
        dispatcher.release(running[0], Outcome.SUCCESS)
        assert (waiting.lease is not None, dispatcher.room()) == (True, 1)
        dispatcher.release(running[1], Outcome.SUCCESS)
        dispatcher.release(running[2], Outcome.SUCCESS)
        bench.submit(INTERACTIVE, "i")
        bench.submit(INTERACTIVE, "i")
        assert dispatcher.room() == 2, "two run interactively, one in batch: one more may, and one may stand by"

    virtually(limits(), body)


def test_there_is_no_room_while_batch_must_not_start() -> None:
    async def body(bench: Bench) -> None:
        dispatcher = bench.dispatcher
        bench.apply(paused=True)
        assert dispatcher.room() == 0
        bench.apply(paused=False, hold=0)
        assert dispatcher.room() == 0
        bench.apply(hold=None)
        dispatcher.back_off(3.0)
        assert dispatcher.room() == 0
        await bench.clock.sleep(3.0)
        assert dispatcher.room() == 4
        dispatcher.hold_batch(0.5)
        assert dispatcher.room() == 0

    virtually(limits(), body)


def test_where_nothing_may_wait_nothing_stands_by() -> None:
    async def body(bench: Bench) -> None:
        assert bench.dispatcher.room() == 3
        for n in range(3):
            bench.submit(BATCH, f"b{n}", has_tokens=False)
        assert bench.dispatcher.room() == 0

    virtually(limits(), body, batch_queue=0)


def test_whoever_feeds_batch_is_told_when_there_is_room() -> None:
    async def body(bench: Bench) -> None:
        dispatcher = bench.dispatcher
        told: list[float] = []
        tickets = [bench.submit(BATCH, f"b{n}", has_tokens=False) for n in range(4)]
        dispatcher.on_room = lambda: told.append(bench.clock.monotonic())
        bench.submit(INTERACTIVE, "i")
        assert told == []
        dispatcher.release(tickets[0], Outcome.SUCCESS)
        assert tickets[3].lease is not None
        assert told == [0.0], "what stood by runs, and another may stand by"
        dispatcher.back_off(2.0)
        told.clear()
        await bench.clock.sleep(3.0)
        assert told == [2.0]
        bench.apply(paused=True)
        told.clear()
        bench.apply(paused=False)
        assert told == [3.0]

    virtually(limits(), body)


def test_a_durable_item_keeps_a_place_in_the_queue_behind_other_batch_requests() -> None:
    async def body(bench: Bench) -> None:
        others = [bench.submit(BATCH, f"s{n}", durable=False, has_tokens=False) for n in range(20)]
        assert bench.dispatcher.room() == 1
        item = bench.submit(BATCH, "item", has_tokens=False)
        assert bench.dispatcher.room() == 0
        for ticket in others[3:]:
            bench.dispatcher.cancel(ticket)
        assert bench.dispatcher.room() == 0
        bench.dispatcher.release(others[0], Outcome.SUCCESS)
        assert (item.lease is not None, bench.dispatcher.room()) == (True, 1)

    virtually(limits(), body)
