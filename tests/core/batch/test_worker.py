import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from core.batch.closer import Closer
from core.batch.keeper import Keeper
from core.batch.rescuer import Rescuer
from core.batch.states import move
from core.batch.values import Batch, BatchPause, BatchStatus, ItemState, NewItem
from core.batch.wake import Wake
from core.batch.worker import BatchWorker
from core.clock import LoopClock
from core.config import LaneTimeouts, PoolConfig, pool_settings
from core.control.decisions import Decision
from core.control.windows import Schedule
from core.errors import UpstreamFailed
from core.lanes import Lane
from core.pools import Pool
from core.ports import UpstreamRequest
from core.quotas import PoolLimits
from core.runtime import build_pool
from core.scheduling.exchange import Exchange
from core.simulation.driver import EngineDriver
from core.simulation.engine import Engine, EngineSettings
from core.simulation.upstream import SimulatedUpstream
from core.simulation.virtual_time import run_virtual
from tests.fakes import KeptReply, Script, ScriptedUpstream, call, event, settle, streamed, whole
from tests.fakes_batch import MemoryBatches, MemoryFiles

EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
DAY = timedelta(days=1)
OK = b'{"choices":[{"index":0,"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":5}}'
ERROR = b'{"error":{"message":"no","type":"t","param":null,"code":"c"}}'
UNREACHABLE = UpstreamFailed(502, "upstream_unreachable", "The model server cannot be reached.")
SECOND = streamed(2, first=0.05, gap=0.95)
Answering = Callable[[UpstreamRequest, int], Script]


def custom_id(request: UpstreamRequest) -> str:
    """Return the name that `House.add` gave the line."""
    body: dict[str, Any] = msgspec.json.decode(request.body)
    return str(body["user"])


