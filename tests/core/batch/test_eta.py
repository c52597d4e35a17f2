import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.batch.eta import Recent, deadline_risk, eta, forecast
from core.batch.residuals import RULE_OF_THUMB, GivenEta, Ranges
from core.batch.throughput import Level, Measured, level
from core.batch.values import Batch, BatchPause, BatchStatus, Eta, EtaState, Risk, Usage
from core.batch.work import ANY, Load, Prior, Priors
from core.control.windows import OneOff, Schedule, Window
from core.quotas import Hold, Pause
from tests.eta_outlooks import HOUR, NOW, OUTPUT, POOL, batch, conditions, hours, outlook, scored

FEW = settings(max_examples=60, deadline=None)
ALL_DAYS = frozenset(range(7))


def mid(of: Batch, **fields: Any) -> datetime:
    found = forecast(of, outlook(**fields))
    assert found is not None
    return found.mid


def sane(found: Eta) -> None:
    if found.state is EtaState.ESTIMATED:
        assert found.low is not None
        assert found.mid is not None
        assert found.high is not None
        assert found.as_of <= found.low <= found.mid <= found.high
        assert found.high < found.as_of + timedelta(days=36500)
    else:
        assert (found.low, found.mid, found.high) == (None, None, None)
    assert not {"nan", "inf", "-inf"} & set(found.basis.split())


# The middle


def test_a_pool_of_a_known_rate_gives_the_known_time() -> None:
    assert mid(batch(3600)) == NOW + HOUR


def test_the_time_of_a_single_request_comes_after_the_last_one_began() -> None:
    assert mid(batch(3600), seconds=20.0) == NOW + HOUR + timedelta(seconds=10)


def test_longer_answers_of_its_own_count_more_and_more() -> None:
    longer = batch(7200, completed=3600, usage=Usage(output_tokens=3600 * 199))
    assert NOW + 1.95 * HOUR < mid(longer) < NOW + 2 * HOUR
    few = batch(3610, completed=10, usage=Usage(output_tokens=10 * 199))
    assert mid(few) == NOW + 1.25 * HOUR


def test_prompt_tokens_of_the_upload_count_by_kappa_and_by_how_they_were_counted_before() -> None:
    load = outlook().claim(batch(100, prompt_tokens_total=40_000)).left
    assert load.input_tokens == 40_000
    assert load.work(0.35) == pytest.approx(100 * 100 + 0.35 * 40_000)
    priors = Priors([(("default", ANY, ANY), Prior(1000, OUTPUT, 0.0, prompt_ratio=0.5))])
    assert outlook(priors=priors).claim(batch(100, prompt_tokens_total=40_000)).left.input_tokens == 20_000


def test_the_last_hour_raises_or_lowers_what_is_near_and_hardly_what_is_far() -> None:
    near, far = batch(360), batch(36_000)
    slow_near = (mid(near, level=0.5) - NOW) / (mid(near) - NOW)
    slow_far = (mid(far, level=0.5) - NOW) / (mid(far) - NOW)
    assert 1.9 < slow_near <= 2.0
    assert 1.05 < slow_far < 1.3


def test_an_hour_in_which_nothing_came_back_lowers_the_level_as_much_as_a_busy_one_can() -> None:
    throughput = outlook().throughput
    nothing = Measured(NOW - timedelta(minutes=30), "base", 1800.0, Load(), 20.0, 20.0)
    found = level([nothing], throughput, NOW)
    assert 0 < found.ratio < 0.1
    assert level([], throughput, NOW).ratio == 1.0


def test_batches_of_ones_own_that_go_first_are_ahead_and_those_behind_are_not() -> None:
    urgent = batch(1800, id="batch_2", priority=5)
    behind = batch(9999, id="batch_3", window=timedelta(hours=48))
    paused = batch(9999, id="batch_4", priority=9, pause=BatchPause("ann", "", NOW))
    assert mid(batch(3600), active=[urgent, behind, paused]) == NOW + 1.5 * HOUR


def test_other_teams_take_their_share_and_no_more_than_they_have() -> None:
    assert mid(batch(3600), active=[batch(99_999, id="batch_2", tenant="qa")]) == NOW + 2 * HOUR
    assert mid(batch(3600), active=[batch(1800, id="batch_2", tenant="qa")]) == NOW + 1.5 * HOUR
    weighted = mid(batch(3600), active=[batch(99_999, id="batch_2", tenant="qa")], weights={"news": 3.0})
    assert abs(weighted - (NOW + 4 / 3 * HOUR)) < timedelta(seconds=1)


