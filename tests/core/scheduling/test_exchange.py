import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from core.clock import LoopClock
from core.config import LaneTimeouts, PoolConfig, pool_settings
from core.control.windows import Schedule
from core.errors import UpstreamFailed
from core.lanes import Lane, Outcome
from core.pools import Pool
from core.ports import UpstreamRequest
from core.runtime import build_pool
from core.scheduling.exchange import Exchange
from core.simulation.virtual_time import run_virtual
from tests.fakes import ROLE, STOP, KeptReply, Script, ScriptedUpstream, call, event, settle, streamed, whole

EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
INTERACTIVE, BATCH = Lane.INTERACTIVE, Lane.BATCH
REFUSED_429 = whole(0.01, status=429, body=b'{"error":{"message":"slow down","code":"rate_limit"}}')


@dataclass
class House:
    """One pool on virtual time in front of a scripted server."""

    clock: LoopClock
    upstream: ScriptedUpstream
    pool: Pool

    def run(self, lane: Lane = INTERACTIVE, name: str = "c", **options: Any) -> tuple[Any, KeptReply]:
        reply = KeptReply(self.clock)
        exchange = Exchange(self.pool.gateway, call(lane, name, **options), reply)
        task = asyncio.ensure_future(exchange.run())
        task.exchange = exchange  # the tests break it off through its task
        return task, reply

    def change(self, **changes: Any) -> None:
        self.pool.dispatcher.apply(replace(self.pool.dispatcher.limits, **changes))


def virtually(
    body: Callable[[House], Coroutine[Any, Any, None]],
    answer: Callable[[UpstreamRequest, int], Script] = lambda request, n: streamed(3),
    **options: Any,
) -> None:
    async def main(clock: LoopClock) -> None:
        config = PoolConfig(base_url="http://upstream/v1", **{"slots": 4, "floor": 1, **options})
        upstream = ScriptedUpstream(clock, answer)
        pool = build_pool(
            config,
            settings=pool_settings(config),
            schedule=Schedule(),
            clock=clock,
            upstream=upstream,
            emit=lambda decision: None,
        )
        pool.dispatcher.apply(replace(pool.dispatcher.limits, limit=float(config.slots)))
        await body(House(clock, upstream, pool))
        counts = pool.dispatcher.counts()
        assert (counts.interactive, counts.batch, counts.interactive_waiting, counts.backlog) == (0, 0, 0, 0)
        assert upstream.in_flight == 0
        assert upstream.most <= config.slots

    run_virtual(main, EPOCH)


def test_an_answer_passes_byte_for_byte_and_its_tokens_are_counted() -> None:
    async def body(house: House) -> None:
        task, reply = house.run()
        assert await task is Outcome.SUCCESS
        assert reply.body == ROLE + event("a") + event("b") * 2 + STOP
        assert (reply.status, reply.finished, reply.error) == (200, True, None)
        assert house.upstream.requests[0].body == b"c"

    virtually(body)


@pytest.mark.parametrize("lane", list(Lane))
def test_a_stream_that_is_broken_off_never_ends_cleanly(lane: Lane) -> None:
    """R31 open-webui/open-webui#29628."""
    broken = UpstreamFailed(502, "upstream_truncated", "broke off")

    async def body(house: House) -> None:
        task, reply = house.run(lane)
        assert await task is Outcome.UPSTREAM_TRUNCATED
        assert reply.error is not None
        assert (reply.error.code, reply.finished) == ("upstream_truncated", False)

    virtually(body, lambda request, n: Script(steps=[ROLE, event("a"), event("b"), broken]))


def test_a_clean_end_without_the_end_mark_is_a_cut() -> None:
    async def body(house: House) -> None:
        task, reply = house.run()
        assert await task is Outcome.UPSTREAM_TRUNCATED
        assert not reply.finished

    virtually(body, lambda request, n: Script(steps=[ROLE, event("a")]))