@dataclass
class House:
    """A worker, a keeper and pools in virtual time, over stores in memory and a scripted server."""

    clock: LoopClock
    config: PoolConfig
    answer: Answering
    store: MemoryBatches = field(default_factory=MemoryBatches)
    files: MemoryFiles = field(default_factory=MemoryFiles)
    decisions: list[Decision] = field(default_factory=list)
    owners: int = 0

    def __post_init__(self) -> None:
        self.upstream = ScriptedUpstream(self.clock, self.answer)
        self.wake = Wake()
        self.closer = Closer(store=self.store, files=self.files, clock=self.clock, retention=DAY)
        self.keeper = Keeper(store=self.store, intake=None, closer=self.closer, wake=self.wake)
        self.pools = {self.config.name: self.build(self.config, self.upstream)}
        self.worker = self.another()

    def build(self, config: PoolConfig, upstream: Any) -> Pool:
        pool = build_pool(
            config,
            settings=pool_settings(config),
            schedule=Schedule(),
            clock=self.clock,
            upstream=upstream,
            emit=self.decisions.append,
        )
        pool.dispatcher.apply(replace(pool.dispatcher.limits, limit=float(config.slots)))
        return pool

    def another(self, **options: Any) -> BatchWorker:
        """Return one more worker, as a restart makes it."""
        self.owners += 1
        given = {"pools": self.pools, "wake": self.wake, "emit": self.decisions.append, **options}
        return BatchWorker(store=self.store, files=self.files, clock=self.clock, owner=f"w{self.owners}", **given)

    @property
    def pool(self) -> Pool:
        return self.pools["default"]

    async def add(self, name: str = "b", lines: int = 1, *, body: dict[str, Any] | None = None, **fields: Any) -> None:
        """Store a batch in progress; each line's `user` is its custom id, "name-index"."""
        given = {"tenant": "t", "key": None, "pool": "default", "model": "m", "endpoint": "/v1/chat/completions"}
        given |= {"window": DAY, "input_file_id": f"in-{name}", "created_at": self.clock.now()} | fields
        batch = Batch(id=name, status=BatchStatus.IN_PROGRESS, in_progress_at=self.clock.now(), **given)
        await self.store.create(batch)
        items = []
        for index in range(lines):
            line = msgspec.json.encode(
                {"custom_id": f"{name}-{index}", "body": {"user": f"{name}-{index}", **(body or {})}}
            )
            offset = await self.files.append(f"in-{name}", line + b"\n")
            items.append(NewItem(index, f"{name}-{index}", offset, len(line), "m", 10, None))
        await self.store.add_items(name, items)
        self.wake.notify()

    async def ended(self, name: str = "b", within: float = 3600.0) -> Batch:
        async with asyncio.timeout(within):
            while not self.store.stored[name].ended:
                await self.clock.sleep(0.05)
        return self.store.stored[name]

    async def change(self, name: str = "b", **fields: Any) -> None:
        await self.store.update(replace(await self.store.batch(name), **fields))
        self.wake.notify()

    async def cancel(self, name: str = "b") -> None:
        batch = await self.store.batch(name)
        await self.store.update(move(batch, BatchStatus.CANCELLING, self.clock.now()))
        self.wake.notify()

    def lines(self, file_id: str) -> list[dict[str, Any]]:
        return [msgspec.json.decode(line) for line in bytes(self.files.files.get(file_id, b"")).splitlines()]

    async def results(self, name: str = "b") -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the output and error lines by custom id; every line must stand once, where its item says."""
        batch = await self.store.batch(name)
        found = []
        for file_id, size in ((batch.output_file, batch.output_size), (batch.error_file, None)):
            lines = self.lines(file_id)
            assert size is None or len(self.files.files.get(file_id, b"")) == size
            found.append({line["custom_id"]: line for line in lines})
            assert len(found[-1]) == len(lines)
        for row in await self.store.items(name, limit=10**6):
            if row.length:
                file_id = batch.output_file if row.state is ItemState.SUCCEEDED else batch.error_file
                text = await self.files.read(file_id, row.offset, row.length)
                assert msgspec.json.decode(text)["custom_id"] == row.custom_id
        assert not found[0].keys() & found[1].keys()
        return found[0], found[1]

    def sent(self) -> list[str]:
        return [custom_id(request) for request in self.upstream.requests]


def virtually(
    body: Callable[[House], Coroutine[Any, Any, None]],
    answer: Answering = lambda request, n: SECOND,
    *,
    trouble: bool = False,
    **options: Any,
) -> None:
    """Run `body` in a house; nothing may be logged as an error unless `trouble` is expected."""

    async def main(clock: LoopClock) -> None:
        config = PoolConfig(base_url="http://upstream/v1", **{"slots": 4, "floor": 1, "headroom": 0, **options})
        house = House(clock, config, answer)
        house.worker.start()
        house.keeper.start()
        try:
            await body(house)
        finally:
            await house.worker.stop()
            await house.keeper.stop()
        await clock.sleep(1.0)
        for pool in house.pools.values():
            counts = pool.dispatcher.counts()
            assert (counts.batch, counts.backlog) == (0, 0)
        assert house.upstream.in_flight == 0
        assert house.upstream.most <= config.slots
        assert house.worker.failure is None

    with capture_logs() as logs:
        run_virtual(main, EPOCH)
    assert trouble or not [entry for entry in logs if entry["log_level"] == "error"]


# From claim to result


def test_every_line_gets_its_result_once_and_the_batch_is_completed() -> None:
    async def body(house: House) -> None:
        await house.add(lines=20)
        batch = await house.ended()
        assert (batch.status, batch.completed, batch.failed) == (BatchStatus.COMPLETED, 20, 0)
        output, errors = await house.results()
        assert set(output) == {f"b-{n}" for n in range(20)}
        assert errors == {}
        line = output["b-7"]
        response = line["response"]
        assert (response["status_code"], response["request_id"]) == (200, line["id"])
        assert response["body"]["choices"][0]["message"]["content"] == "ab"
        assert (line["error"], line["id"]) == (None, "batch_req_b_7")
        assert batch.usage.output_tokens == 40
        assert (batch.output_file_id, batch.error_file_id) == ("file-b-output", None)
        assert sorted(house.sent()) == sorted(output)

    virtually(body)


def test_no_more_items_are_claimed_than_run_and_one_stands_by() -> None:
    async def body(house: House) -> None:
        await house.add(lines=20)
        most = 0
        async with asyncio.timeout(100):
            while not (await house.store.batch("b")).ended:
                await house.clock.sleep(0.05)
                leased = sum(item.state is ItemState.RUNNING for item in house.store.queue["b"])
                counts = house.pool.counts
                assert counts.batch <= 3
                assert counts.batch + counts.backlog <= 4
                most = max(most, leased)
        assert most <= 4 + 3, "three run, one stands by, and those that just ended are being stored"

    virtually(body)


def test_the_one_standing_by_shows_the_controller_that_its_limit_is_what_stops_batch() -> None:
    async def body(house: House) -> None:
        house.pool.dispatcher.apply(replace(house.pool.dispatcher.limits, limit=2.0))
        await house.add(lines=20)
        await house.clock.sleep(2.0)
        assert (house.pool.counts.batch, house.pool.counts.backlog) == (2, 1)
        assert house.pool.dispatcher.take_bound()

    virtually(body)


def test_results_are_stored_in_groups() -> None:
    async def body(house: House) -> None:
        await house.add(lines=300)
        await house.ended()
        assert sum(house.store.finishes) == 300
        assert max(house.store.finishes) >= 20

    virtually(body, lambda request, n: streamed(2, first=0.001, gap=0.5), slots=64)


def test_items_whose_slots_come_free_one_after_the_other_are_claimed_in_groups() -> None:
    async def body(house: House) -> None:
        await house.add(lines=320, endpoint="/v1/embeddings")
        await house.ended()
        assert len(house.upstream.requests) == 320
        assert len(house.store.claims) < 100

    virtually(body, lambda request, n: whole(1.0 + n % 32 / 10_000), slots=33, floor=32, ceiling=32)


def test_a_slot_of_few_is_filled_as_soon_as_it_is_free() -> None:
    async def body(house: House) -> None:
        await house.add(lines=10)
        began = house.clock.monotonic()
        await house.ended()
        assert house.clock.monotonic() - began < 10.1

    virtually(body, lambda request, n: whole(1.0), slots=2, floor=1, ceiling=1, stream_items=False)


def test_items_are_streamed_and_their_answers_are_plain_again() -> None:
    async def body(house: House) -> None:
        await house.add(lines=2)
        await house.ended()
        for request in house.upstream.requests:
            sent = msgspec.json.decode(request.body)
            assert (sent["stream"], sent["stream_options"], sent["model"]) == (True, {"include_usage": True}, "m")
        output, _ = await house.results()
        body = output["b-0"]["response"]["body"]
        assert body["object"] == "chat.completion"
        assert body["choices"][0]["message"] == {"role": "assistant", "content": "abb"}
        assert house.pool.dispatcher._first_token.value is not None

    virtually(body, lambda request, n: streamed(3))


def test_a_pool_may_switch_streaming_off() -> None:
    async def body(house: House) -> None:
        await house.add(lines=1)
        await house.ended()
        assert "stream" not in msgspec.json.decode(house.upstream.requests[0].body)

    virtually(body, stream_items=False)


def test_a_server_that_refuses_streams_is_sent_plain_requests_from_then_on() -> None:
    def answer(request: UpstreamRequest, n: int) -> Script:
        if b'"stream":true' in request.body:
            return whole(0.0, status=400, body=b'{"error":{"message":"stream_options is not supported"}}')
        return whole(0.1, body=OK)

    async def body(house: House) -> None:
        await house.add(lines=6)
        batch = await house.ended()
        assert (batch.completed, batch.failed) == (6, 0)
        streams = [b'"stream":true' in request.body for request in house.upstream.requests]
        assert 1 <= sum(streams) <= 4
        assert not any(streams[-3:])
        assert {item.attempts for item in house.store.queue["b"]} == {1}

    virtually(body, answer)


def test_a_bad_line_whose_error_only_speaks_of_an_upstream_is_sent_once() -> None:
    async def body(house: House) -> None:
        await house.add()
        assert (await house.ended()).failed == 1
        assert len(house.sent()) == 1

    virtually(body, lambda request, n: whole(0.0, status=400, body=b'{"error":{"message":"the upstream says no"}}'))


def test_durable_items_move_although_others_keep_the_batch_queue_full() -> None:
    async def body(house: House) -> None:
        async def client() -> None:
            while True:
                await Exchange(house.pool.gateway, call(Lane.BATCH), KeptReply(house.clock)).run()

        clients = [asyncio.ensure_future(client()) for _ in range(12)]
        await house.clock.sleep(5.0)
        await house.add(lines=5)
        assert (await house.ended(within=120.0)).completed == 5
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    virtually(body)


@pytest.mark.parametrize(
    ("endpoint", "line"),
    [
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/completions", {"prompt": "x", "best_of": 3}),
        ("/v1/chat/completions", {"modalities": ["text", "audio"], "audio": {"voice": "v"}}),
    ],
)
def test_what_cannot_be_put_together_again_is_not_streamed(endpoint: str, line: dict[str, Any]) -> None:
    async def body(house: House) -> None:
        await house.add(endpoint=endpoint, body=line)
        assert (await house.ended()).completed == 1
        request = house.upstream.requests[0]
        assert request.path == endpoint.removeprefix("/v1")
        assert "stream" not in msgspec.json.decode(request.body)

    virtually(body, lambda request, n: whole(0.1, body=OK))


def test_an_answer_that_was_pulled_back_half_way_begins_anew() -> None:
    async def body(house: House) -> None:
        await house.add(lines=3)
        await house.clock.sleep(1.05)
        tasks = [
            asyncio.ensure_future(Exchange(house.pool.gateway, call(), KeptReply(house.clock)).run()) for _ in range(4)
        ]
        batch = await house.ended()
        await asyncio.gather(*tasks)
        assert batch.completed == 3
        output, _ = await house.results()
        contents = {line["response"]["body"]["choices"][0]["message"]["content"] for line in output.values()}
        assert contents == {"a" + "b" * 19}
        assert house.upstream.aborted >= 1
        assert {item.attempts for item in house.store.queue["b"]} == {1}

    virtually(body, lambda request, n: streamed(20, first=1.0, gap=0.1))


# Retries


def test_a_line_that_is_refused_again_and_again_is_sent_exactly_as_often_as_configured() -> None:
    """R43 HKUDS/nanobot#2760."""

    async def body(house: House) -> None:
        await house.add()
        batch = await house.ended()
        assert (batch.status, batch.completed, batch.failed) == (BatchStatus.COMPLETED, 0, 1)
        assert house.sent() == ["b-0"] * 3
        gaps = [after - before for before, after in itertools.pairwise(house.upstream.times)]
        assert 1.5 <= gaps[0] <= 3.6
        assert 3.0 <= gaps[1] <= 6.1
        _, errors = await house.results()
        assert errors["b-0"]["response"]["status_code"] == 429
        assert errors["b-0"]["response"]["body"] == msgspec.json.decode(ERROR)
        assert (batch.output_file_id, batch.error_file_id) == (None, "file-b-error")

    virtually(body, lambda request, n: whole(0.0, status=429, body=ERROR), batch_attempts=3)


