"""The controller between board, law and dispatcher: bounds, holds, pauses, and what it writes down."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.clock import LoopClock
from core.control.controller import PoolController
from core.control.decisions import Decision
from core.control.limits import FixedLimit, Limit
from core.control.windows import OneOff, Schedule, Window
from core.lanes import Lane, Outcome
from core.ports import SavedLimit
from core.quotas import Budgets, Hold, Pause, PoolLimits, PoolSettings, batch_quota
from core.samples import Observation, SampleBoard
from core.scheduling.dispatcher import Dispatcher
from core.scheduling.limiter import Limiter
from core.scheduling.tickets import Ticket
from core.simulation.virtual_time import run_virtual

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)  # a Monday


@dataclass
class Clock:
    """A clock that the test moves."""

    seconds: float = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Counts:
    interactive: int = 0
    interactive_waiting: int = 0
    batch: int = 0
    backlog: int = 100


@dataclass
class Gate:
    """Stands for the dispatcher: the quota by the real formula, counts as the test sets them."""

    present: Counts = field(default_factory=Counts)
    applied: list[PoolLimits] = field(default_factory=list)
    stopped_by_limit: bool = True
    peak: int = 0
    queued: int = 0

    @property
    def limits(self) -> PoolLimits:
        return self.applied[-1]

    def apply(self, limits: PoolLimits) -> None:
        self.applied.append(limits)

    def counts(self) -> Counts:
        return self.present

    def demand(self) -> int:
        now = self.present.interactive + self.present.interactive_waiting
        return max(now, self.peak) if self.limits.room_for_peak else now

    def quota(self) -> int:
        return batch_quota(self.limits, self.demand())

    def take_bound(self) -> bool:
        return self.stopped_by_limit

    def overdue_first_tokens(self, now: float) -> int:
        return self.queued


@dataclass
class Pool:
    """A controller with everything around it."""

    settings: PoolSettings
    schedule: Schedule = field(default_factory=Schedule)
    saved: SavedLimit | None = None
    pull_backs: bool = True
    law: Limit | None = None
    clock: Clock = field(default_factory=Clock)
    gate: Gate = field(default_factory=Gate)
    rows: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.board = SampleBoard()
        self.controller = PoolController(
            settings=self.settings,
            schedule=self.schedule,
            pull_backs=self.pull_backs,
            clock=self.clock,
            board=self.board,
            dispatcher=self.gate,
            saved=self.saved,
            emit=self.rows.append,
            limit=self.law,
        )

    def tick(self, times: int = 1, *, feed: Callable[[], None] | None = None) -> None:
        for _ in range(times):
            self.clock.seconds += 5
            if feed:
                feed()
            self.controller.tick()

    def configure(self, **changes: Any) -> None:
        self.settings = replace(self.settings, version=self.settings.version + 1, **changes)
        self.controller.configure(self.settings, self.schedule)

    def answer(self, first: float, n: int = 25) -> None:
        """Let `n` interactive requests have had their first token after `first` seconds just now."""
        for _ in range(n):
            now = self.clock.seconds
            obs = Observation(Lane.INTERACTIVE, "m", now - first, True, first=now, last=now, tokens=1)
            self.board.open(obs, now - first)
            self.board.close(obs, Outcome.SUCCESS, now, output_tokens=1)

    def load(self, **counts: int) -> None:
        self.gate.present = replace(self.gate.present, **counts)

    def told(self, *actions: str) -> list[Decision]:
        return [row for row in self.rows if row.action in actions]


def stored(slots: int = 64, **changes: Any) -> PoolSettings:
    given = {"reserve": 1, "headroom": 1, "floor": 1, "ceiling": slots - 1, **changes}
    return PoolSettings("main", slots, **given)


def hold(quota: int, minutes: float | None) -> Hold:
    until = None if minutes is None else START + timedelta(minutes=minutes)
    return Hold(quota, until, "ann", "test", START)


@pytest.fixture
def pool() -> Iterator[Pool]:
    return Pool(stored())


# Putting in force


def test_stored_settings_are_in_force_before_the_first_tick(pool: Pool) -> None:
    assert pool.gate.limits == PoolLimits(64, 1, 1, 1, 63, 16.0, model_first_token_s={})
    assert pool.gate.quota() == 15


def test_every_tick_publishes_and_changed_settings_act_at_once(pool: Pool) -> None:
    pool.tick(2)
    assert len(pool.gate.applied) >= 3
    budgets = Budgets(first_token_s=0.5)
    pool.configure(ceiling=9, reserve=2, headroom=3, budgets=budgets, model_budgets={"m": Budgets(2.0)})
    limits = pool.gate.limits
    assert (limits.ceiling, limits.reserve, limits.headroom) == (9, 2, 3)
    assert (limits.first_token_budget("other"), limits.first_token_budget("m")) == (0.5, 2.0)


def test_the_limit_is_cut_to_changed_slots_at_once_and_not_forgotten(pool: Pool) -> None:
    pool.tick(10, feed=lambda: pool.answer(0.1))
    assert pool.controller.limit == 64.0
    pool.configure(slots=10, ceiling=9)
    assert pool.controller.limit == 10.0
    pool.configure(slots=64, ceiling=63, floor=12)
    assert pool.controller.limit == 12.0


def test_a_pause_stops_batch_and_touches_neither_hold_nor_quota(pool: Pool) -> None:
    pool.configure(hold=hold(40, None))
    pool.configure(pause=Pause("ann", "", START))
    assert (pool.gate.limits.paused, pool.gate.limits.hold, pool.gate.quota()) == (True, 40, 40)
    pool.configure(pause=None)
    assert (pool.gate.limits.paused, pool.gate.limits.hold) == (False, 40)


def test_bounds_are_cut_to_what_the_pool_can_give() -> None:
    schedule = Schedule(one_offs=(OneOff("all", START, START + timedelta(hours=1), floor=50, ceiling=64),))
    pool = Pool(stored(slots=8, reserve=2, ceiling=6), schedule)
    bounds = pool.controller.bounds
    assert (bounds.floor, bounds.ceiling, bounds.source) == (6, 6, "one_off:all")


def test_without_pull_backs_room_is_kept_for_the_peak_and_growth_is_slow() -> None:
    pool = Pool(stored(slots=8), pull_backs=False)
    assert pool.gate.limits.room_for_peak
    pool.configure(hold=hold(3, None))
    pool.configure(hold=None)
    assert pool.controller.limit == 4.0
    pool.tick(feed=lambda: pool.answer(0.1))
    assert pool.controller.limit == pytest.approx(4.125)


# The law in place


def test_late_first_tokens_cut_and_the_row_tells_all_about_it(pool: Pool) -> None:
    pool.load(interactive=4, batch=12)
    pool.tick(feed=lambda: pool.answer(1.9))
    assert pool.controller.limit == pytest.approx(8.0)
    row = pool.rows[-1]
    assert (row.actor, row.action, row.reason, row.limit) == ("controller", "cut", "first_token", (16.0, 8.0))
    assert (row.quota, row.interactive, row.batch, row.backlog) == ((11, 3), 4, 12, 100)
    assert row.next_move_at == row.at + timedelta(seconds=10)
    assert (row.bounds, row.config_version, row.window, row.shadow) == ((1, 63), 1, None, False)
    trigger = {t.name: t for t in row.triggers}["first_token"]
    assert (trigger.value, trigger.threshold, trigger.n) == (pytest.approx(1.9), 0.95, 25)
    assert len(row.triggers) == 7
    assert pool.controller.triggers == row.triggers
    assert pool.controller.why == row.sentence
    assert pool.controller.moves["cut", "first_token"] == 1


def test_the_error_budget_in_force_is_the_threshold_of_errors() -> None:
    pool = Pool(stored(budgets=Budgets(error_rate=0.5)))

    def fail() -> None:
        for outcome in [Outcome.UPSTREAM_ERROR] * 4 + [Outcome.SUCCESS] * 6:
            obs = Observation(Lane.INTERACTIVE, "m", pool.clock.seconds, streamed=False)
            pool.board.open(obs, pool.clock.seconds)
            pool.board.close(obs, outcome, pool.clock.seconds, output_tokens=None)

    pool.tick(feed=fail)
    assert not pool.told("cut")
    pool.configure(budgets=Budgets(error_rate=0.3))
    pool.tick(feed=fail)
    assert [row.reason for row in pool.told("cut")] == ["errors"]


def test_the_limit_does_not_wind_up_while_something_else_stops_batch(pool: Pool) -> None:
    pool.gate.stopped_by_limit = False
    pool.tick(200, feed=lambda: pool.answer(0.1))
    assert pool.controller.limit == 16.0


def test_a_poisoned_batch_does_not_cut_and_is_named_once_a_minute(pool: Pool) -> None:
    def fail() -> None:
        for _ in range(5):
            obs = Observation(Lane.BATCH, "m", pool.clock.seconds, True, source="batch_7")
            pool.board.open(obs, pool.clock.seconds)
            pool.board.close(obs, Outcome.UPSTREAM_ERROR, pool.clock.seconds, output_tokens=None)

    pool.tick(12, feed=fail)
    rows = [row for row in pool.rows if row.reason == "poisoned_batch"]
    assert len(rows) == 1
    assert "5 requests of batch_7 failed" in rows[0].sentence
    assert not pool.told("cut")
    pool.tick(2, feed=fail)
    assert len([row for row in pool.rows if row.reason == "poisoned_batch"]) == 2


def test_other_laws_fit_the_same_place() -> None:
    pool = Pool(stored(), law=FixedLimit(20))
    pool.tick(3, feed=lambda: pool.answer(9.0))
    assert pool.controller.limit == 20.0


# Holds


def test_a_hold_is_obeyed_while_the_law_goes_on_in_shadow(pool: Pool) -> None:
    pool.configure(hold=hold(40, 60))
    pool.load(interactive=9, batch=40)
    for _ in range(20):
        pool.tick(feed=lambda: pool.answer(3.0))
        assert pool.gate.quota() == 40
    assert pool.controller.shadow_quota == 1
    cuts = pool.told("cut")
    assert cuts
    assert all(row.shadow and row.quota == (40, 40) for row in cuts)
    first = cuts[0].sentence
    assert "Held at 40 by ann until 09:00, so the quota stays; the controller would give 1" in first


def test_the_release_of_a_hold_by_hand_is_bumpless_and_its_row_is_the_operators(pool: Pool) -> None:
    pool.configure(hold=hold(30, None))
    pool.load(interactive=9, interactive_waiting=2, batch=30)
    pool.tick(10, feed=lambda: pool.answer(3.0))
    told = len(pool.rows)
    pool.configure(hold=None)
    assert pool.gate.quota() == 30
    assert pool.controller.limit == 30 + 11 + 1
    assert len(pool.rows) == told


def test_a_hold_ends_by_the_wall_clock_bumpless_and_with_a_row(pool: Pool) -> None:
    pool.configure(hold=hold(40, 1))
    pool.load(interactive=9, batch=40)
    pool.tick(11)
    assert pool.gate.limits.hold == 40
    pool.clock.seconds = 60.0
    pool.controller.refresh()
    assert (pool.gate.limits.hold, pool.gate.quota(), pool.controller.hold) == (None, 40, None)
    row = pool.rows[-1]
    assert (row.action, row.reason, row.quota) == ("set", "hold_expired", (40, 40))
    assert row.limit[1] == 50.0
    assert "hold at 40 by ann ended" in row.sentence
    pool.controller.refresh()
    assert pool.rows[-1] is row


def test_a_release_is_cut_to_the_bounds(pool: Pool) -> None:
    pool.configure(hold=hold(60, None))
    pool.load(interactive=30)
    pool.configure(hold=None, ceiling=20)
    assert (pool.controller.limit, pool.gate.quota()) == (64.0, 20)


def test_a_hold_that_had_expired_before_the_start_does_not_count() -> None:
    pool = Pool(stored(hold=hold(40, -1)))
    assert pool.gate.limits.hold is None
    assert [row.reason for row in pool.rows] == ["cold_start"]


def test_a_hold_outlasts_a_restart() -> None:
    assert Pool(stored(hold=hold(40, 10))).gate.quota() == 40


def test_r29_the_last_of_many_quick_changes_is_in_force(pool: Pool) -> None:
    """R29 MassTransit/MassTransit#1671: 1, 3, 1 stays at 3, and setting the same value hangs."""
    for quota in (1, 3, 1, 1):
        pool.configure(hold=hold(quota, None))
    assert (pool.gate.quota(), pool.settings.version) == (1, 5)
    pool.tick()
    assert pool.gate.quota() == 1