@pytest.mark.parametrize("status", [400, 404, 422])
def test_what_the_server_refuses_is_sent_once_and_passed_on(status: int) -> None:
    """R45 awsl-project/maxx PR#833; R33 lemonade-sdk/lemonade#2826."""

    async def body(house: House) -> None:
        task, reply = house.run()
        assert await task is Outcome.CLIENT_ERROR
        assert (reply.status, reply.body, reply.finished) == (status, b'{"error":{"message":"no"}}', True)
        assert len(house.upstream.requests) == 1

    virtually(body, lambda request, n: whole(0.01, status=status, body=b'{"error":{"message":"no"}}'))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_a_failure_of_the_server_and_leads_nowhere(status: int) -> None:
    """R102 tashfeenahmed/freellmapi#443: a redirect to where no setting may lead."""

    async def body(house: House) -> None:
        task, reply = house.run()
        assert await task is Outcome.UPSTREAM_ERROR
        assert reply.error is not None
        assert (reply.error.status, reply.error.code) == (502, "upstream_error")
        assert not reply.started
        assert len(house.upstream.requests) == 1

    location = [(b"location", b"http://169.254.169.254/")]
    virtually(body, lambda request, n: whole(status=status, body=b"", headers=location))


def test_each_call_that_ends_is_told_once_with_outcome_status_and_times() -> None:
    async def body(house: House) -> None:
        told: list[tuple[str, Outcome, int, float]] = []
        house.pool.gateway.on_end = lambda call, seen, outcome, status, now: told.append(
            (call.id, outcome, status, round(now - seen.arrived, 2))
        )
        await house.run(name="good")[0]
        await house.run(name="bad")[0]
        task, _ = house.run(name="gone")
        await house.clock.sleep(0.05)
        task.exchange.abort(Outcome.CLIENT_DISCONNECT)
        await task
        await house.clock.sleep(1)
        assert told == [
            ("good", Outcome.SUCCESS, 200, 0.14),
            ("bad", Outcome.CLIENT_ERROR, 404, 0.2),
            ("gone", Outcome.CLIENT_DISCONNECT, 0, 0.05),
        ]

    scripts = [streamed(3), whole(0.2, status=404), whole(9.0)]
    virtually(body, lambda request, n: scripts[n - 1])


def test_a_refusal_for_lack_of_capacity_without_batch_is_sent_once_and_passed_on() -> None:
    """R43 HKUDS/nanobot#2760; R35 jgravelle/jmunch-mcp PR#5."""

    async def body(house: House) -> None:
        task, reply = house.run()
        assert await task is Outcome.RATE_LIMITED
        assert (reply.status, b"slow down" in reply.body) == (429, True)
        assert len(house.upstream.requests) == 1

    virtually(body, lambda request, n: REFUSED_429)


def test_a_refused_interactive_call_is_sent_once_more_when_batch_made_room() -> None:
    def answer(request: UpstreamRequest, n: int) -> Script:
        return REFUSED_429 if request.body == b"i" and n == 2 else streamed(3, first=1.0)

    async def body(house: House) -> None:
        batch, batch_reply = house.run(BATCH, "b", durable=True)
        await settle()
        task, reply = house.run(name="i")
        assert await task is Outcome.SUCCESS
        assert reply.status == 200
        assert await batch is Outcome.SUCCESS
        assert batch_reply.finished
        assert [r.body for r in house.upstream.requests] == [b"b", b"i", b"i", b"b"]
        assert house.pool.gateway.stats.retries == {"provider_429": 1, "pulled_back": 1}

    virtually(body, answer)


def test_a_refused_call_is_not_sent_again_where_the_server_asks_for_longer() -> None:
    refusal = replace(REFUSED_429, headers=[*REFUSED_429.headers, (b"retry-after", b"3")])

    async def body(house: House) -> None:
        batch, _ = house.run(BATCH, "b", durable=True)
        await settle()
        task, reply = house.run(name="i")
        assert await task is Outcome.RATE_LIMITED
        assert reply.status == 429
        assert await batch is Outcome.SUCCESS
        assert [r.body for r in house.upstream.requests] == [b"b", b"i"]

    virtually(body, lambda request, n: refusal if request.body == b"i" else streamed(3))


@pytest.mark.parametrize("form", ["seconds", "date"])
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_keeps_all_batch_away_from_the_pool(form: str, status: int) -> None:
    """R46 HKUDS/nanobot#2763."""

    def answer(request: UpstreamRequest, n: int) -> Script:
        value = "3" if form == "seconds" else format_datetime(EPOCH + timedelta(seconds=4), usegmt=True)
        return whole(0.0, status=status, headers=[(b"retry-after", value.encode())]) if n == 1 else whole(0.1)

    async def body(house: House) -> None:
        await house.clock.sleep(1.0)
        first, reply = house.run(BATCH, "first", stream=False)
        assert await first is not Outcome.SUCCESS
        assert reply.status == status
        others = [house.run(BATCH, f"b{n}", stream=False) for n in range(4)]
        interactive, _ = house.run(name="i", stream=False)
        assert await interactive is Outcome.SUCCESS, "interactive is not kept away"
        for task, _ in others:
            assert await task is Outcome.SUCCESS
        sent = [at for at, r in zip(house.upstream.times, house.upstream.requests, strict=True) if r.body[:1] == b"b"]
        assert min(sent) >= 4.0
        assert house.pool.dispatcher.stats.back_offs == 1
        assert house.pool.dispatcher.stats.back_off_seconds == pytest.approx(3.0, abs=0.01)

    virtually(body, answer)