def test_an_item_that_waits_for_its_retry_holds_no_slot() -> None:
    def answer(request: UpstreamRequest, n: int) -> Script:
        return whole(0.0, status=500, body=ERROR) if n == 1 else whole(0.1, body=OK)

    async def body(house: House) -> None:
        await house.add(lines=6)
        batch = await house.ended()
        assert batch.completed == 6
        assert house.sent()[-1] == "b-0"
        assert house.upstream.times[-2] < 1.0 < house.upstream.times[-1]

    virtually(body, answer, slots=2)


def test_no_worker_sends_while_the_server_asked_everybody_to_stay_away() -> None:
    """R46 HKUDS/nanobot#2763; earendil-works/pi#9595."""

    def answer(request: UpstreamRequest, n: int) -> Script:
        return whole(0.0, status=429, body=ERROR, headers=[(b"retry-after", b"3")]) if n == 1 else whole(0.1, body=OK)

    async def body(house: House) -> None:
        await house.add(lines=8)
        assert (await house.ended()).completed == 8
        refused = house.upstream.times[0]
        later = [at for at in house.upstream.times if at > refused + 0.001]
        assert min(later) >= refused + 3.0

    virtually(body, answer, slots=8)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_line_that_is_wrong_is_sent_once_and_its_error_is_kept_bounded(status: int) -> None:
    """R45 awsl-project/maxx PR#833; R58 ProjectTech4DevAI/kaapi-backend#723."""

    async def body(house: House) -> None:
        await house.add(lines=3)
        batch = await house.ended()
        assert (batch.status, batch.completed, batch.failed) == (BatchStatus.COMPLETED, 0, 3)
        assert sorted(house.sent()) == ["b-0", "b-1", "b-2"]
        assert len(house.files.files["file-b-error"]) < 3 * 6000
        assert {row.error_code for row in await house.store.items("b")} == {f"http_{status}"}

    virtually(body, lambda request, n: whole(0.0, status=status, body=b"<html>" + b"x" * 100_000))