def test_its_own_limits_on_its_starts_make_it_slower_but_never_faster() -> None:
    assert mid(batch(100, interval_s=60.0)) == NOW + timedelta(seconds=6000)
    assert mid(batch(3600, interval_s=0.001)) == NOW + HOUR
    narrow = mid(batch(100, max_concurrency=1), seconds=30.0)
    assert narrow == NOW + timedelta(seconds=100 * 30 + 15)


# Windows, holds, pauses


def peak(ceiling: int = 5) -> Schedule:
    return Schedule("Europe/Berlin", (Window("Peak", ALL_DAYS, time(9), time(18), ceiling=ceiling),))


def test_a_narrow_window_ahead_makes_it_later_and_what_was_measured_in_it_is_believed() -> None:
    rows = hours(24 * 7)
    narrow = [
        replace(row, source="window:Peak", quota=5, ceiling=5, load=row.load.scaled(0.25))
        if 9 <= (row.start + HOUR).hour < 18
        else row
        for row in rows
    ]
    found = forecast(batch(7200), outlook(rows=narrow, given=conditions(schedule=peak())))
    assert found is not None
    # 13:00 to 18:00 in Berlin at a quarter, the rest at full speed.
    assert abs(found.mid - (NOW + 5 * HOUR + timedelta(seconds=7200 - 4500))) < timedelta(minutes=15)


def test_a_window_never_seen_before_is_reckoned_by_its_quota() -> None:
    schedule = Schedule(one_offs=(OneOff("Feast", NOW, NOW + 48 * HOUR, ceiling=5),))
    later = mid(batch(3600), given=conditions(schedule=schedule))
    assert NOW + 1.5 * HOUR < later < NOW + 4.5 * HOUR


def test_in_the_night_in_which_clocks_go_back_an_hour_is_worked_twice() -> None:
    """A window of 22:00 to 06:00 lasts 9 hours, so that more is done before its end."""
    night = Schedule("Europe/Berlin", (Window("Night", ALL_DAYS, time(22), time(6), ceiling=20),))
    closed = replace(POOL, ceiling=0, floor=0)

    def end(evening: datetime) -> timedelta:
        given = conditions(closed, night, now=evening)
        found = forecast(batch(round(8.5 * 3600)), outlook(given=given, now=evening, rows=hours(until=evening)))
        assert found is not None
        return found.mid - evening

    assert end(datetime(2026, 10, 23, 20, tzinfo=UTC)) > 24 * HOUR  # not done by 06:00: goes on the next evening
    assert end(datetime(2026, 10, 24, 20, tzinfo=UTC)) == 8.5 * HOUR


def test_held_at_0_until_eight_it_is_paused_and_told_when_it_goes_on() -> None:
    hold = Hold(0, NOW + 8 * HOUR, "ann", "", NOW)
    found = eta(batch(3600), outlook(given=conditions(replace(POOL, hold=hold))))
    assert found.state is EtaState.PAUSED
    assert found.waiting_for == "held at 0 until 20:00, then about 21:00 (20:36 to 22:00)"
    sane(found)


def test_a_hold_for_ever_at_0_has_no_time() -> None:
    found = eta(batch(), outlook(given=conditions(replace(POOL, hold=Hold(0, None, "ann", "", NOW)))))
    assert (found.state, found.waiting_for) == (EtaState.PAUSED, "held at 0 until somebody releases it")


def test_a_hold_above_0_is_reckoned_with_until_it_ends() -> None:
    held = replace(POOL, hold=Hold(5, NOW + HOUR, "ann", "", NOW))
    assert mid(batch(3600)) < mid(batch(3600), given=conditions(held)) < NOW + 2 * HOUR


def test_a_window_that_leaves_batch_nothing_is_told_by_name() -> None:
    found = eta(batch(3600), outlook(given=conditions(replace(POOL, floor=0), peak(0))))
    assert found.state is EtaState.PAUSED
    assert found.waiting_for is not None
    assert found.waiting_for.startswith("window Peak leaves batch no slot until 18:00, then about 19:0")


def test_a_schedule_that_never_lets_batch_run_has_no_time_at_all() -> None:
    found = eta(batch(3600), outlook(given=conditions(replace(POOL, floor=0, ceiling=0))))
    assert (found.state, found.waiting_for) == (EtaState.PAUSED, "base settings leaves batch no slot")
    sane(found)


