"""The law, proven on any input and on a plant of which the capacity is known."""

import math
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from core.control.limits import AimdLimit, FixedLimit, Limit, LimitConfig, LimitState, confined, continued
from core.control.reasons import Action, Reason
from core.quotas import PoolLimits, batch_quota
from core.samples import Signals

LAW = AimdLimit()
RATIOS = st.one_of(st.none(), st.floats(0, 50), st.just(math.inf), st.just(math.nan))
HARMLESS = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def configs(draw: st.DrawFn) -> LimitConfig:
    slots = draw(st.integers(1, 512))
    return LimitConfig(
        slots=slots,
        floor=draw(st.integers(0, slots)),
        alpha=draw(st.floats(0.1, 8)),
        band=draw(st.floats(0.5, 1)),
        beta_lo=draw(st.floats(0.3, 0.7)),
        beta_hi=draw(st.floats(0.7, 0.99)),
        settle=draw(st.floats(0, 30)),
        drain_max=draw(st.floats(0, 120)),
    )


@st.composite
def any_signals(draw: st.DrawFn, now: float) -> Signals:
    first_n, token_n = draw(st.integers(0, 200)), draw(st.integers(0, 200))
    return Signals(
        now=now,
        interactive=draw(st.integers(0, 600)),
        interactive_waiting=draw(st.integers(0, 50)),
        batch=draw(st.integers(0, 600)),
        backlog=draw(st.integers(0, 2)),
        bound=draw(st.booleans()),
        first=draw(RATIOS),
        first_n=first_n,
        first_over=draw(st.integers(0, first_n)),
        first_mid=draw(RATIOS),
        token=draw(RATIOS),
        token_n=token_n,
        token_over=draw(st.integers(0, token_n)),
        live=draw(RATIOS),
        queued=draw(st.integers(0, 20)),
        refused=draw(st.integers(0, 5)),
        errors=draw(st.integers(0, 50)),
        samples=draw(st.integers(0, 500)),
        hard=draw(st.integers(0, 10)),
        idle_for=draw(st.floats(0, 1e5)),
    )


def quota(state: LimitState, config: LimitConfig, interactive: int) -> int:
    limits = PoolLimits(config.slots, 0, 0, config.floor, config.slots, state.limit)
    return batch_quota(limits, interactive)


def at(level: float, **more: float) -> LimitState:
    return LimitState(level, more.pop("slow_start", level), **more)


# 1. inside the bounds, always


@HARMLESS
@given(st.data())
def test_the_limit_stays_finite_and_inside_its_bounds_whatever_comes(data: st.DataObject) -> None:
    config = data.draw(configs())
    saved = data.draw(st.one_of(st.none(), st.floats(0, 1e6), st.just(math.nan)))
    state, now = LAW.start(config, limit=saved, age=data.draw(st.floats(-10, 1e5))), 0.0
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.floats(-50, 200))
        signals = data.draw(any_signals(now))
        state, move = LAW.update(state, config, signals)
        assert math.isfinite(state.limit)
        assert config.floor <= state.limit <= config.slots
        assert config.floor <= quota(state, config, signals.interactive) <= config.slots
        assert move.after == state.limit
        assert {
            Action.CUT: move.after <= move.before,
            Action.GROW: move.after >= move.before,
            Action.HOLD: move.after == move.before,
        }[move.action]
        assert math.isfinite(move.next_at)
        assert all(t.value is None or math.isfinite(t.value) for t in move.triggers)


# 2. bounded movement


@HARMLESS
@given(st.data())
def test_one_cut_and_one_growth_are_bounded(data: st.DataObject) -> None:
    config = data.draw(configs())
    level = data.draw(st.floats(float(config.floor), float(config.slots)))
    state = at(level, slow_start=data.draw(st.floats(level, float(config.slots))))
    signals = replace(data.draw(any_signals(10.0)), interactive=0)
    after, move = LAW.update(state, config, signals)
    if move.action is Action.CUT:
        reference = max(float(config.floor), min(level, float(signals.batch)))
        assert after.limit >= min(level, max(config.floor, config.beta_lo * reference)) - 1e-9
        assert after.draining
        assert after.epoch == math.inf
    if move.action is Action.GROW:
        assert after.limit <= max(level + config.alpha, config.growth * level) + 1e-9