def test_a_server_that_is_away_uses_up_no_attempts() -> None:
    def answer(request: UpstreamRequest, n: int) -> Script:
        return Script(head_error=UNREACHABLE) if house_time() < 120 else whole(0.1, body=OK)

    def house_time() -> float:
        return asyncio.get_running_loop().time()

    async def body(house: House) -> None:
        await house.add(lines=30)
        batch = await house.ended()
        assert (batch.completed, batch.failed) == (30, 0)
        away = [at for at in house.upstream.times if at < 120]
        assert len(away) < 30, "the batch knocks ever more rarely"
        assert {item.attempts for item in house.store.queue["b"]} == {1}

    virtually(body, answer)


def test_an_answer_that_is_cut_or_no_answer_is_tried_again() -> None:
    def answer(request: UpstreamRequest, n: int) -> Script:
        if n == 1:
            return Script(steps=[event("a"), UpstreamFailed(502, "upstream_truncated", "broke off")])
        if n == 2:
            return Script(steps=[event("a")])
        if n == 3:
            return whole(0.1, body=b"not json")
        return streamed(3)

    async def body(house: House) -> None:
        await house.add()
        assert (await house.ended()).completed == 1
        assert len(house.upstream.requests) == 4

    virtually(body, answer)


def test_an_error_inside_a_stream_is_the_answer_that_it_says() -> None:
    bad = b'data: {"error":{"message":"too long","code":400}}\n\ndata: [DONE]\n\n'

    async def body(house: House) -> None:
        await house.add()
        assert (await house.ended()).failed == 1
        _, errors = await house.results()
        assert errors["b-0"]["response"]["status_code"] == 400
        assert len(house.upstream.requests) == 1

    virtually(body, lambda request, n: Script(steps=[bad]))