def test_whoever_paused_the_batch_or_the_pool_is_named() -> None:
    paused = batch(pause=BatchPause("bob", "wrong prompt", NOW))
    found = eta(paused, outlook())
    assert (found.state, found.waiting_for) == (EtaState.PAUSED, "batch is paused by bob: wrong prompt")
    found = eta(batch(), outlook(given=conditions(replace(POOL, pause=Pause("ann", "", NOW)))))
    assert (found.state, found.waiting_for) == (EtaState.PAUSED, "pool default is paused by ann")


def test_what_the_upstream_asked_for_is_waited_for() -> None:
    view = outlook(given=conditions(backed_off_s=41.0))
    found = eta(batch(3600), view)
    assert found.waiting_for == "upstream asked to wait 41 s"
    assert found.mid == NOW + HOUR + timedelta(seconds=41)


def test_what_stands_before_it_is_told() -> None:
    active = [batch(620, id=f"batch_{n}", priority=1) for n in (2, 3)] + [batch(5, id="batch_4", tenant="qa")]
    found = eta(batch(), outlook(active=active))
    assert found.waiting_for == "2 batches, 1,240 requests ahead; shares the pool with 1 other team"
    assert eta(batch(), outlook()).waiting_for is None


# States and words


def test_with_too_little_data_it_says_so_and_names_how_much_there_is() -> None:
    few = [Measured(NOW - HOUR, "base", 60.0, Load(18, 0, 900), 4.0, 4.0)]
    found = eta(batch(), outlook(rows=few))
    assert found.state is EtaState.LEARNING
    assert found.basis == "Not enough finished requests yet to say; 18 of 30."
    assert eta(batch(), outlook(rows=[])).basis.endswith("how fast the pool works is still being measured.")
    sane(found)


def test_what_an_estimate_rests_on_is_told() -> None:
    schedule = Schedule(one_offs=(OneOff("Evening", NOW + HOUR, NOW + 9 * HOUR, ceiling=28),))
    given = conditions(replace(POOL, slots=32), schedule)
    found = eta(batch(7200), outlook(given=given, rows=hours(24 * 15), recent=Recent(1240, 20)))
    assert found.basis == (
        "Based on 1,240 requests in the last 20 min, the usual load of these hours over 2 weeks and the schedule "
        "(28 slots at most from 13:00). The range is a rule of thumb until 30 ETAs have been checked; 0 so far."
    )


@pytest.mark.parametrize(
    ("status", "state", "waiting_for"),
    [
        (BatchStatus.VALIDATING, EtaState.LEARNING, None),
        (BatchStatus.FINALIZING, EtaState.ESTIMATED, "results are being written"),
        (BatchStatus.CANCELLING, EtaState.ESTIMATED, "running requests are being ended"),
        (BatchStatus.COMPLETED, EtaState.DONE, None),
        (BatchStatus.EXPIRED, EtaState.DONE, None),
    ],
)
def test_each_status_has_its_state(status: BatchStatus, state: EtaState, waiting_for: str | None) -> None:
    of = batch(10, completed=10, status=status, completed_at=NOW, expired_at=NOW)
    for view in (outlook(), outlook(rows=[]), outlook(given=conditions(replace(POOL, floor=0, ceiling=0)))):
        found = eta(of, view)
        sane(found)
        assert (found.state, found.waiting_for) == (state, waiting_for)


def test_a_batch_that_slows_five_times_half_way_is_later_than_expected_and_never_below_zero() -> None:
    """R96 wolph/python-progressbar PR#47, wagoodman/bashful#48: an ETA below zero."""
    total = 3600
    first_view = outlook()
    found = forecast(batch(total), first_view)
    assert found is not None
    first = GivenEta("batch_1", "news", "default", NOW, found.low, found.mid, found.high, total, 0, 0, first=True)
    told = []
    for minute in range(0, 175, 5):
        now = NOW + timedelta(minutes=minute)
        done = min(60 * minute, 1800) + max(0, minute - 30) * 12
        recent = [Measured(now - timedelta(minutes=5), "base", 300.0, Load(60, 0, 60 * OUTPUT), 20.0, 20.0)]
        view = outlook(now=now, rows=hours(until=NOW), level=0.2 if minute > 35 else 1.0)
        if minute > 35:
            view = replace(view, level=level(recent, view.throughput, now))
        of = batch(total, completed=done, usage=Usage(output_tokens=round(done * OUTPUT)))
        told.append(eta(of, view, first=first))
        sane(told[-1])
        assert told[-1].state is EtaState.ESTIMATED
    assert "Later than expected" not in told[0].basis
    late = [each for each in told if each.mid is not None and each.mid > first.high]
    assert late
    for each in late:
        assert each.basis.startswith("Later than expected: at first 12:36 to 14:00 was said; the pool now does ")
        assert "% of its usual work" in each.basis


