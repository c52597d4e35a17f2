"""What the pages say of a pool: never more than is known."""

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta

from core.control.windows import Schedule, Window
from core.lanes import Lane
from core.overview import Reading, VerdictState, Waits, differences, pool_view, sample, upcoming, verdict
from core.quotas import Bounds, Budgets, Hold, Pause, PoolSettings
from core.samples import Seen
from core.scheduling.dispatcher import PoolCounts

NOW = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)
SETTINGS = PoolSettings("gpt", slots=8, reserve=1, headroom=1, floor=1, ceiling=7)
GOOD = Seen(first_token_p95_s=0.4, per_token_p95_ms=30.0, total_p95_s=2.0, error_rate=0.0, samples=40)
READING = Reading(
    at=NOW,
    settings=SETTINGS,
    bounds=Bounds(1, 7),
    counts=PoolCounts(3, 0, 2, 5, None, 12.0),
    quota=4,
    shadow_quota=4,
    limit=8.0,
    settling=0,
    seen=GOOD,
    waits={Lane.BATCH: Waits(3.0, 9.0)},
    tick_age_s=2.0,
    tick_s=5.0,
)


def read(**changes: object) -> Reading:
    return replace(READING, **changes)  # type: ignore[arg-type]


def test_within_all_budgets_interactive_is_healthy() -> None:
    told = verdict(READING, UTC)
    assert (told.state, told.title) == (VerdictState.HEALTHY, "Interactive is healthy")
    assert told.figures == ("0.40 s p95 to the first token against 1 s. 30 ms per token against 75 ms. 0.0 % errors.")
    assert told.batch == "The controller lets batch use 4 slots."


def test_one_broken_latency_budget_makes_it_slow() -> None:
    for seen in (replace(GOOD, first_token_p95_s=1.2), replace(GOOD, per_token_p95_ms=80.0)):
        assert verdict(read(seen=seen), UTC).state is VerdictState.SLOW


def test_too_many_errors_are_worse_than_slow() -> None:
    seen = replace(GOOD, error_rate=0.05, first_token_p95_s=3.0)
    assert verdict(read(seen=seen), UTC).title == "Interactive is failing"


def test_any_error_breaks_a_budget_of_none() -> None:
    bounds = Bounds(1, 7, Budgets(error_rate=0.0))
    assert verdict(read(bounds=bounds), UTC).state is VerdictState.HEALTHY
    assert verdict(read(bounds=bounds, seen=replace(GOOD, error_rate=0.01)), UTC).state is VerdictState.FAILING


def test_a_stale_controller_makes_the_verdict_unknown() -> None:
    told = verdict(read(tick_age_s=16.0), UTC)
    assert told.state is VerdictState.UNKNOWN
    assert told.figures == "The controller last looked 16 s ago, so these figures may be old."


def test_without_traffic_it_is_quiet_and_shows_no_numbers() -> None:
    """R95 linkerd/linkerd2 PR#750: NaN percentiles with no traffic."""
    view = pool_view(read(seen=Seen(), counts=PoolCounts(0, 0, 0, 0, None, None), waits={}), UTC)
    assert view.verdict.state is VerdictState.QUIET
    assert [promise.seen for promise in view.promises] == ["—", "—", "—"]
    assert not any(promise.broken for promise in view.promises)
    assert [lane.oldest_s for lane in view.lanes] == [None, None]
    assert view.lanes[0].waits == Waits(None, None)


def test_requests_that_never_ended_are_no_sign_of_health() -> None:
    told = verdict(read(seen=Seen()), UTC)
    assert told.state is VerdictState.UNKNOWN
    assert "none finished" in told.figures


def test_a_hold_tells_until_when_by_whom_and_what_the_controller_would_allow() -> None:
    hold = Hold(6, NOW + timedelta(hours=1), "ann", "drain", NOW)
    told = verdict(read(settings=replace(SETTINGS, hold=hold), quota=6), UTC)
    assert told.batch == "Batch is held at 6 until 10:30 by ann (drain). The controller would allow 4."


def test_an_expired_hold_is_not_told() -> None:
    hold = Hold(6, NOW - timedelta(seconds=1), "ann", "drain", NOW)
    assert "held" not in verdict(read(settings=replace(SETTINGS, hold=hold)), UTC).batch


def test_a_pause_is_told_before_a_hold_and_leaves_the_hold_alone() -> None:
    hold = Hold(6, None, "ann", "drain", NOW)
    paused = replace(SETTINGS, hold=hold, pause=Pause("bob", "disk full", NOW - timedelta(minutes=5)))
    view = pool_view(read(settings=paused, quota=6), UTC)
    assert view.verdict.batch == "Batch is paused by bob since 09:25: disk full."
    assert (view.gauge.allowed, view.quota, view.settings.hold) == (0, 6, hold)


def test_a_provider_that_asked_for_quiet_is_named() -> None:
    assert verdict(read(backed_off_s=41.0), UTC).batch.startswith("Batch waits 41 s more")


def test_the_gauge_counts_only_what_holds_a_slot() -> None:
    """apache/airflow#53826: a pool bar above 100 %."""
    gauge = pool_view(read(counts=PoolCounts(7, 50, 3, 900, 1.0, 90.0), settling=2), UTC).gauge
    assert (gauge.interactive, gauge.batch, gauge.free, gauge.settling) == (7, 3, 0, 2)
    assert "50" not in gauge.title
    assert "900" not in gauge.title


def test_what_differs_from_the_file_is_listed_with_both_values() -> None:
    stored = replace(SETTINGS, ceiling=6, budgets=Budgets(first_token_s=0.8))
    assert [(d.name, d.stored, d.file) for d in differences(stored, SETTINGS)] == [
        ("ceiling", "6", "7"),
        ("first token", "0.8 s", "1 s"),
    ]
    assert differences(SETTINGS, SETTINGS) == ()


def test_holds_and_versions_are_no_difference_from_the_file() -> None:
    stored = replace(SETTINGS, version=9, hold=Hold(1, None, "ann", "", NOW), pause=Pause("bob", "", NOW))
    assert differences(stored, SETTINGS) == ()


def test_the_next_change_names_what_begins_or_ends() -> None:
    peak = Window("Late Peak", frozenset(range(7)), time(10), time(12), ceiling=3)
    schedule = Schedule(windows=(peak,))
    coming = upcoming(schedule, NOW, SETTINGS, UTC)
    assert coming is not None
    assert coming.sentence == "Late Peak starts at 10:00, in 30 min"
    assert coming.detail == "Batch then gets 1 to 3 slots."
    ending = upcoming(schedule, NOW + timedelta(hours=1), SETTINGS, UTC)
    assert ending is not None
    assert ending.sentence == "Window Late Peak ends at 12:00, in 1 h 30 min"
    assert upcoming(Schedule(), NOW, SETTINGS, UTC) is None


def test_the_chart_keeps_the_budget_in_force() -> None:
    kept = sample(read(bounds=Bounds(1, 7, Budgets(first_token_s=0.7))))
    assert (kept.p95_s, kept.budget_s, kept.quota, kept.limit) == (0.4, 0.7, 4, 8.0)