# 3. monotonicity


@HARMLESS
@given(
    st.floats(4, 64),
    st.booleans(),
    st.lists(st.floats(0, 5), min_size=2, max_size=2),
    st.lists(st.floats(0, 5), min_size=2, max_size=2),
    st.lists(st.floats(0, 3), min_size=2, max_size=2),
    st.lists(st.integers(0, 6), min_size=2, max_size=2),
    st.sampled_from([-math.inf, 95.0]),
    st.booleans(),
    st.integers(0, 1),
)
def test_more_pressure_never_gives_a_higher_limit(
    level: float,
    fast: bool,
    first: list[float],
    token: list[float],
    live: list[float],
    queued: list[int],
    began: float,
    running: bool,
    refused: int,
) -> None:
    state, config = at(level, slow_start=64.0 if fast else level, began=began), LimitConfig()
    batch = int(level) - 3 if running else 0
    base = Signals(now=100.0, interactive=3, batch=batch, bound=True, first_n=50, token_n=50, refused=refused)
    low, high = (
        replace(base, first=pick(first), token=pick(token), live=pick(live), queued=pick(queued)) for pick in (min, max)
    )
    calm, _ = LAW.update(state, config, low)
    pressed, _ = LAW.update(state, config, high)
    assert pressed.limit <= calm.limit + 1e-9


def test_the_worst_breach_wins_over_a_mild_one_named_first() -> None:
    signals = Signals(now=100.0, batch=40, bound=True, first=1.0, first_n=50, live=1.8, refused=1)
    state, move = LAW.update(at(40.0), LimitConfig(), signals)
    assert move.reason is Reason.LIVE_TOKENS
    assert state.limit == pytest.approx(20.0)
    assert set(move.breached) == {Reason.PROVIDER_429, Reason.FIRST_TOKEN, Reason.LIVE_TOKENS}


# 4. no windup


def test_a_thousand_good_ticks_without_binding_do_not_move_the_limit() -> None:
    state, config = at(10.0), LimitConfig()
    for i in range(1000):
        state, move = LAW.update(state, config, Signals(now=i * 5.0, batch=2, live=0.1))
    assert state.limit == 10.0
    assert move.reason is Reason.NOT_BINDING


# 5. bad clocks

BAD = {"batch": 20, "first": 5.0, "first_n": 99, "bound": True}


@pytest.mark.parametrize("now", [99.0, -1e6, 1e6])
def test_a_clock_that_jumps_moves_nothing_and_the_law_works_afterwards(now: float) -> None:
    config = LimitConfig()
    state, move = LAW.update(at(20.0, last=100.0), config, Signals(now=now, refused=9, **BAD))
    assert (move.action, state.limit) == (Action.HOLD, 20.0)
    assert move.reason is (Reason.CLOCK_BACK if now < 100 else Reason.GAP)
    for _ in range(30):
        now += 5
        state, _ = LAW.update(state, config, Signals(now=now, **BAD))
    assert state.limit < 20


def test_a_clock_that_goes_back_during_a_drain_does_not_drain_for_ever() -> None:
    config = LimitConfig()
    state = at(20.0, draining=True, cut_at=990.0, epoch=math.inf, last=1000.0)
    now, reasons = 10.0, []
    for _ in range(20):
        state, move = LAW.update(state, config, Signals(now=now, interactive=30, batch=30))
        reasons.append(move.reason)
        now += 5
    assert not state.draining
    assert Reason.NOT_BINDING in reasons


# 6. one cut per episode


def test_bad_ticks_before_the_drain_ends_make_one_cut() -> None:
    state, config, moves = at(40.0), LimitConfig(), []
    for i in range(1, 4):
        state, move = LAW.update(state, config, Signals(now=i * 5.0, batch=40, bound=True, first=3.0, first_n=50))
        moves.append((move.action, move.reason))
    assert moves == [(Action.CUT, "first_token"), (Action.HOLD, "draining"), (Action.HOLD, "draining")]