def test_a_call_waits_no_longer_than_it_may_and_is_told_so() -> None:
    """R51 GrahamDumpleton/mod_wsgi#456: queue time-out 1 s, error at 1 s."""

    async def body(house: House) -> None:
        running, _ = house.run(name="long")
        task, reply = house.run(name="late")
        assert await task is Outcome.TIMEOUT
        assert house.clock.monotonic() == pytest.approx(1.0)
        error = reply.error
        assert error is not None
        assert (error.status, error.code) == (503, "queue_timeout")
        assert error.retry_after is not None
        assert 1 <= error.retry_after <= 60
        assert await running is Outcome.SUCCESS
        assert [r.body for r in house.upstream.requests] == [b"long"]

    virtually(body, lambda request, n: streamed(3, first=5), slots=1, interactive_max_wait=1.0)


def test_the_clients_own_patience_bounds_the_wait() -> None:
    async def body(house: House) -> None:
        running, _ = house.run(name="long")
        task, _ = house.run(name="late", max_wait=0.5)
        assert await task is Outcome.TIMEOUT
        assert house.clock.monotonic() == pytest.approx(0.5)
        await running

    virtually(body, lambda request, n: streamed(3, first=5), slots=1)


def test_calls_whose_clients_left_while_waiting_are_never_sent() -> None:
    """R22 ggml-org/llama.cpp#13262; R49 rust-lang/crates.io#3537."""

    async def body(house: House) -> None:
        running, _ = house.run(name="running")
        gone = [house.run(name=f"gone{n}")[0] for n in range(5)]
        await settle()
        for task in gone:
            task.exchange.abort(Outcome.CLIENT_DISCONNECT)
        fresh, _ = house.run(name="fresh")
        assert await fresh is Outcome.SUCCESS
        await running
        assert [await task for task in gone] == [Outcome.CLIENT_DISCONNECT] * 5
        assert [r.body for r in house.upstream.requests] == [b"running", b"fresh"]

    virtually(body, slots=1)


def test_a_client_that_leaves_frees_its_slot_within_a_second() -> None:
    """R18 BerriAI/litellm#27955: limit 2, 20 times open, read, leave; in flight 0 within 1 s, the next call answers."""

    async def body(house: House) -> None:
        for n in range(20):
            task, reply = house.run(name=f"c{n}")
            while not reply.started:
                await house.clock.sleep(0.01)
            task.exchange.abort(Outcome.CLIENT_DISCONNECT)
            assert await task is Outcome.CLIENT_DISCONNECT
        await house.clock.sleep(1.0)
        assert house.pool.counts.interactive == 0
        task, _ = house.run(name="next")
        assert await task is Outcome.SUCCESS
        assert house.upstream.aborted == 20

    virtually(body, lambda request, n: streamed(500), slots=2)


def test_an_error_and_an_abort_in_the_same_tick_release_once() -> None:
    """R26 restify/clients PR#200: 500 times; the gauge never below 0, and 0 at the end."""
    broken = UpstreamFailed(502, "upstream_truncated", "broke off")

    async def body(house: House) -> None:
        for n in range(500):
            task, _ = house.run(Lane.BATCH if n % 3 == 0 else INTERACTIVE, name=f"c{n}")
            await house.clock.sleep(0.1)
            task.exchange.abort(Outcome.CLIENT_DISCONNECT)
            await task
            counts = house.pool.counts
            assert counts.interactive >= 0
            assert counts.batch >= 0
        await house.clock.sleep(1)

    virtually(body, lambda request, n: Script(steps=[ROLE + event("a"), 0.1, broken]))