def test_r27_a_limit_below_what_is_out_is_kept_and_can_be_raised_again(pool: Pool) -> None:
    """R27 resilience4j/resilience4j#2489: lowering the limit below what is out kills the refresh."""
    pool.load(batch=8)
    for quota in (8, 2, 8):
        pool.configure(hold=hold(quota, None))
        pool.tick()
        assert pool.gate.quota() == quota


# Windows

PEAK = Window("Peak", frozenset({0}), time(9), time(10), floor=2, ceiling=14)


def test_a_window_opens_and_closes_by_the_clock_with_a_row_each() -> None:
    pool = Pool(stored(), Schedule(zone="UTC", windows=(PEAK,)))
    pool.load(batch=15)
    pool.clock.seconds = 3600.0
    pool.controller.refresh()
    assert (pool.gate.limits.ceiling, pool.controller.limit) == (14, 16.0)
    pool.clock.seconds = 7200.0
    pool.controller.tick()
    opened, closed = pool.told("window")
    assert (opened.actor, opened.reason, opened.window, opened.bounds) == (
        "schedule",
        "window_opened",
        "window:Peak",
        (2, 14),
    )
    assert opened.quota == (15, 14)
    assert "Window Peak began: floor 2, ceiling 14 (before 1 and 63). Batch quota 15 -> 14, drains" in opened.sentence
    assert (closed.reason, closed.window, closed.bounds) == ("window_closed", None, (1, 63))
    assert closed.sentence.startswith("Window Peak ended, base settings hold again")