def test_after_a_cut_only_requests_that_arrived_after_the_drain_count() -> None:
    config = LimitConfig()
    state, _ = LAW.update(at(40.0), config, Signals(now=5.0, batch=40, live=1.2))
    assert state.epoch == math.inf
    state, move = LAW.update(state, config, Signals(now=10.0, batch=20))
    assert (state.epoch, move.reason) == (10.0, Reason.SETTLING)
    assert move.next_at == 20.0


def test_a_drain_that_never_ends_is_given_up_after_a_minute() -> None:
    state, config = at(20.0, draining=True, cut_at=0.0, epoch=math.inf, last=60.0), LimitConfig()
    _, waiting = LAW.update(state, config, Signals(now=60.0, batch=40))
    _, over = LAW.update(state, config, Signals(now=61.0, batch=40))
    assert (waiting.reason, over.reason) == (Reason.DRAINING, Reason.SETTLING)


# 7. release


def test_the_release_of_a_hold_goes_on_from_the_held_level() -> None:
    config = LimitConfig()
    state = at(12.0, draining=True, epoch=math.inf, last=100.0)
    for i in range(20):
        state, _ = LAW.update(state, config, Signals(now=100 + i * 5.0, interactive=9, batch=40, first=3.0, first_n=50))
    released = continued(state, config, limit=49.0, now=200.0)
    assert quota(released, config, 9) == 40
    assert (released.slow_start, released.epoch, released.draining) == (49.0, 200.0, False)
    assert continued(state, config, limit=900.0, now=200.0).limit == 64.0


# 8. the known plant


@dataclass
class Plant:
    """A server that answers at used / capacity of the budget; batch drains a quarter per tick."""

    config: LimitConfig
    state: LimitState
    interactive: int
    noise: float
    rng: random.Random
    now: float = 0.0
    batch: int = 0

    def run(self, capacity: float, seconds: float) -> list[int]:
        return [self._tick(capacity) for _ in range(int(seconds / 5))]

    def _tick(self, capacity: float) -> int:
        self.now += 5
        allowed = quota(self.state, self.config, self.interactive)
        drained = self.batch - max(1, self.batch // 4)
        self.batch = min(allowed, self.batch + 20) if allowed > self.batch else max(allowed, drained)
        used = self.interactive + self.batch
        ratio = used / capacity * (1 + self.rng.uniform(-self.noise, self.noise))
        signals = Signals(
            now=self.now,
            interactive=self.interactive,
            batch=self.batch,
            first=ratio,
            first_n=50,
            bound=self.batch >= allowed,
        )
        self.state, _ = LAW.update(self.state, self.config, signals)
        return used


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 200), st.floats(0.3, 0.9), st.integers(0, 30), st.floats(0, 0.15), st.integers(0, 10**6))
def test_load_settles_at_the_capacity_follows_its_loss_and_its_return(
    slots: int, share: float, interactive: int, noise: float, seed: int
) -> None:
    config, capacity = LimitConfig(slots=slots), max(6.0, share * slots)
    interactive = min(interactive, int(capacity * 0.3))
    plant = Plant(config, LAW.start(config), interactive, noise, random.Random(seed))
    tail = plant.run(capacity, 1500)[-100:]
    assert 0.6 * capacity - 2 <= sum(tail) / len(tail) <= 1.1 * capacity + 1
    assert max(tail) <= 1.25 * capacity + 2

    bound = max(capacity / 2 * 1.2 + 2, interactive + config.floor)
    over = [i for i, used in enumerate(plant.run(capacity / 2, 600)) if used > bound]
    assert not over or over[-1] * 5 <= 150

    tail = plant.run(capacity, 900)[-40:]
    assert sum(tail) / len(tail) >= 0.6 * capacity - 2


# 9. the state machine


class AnyOrder(RuleBasedStateMachine):
    """Ticks, changed bounds and released holds in any order."""

    @initialize(config=configs())
    def begin(self, config: LimitConfig) -> None:
        self.config, self.state, self.now = config, LAW.start(config), 0.0

    @rule(data=st.data())
    def tick(self, data: st.DataObject) -> None:
        self.now += data.draw(st.floats(0, 30))
        self.state, _ = LAW.update(self.state, self.config, data.draw(any_signals(self.now)))

    @rule(data=st.data(), slots=st.integers(1, 512))
    def change_bounds(self, data: st.DataObject, slots: int) -> None:
        self.config = replace(self.config, slots=slots, floor=data.draw(st.integers(0, slots)))
        self.state = confined(self.state, self.config)

    @rule(limit=st.integers(-5, 900))
    def release(self, limit: int) -> None:
        self.state = continued(self.state, self.config, limit=limit, now=self.now)

    @invariant()
    def inside(self) -> None:
        if not hasattr(self, "state"):
            return
        assert math.isfinite(self.state.limit)
        assert self.config.floor <= self.state.limit <= self.config.slots
        for interactive in (0, 7, 600):
            assert self.config.floor <= quota(self.state, self.config, interactive) <= self.config.slots


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