def test_a_time_out_counts_from_the_slot_not_from_the_wait_for_it() -> None:
    async def body(house: House) -> None:
        await house.add(lines=4)
        assert (await house.ended()).completed == 4
        assert len(house.upstream.requests) == 4

    timeouts = LaneTimeouts(first_byte=10.0, total=3.0)
    virtually(body, lambda request, n: whole(2.0, body=OK), slots=2, batch_timeouts=timeouts)


# Fairness


def test_a_single_line_of_another_tenant_is_done_within_two_turnovers() -> None:
    """R7 wavelens/gradient#111."""

    async def body(house: House) -> None:
        await house.add("a", 1000, tenant="A")
        await house.clock.sleep(20.0)
        began = house.clock.monotonic()
        await house.add("b", 1, tenant="B")
        await house.ended("b")
        assert house.clock.monotonic() - began <= 2 * 1.0 + 1.5, "two turnovers of a second each, and being stored"
        await house.cancel("a")
        await house.ended("a")

    virtually(body)


def test_tenants_progress_by_their_weights() -> None:
    """R9 llm-d/llm-d-batch-gateway#401."""

    async def body(house: House) -> None:
        await house.worker.stop()
        house.worker = house.another(weights={"A": 3.0, "B": 1.0})
        house.worker.start()
        await house.add("a", 1000, tenant="A")
        await house.add("b", 1000, tenant="B")
        await house.clock.sleep(100.0)
        done = {name: (await house.store.batch(name)).completed for name in "ab"}
        assert 2.6 <= done["a"] / done["b"] <= 3.4
        for name in "ab":
            await house.cancel(name)
            await house.ended(name)

    virtually(body)


def test_a_tenants_ceiling_bounds_all_its_batches_together_and_hinders_no_other_tenant() -> None:
    async def body(house: House) -> None:
        await house.worker.stop()
        house.worker = house.another(batch_slots={"A": 2}.get)
        house.worker.start()
        for name in ("a1", "a2", "b"):
            await house.add(name, 30, tenant=name[0].upper())
        most = 0
        while any(not house.store.stored[name].ended for name in ("a1", "a2", "b")):
            under_way = {name: len(run.running) + run.planned for name, run in house.worker.runs.items()}
            most = max(most, under_way.get("a1", 0) + under_way.get("a2", 0))
            await house.clock.sleep(0.05)
        assert most == 2
        assert {house.store.stored[name].completed for name in ("a1", "a2", "b")} == {30}

    virtually(body, slots=8)