@pytest.mark.parametrize(
    ("script", "seconds", "started"),
    [
        (streamed(3, first=9.0), 2.0, False),
        (whole(9.0), 2.0, False),
        (Script(steps=[ROLE, event("a"), 9.0, STOP]), 1.5, True),
        (streamed(10_000), 8.0, True),
    ],
    ids=["first byte", "head", "between bytes", "total"],
)
def test_each_time_out_ends_in_its_error(script: Script, seconds: float, started: bool) -> None:
    async def body(house: House) -> None:
        task, reply = house.run()
        assert await task is Outcome.TIMEOUT
        assert reply.error is not None
        assert (reply.error.status, reply.error.code, reply.started) == (504, "upstream_timeout", started)
        assert house.clock.monotonic() == pytest.approx(seconds, abs=0.06)
        await house.clock.sleep(1)

    timeouts = LaneTimeouts(first_byte=2.0, between_bytes=1.5, total=8.0)
    virtually(body, lambda request, n: script, interactive_timeouts=timeouts)


@dataclass
class SlowReply(KeptReply):
    """A client that takes 3 s over every piece."""

    clock: LoopClock

    def __post_init__(self) -> None:
        super().__init__(self.clock)

    async def send(self, piece: bytes) -> None:
        await self.clock.sleep(3)
        await super().send(piece)


def test_a_client_that_reads_slowly_is_no_fault_of_the_servers() -> None:
    async def body(house: House) -> None:
        exchange = Exchange(house.pool.gateway, call(), SlowReply(house.clock))
        assert await exchange.run() is Outcome.SUCCESS

    timeouts = LaneTimeouts(first_byte=2.0, between_bytes=1.5, total=60.0)
    virtually(body, lambda request, n: streamed(5), interactive_timeouts=timeouts)


def test_an_answer_that_never_ends_is_told_from_one_that_stalls() -> None:
    async def body(house: House) -> None:
        told = []
        for _ in range(2):
            task, reply = house.run()
            assert await task is Outcome.TIMEOUT
            assert reply.error is not None
            told.append(reply.error.message)
        await house.clock.sleep(1)
        assert "come to the end of its answer" in told[0]
        assert "stopped sending" in told[1]

    timeouts = LaneTimeouts(first_byte=2.0, between_bytes=1.5, total=8.0)
    scripts = {1: streamed(100, gap=1.0), 2: Script(steps=[ROLE + event("a"), 60.0, STOP])}
    virtually(body, lambda request, n: scripts[n], interactive_timeouts=timeouts)


@pytest.mark.parametrize("left", [True, False])
def test_what_was_generated_until_an_answer_broke_off_counts(left: bool) -> None:
    """Counted from the pieces that passed: a client that always leaves early would else use nothing of its limits."""

    async def body(house: House) -> None:
        one = call()
        exchange = Exchange(house.pool.gateway, one, KeptReply(house.clock))
        task = asyncio.ensure_future(exchange.run())
        await house.clock.sleep(1.05)
        if left:
            exchange.client_left()
        await task
        assert (one.output_tokens, one.estimated) == (5, True)
        assert house.pool.gateway.meters.lanes[INTERACTIVE].output_tokens == {False: 0, True: 5}
        await house.clock.sleep(1)

    broken = UpstreamFailed(502, "upstream_truncated", "gone")
    steps = [0.1, ROLE + event("a"), *[0.2, event("b")] * 4, *([60.0] if left else [0.2, broken])]
    virtually(body, lambda request, n: Script(steps=steps))


def test_an_error_told_inside_a_stream_passes_as_it_is_and_counts_as_one() -> None:
    async def body(house: House) -> None:
        task, reply = house.run()
        assert await task is Outcome.UPSTREAM_ERROR
        assert (reply.finished, reply.error) == (True, None)
        assert b"out of memory" in reply.body

    told = b'data: {"error":{"message":"out of memory"}}\n\ndata: [DONE]\n\n'
    virtually(body, lambda request, n: Script(steps=[0.1, ROLE + event("a"), told]))


def test_what_a_pulled_back_call_had_generated_is_wasted_and_no_part_of_its_answer() -> None:
    async def body(house: House) -> None:
        one = call(BATCH, "b", durable=True)
        exchange = Exchange(house.pool.gateway, one, KeptReply(house.clock))
        task = asyncio.ensure_future(exchange.run())
        await house.clock.sleep(1.0)
        running, _ = house.run()
        await settle()
        exchange.abort(Outcome.CANCELLED)
        assert await task is Outcome.CANCELLED
        assert house.pool.gateway.stats.wasted_tokens > 0
        assert (one.output_tokens, one.estimated) == (0, False)
        await running

    virtually(body, lambda request, n: streamed(50 if n == 1 else 2, gap=0.1), slots=1, reserve=0, floor=1)