# 10. without signals


def test_without_any_signal_growth_waits_for_half_a_minute_of_silence() -> None:
    config = LimitConfig()
    state, move = LAW.update(at(10.0), config, Signals(now=0, batch=10, bound=True, idle_for=5))
    assert (move.reason, state.limit) == (Reason.NO_SIGNAL, 10.0)
    state, move = LAW.update(at(10.0), config, Signals(now=0, batch=10, bound=True, idle_for=31))
    assert (move.action, state.limit) == (Action.GROW, 11.0)


# Triggers, one by one


@pytest.mark.parametrize(
    ("signals", "reason", "limit", "slow_start"),
    [
        ({"refused": 1}, Reason.PROVIDER_429, 32.0, 36.0),
        ({"errors": 3, "samples": 100}, Reason.ERRORS, 32.0, 36.0),
        ({"hard": 3}, Reason.BATCH_ERRORS, 32.0, 36.0),
        ({"first": 1.9, "first_n": 20}, Reason.FIRST_TOKEN, 20.0, 20.0),
        ({"token": 0.96, "token_n": 20}, Reason.PER_TOKEN, 36.0, 36.0),
        ({"live": 1.2}, Reason.LIVE_TOKENS, 30.0, 30.0),
        ({"queued": 10}, Reason.BACKEND_QUEUE, 27.0, 27.0),
        ({"first": math.inf, "first_n": 99}, Reason.FIRST_TOKEN, 20.0, 20.0),
    ],
)
def test_each_trigger_cuts_to_its_share_of_the_level_in_use(
    signals: dict[str, float], reason: Reason, limit: float, slow_start: float
) -> None:
    state, move = LAW.update(at(50.0), LimitConfig(), Signals(now=0, batch=40, bound=True, **signals))
    assert (move.action, move.reason) == (Action.CUT, reason)
    assert (state.limit, state.slow_start) == (pytest.approx(limit), pytest.approx(slow_start))
    assert state.cut_from == 40.0


@pytest.mark.parametrize(
    "signals",
    [
        {"errors": 2, "samples": 2},
        {"errors": 3, "samples": 150},
        {"hard": 2},
        {"live": 0.9},
        {"first": 0.95, "first_n": 20},
    ],
)
def test_a_signal_at_its_threshold_does_not_cut(signals: dict[str, float]) -> None:
    _, move = LAW.update(at(50.0), LimitConfig(), Signals(now=0, batch=40, bound=True, **signals))
    assert move.action is not Action.CUT


def test_the_error_budget_is_the_threshold() -> None:
    signals = Signals(now=0, batch=40, errors=4, samples=100)
    _, strict = LAW.update(at(50.0), LimitConfig(error_rate=0.02), signals)
    _, lenient = LAW.update(at(50.0), LimitConfig(error_rate=0.05), signals)
    assert (strict.reason, lenient.reason) == (Reason.ERRORS, Reason.NOT_BINDING)
    trigger = {t.name: t for t in lenient.triggers}["errors"]
    assert (trigger.value, trigger.threshold, trigger.n) == (0.04, 0.05, 100)


def test_every_tick_shows_every_trigger_also_those_that_did_not_win() -> None:
    _, move = LAW.update(at(50.0), LimitConfig(), Signals(now=0, batch=40, bound=True, refused=1))
    names = ["provider_429", "errors", "batch_errors", "first_token", "per_token", "live_tokens", "backend_queue"]
    assert [trigger.name for trigger in move.triggers] == names


def test_live_tokens_cut_only_while_batch_runs() -> None:
    _, move = LAW.update(at(50.0), LimitConfig(), Signals(now=0, interactive=40, live=3.0))
    assert move.action is Action.HOLD