def test_priority_goes_before_deadline_and_can_be_changed_while_the_batch_runs() -> None:
    async def body(house: House) -> None:
        await house.add("late", 30, window=DAY)
        await house.add("soon", 30, window=timedelta(hours=5))
        await house.clock.sleep(10.0)
        assert (await house.store.batch("soon")).completed > 3 * (await house.store.batch("late")).completed
        await house.change("late", priority=5)
        await house.clock.sleep(1.5)
        before = (await house.store.batch("late")).completed, (await house.store.batch("soon")).completed
        await house.clock.sleep(4.0)
        after = (await house.store.batch("late")).completed, (await house.store.batch("soon")).completed
        assert after[0] - before[0] > 3 * (after[1] - before[1])
        await house.ended("late")
        await house.ended("soon")

    virtually(body)


def test_a_batchs_own_limits_bound_its_starts_and_hinder_no_other() -> None:
    async def body(house: House) -> None:
        await house.add("narrow", 12, max_concurrency=1)
        await house.add("slow", 8, interval_s=3.0)
        await house.add("free", 40)
        await house.ended("free")
        await house.ended("narrow")
        await house.ended("slow")
        times = [at for at, name in zip(house.upstream.times, house.sent(), strict=True) if name.startswith("slow")]
        assert all(after - before >= 2.999 for before, after in itertools.pairwise(times))
        narrow = [at for at, name in zip(house.upstream.times, house.sent(), strict=True) if name.startswith("narrow")]
        assert all(after - before >= 0.999 for before, after in itertools.pairwise(narrow))
        assert narrow[-1] < 45.0

    virtually(body)


def test_a_paused_batch_starts_nothing_and_goes_on_when_it_may() -> None:
    async def body(house: House) -> None:
        await house.add(lines=30)
        await house.clock.sleep(2.5)
        await house.change(pause=BatchPause("ann", "lunch", house.clock.now()))
        await house.clock.sleep(2.0)
        sent = len(house.sent())
        await house.clock.sleep(60.0)
        assert len(house.sent()) == sent
        assert (await house.store.batch("b")).running == 0
        await house.change(pause=None)
        assert (await house.ended()).completed == 30

    virtually(body)


def test_a_batch_that_fails_alone_backs_off_alone_and_says_so() -> None:
    def answer(request: UpstreamRequest, n: int) -> Script:
        bad = custom_id(request).startswith("bad")
        return whole(0.1, status=500, body=ERROR) if bad else SECOND

    async def body(house: House) -> None:
        await house.add("bad", 200)
        await house.add("good", 150)
        await house.ended("good")
        bad = sum(name.startswith("bad") for name in house.sent())
        assert bad < 30
        told = [decision for decision in house.decisions if decision.reason == "poisoned_batch"]
        assert told
        assert "Batch bad backs off for" in told[0].sentence
        await house.cancel("bad")
        await house.ended("bad")

    virtually(body, answer)


# Cancel, expiry


def test_cancelling_closes_the_upstream_connections_within_two_seconds_and_keeps_the_counts() -> None:
    """R63 llm-d/llm-d-batch-gateway PR#125/#127."""

    def answer(request: UpstreamRequest, n: int) -> Script:
        return SECOND if n <= 2 else streamed(2, first=0.05, gap=100.0)

    async def body(house: House) -> None:
        await house.add(lines=10)
        await house.clock.sleep(5.0)
        assert house.upstream.in_flight == 3
        began = house.clock.monotonic()
        await house.cancel()
        batch = await house.ended(within=2.0)
        assert house.clock.monotonic() - began <= 2.0
        assert house.upstream.in_flight == 0
        assert house.upstream.aborted == 3
        assert (batch.status, batch.completed, batch.failed) == (BatchStatus.CANCELLED, 2, 8)
        output, errors = await house.results()
        assert (len(output), len(errors)) == (2, 8)
        assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}

    virtually(body, answer)


def test_a_cancel_that_meets_the_finish_ends_the_batch_either_way() -> None:
    """R61 llm-d/llm-d-batch-gateway#146: 200 cancels at random instants."""

    async def body(house: House) -> None:
        chance, seen = random.Random(3), Counter[BatchStatus]()
        for n in range(200):
            name = f"r{n}"
            await house.add(name, 3)
            await house.clock.sleep(chance.uniform(0.0, 0.4))
            if not (await house.store.batch(name)).ended:
                await house.cancel(name)
            batch = await house.ended(name, within=2.0)
            output, errors = await house.results(name)
            assert (len(output), len(errors)) == (batch.completed, batch.failed)
            assert batch.completed + batch.failed == 3
            seen[batch.status] += 1
        assert seen[BatchStatus.CANCELLED] > 20
        assert seen[BatchStatus.COMPLETED] > 20

    virtually(body, lambda request, n: whole(0.1, body=OK))