@pytest.mark.parametrize("status", [600, 999])
def test_a_status_that_does_not_exist_is_a_502(status: int) -> None:
    async def body(house: House) -> None:
        task, reply = house.run(stream=False)
        assert await task is Outcome.UPSTREAM_ERROR
        assert reply.error is not None
        assert (reply.error.status, reply.error.code) == (502, "upstream_error")
        assert str(status) in reply.error.message

    virtually(body, lambda request, n: whole(status=status))


def test_a_call_that_waited_in_vain_tells_for_how_long() -> None:
    async def body(house: House) -> None:
        running, _ = house.run(name="running")
        await settle()
        waits = call()
        assert await Exchange(house.pool.gateway, waits, KeptReply(house.clock)).run() is Outcome.TIMEOUT
        assert waits.queued_s == pytest.approx(2.0)
        await running

    virtually(body, lambda request, n: whole(5.0), slots=1, floor=0, interactive_max_wait=2.0)


def test_when_the_process_stops_waiting_calls_end_at_once_and_running_ones_with_their_last_words() -> None:
    async def body(house: House) -> None:
        running, told = house.run(name="running")
        await house.clock.sleep(0.5)
        waits, refused = house.run(name="waits")
        await settle()
        gateway = house.pool.gateway
        gateway.shut_down(waiting_only=True)
        assert await waits is Outcome.CANCELLED
        assert refused.error is not None
        assert (refused.error.status, refused.error.code, refused.error.retry_after) == (503, "shutting_down", 5)
        assert gateway.stats.evicted == {(INTERACTIVE, "shutting_down"): 1}
        await house.clock.sleep(0.5)
        assert (running.done(), told.started) == (False, True)
        gateway.shut_down()
        assert await running is Outcome.CANCELLED
        assert told.error is not None
        assert told.error.code == "shutting_down"
        assert not gateway.live
        await house.clock.sleep(1)

    virtually(body, lambda request, n: streamed(500), slots=1, floor=0)


def test_an_answer_that_is_not_streamed_may_take_its_whole_time() -> None:
    async def body(house: House) -> None:
        task, _ = house.run(stream=False)
        assert await task is Outcome.SUCCESS

    virtually(body, lambda request, n: whole(7.0), interactive_timeouts=LaneTimeouts(first_byte=2.0, total=8.0))


def test_a_waiting_stream_gets_heartbeats_and_then_its_answer() -> None:
    async def body(house: House) -> None:
        running, _ = house.run(name="running")
        task, reply = house.run(BATCH, name="waits")
        await house.clock.sleep(14.9)
        assert reply.heartbeats == 0
        await house.clock.sleep(10.2)
        assert reply.heartbeats == 3
        assert await running is Outcome.SUCCESS
        assert await task is Outcome.SUCCESS
        beats = reply.heartbeats
        await house.clock.sleep(30)
        assert reply.heartbeats == beats

    virtually(body, lambda request, n: streamed(3, first=40.0 if request.body == b"running" else 0.1), slots=1)


def test_a_batch_call_is_pulled_back_unseen_and_answered_later() -> None:
    async def body(house: House) -> None:
        batch, reply = house.run(BATCH, "b", stream=False)
        await house.clock.sleep(0.5)
        interactive = [house.run(name=f"i{n}")[0] for n in range(4)]
        assert [await task for task in interactive] == [Outcome.SUCCESS] * 4
        assert await batch is Outcome.SUCCESS
        assert (reply.status, reply.finished) == (200, True)
        assert [r.body for r in house.upstream.requests].count(b"b") == 2
        assert house.pool.gateway.stats.retries == {"pulled_back": 1}

    virtually(body, lambda request, n: whole(1.0) if request.body == b"b" else streamed(3))


def test_a_batch_stream_whose_first_byte_is_out_is_left_alone() -> None:
    async def body(house: House) -> None:
        batch, reply = house.run(BATCH, "b")
        while not reply.started:
            await house.clock.sleep(0.05)
        interactive = [house.run(name=f"i{n}")[0] for n in range(4)]
        assert [await task for task in interactive] == [Outcome.SUCCESS] * 4
        assert await batch is Outcome.SUCCESS
        assert [r.body for r in house.upstream.requests].count(b"b") == 1

    virtually(body, lambda request, n: streamed(100 if request.body == b"b" else 3))