def test_budgets_of_a_window_are_those_that_the_law_uses() -> None:
    lenient = replace(PEAK, budgets=Budgets(first_token_s=9.0))
    pool = Pool(stored(), Schedule(zone="UTC", windows=(lenient,)))
    pool.clock.seconds = 3600.0
    pool.tick(3, feed=lambda: pool.answer(3.0))
    assert not pool.told("cut")
    assert pool.gate.limits.first_token_s == 9.0


def test_a_window_that_an_operator_made_has_no_row_of_the_schedule_but_its_end_has(pool: Pool) -> None:
    pool.schedule = Schedule(one_offs=(OneOff("maintenance", START, START + timedelta(minutes=5), ceiling=2),))
    pool.configure()
    assert pool.gate.limits.ceiling == 2
    assert not pool.told("window")
    pool.clock.seconds = 300.0
    pool.controller.refresh()
    assert [row.reason for row in pool.told("window")] == ["window_closed"]
    assert pool.rows[-1].sentence.startswith("One-off maintenance ended")


# What is told


def test_growth_is_folded_into_one_row_a_minute(pool: Pool) -> None:
    pool.load(interactive=2, batch=13)
    pool.tick(14, feed=lambda: pool.answer(0.1))
    row = pool.told("grow")[0]
    assert (row.limit, row.reason) == ((16.0, 64.0), "slow_start")
    assert row.quota == (13, 61)
    assert pool.controller.moves["grow", "slow_start"] == 7
    assert len(pool.told("grow")) == 1


