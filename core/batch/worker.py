"""Runs durable batches: claims no more items than their pools have room for, and sees each to its end."""

import asyncio
import math
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial

import structlog

from core.batch.attempts import Answer, ItemSender, cost
from core.batch.endings import ending, poisoned
from core.batch.fairness import FairOrder, Pick
from core.batch.output import request_id
from core.batch.quiet import Quiet
from core.batch.reading import read_lines
from core.batch.results import Result, ResultWriter
from core.batch.retry import Attempt, Fate, RetryPolicy, is_fault, judge
from core.batch.runs import BatchRun
from core.batch.values import Batch, BatchStatus, ClaimedItem, ItemEnd, ItemState
from core.batch.wake import Wake
from core.control.decisions import Decision
from core.errors import NotFound
from core.lanes import Outcome
from core.lifecycle import Service
from core.pools import Pool
from core.ports import BatchStore, Clock, FileStore, TimerHandle
from core.scheduling.exchange import Exchange

LEASE = timedelta(seconds=60)
RENEW_EVERY_S = 15.0
LOOK_EVERY_S = 1.0
IDLE_LOOK_EVERY_S = 5.0
"""Where this process alone makes batches and has none, it is woken when there is one."""
GATHERED = 16
GATHER_S, GATHER_STEP_S = 0.005, 0.001
"""Room for fewer items, and for less than half of the quota, waits so long for more: a claim costs much the same."""
AGAIN_AFTER_S = 1.0
EXPIRY_GRACE_S = 10.0
"""Seconds for which what runs at the end of a batch's window may still finish."""
ABORT_PATIENCE_S = 2.0
HAND_OVER_S = 3.0

log = structlog.get_logger(__name__)