# Lateness that is not the limit's fault

LATE = {"first": 3.0, "first_n": 50, "token": 2.0, "token_n": 50, "live": 1.5}


def test_late_requests_do_not_cut_while_no_batch_is_in_flight() -> None:
    """The level in use is interactive's own then; a limit cut from it starves the next batch and relieves nobody."""
    state, move = LAW.update(at(40.0), LimitConfig(), Signals(now=100.0, interactive=12, **LATE))
    assert (move.action, move.reason, state.limit) == (Action.HOLD, Reason.NO_BATCH, 40.0)
    state, move = LAW.update(state, LimitConfig(), Signals(now=105.0, interactive=12, batch=1, backlog=1, **LATE))
    assert (move.action, move.reason) == (Action.CUT, Reason.FIRST_TOKEN)


@pytest.mark.parametrize(
    ("signals", "reason"),
    [
        ({"refused": 1}, Reason.PROVIDER_429),
        ({"errors": 3, "samples": 9}, Reason.ERRORS),
        ({"hard": 3}, Reason.BATCH_ERRORS),
    ],
)
def test_refusals_and_errors_cut_also_without_batch_and_lateness_does_not_deepen_it(
    signals: dict[str, float], reason: Reason
) -> None:
    state, move = LAW.update(at(40.0), LimitConfig(), Signals(now=100.0, interactive=20, **LATE, **signals))
    assert (move.action, move.reason, move.breached) == (Action.CUT, reason, (reason,))
    assert state.limit == pytest.approx(16.0)


def rested(seconds: float) -> tuple[LimitState, float]:
    """Return the state when batch has had no work for that long, and the instant at which it gets some again."""
    state, now = at(40.0, last=95.0), 100.0
    while now <= 100.0 + seconds:
        state, _ = LAW.update(state, LimitConfig(), Signals(now=now, interactive=4))
        now += 5
    return state, now


def test_a_batch_that_begins_after_a_rest_is_judged_once_its_first_prompts_are_through() -> None:
    state, now = rested(30.0)
    reasons = []
    for waited in (0.0, 5.0, 10.0):
        signals = Signals(now=now + waited, interactive=4, batch=9, backlog=1, **LATE)
        state, move = LAW.update(state, LimitConfig(), signals)
        reasons.append(move.reason)
        assert state.epoch >= now
    assert reasons == [Reason.BATCH_BEGINS, Reason.BATCH_BEGINS, Reason.FIRST_TOKEN]


def test_bursts_of_batch_too_short_to_be_judged_are_excused_once_not_for_ever() -> None:
    state, now = rested(30.0)
    limits, reasons = [], set()
    for _ in range(4):
        for tick in range(9):
            batch = 30 if tick < 2 else 0
            late = LATE if tick > 0 else {}
            signals = Signals(now=now, interactive=4, batch=batch, backlog=batch, **late)
            state, move = LAW.update(state, LimitConfig(), signals)
            reasons.add(move.reason)
            now += 5
        limits.append(state.limit)
    assert limits[0] == 40.0 > limits[1]
    assert limits[1] == limits[2] > limits[3]
    assert {Reason.BATCH_BEGINS, Reason.NO_BATCH, Reason.FIRST_TOKEN} <= reasons


def test_a_batch_that_begins_after_a_rest_is_cut_at_once_where_the_provider_refuses() -> None:
    state, now = rested(30.0)
    _, move = LAW.update(state, LimitConfig(), Signals(now=now, interactive=4, batch=9, backlog=1, refused=1))
    assert (move.action, move.reason) == (Action.CUT, Reason.PROVIDER_429)


def test_a_short_pause_or_one_with_work_waiting_is_no_rest() -> None:
    state, now = rested(15.0)
    _, move = LAW.update(state, LimitConfig(), Signals(now=now, batch=9, backlog=1, **LATE))
    assert move.action is Action.CUT
    state, now = at(40.0, last=95.0), 100.0
    for _ in range(20):
        state, _ = LAW.update(state, LimitConfig(), Signals(now=now, interactive=64, backlog=5))
        now += 5
    _, move = LAW.update(state, LimitConfig(), Signals(now=now, batch=9, backlog=1, **LATE))
    assert move.action is Action.CUT