def test_longer_answers_are_named_as_the_cause() -> None:
    first = GivenEta("batch_1", "news", "default", NOW - HOUR, NOW, NOW, NOW + timedelta(minutes=1), 99_999, 0, 0)
    longer = batch(7200, completed=3600, usage=Usage(output_tokens=3600 * 198))
    found = eta(longer, outlook(), first=first)
    assert "answers are 100 % longer than usual" in found.basis


def test_others_that_came_before_it_are_named_as_the_cause() -> None:
    first = GivenEta("batch_1", "news", "default", NOW - HOUR, NOW, NOW, NOW + timedelta(minutes=1), 3600, 0, 0)
    found = eta(batch(3600), outlook(active=[batch(3600, id="batch_2", priority=3)]), first=first)
    assert "other batches came before it" in found.basis


# Risk


def test_a_deadline_is_held_against_the_range() -> None:
    def risk(hours: float) -> Risk | None:
        return eta(batch(3600, created_at=NOW, window=hours * HOUR), outlook()).risk

    assert risk(2.1) is Risk.ON_TIME
    assert risk(1.5) is Risk.AT_RISK
    assert risk(0.9) is Risk.WILL_MISS


def test_the_quota_that_mends_a_deadline_is_the_least_that_does() -> None:
    given = conditions(replace(POOL, ceiling=10))
    rows = hours(quota=10.0, per_hour=1800.0)
    of = batch(3600, created_at=NOW, window=3.5 * HOUR)
    view = outlook(rows=rows, given=given)
    found = deadline_risk(of, view)
    assert found is not None
    assert found.risk is Risk.AT_RISK
    assert found.quota is not None
    assert 10 < found.quota <= 20

    def high(quota: int) -> datetime:
        told = forecast(of, view, plan=view.plan.held(quota, of.expires_at))
        assert told is not None
        return told.high

    assert high(found.quota) <= of.expires_at < high(found.quota - 1)
    assert found.sentence == f"Deadline 15:30: at risk; would need a quota of {found.quota} until then."


def test_where_no_quota_is_enough_that_is_said() -> None:
    found = deadline_risk(batch(360_000, created_at=NOW, window=HOUR), outlook())
    assert found is not None
    assert (found.risk, found.quota) == (Risk.WILL_MISS, None)
    assert found.sentence == "Deadline 13:00: will miss it; no quota would be enough."
    late = deadline_risk(batch(36, created_at=NOW - 2 * HOUR, window=HOUR), outlook())
    assert late is not None
    assert late.quota is None


# The range


def test_before_30_residuals_the_range_is_a_rule_of_thumb() -> None:
    found = eta(batch(3600), outlook(ranges=Ranges([scored(0.0)] * 29)))
    assert (found.low, found.high) == (NOW + 0.6 * HOUR, NOW + 2 * HOUR)


def spread(count: int, *, width: float = 0.2, **fields: Any) -> list[GivenEta]:
    """Return the ETAs of so many batches, one each, whose residuals lie evenly between -width and width."""
    return [scored(width * (2 * n / (count - 1) - 1), batch=f"{width} {count} {n}", **fields) for n in range(count)]


def high(etas: Sequence[GivenEta], *, seconds: float = 3600.0, fresh: bool = False) -> float:
    return Ranges(etas).factors(seconds, fresh=fresh)[1]


def test_from_30_residuals_on_the_range_is_what_they_were_the_wider_the_fewer_batches_there_were() -> None:
    low, most = Ranges(spread(400)).factors(3600.0, fresh=False)
    assert low == pytest.approx(math.exp(-0.18), abs=0.02)
    assert most == pytest.approx(math.exp(0.18), abs=0.02)
    assert most < high(spread(100)) < high(spread(40)) < RULE_OF_THUMB[1]


def test_of_20_batches_the_worst_is_p95_for_one_more_might_be_as_bad() -> None:
    """(n + 1) x 0.95 of 20 is the 20th; drawn by 10 of 30 towards all, and those by 10 of 30 to the rule of thumb."""
    etas = [*spread(19), scored(1.0, batch="worst")]
    found = math.log(high([each for each in etas for _ in range(2)]))
    assert found == pytest.approx(1.0 - (1.0 - math.log(2)) / 9)


def test_many_etas_of_few_batches_are_as_good_as_one_of_each() -> None:
    once = [scored(0.1 * n, batch=f"b{n}") for n in (-2, -1, 0, 1, 2)]
    often = Ranges([each for each in once for _ in range(100)]).factors(3600.0, fresh=False)
    assert often == Ranges([each for each in once for _ in range(6)]).factors(3600.0, fresh=False)
    assert often[1] > math.exp(0.25)