class BatchWorker(Service):
    """One per process, over all pools and batches. Starts items as the dispatchers have room, in fair order.

    `owner` names this process in leases; no other may have the same. `alone` tells that no other process works on the
    same store: whatever is leased at the start was left by a dead one. `weights` gives tenants' shares, `batch_slots`
    the most items that a tenant may have under way here, `None` for any number. What runs may finish for `grace_s`
    seconds from `drain` on, or else from `stop` on.
    """

    name = "batch worker"

    def __init__(
        self,
        *,
        store: BatchStore,
        files: FileStore,
        pools: Mapping[str, Pool],
        clock: Clock,
        wake: Wake,
        owner: str,
        emit: Callable[[Decision], None],
        alone: bool = True,
        weights: Mapping[str, float] | None = None,
        batch_slots: Callable[[str], int | None] = lambda tenant: None,
        grace_s: float = 5.0,
    ) -> None:
        super().__init__()
        self.runs: dict[str, BatchRun] = {}
        self._store = store
        self._files = files
        self._pools = pools
        self._clock = clock
        self._wake = wake
        self._owner = owner
        self._emit = emit
        self._alone = alone
        self._grace_s = grace_s
        self._batch_slots = batch_slots
        self._drained_at: float | None = None
        self._quiet = Quiet()
        self._sender = ItemSender(clock=clock)
        self._results = ResultWriter(
            store=store, files=files, clock=clock, owner=owner, stored=self._stored, sure=self._sure, alone=alone
        )
        self._orders: dict[str, FairOrder] = defaultdict(partial(FairOrder, weights=weights))
        self._starting: dict[str, int] = defaultdict(int)
        self._timers: dict[str, TimerHandle] = {}
        self._items: set[asyncio.Task[None]] = set()
        self._stir = asyncio.Event()
        self._leased_until = 0.0
        self._not_before = 0.0

    # Running

    async def run(self) -> None:
        """Give back what earlier owners left, then work until cancelled."""
        if self._alone:
            await self._until_done(lambda: self._store.give_back(owner=None, before=None))
        self._leased_until = self._clock.monotonic() + LEASE.total_seconds()
        self._results.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_forever(), name="batch worker: look")
            group.create_task(self._renew_forever(), name="batch worker: renew")
            group.create_task(self._feed_forever(), name="batch worker: feed")

    @property
    def draining(self) -> bool:
        """Tell whether nothing more is claimed."""
        return self._drained_at is not None

    def drain(self) -> None:
        """Claim nothing more, and take out of the queue what has not been sent. Legal twice."""
        if self._drained_at is None:
            self._drained_at = self._clock.monotonic()
        for run in self.runs.values():
            _abort(run, waiting_only=True)

    async def stop(self) -> None:
        """Stop claiming, let what runs finish within the grace, and give the rest back, uncounted."""
        if self._task is None:
            return
        self.drain()
        await self._items_end(self._grace_left())
        for run in self.runs.values():
            _abort(run)
        await self._items_end(ABORT_PATIENCE_S)
        for task in self._items:
            task.cancel()
        await self._quiet.wait(HAND_OVER_S)
        await super().stop()
        for pool in self._pools.values():
            pool.dispatcher.on_room = None
        await self._hand_over()

    def _grace_left(self) -> float:
        assert self._drained_at is not None
        return max(0.0, self._drained_at + self._grace_s - self._clock.monotonic())

    async def _items_end(self, seconds: float) -> None:
        if self._items:
            await asyncio.wait(self._items, timeout=seconds)

    async def _hand_over(self) -> None:
        """Store what there is and give all leases back, if the store allows; else they run out by themselves."""
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await self._results.drained()
                await self._results.stop()
                await self._store.give_back(owner=self._owner, before=None)
        except Exception:
            log.warning("leases could not be given back; they run out by themselves", exc_info=True)
        await self._results.stop()

    async def _until_done(self, do: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await do()
            except Exception:
                log.exception("the batch store cannot be used; this is tried again")
                await self._clock.sleep(AGAIN_AFTER_S)
            else:
                return

    def _sure(self) -> bool:
        return self._clock.monotonic() < self._leased_until

    async def _renew_forever(self) -> None:
        while True:
            await self._clock.sleep(RENEW_EVERY_S)
            began = self._clock.monotonic()
            try:
                with self._quiet:
                    await self._store.renew(owner=self._owner, until=self._clock.now() + LEASE)
            except Exception:
                log.exception("leases could not be renewed; this is tried again")
            else:
                self._leased_until = began + LEASE.total_seconds()

    # Which batches

    async def _look_forever(self) -> None:
        seen = self._wake.count
        while True:
            try:
                with self._quiet:
                    await self._look(await self._store.active())
            except Exception:
                log.exception("batches could not be read; this is tried again")
            idle = self._alone and not self.runs
            seen = await self._wake.wait(seen, IDLE_LOOK_EVERY_S if idle else LOOK_EVERY_S)

    async def _look(self, batches: Sequence[Batch]) -> None:
        """Take up what is in progress, break off what is cancelled or too late, and forget what has ended."""
        active = {batch.id: batch for batch in batches}
        for run in list(self.runs.values()):
            batch = active.pop(run.batch.id, None)
            if batch is not None and not run.closing and self._may_run(batch):
                self._adopt(run, batch)
            else:
                self._close(run, batch)
        for batch in active.values():
            if self._may_run(batch):
                await self._results.take_up(batch)
                run = self.runs[batch.id] = BatchRun(batch)
                self._adopt(run, batch)

    def _may_run(self, batch: Batch) -> bool:
        late = self._clock.now() >= batch.expires_at
        return batch.status is BatchStatus.IN_PROGRESS and batch.left > 0 and not late and batch.pool in self._pools

    def _adopt(self, run: BatchRun, batch: Batch) -> None:
        if batch.pause is not None and run.batch.pause is None:
            _abort(run, waiting_only=True)
        run.adopt(batch)
        self._orders[batch.pool].put(batch.id, tenant=batch.tenant, rank=run.rank)
        self._gate(run)

    def _close(self, run: BatchRun, batch: Batch | None) -> None:
        """Start nothing more of a batch. What runs is broken off: at once if it was cancelled, else after a grace.

        The run is forgotten when nothing of it is under way, so that a batch that goes on later is taken up anew.
        """
        if not run.closing:
            run.closing = True
            self._gate(run)
            late = batch is not None and batch.status is BatchStatus.IN_PROGRESS
            self._clock.call_later(EXPIRY_GRACE_S if late else 0.0, _abort, run)
        if run.idle:
            self._forget(run)

    def _forget(self, run: BatchRun) -> None:
        batch_id = run.batch.id
        self._orders[run.batch.pool].drop(batch_id)
        self._results.forget(batch_id)
        self._cancel_timer(batch_id)
        del self.runs[batch_id]

    def _gate(self, run: BatchRun) -> None:
        """Let a batch take part in the order, or not; with it all of its tenant's, where the tenant has a ceiling."""
        most = self._batch_slots(run.batch.tenant)
        if most is None:
            self._open_or_block(run)
            return
        of_tenant = [each for each in self.runs.values() if each.batch.tenant == run.batch.tenant]
        full = sum(len(each.running) + each.planned for each in of_tenant) >= most
        for each in of_tenant:
            self._open_or_block(each, full=full)

    def _open_or_block(self, run: BatchRun, *, full: bool = False) -> None:
        """Let a batch take part in the order unless its tenant is full, and look again when its time comes."""
        batch_id, order = run.batch.id, self._orders[run.batch.pool]
        now = self._clock.monotonic()
        at = math.inf if full else run.opens_at(now)
        self._cancel_timer(batch_id)
        if at <= now:
            order.unblock(batch_id)
            self._pools[run.batch.pool].dispatcher.on_room = self._stir.set
            self._stir.set()
            return
        order.block(batch_id)
        if at < math.inf:
            self._timers[batch_id] = self._clock.call_later(at - now, self._gate, run)

    def _cancel_timer(self, batch_id: str) -> None:
        timer = self._timers.pop(batch_id, None)
        if timer is not None:
            timer.cancel()

    # Claiming

    async def _feed_forever(self) -> None:
        while True:
            await self._stir.wait()
            await self._gather()
            self._stir.clear()
            for pool in list(self._pools.values()):
                try:
                    with self._quiet:
                        await self._feed(pool)
                except Exception:
                    log.exception("items could not be claimed; this is tried again", pool=pool.name)
                    self._pause_claims()

    async def _gather(self) -> None:
        over = self._clock.monotonic() + GATHER_S
        while self._clock.monotonic() < over and not any(map(_roomy, self._pools.values())):
            await self._clock.sleep(GATHER_STEP_S)

    def _pause_claims(self) -> None:
        self._not_before = self._clock.monotonic() + AGAIN_AFTER_S
        self._clock.call_later(AGAIN_AFTER_S, self._stir.set)

    async def _feed(self, pool: Pool) -> None:
        """Claim as many items as the pool has room for, and start them."""
        order = self._orders[pool.name]
        if not order:
            pool.dispatcher.on_room = None
        if not order or self.draining or self._clock.monotonic() < self._not_before:
            return
        if self._results.behind:
            self._pause_claims()
            return
        for batch_id, picks in self._picks(pool, order).items():
            await self._claim(self.runs[batch_id], order, picks)

    def _picks(self, pool: Pool, order: FairOrder) -> dict[str, list[Pick]]:
        picks: dict[str, list[Pick]] = defaultdict(list)
        for _ in range(pool.dispatcher.room() - self._starting[pool.name]):
            pick = order.pick()
            if pick is None:
                break
            picks[pick.batch].append(pick)
            run = self.runs[pick.batch]
            run.planned += 1
            self._gate(run)
        return picks

    async def _claim(self, run: BatchRun, order: FairOrder, picks: list[Pick]) -> None:
        batch, count = run.batch, len(picks)
        try:
            items = await self._store.claim(
                batch.id, owner=self._owner, now=self._clock.now(), lease=LEASE, limit=count
            )
        except Exception:
            run.unclaimed(count)
            for pick in picks:
                order.settle(pick, 0.0)
            raise
        items = [item for item in items if item.index not in run.running]
        run.claimed(count, [item.index for item in items], self._clock.monotonic())
        lines = await self._lines(batch, items)
        for pick, item in zip(picks, items, strict=False):
            self._start_item(run, item, pick, lines.get(item.index))
        for pick in picks[len(items) :]:
            order.settle(pick, 0.0)
        self._gate(run)

    async def _lines(self, batch: Batch, items: Sequence[ClaimedItem]) -> dict[int, bytes]:
        """Return the items' lines; where that fails, each item is left to meet the fault by itself."""
        try:
            return await read_lines(self._files, batch.input_file_id, items)
        except Exception:
            return {}

    def _start_item(self, run: BatchRun, item: ClaimedItem, pick: Pick, line: bytes | None) -> None:
        self._starting[run.batch.pool] += 1
        name = request_id(item.batch_id, item.index)
        task = asyncio.get_running_loop().create_task(self._run_item(run, item, pick, line), name=name)
        self._items.add(task)
        task.add_done_callback(self._items.discard)

    # One item

    async def _run_item(self, run: BatchRun, item: ClaimedItem, pick: Pick, line: bytes | None) -> None:
        starting = True

        def begun(exchange: Exchange) -> None:
            nonlocal starting
            if starting:
                starting = False
                self._starting[run.batch.pool] -= 1
            run.running[item.index] = exchange
            if run.closing or run.batch.pause is not None or self.draining:
                exchange.abort(Outcome.CANCELLED)

        try:
            if line is None:
                line = await self._files.read(run.batch.input_file_id, item.offset, item.length)
            self._orders[run.batch.pool].settle(pick, cost(line))
            pool = self._pools[run.batch.pool]
            answer = await self._sender.send(item, run.batch, pool, line, begun=begun)
        except NotFound:
            answer = Answer(Attempt(Outcome.CLIENT_ERROR, 404, "input_file_gone"), message="The input file is gone.")
        except Exception:
            log.exception("an item could not be sent", batch=item.batch_id, index=item.index)
            attempt = Attempt(Outcome.UPSTREAM_ERROR, code="internal_error")
            answer = Answer(attempt, message="The request could not be sent.")
        finally:
            if starting:
                self._starting[run.batch.pool] -= 1
                self._stir.set()
        self._ended(run, item, answer)

    def _ended(self, run: BatchRun, item: ClaimedItem, answer: Answer) -> None:
        """Decide over an item after an attempt, and have that stored."""
        run.ended(item.index)
        policy = RetryPolicy(attempts=self._pools[run.batch.pool].config.batch_attempts)
        verdict = judge(answer.attempt, sends=item.attempts, policy=policy, chance=random.random())
        delay = 0.0 if run.closing or self.draining else verdict.delay_s
        if verdict.fate is Fate.AGAIN:
            run.comes_back(self._clock.monotonic() + delay)
        end, line = ending(item, answer, verdict, due=self._clock.now() + timedelta(seconds=delay))
        self._results.put(Result(run.batch, end, line))
        self._note_health(run, answer.attempt)
        self._gate(run)

    def _note_health(self, run: BatchRun, attempt: Attempt) -> None:
        """Let a batch back off that fails again and again, and tell of it if it is alone in that."""
        now = self._clock.monotonic()
        if not is_fault(attempt):
            if attempt.outcome in (Outcome.SUCCESS, Outcome.CLIENT_ERROR):
                run.breaker.succeeded()
                run.last_success = now
            return
        pause = run.breaker.failed(now)
        if pause is None:
            return
        pool, failures = self._pools[run.batch.pool], run.breaker.failures
        log.warning("batch backs off", batch=run.batch.id, seconds=pause, failures=failures)
        if self._others_succeed(run, pool, now):
            self._emit(poisoned(run.batch, pool, failures=failures, pause=pause, at=self._clock.now()))

    def _others_succeed(self, run: BatchRun, pool: Pool, now: float) -> bool:
        others = (other for other in self.runs.values() if other is not run and other.batch.pool == pool.name)
        if any(other.last_success >= run.breaker.since for other in others):
            return True
        seen = pool.board.seen(now, pool.controller.bounds.budgets, pool.settings.model_budgets)
        return seen.error_rate is not None and seen.error_rate < 0.5

    def _stored(self, kept: Sequence[ItemEnd], lost: Sequence[ItemEnd]) -> None:
        """Go on after ends were stored, and have the batches closed of which no item is left."""
        ends = [*kept, *lost]
        back = {end.batch_id for end in ends if end.state is ItemState.PENDING}
        final = Counter(end.batch_id for end in kept if end.state is not ItemState.PENDING)
        for batch_id, count in Counter(end.batch_id for end in ends).items():
            run = self.runs.get(batch_id)
            if run is None:
                continue
            run.stored(count, back=batch_id in back)
            run.left -= final[batch_id]
            self._gate(run)
            if run.idle and (run.left <= 0 or run.closing):
                self._wake.notify()


def _roomy(pool: Pool) -> bool:
    return pool.dispatcher.room() >= min(GATHERED, pool.dispatcher.quota() / 2)


def _abort(run: BatchRun, *, waiting_only: bool = False) -> None:
    """Break off what is under way of a batch; it goes back to the queue, uncounted."""
    for exchange in list(run.running.values()):
        if exchange is not None and (exchange.started is None or not waiting_only):
            exchange.abort(Outcome.CANCELLED)