def test_a_batch_call_whose_refusal_is_on_its_way_to_the_client_is_left_alone() -> None:
    async def body(house: House) -> None:
        reply = SlowReply(house.clock)
        batch = asyncio.ensure_future(Exchange(house.pool.gateway, call(BATCH, "b", stream=False), reply).run())
        while not reply.started:
            await house.clock.sleep(0.05)
        interactive = [house.run(name=f"i{n}")[0] for n in range(4)]
        assert [await task for task in interactive] == [Outcome.SUCCESS] * 4
        assert await batch is Outcome.CLIENT_ERROR
        assert (reply.status, reply.body) == (400, b"{}")
        assert [r.body for r in house.upstream.requests].count(b"b") == 1

    refused = whole(0.1, status=400, body=b"{}")
    virtually(body, lambda request, n: refused if request.body == b"b" else streamed(3))


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.2])
def test_a_client_that_leaves_while_its_call_is_pulled_back_is_never_sent_again(delay: float) -> None:
    async def body(house: House) -> None:
        batch, _ = house.run(BATCH, "b", stream=False)
        await house.clock.sleep(0.5)
        interactive = [house.run(name=f"i{n}")[0] for n in range(4)]
        await house.clock.sleep(delay)
        batch.exchange.abort(Outcome.CLIENT_DISCONNECT)
        assert await batch is Outcome.CLIENT_DISCONNECT
        assert [await task for task in interactive] == [Outcome.SUCCESS] * 4
        await house.clock.sleep(1)
        assert [r.body for r in house.upstream.requests].count(b"b") == 1

    virtually(body, lambda request, n: whole(5.0) if request.body == b"b" else streamed(50))


@pytest.mark.parametrize("seed", range(8))
def test_slots_never_leak_whatever_happens_when(seed: int) -> None:
    """Cancelled tasks, leaving clients, errors, time-outs and pull-backs at random instants; the end is all zeros."""
    rng = random.Random(seed)
    failed = UpstreamFailed(502, "upstream_truncated", "broke off")
    scripts = [
        streamed(5),
        streamed(200),
        whole(0.3),
        REFUSED_429,
        whole(0.1, status=500),
        Script(steps=[ROLE, 0.2, failed]),
        Script(head_after=0.1, head_error=failed),
        whole(60.0),
    ]

    async def one(house: House, n: int) -> None:
        await house.clock.sleep(rng.random() * 20)
        lane = rng.choice(list(Lane))
        task, _ = house.run(lane, f"c{n}", stream=rng.random() < 0.5, durable=lane is BATCH and rng.random() < 0.5)
        await house.clock.sleep(rng.random() * 3)
        fate = rng.random()
        if fate < 0.3:
            task.exchange.abort(Outcome.CLIENT_DISCONNECT)
        elif fate < 0.5:
            task.cancel()
        await asyncio.wait([task])

    async def body(house: House) -> None:
        tasks = [asyncio.ensure_future(one(house, n)) for n in range(300)]
        for _ in range(40):
            await house.clock.sleep(0.5)
            slots = rng.randint(1, 6)
            house.change(slots=slots, reserve=min(1, slots - 1), hold=rng.choice([None, 0, 2]))
        house.change(slots=4, reserve=1, hold=None, limit=4.0)
        await asyncio.gather(*tasks)
        await house.clock.sleep(1)
        assert house.pool.dispatcher.quota() == 3

    virtually(
        body,
        lambda request, n: rng.choice(scripts),
        slots=6,
        interactive_timeouts=LaneTimeouts(first_byte=2.0, between_bytes=1.5, total=8.0),
        batch_timeouts=LaneTimeouts(first_byte=2.0, between_bytes=1.5, total=8.0),
    )


@pytest.mark.parametrize("backlog", [30, 300])
def test_interactive_waits_at_most_one_turnover_of_the_reserve_however_long_the_backlog(backlog: int) -> None:
    """R1 vllm-project/vllm#24365: 30 batch calls on 4 slots, one interactive call every second."""

    async def body(house: House) -> None:
        batch = [house.run(BATCH, f"b{n}")[0] for n in range(backlog)]
        waits = []
        for n in range(30):
            reply = KeptReply(house.clock)
            one = call(name=f"i{n}")
            assert await Exchange(house.pool.gateway, one, reply).run() is Outcome.SUCCESS
            waits.append(one.queued_s)
            await house.clock.sleep(1.0)
        assert max(waits) < 0.2
        for task in batch:
            task.cancel()
        await asyncio.wait(batch)
        await house.clock.sleep(1)

    virtually(body, lambda request, n: streamed(3) if request.body[:1] == b"i" else streamed(400))