def test_a_clock_that_goes_back_during_a_rest_shortens_or_lengthens_nothing() -> None:
    state, _ = rested(20.0)
    state, move = LAW.update(state, LimitConfig(), Signals(now=50.0, interactive=4))
    assert move.reason is Reason.CLOCK_BACK
    assert state.idle_since is not None
    assert 50.0 - state.idle_since == pytest.approx(20.0)


# Growth


def test_growth_is_fast_below_the_last_safe_level_and_slow_near_the_last_cut() -> None:
    config, good = LimitConfig(), Signals(now=100.0, batch=20, bound=True, live=0.1)
    state, move = LAW.update(at(20.0, slow_start=24.0), config, good)
    assert (move.reason, state.limit) == (Reason.SLOW_START, 24.0)
    state, move = LAW.update(at(20.0), config, good)
    assert (move.reason, state.limit) == (Reason.ADDITIVE, 21.0)
    near = at(20.0, cut_from=21.0, cut_at=50.0)
    state, move = LAW.update(near, config, good)
    assert (move.reason, state.limit) == (Reason.PLATEAU, 20.25)
    _, move = LAW.update(near, config, replace(good, now=651.0))
    assert move.reason is Reason.ADDITIVE


def test_growth_slows_as_the_pressure_nears_the_band() -> None:
    def growth(first: float) -> float:
        signals = Signals(now=0, batch=20, bound=True, first=first, first_n=50)
        return LAW.update(at(20.0), LimitConfig(), signals)[0].limit - 20

    assert growth(0.1) == 1.0
    assert growth(0.75) == pytest.approx((0.9 - 0.75 / 0.95) / 0.27)
    assert growth(0.85) == 0.25


@pytest.mark.parametrize(
    ("signals", "reason"),
    [
        ({"first": 0.9, "first_n": 30}, Reason.DEAD_BAND),
        ({"live": 0.85}, Reason.DEAD_BAND_LIVE),
        ({"first": 0.9, "first_n": 5, "idle_for": 1.0}, Reason.FEW_SAMPLES),
        ({"first": 3.0, "first_n": 2, "first_over": 2, "live": 0.1}, Reason.FEW_SAMPLES),
    ],
)
def test_the_limit_does_not_rise_in_the_dead_band_or_on_late_few(signals: dict[str, float], reason: Reason) -> None:
    state, move = LAW.update(at(20.0), LimitConfig(), Signals(now=0, batch=20, bound=True, **signals))
    assert (move.action, move.reason, state.limit) == (Action.HOLD, reason, 20.0)


def test_r17_no_cut_on_fewer_than_the_minimum_of_samples_and_the_reason_is_told() -> None:
    """R17 cockroachdb/cockroach: a p95 over few samples jumps about."""
    signals = Signals(now=0, batch=20, bound=True, first=9.0, first_n=19, first_over=9, idle_for=1.0)
    _, move = LAW.update(at(20.0), LimitConfig(), signals)
    assert (move.action, move.reason) == (Action.HOLD, Reason.FEW_SAMPLES)
    assert {t.name: t.n for t in move.triggers}["first_token"] == 19


def test_few_samples_cut_where_most_of_at_least_three_are_late_by_their_median() -> None:
    late = Signals(now=0, batch=40, bound=True, first=9.0, first_mid=1.1875, first_n=3, first_over=2)
    state, move = LAW.update(at(40.0), LimitConfig(), late)
    assert (move.action, move.reason) == (Action.CUT, Reason.FIRST_TOKEN)
    assert state.limit == pytest.approx(32.0)
    _, move = LAW.update(at(40.0), LimitConfig(), replace(late, first_n=2))
    assert move.action is Action.HOLD


def test_sparse_good_samples_pace_the_growth_by_their_number() -> None:
    def growth(n: int) -> float:
        signals = Signals(now=0, batch=20, bound=True, token=0.2, token_n=n, idle_for=10.0)
        return LAW.update(at(20.0), LimitConfig(), signals)[0].limit - 20

    assert growth(5) == pytest.approx(0.25)
    assert growth(15) == pytest.approx(0.75)
    assert growth(20) == pytest.approx(1.0)