def test_an_expired_batch_keeps_what_is_done() -> None:
    """R60 warmbly/warmbly PR#333; bespokelabsai/curator#226."""

    async def body(house: House) -> None:
        await house.add(lines=100, window=timedelta(seconds=10.5))
        batch = await house.ended(within=25.0)
        assert batch.status is BatchStatus.EXPIRED
        output, errors = await house.results()
        assert len(output) == batch.completed >= 25
        assert len(output) + len(errors) == 100
        assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}

    virtually(body)


def test_what_runs_at_the_end_of_the_window_gets_a_grace_and_is_then_broken_off() -> None:
    def answer(request: UpstreamRequest, n: int) -> Script:
        return whole(8.0 if n == 1 else 500.0, body=OK)

    async def body(house: House) -> None:
        await house.add(lines=2, window=timedelta(seconds=5))
        batch = await house.ended(within=20.0)
        assert (batch.status, batch.completed, batch.failed) == (BatchStatus.EXPIRED, 1, 1)
        assert house.upstream.aborted == 1

    virtually(body, answer)


def test_a_batch_that_is_run_again_for_its_failed_lines_is_taken_up_anew() -> None:
    def answer(request: UpstreamRequest, n: int) -> Script:
        return whole(0.1, status=400 if n <= 5 else 200, body=ERROR if n <= 5 else OK)

    async def body(house: House) -> None:
        await house.add(lines=10)
        batch = await house.ended()
        assert (batch.completed, batch.failed) == (5, 5)
        await house.clock.sleep(2.0)
        for item in house.store.queue["b"]:
            if item.state is ItemState.FAILED:
                item.state, item.attempts, item.end = ItemState.PENDING, 0, None
        house.store.stored["b"] = replace(house.store.stored["b"], failed=0, error_size=0)
        await house.store.update(move(await house.store.batch("b"), BatchStatus.IN_PROGRESS, house.clock.now()))
        house.wake.notify()
        batch = await house.ended()
        assert (batch.completed, batch.failed) == (10, 0)
        output, errors = await house.results()
        assert (len(output), errors) == (10, {})

    virtually(body, answer)


# Trouble


def test_stopping_lets_what_runs_finish_within_the_grace_and_gives_the_rest_back_uncounted() -> None:
    """R87 cubeplexai/cubeplex#606."""

    def answer(request: UpstreamRequest, n: int) -> Script:
        return streamed(2, first=0.05, gap=2.0 if n == 1 else 100.0)

    async def body(house: House) -> None:
        await house.add(lines=10)
        await house.clock.sleep(1.0)
        began = house.clock.monotonic()
        await house.worker.stop()
        assert house.clock.monotonic() - began <= 5.5
        states = Counter(item.state for item in house.store.queue["b"])
        assert states == {ItemState.SUCCEEDED: 1, ItemState.PENDING: 9}
        assert sum(item.attempts for item in house.store.queue["b"]) == 1
        assert len(house.sent()) == 3, "what stood by was not sent any more"
        assert house.upstream.in_flight == 0

    virtually(body, answer)


def test_a_new_owner_goes_on_where_a_dead_one_was_and_cuts_off_what_was_never_committed() -> None:
    async def body(house: House) -> None:
        await house.add(lines=10)
        await house.clock.sleep(2.5)
        dead, house.worker = house.worker, house.another()
        for task in [dead._task, dead._results._task, *dead._items]:
            task.cancel()
        await settle()
        await house.clock.sleep(0.5)
        done = {item.new.custom_id for item in house.store.queue["b"] if item.state is ItemState.SUCCEEDED}
        await house.files.append("file-b-output", b'{"custom_id":"half a li')
        before = len(house.sent())
        house.worker.start()
        assert (await house.ended()).completed == 10
        await house.results()
        assert not done & set(house.sent()[before:])
        assert max(Counter(house.sent()).values()) <= 2

    virtually(body)


def test_leases_are_renewed_for_as_long_as_an_item_runs() -> None:
    async def body(house: House) -> None:
        rescuer = Rescuer(store=house.store, clock=house.clock)
        rescuer.start()
        await house.add()
        assert (await house.ended()).completed == 1
        assert house.sent() == ["b-0"]
        await rescuer.stop()

    virtually(body, lambda request, n: whole(300.0, body=OK))