def test_a_cut_comes_after_the_growth_before_it(pool: Pool) -> None:
    pool.load(interactive=2, batch=20)
    pool.tick(3, feed=lambda: pool.answer(0.1))
    pool.tick(feed=lambda: pool.answer(3.0))
    grown, cut = pool.told("grow", "cut")
    assert (grown.action, grown.limit) == ("grow", (16.0, 31.25))
    assert (cut.action, cut.limit) == ("cut", (31.25, 11.0))
    assert "at 10 % of its budget" in grown.sentence
    assert all(before.at <= after.at for before, after in pairwise(pool.rows))


def test_why_the_limit_stands_is_told_when_the_reason_changes(pool: Pool) -> None:
    pool.gate.stopped_by_limit = False
    pool.load(backlog=0, batch=6)
    pool.tick(30)
    assert [row.reason for row in pool.told("hold")] == ["not_binding"]
    assert pool.told("hold")[0].sentence == "Not raising: batch uses 6 of 15 slots, the queue is empty."
    pool.gate.stopped_by_limit = True
    pool.tick(30, feed=lambda: pool.answer(0.9))
    assert [row.reason for row in pool.told("hold")] == ["not_binding", "dead_band"]


def test_reasons_that_alternate_are_told_once_a_minute(pool: Pool) -> None:
    for i in range(120):
        pool.gate.stopped_by_limit = bool(i % 2)
        pool.tick(feed=lambda: pool.answer(0.9))
    assert 2 <= len(pool.told("hold")) <= 11