def test_one_batch_of_many_etas_counts_no_more_than_one_of_few() -> None:
    late = [scored(0.5, batch="late") for _ in range(100)]
    of_many = [replace(each, batch=f"late {n}") for n, each in enumerate(late)]
    assert high([*spread(100), *late]) < high([*spread(100), *of_many])


def test_at_submission_the_range_is_that_of_etas_given_at_submission() -> None:
    etas = [*spread(100, width=0.1), *spread(100, width=0.5, first=True)]
    assert high(etas, fresh=False) < 1.2
    assert high(etas, fresh=True) > 1.5
    view = outlook(ranges=Ranges(etas))
    new, begun = forecast(batch(3600), view), forecast(batch(7200, completed=3600), view)
    assert new is not None
    assert begun is not None
    assert new.high > begun.high + 0.3 * HOUR


def test_a_horizon_that_was_never_seen_gets_the_range_of_all_together_and_one_that_was_its_own() -> None:
    etas = [*spread(100, width=0.1), *spread(100, width=0.5, predicted=40_000.0)]
    assert high(etas, seconds=3600.0) < high(etas, seconds=100_000.0) < high(etas, seconds=40_000.0)


def test_a_range_that_is_missed_too_often_widens_and_one_that_holds_goes_back_to_what_residuals_say() -> None:
    missed = [replace(each, high=each.mid) for each in spread(200, calibrated=True)]
    held = [replace(each, low=each.at, high=each.at + 2 * HOUR) for each in spread(200, calibrated=True)]
    assert high(missed) > high(spread(200))
    assert high(held) == high(spread(200))
    assert high([*missed, *held]) < high([*held, *missed])


# Properties

amounts = st.integers(1, 2_000_000)
levels = st.floats(0.02, 10.0)
quotas = st.integers(0, 20)


@FEW
@given(total=amounts, ratio=levels, ceiling=quotas, done=st.floats(0, 1), per_hour=st.floats(2.0, 1e6))
def test_nothing_is_ever_negative_infinite_or_nan(
    total: int, ratio: float, ceiling: int, done: float, per_hour: float
) -> None:
    completed = min(total - 1, int(total * done))
    of = batch(total, completed=completed, usage=Usage(output_tokens=completed * 7))
    given = conditions(replace(POOL, floor=0, ceiling=ceiling), peak(3))
    found = eta(of, outlook(given=given, level=ratio, rows=hours(per_hour=per_hour)))
    sane(found)
    assert found.state in (EtaState.ESTIMATED, EtaState.PAUSED)


@FEW
@given(one=amounts, two=amounts, ratio=levels)
def test_more_work_is_never_earlier(one: int, two: int, ratio: float) -> None:
    less, more = sorted((one, two))
    view = outlook(given=conditions(schedule=peak(3)), level=ratio)
    found = [forecast(batch(total), view) for total in (less, more)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].mid <= found[1].mid


@FEW
@given(one=st.integers(1, 20), two=st.integers(1, 20), total=amounts, quota=st.floats(1, 20), held=st.booleans())
def test_a_higher_quota_is_never_later(one: int, two: int, total: int, quota: float, held: bool) -> None:
    rows = hours(quota=quota)
    rows = [replace(row, ceiling=20.0) for row in rows] if quota < 10 else rows

    def end(ceiling: int) -> datetime:
        hold = Hold(ceiling, None, "ann", "", NOW) if held else None
        settings = POOL if held else replace(POOL, ceiling=ceiling)
        return mid(batch(total), given=conditions(replace(settings, hold=hold)), rows=rows)

    low, high = sorted((one, two))
    assert end(high) <= end(low)


@FEW
@given(ahead=st.integers(0, 100_000), more=st.integers(1, 100_000), own=st.booleans())
def test_more_work_ahead_is_never_earlier(ahead: int, more: int, own: bool) -> None:
    def end(items: int) -> datetime:
        tenant = "news" if own else "qa"
        others = [batch(items, id="batch_2", tenant=tenant, priority=9)] if items else []
        return mid(batch(3600), active=others)

    assert end(ahead) <= end(ahead + more)


@FEW
@given(ratio=levels, minutes=st.integers(0, 10_000))
def test_a_level_fades_to_1_and_stays_above_0(ratio: float, minutes: int) -> None:
    found = Level(ratio, NOW)
    value = found.at(NOW + timedelta(minutes=minutes))
    assert value > 0
    assert min(ratio, 1.0) - 1e-9 <= value <= max(ratio, 1.0) + 1e-9