def test_the_rescuer_gives_back_what_a_dead_owner_leased() -> None:
    """R82 redisson/redisson#4462; gocraft/work#231."""

    async def body(house: House) -> None:
        await house.worker.stop()
        await house.add(lines=3)
        lease = timedelta(seconds=60)
        await house.store.claim("b", owner="dead", now=house.clock.now(), lease=lease, limit=3)
        house.worker = house.another(alone=False)
        house.worker.start()
        rescuer = Rescuer(store=house.store, clock=house.clock)
        rescuer.start()
        await house.clock.sleep(50.0)
        assert house.sent() == []
        assert (await house.ended(within=60.0)).completed == 3
        await rescuer.stop()

    virtually(body)


def test_two_workers_on_one_store_send_each_line_once() -> None:
    """R65 BerriAI/litellm#19301."""

    async def body(house: House) -> None:
        await house.worker.stop()
        house.worker = house.another(alone=False)
        other = house.another(alone=False, pools={"default": house.build(house.config, house.upstream)})
        house.worker.start()
        other.start()
        await house.add(lines=500)
        batch = await house.ended()
        await other.stop()
        assert batch.completed == 500
        assert max(Counter(house.sent()).values()) == 1

    virtually(body, lambda request, n: whole(0.1, body=OK), slots=8, ceiling=3)


@pytest.mark.parametrize("where", ["database", "disk"])
def test_what_cannot_be_stored_now_is_stored_once_later(where: str) -> None:
    async def body(house: House) -> None:
        await house.add(lines=40)
        await house.clock.sleep(2.2)
        (house.store if where == "database" else house.files).fail = 7
        assert (await house.ended()).completed == 40
        output, _ = await house.results()
        assert len(output) == 40

    virtually(body, trouble=True)


def test_a_missing_input_file_fails_the_lines_and_not_the_worker() -> None:
    async def body(house: House) -> None:
        await house.add("gone", 3)
        del house.files.files["in-gone"]
        await house.add("b", 3)
        assert (await house.ended("gone")).failed == 3
        assert (await house.ended("b")).completed == 3

    virtually(body)


def test_interactive_is_not_delayed_by_a_flood_of_batch() -> None:
    async def body(house: House) -> None:
        await house.add(lines=100)
        await house.clock.sleep(3.0)
        reply = KeptReply(house.clock)
        began = house.clock.monotonic()
        await Exchange(house.pool.gateway, call(Lane.INTERACTIVE), reply).run()
        assert reply.status == 200
        assert house.clock.monotonic() - began <= 1.1
        await house.cancel()
        await house.ended()

    virtually(body)


def test_a_pool_that_is_paused_or_held_at_nothing_has_nothing_claimed() -> None:
    async def body(house: House) -> None:
        limits: PoolLimits = house.pool.dispatcher.limits
        house.pool.dispatcher.apply(replace(limits, paused=True))
        await house.add(lines=5)
        await house.clock.sleep(30.0)
        assert house.store.claims == []
        house.pool.dispatcher.apply(replace(limits, hold=0))
        await house.clock.sleep(30.0)
        assert house.store.claims == []
        house.pool.dispatcher.apply(limits)
        assert (await house.ended()).completed == 5

    virtually(body)


def test_batches_run_through_the_simulated_engine() -> None:
    async def main(clock: LoopClock) -> None:
        config = PoolConfig(base_url="http://upstream/v1", slots=8, floor=2)
        house = House(clock, config, lambda request, n: streamed(1))
        driver = EngineDriver(engine=Engine(EngineSettings()), clock=clock)
        house.pools["default"] = house.build(config, SimulatedUpstream(driver=driver, clock=clock))
        house.worker.start()
        house.keeper.start()
        await house.add("chat", 20, body={"max_tokens": 30})
        await house.add("embed", 20, endpoint="/v1/embeddings", body={"input": "x"})
        await house.add("resp", 20, endpoint="/v1/responses", body={"max_output_tokens": 20})
        for name in ("chat", "embed", "resp"):
            assert (await house.ended(name)).completed == 20
            await house.results(name)
        usage = (await house.store.batch("chat")).usage
        assert usage.output_tokens == 600
        await house.worker.stop()
        await house.keeper.stop()

    run_virtual(main, EPOCH)