def test_a_quota_that_follows_interactive_is_told_apart_from_a_limit_that_moves(pool: Pool) -> None:
    pool.gate.stopped_by_limit = False
    pool.tick(2)
    pool.load(interactive=6, interactive_waiting=4)
    pool.tick(12)
    row = pool.told("set")[0]
    assert (row.reason, row.quota, row.limit) == ("interactive_changed", (15, 5), (16.0, 16.0))
    assert row.sentence == "Quota 15 -> 5 because interactive went 0 -> 10; limit unchanged at 16."
    pool.tick(30)
    assert len(pool.told("set")) == 1


def test_an_hour_of_calm_and_trouble_writes_few_rows(pool: Pool) -> None:
    pool.load(interactive=5, batch=20)
    for i in range(720):
        pool.tick(feed=lambda i=i: pool.answer(1.5 if i % 40 < 3 else 0.2))
    assert len(pool.rows) < 3 * 60


def test_the_start_is_told_with_where_the_limit_comes_from() -> None:
    cold = Pool(stored())
    assert [(row.actor, row.action, row.reason) for row in cold.rows] == [("restart", "start", "cold_start")]
    saved = SavedLimit(40.0, 40.0, 44.0, START - timedelta(minutes=12))
    warm = Pool(stored(), saved=saved)
    assert (warm.rows[0].reason, warm.rows[0].limit) == ("resumed", (40.0, 28.0))
    assert "the limit was 40 12 min ago" in warm.rows[0].sentence
    old = Pool(stored(), saved=replace(saved, at=START - timedelta(hours=2)))
    assert (old.rows[0].reason, old.controller.limit) == ("cold_start", 16.0)


@pytest.mark.parametrize(("kept_minutes_ago", "told"), [(6, True), (4, False)])
def test_a_hold_that_ended_while_nothing_ran_is_told_once_at_the_start(kept_minutes_ago: int, told: bool) -> None:
    saved = SavedLimit(40.0, 40.0, 44.0, START - timedelta(minutes=kept_minutes_ago))
    back = Pool(stored(hold=hold(20, -5)), saved=saved)
    assert [row.reason for row in back.rows] == [*(["hold_expired"] if told else []), "resumed"]
    assert all("hold at 20 by ann ended" in row.sentence for row in back.rows[:-1])
    back.tick(3)
    assert len([row for row in back.rows if row.reason == "hold_expired"]) == told


def test_growth_after_a_row_that_says_why_the_limit_stands_is_told_at_once_and_then_by_the_minute(pool: Pool) -> None:
    pool.load(interactive=4, batch=12)
    pool.gate.stopped_by_limit = False
    pool.tick(13, feed=lambda: pool.answer(0.2))
    assert pool.rows[-1].action == "hold"
    pool.gate.stopped_by_limit = True
    pool.tick(feed=lambda: pool.answer(0.2))
    assert pool.rows[-1].action == "grow"
    pool.tick(6, feed=lambda: pool.answer(0.2))
    assert len(pool.told("grow")) == 1