def test_one_interactive_call_every_twenty_seconds_lets_batch_reach_its_ceiling_within_minutes() -> None:
    config = LimitConfig(slots=8)
    state, now, arrivals = LAW.start(config), 0.0, [0.0]
    while state.limit < 8:
        now += 5
        if now % 20 == 0:
            arrivals.append(now)
        n = sum(now - a <= 300 for a in arrivals)
        bound = Signals(now=now, batch=int(state.limit), bound=True, token=0.3, token_n=n, idle_for=now - arrivals[-1])
        state, _ = LAW.update(state, config, bound)
        assert now < 240


# Healthy, recovering


@pytest.mark.parametrize(
    ("slots", "alpha"), [(1, 1.0), (2, 1.0), (4, 1.0), (8, 0.125), (8, 1.0), (64, 1.0), (512, 8.0)]
)
def test_r10_a_healthy_pool_climbs_to_its_maximum_within_a_minute_and_stays(slots: int, alpha: float) -> None:
    """R10 Netflix/concurrency-limits: AIMD halves the limit when it reaches the maximum although healthy."""
    config = LimitConfig(slots=slots, alpha=alpha)
    state, levels = LAW.start(config), []
    for i in range(60):
        healthy = Signals(now=i * 5.0, batch=int(state.limit), bound=True, first=0.2, first_n=50, live=0.2)
        state, move = LAW.update(state, config, healthy)
        levels.append(state.limit)
    assert levels[11] == slots
    assert set(levels[11:]) == {float(slots)}
    assert move.reason is Reason.AT_SLOTS


def test_r13_without_interactive_traffic_after_an_overload_the_limit_recovers() -> None:
    """R13 ai-dynamo/dynamo: with no requests the average is NaN and all decisions stop."""
    config, now = LimitConfig(slots=16), 0.0
    state, _ = LAW.update(at(16.0), config, Signals(now=now, interactive=4, batch=12, first=4.0, first_n=50))
    assert state.limit == 8.0
    while now < 300:
        now += 5
        nobody = Signals(now=now, batch=int(state.limit), bound=True, idle_for=now)
        state, move = LAW.update(state, config, nobody)
    assert state.limit == 16.0
    assert {t.name: t.value for t in move.triggers}["first_token"] is None


# Starts


def test_a_restart_within_the_hour_begins_below_the_saved_limit() -> None:
    config = LimitConfig()
    assert LAW.start(config, limit=40.0, age=3599.0) == LimitState(28.0, 36.0)
    assert LAW.start(config, limit=40.0, age=3600.0) == LimitState(16.0, 64.0)
    assert LAW.start(config) == LimitState(16.0, 64.0)


@pytest.mark.parametrize(
    ("slots", "floor", "limit"), [(1, 0, 1), (1, 1, 1), (8, 1, 2), (8, 3, 4), (8, 8, 8), (100, 1, 25)]
)
def test_a_cold_start_begins_at_a_quarter_of_the_slots_but_above_the_floor(
    slots: int, floor: int, limit: float
) -> None:
    assert LAW.start(LimitConfig(slots=slots, floor=floor)).limit == limit


def test_a_fixed_limit_never_moves_but_stays_inside_the_pool() -> None:
    law: Limit = FixedLimit(32)
    state = law.start(LimitConfig(slots=16), limit=3.0, age=0.0)
    assert state.limit == 16.0
    state, move = law.update(state, LimitConfig(), Signals(now=5.0, batch=60, first=9.0, first_n=99, refused=4))
    assert (state.limit, move.action, move.reason) == (32.0, Action.HOLD, Reason.FIXED)


@pytest.mark.parametrize(
    "wrong", [{"floor": 65}, {"slots": 0, "floor": 0}, {"beta_lo": 0.95}, {"alpha": 0}, {"band": 1.1}]
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        LimitConfig(**wrong)


@given(st.floats(1, 64), st.integers(0, 64))
def test_a_changed_floor_moves_the_limit_at_once_and_forgets_nothing(level: float, floor: int) -> None:
    state = at(level, cut_from=9.0, cut_at=3.0, epoch=2.0)
    moved = confined(state, LimitConfig(floor=floor))
    wanted = max(level, float(floor))
    assert moved == replace(state, limit=wanted, slow_start=wanted)