def test_a_row_tells_since_when_requests_were_judged(pool: Pool) -> None:
    pool.load(interactive=4, batch=12)
    pool.tick(feed=lambda: pool.answer(1.9))
    assert pool.rows[-1].epoch is None
    pool.load(batch=4)
    pool.tick(30, feed=lambda: pool.answer(0.9))
    after = pool.rows[-1]
    cut = pool.told("cut")[0]
    assert after.epoch is not None
    assert cut.at < after.epoch < after.at


def test_what_is_saved_is_the_limit_and_the_level_of_the_last_cut(pool: Pool) -> None:
    pool.load(interactive=4, batch=12)
    pool.tick(feed=lambda: pool.answer(1.9))
    saved = pool.controller.saved()
    assert (saved.limit, saved.last_cut_level, saved.at) == (pytest.approx(8.0), 16.0, pool.clock.now())
    assert pool.controller.cut_at == 5.0


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_whatever_is_changed_in_any_order_the_quota_stays_inside_the_pool(data: st.DataObject) -> None:
    pool = Pool(stored(), Schedule(zone="UTC", windows=(PEAK,)))
    for _ in range(data.draw(st.integers(1, 30))):
        slots = data.draw(st.integers(1, 70))
        reserve = data.draw(st.integers(0, slots - 1))
        ceiling = data.draw(st.integers(0, slots - reserve))
        floor = data.draw(st.integers(0, ceiling))
        pool.load(interactive=data.draw(st.integers(0, 80)), batch=data.draw(st.integers(0, 80)))
        held = data.draw(st.one_of(st.none(), st.integers(0, slots - reserve)))
        pool.clock.seconds += data.draw(st.floats(0, 4000))
        pool.configure(
            slots=slots,
            reserve=reserve,
            floor=floor,
            ceiling=ceiling,
            hold=None if held is None else replace(hold(held, None), until=pool.clock.now() + timedelta(seconds=30)),
        )
        pool.tick(data.draw(st.integers(0, 3)), feed=lambda: pool.answer(data.draw(st.floats(0, 4))))
        assert 0 <= pool.gate.quota() <= slots - reserve
        assert math.isfinite(pool.controller.limit)
    assert all(math.isfinite(value) for row in pool.rows for value in row.limit)


# With the real dispatcher


def test_r10_batch_alone_on_a_healthy_server_reaches_its_ceiling_within_a_minute() -> None:
    """R10 Netflix/concurrency-limits#155, with 64 slots, calls of 0.25 s that are not streamed, no interactive."""

    async def main(clock: LoopClock) -> list[int]:
        given = stored()
        first = PoolLimits(64, 1, 1, 1, 63, 1.0)
        dispatcher = Dispatcher(limits=first, slots=Limiter(limits=first), clock=clock, batch_queue=10_000)
        controller = PoolController(
            settings=given,
            schedule=Schedule(),
            pull_backs=True,
            clock=clock,
            board=SampleBoard(),
            dispatcher=dispatcher,
            saved=None,
            emit=lambda decision: None,
        )

        def submit() -> None:
            ticket = Ticket(
                Lane.BATCH, clock.monotonic(), lambda: run(ticket), lambda cause: None, streamed=False, durable=True
            )
            dispatcher.submit(ticket)

        def run(ticket: Ticket) -> None:
            clock.call_later(0.25, finish, ticket)

        def finish(ticket: Ticket) -> None:
            dispatcher.release(ticket, Outcome.SUCCESS)
            submit()

        for _ in range(300):
            submit()
        running = []
        for _ in range(24):
            await clock.sleep(5)
            controller.tick()
            running.append(dispatcher.counts().batch)
        return running

    running = run_virtual(main, START)
    assert running[11] >= 62
    assert min(running[12:]) >= 62
