from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.control.rules import MAX_RULES
from core.control.windows import (
    OneOff,
    Schedule,
    Window,
    bounds_at,
    next_change,
    overlaps,
    transitions,
    validate,
)
from core.errors import InvalidValue
from core.quotas import Bounds, Budgets

BASE = Bounds(2, 20, Budgets(1.5, 60.0, 0.01))
EVERY_DAY = frozenset(range(7))
MONDAY_TO_FRIDAY = frozenset(range(5))
NIGHT = Window("Night", EVERY_DAY, time(22), time(6), floor=8, ceiling=28)
PEAK = Window("Peak", MONDAY_TO_FRIDAY, time(7), time(22), floor=4, ceiling=12, priority=10)


def source_at(schedule: Schedule, now: datetime, pool: str = "default") -> str:
    return bounds_at(schedule, now, pool=pool, base=BASE).source


def local(zone: str, *parts: int, fold: int = 0) -> datetime:
    return datetime(*parts, tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)


def minutes(start: datetime, count: int) -> Iterator[datetime]:
    return (start + timedelta(minutes=minute) for minute in range(count))


@pytest.mark.parametrize(
    ("clock", "is_open"),
    [((21, 59), False), ((22, 0), True), ((23, 59), True), ((0, 0), True), ((5, 59), True), ((6, 0), False)],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
def test_a_window_over_midnight_is_open_on_both_sides_of_it(zone: str, clock: tuple[int, int], is_open: bool) -> None:
    """R76 ZoneMinder/zmeventnotificationNg#52, aws-solutions/instance-scheduler-on-aws#110."""
    schedule = Schedule(zone, (NIGHT,))
    for day in (9, 10, 15):
        assert (source_at(schedule, local(zone, 2026, 12, day, *clock)) == "window:Night") is is_open


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_starts() -> None:
    schedule = Schedule("UTC", (replace(NIGHT, days=frozenset({4})),))
    assert source_at(schedule, datetime(2026, 12, 5, 3, tzinfo=UTC)) == "window:Night"  # Saturday morning
    assert source_at(schedule, datetime(2026, 12, 4, 3, tzinfo=UTC)) == "base"  # Friday morning


def test_equal_start_and_end_last_a_whole_day() -> None:
    schedule = Schedule("UTC", (Window("Sunday", frozenset({6}), time(9), time(9), ceiling=5),))
    start = datetime(2026, 12, 6, 9, tzinfo=UTC)
    assert source_at(schedule, start - timedelta.resolution) == "base"
    assert source_at(schedule, start) == source_at(schedule, start + timedelta(hours=23, minutes=59)) == "window:Sunday"
    assert source_at(schedule, start + timedelta(days=1)) == "base"


CHANGE_NIGHTS = [
    ("Europe/Berlin", date(2027, 3, 28)),
    ("Europe/Berlin", date(2026, 10, 25)),
    ("America/New_York", date(2027, 3, 14)),
    ("America/New_York", date(2026, 11, 1)),
    ("Europe/Helsinki", date(2027, 3, 28)),
    ("Europe/Helsinki", date(2026, 10, 25)),
    ("Australia/Lord_Howe", date(2026, 10, 4)),
    ("Australia/Lord_Howe", date(2027, 4, 4)),
]
WALL_TIMES = [
    (time(22), time(6)),
    (time(2, 30), time(4)),
    (time(1, 30), time(2, 30)),
    (time(2, 0), time(3, 0)),
    (time(2, 10), time(2, 20)),
    (time(1, 45), time(1, 50)),
    (time(0, 0), time(0, 0)),
]


def first_reached(zone: str, wall: datetime) -> datetime:
    """Walk the clock minute by minute until it shows `wall` or later: the rule, told by brute force."""
    now = (wall - timedelta(hours=30)).replace(tzinfo=UTC)
    while now.astimezone(ZoneInfo(zone)).replace(tzinfo=None) < wall:
        now += timedelta(minutes=1)
    return now


@pytest.mark.parametrize(("zone", "day"), CHANGE_NIGHTS)
@pytest.mark.parametrize(("start", "end"), WALL_TIMES)
def test_each_minute_of_a_night_on_which_the_clock_changes_is_right(
    zone: str, day: date, start: time, end: time
) -> None:
    """R72 agronholm/apscheduler#1021, #980, #1036: both nights, four zones, minute by minute."""
    schedule = Schedule(zone, (Window("Window", EVERY_DAY, start, end, ceiling=5),))
    spans = []
    for near in range(-2, 2):
        opens = datetime.combine(day + timedelta(days=near), start)
        closes = datetime.combine(opens.date() + timedelta(days=end <= start), end)
        spans.append((first_reached(zone, opens), first_reached(zone, closes)))
    begin = local(zone, day.year, day.month, day.day) - timedelta(hours=3)
    for now in minutes(begin, 14 * 60):
        expected = any(opens <= now < closes for opens, closes in spans)
        assert (source_at(schedule, now) != "base") is expected, now.astimezone(ZoneInfo(zone))


@pytest.mark.parametrize(("zone", "day"), CHANGE_NIGHTS)
def test_following_the_next_change_over_such_a_night_ends_and_never_goes_back(zone: str, day: date) -> None:
    """R72: an endless loop in the autumn. Each step goes forward, and every change of state is one of the steps."""
    rules = tuple(Window(f"W{n}", EVERY_DAY, start, end, priority=n) for n, (start, end) in enumerate(WALL_TIMES[:6]))
    schedule = Schedule(zone, rules)
    now = begin = local(zone, day.year, day.month, day.day) - timedelta(hours=12)
    steps = []
    while now < begin + timedelta(days=2):
        then = next_change(schedule, now, "default")
        assert then is not None
        assert then > now
        steps.append(now := then)
    for one in minutes(begin + timedelta(minutes=1), 2 * 24 * 60 - 1):
        changed = source_at(schedule, one) != source_at(schedule, one - timedelta.resolution)
        assert changed is (one in steps)


def test_a_start_that_the_clock_skips_moves_to_the_end_of_the_gap_and_says_so() -> None:
    schedule = Schedule("Europe/Berlin", (Window("Early", frozenset({6}), time(2, 30), time(4), ceiling=9),))
    rows = transitions(schedule, local("Europe/Berlin", 2027, 3, 28), 1, base=BASE)
    assert [(row.at, row.kind) for row in rows] == [
        (local("Europe/Berlin", 2027, 3, 28, 3), "start"),
        (local("Europe/Berlin", 2027, 3, 28, 4), "end"),
    ]
    assert rows[0].note == "clock skips 02:30, starts at 03:00, lasts 1 h (clock goes forward)"
    assert rows[0].length == timedelta(hours=1)
    assert (rows[0].before.ceiling, rows[0].after.ceiling) == (20, 9)
    assert (rows[1].before.source, rows[1].after.source) == ("window:Early", "base")


def test_a_window_that_the_clock_skips_whole_is_told_and_never_open() -> None:
    schedule = Schedule("Europe/Berlin", (Window("Short", EVERY_DAY, time(2, 10), time(2, 40)),))
    rows = transitions(schedule, local("Europe/Berlin", 2027, 3, 28), 1)
    assert [(row.kind, row.note) for row in rows] == [
        ("skipped", "clock skips 02:10 to 02:40, not open on this day"),
    ]
    assert rows[0].before == rows[0].after


def test_a_time_shown_twice_counts_the_first_time_and_the_longer_night_is_told() -> None:
    zone = "Europe/Berlin"
    schedule = Schedule(zone, (NIGHT, Window("Early", frozenset({6}), time(2, 30), time(4))))
    rows = transitions(schedule, local(zone, 2026, 10, 24, 12), 1)
    assert [(row.at, row.name, row.kind, row.note) for row in rows] == [
        (local(zone, 2026, 10, 24, 22), "Night", "start", "lasts 9 h (clock goes back)"),
        (
            local(zone, 2026, 10, 25, 2, 30),
            "Early",
            "start",
            "clock shows 02:30 twice, starts at the first, lasts 2 h 30 min (clock goes back)",
        ),
        (local(zone, 2026, 10, 25, 4), "Early", "end", "ends after 2 h 30 min (clock goes back)"),
        (local(zone, 2026, 10, 25, 6), "Night", "end", "ends after 9 h (clock goes back)"),
    ]


@pytest.mark.parametrize(
    ("zone", "day"), [("America/St_Johns", date(2005, 10, 30)), ("Pacific/Apia", date(2011, 12, 30))]
)
def test_odd_zones_of_the_past_are_right_too(zone: str, day: date) -> None:
    """A clock that goes back over midnight, and a day that never was."""
    schedule = Schedule(zone, (Window("Window", EVERY_DAY, time(0), time(12)),))
    walls = [datetime.combine(day + timedelta(days=near), time(0)) for near in range(-2, 4)]
    spans = [(first_reached(zone, wall), first_reached(zone, wall + timedelta(hours=12))) for wall in walls]
    begin = datetime.combine(day, time(0), UTC) - timedelta(hours=20)
    for now in minutes(begin, 60 * 60):
        assert (source_at(schedule, now) != "base") is any(opens <= now < closes for opens, closes in spans)


def test_one_off_beats_window_beats_base_and_priority_beats_order() -> None:
    now = datetime(2026, 12, 9, 12, tzinfo=UTC)
    low = Window("Low", EVERY_DAY, time(0), time(0), ceiling=3, priority=1)
    twin = replace(low, name="Twin", ceiling=4)
    one_off = OneOff("Holiday", now - timedelta(hours=1), now + timedelta(hours=1), ceiling=7)
    later = OneOff("Later", now - timedelta(minutes=1), now + timedelta(minutes=1), ceiling=6)
    assert source_at(Schedule(windows=(low, PEAK)), now) == "window:Peak"
    assert source_at(Schedule(windows=(low, twin)), now) == "window:Low"
    assert source_at(Schedule(windows=(low, PEAK), one_offs=(one_off,)), now) == "one_off:Holiday"
    assert source_at(Schedule(windows=(PEAK,), one_offs=(one_off, later)), now) == "one_off:Later"
    assert (
        source_at(Schedule(windows=(PEAK,), one_offs=(one_off, later)), now + timedelta(minutes=1)) == "one_off:Holiday"
    )
    assert source_at(Schedule(), now) == "base"


def test_what_a_rule_leaves_open_is_the_bases_and_until_is_the_rules_end() -> None:
    now = datetime(2026, 12, 9, 12, tzinfo=UTC)
    bare = Schedule(windows=(Window("Bare", EVERY_DAY, time(10), time(14)),))
    assert bounds_at(bare, now, pool="default", base=BASE) == replace(
        BASE, source="window:Bare", until=now + timedelta(hours=2)
    )
    strict = Schedule(windows=(Window("Strict", EVERY_DAY, time(10), time(14), budgets=Budgets(0.5)),))
    assert bounds_at(strict, now, pool="default", base=BASE).budgets == Budgets(0.5)
    assert bounds_at(Schedule(), now, pool="default", base=replace(BASE, source="x", until=now)) == BASE


def test_the_floor_never_exceeds_the_ceiling() -> None:
    now = datetime(2026, 12, 9, 12, tzinfo=UTC)
    tight = Schedule(windows=(Window("Tight", EVERY_DAY, time(10), time(14), ceiling=1),))
    high = Schedule(windows=(Window("High", EVERY_DAY, time(10), time(14), floor=30),))
    assert bounds_at(tight, now, pool="default", base=BASE).floor == 1
    assert bounds_at(high, now, pool="default", base=BASE).floor == BASE.ceiling


def test_a_rule_for_some_pools_leaves_others_alone() -> None:
    now = datetime(2026, 12, 9, 12, tzinfo=UTC)
    schedule = Schedule(
        windows=(Window("Few", EVERY_DAY, time(10), time(14), pools=("small",)),),
        one_offs=(OneOff("One", now, now + timedelta(hours=1), pools=("large",)),),
    )
    assert [source_at(schedule, now, pool) for pool in ("small", "large", "other")] == [
        "window:Few",
        "one_off:One",
        "base",
    ]
    assert next_change(schedule, now, "other") is None
    assert next_change(schedule, now, "large") == next_change(schedule, now) == now + timedelta(hours=1)
    assert next_change(schedule, now, "small") == now + timedelta(hours=2)


def test_the_zone_of_a_window_beats_the_schedules() -> None:
    schedule = Schedule("Europe/Berlin", (Window("Tokyo", EVERY_DAY, time(9), time(10), zone="Asia/Tokyo"),))
    assert source_at(schedule, datetime(2026, 12, 9, 0, 30, tzinfo=UTC)) == "window:Tokyo"
    assert source_at(schedule, datetime(2026, 12, 9, 8, 30, tzinfo=UTC)) == "base"


def test_next_change_skips_edges_that_change_nothing_and_sees_far_one_offs() -> None:
    now = datetime(2026, 12, 9, 12, tzinfo=UTC)
    always = Window("Always", EVERY_DAY, time(8), time(8), priority=5)
    hidden = Window("Hidden", EVERY_DAY, time(13), time(14))
    assert next_change(Schedule(windows=(always, hidden)), now, "default") is None
    assert next_change(Schedule(windows=(always, hidden)), now) == datetime(2026, 12, 9, 13, tzinfo=UTC)
    far = OneOff("Far", now + timedelta(days=90), now + timedelta(days=91))
    assert next_change(Schedule(windows=(always,), one_offs=(far,)), now, "default") == far.start
    around = OneOff("Around", now - timedelta(days=1), now + timedelta(days=100))
    within = OneOff("Within", now - timedelta(days=2), now + timedelta(days=50))
    assert next_change(Schedule(one_offs=(around, within)), now, "default") == around.end
    assert next_change(Schedule(), now) is None


def test_a_weekly_window_that_the_clock_skips_this_week_is_still_the_next_change() -> None:
    schedule = Schedule("Europe/Berlin", (Window("Short", frozenset({6}), time(2, 10), time(2, 40)),))
    after_the_last = local("Europe/Berlin", 2027, 3, 21, 12)
    assert next_change(schedule, after_the_last, "default") == local("Europe/Berlin", 2027, 4, 4, 2, 10)


def test_a_rule_that_ends_just_as_the_preview_begins_is_what_was_in_force_before() -> None:
    start = datetime(2026, 12, 9, 6, tzinfo=UTC)
    [row, *_] = transitions(Schedule(windows=(NIGHT,)), start, 1)
    assert (row.kind, row.before.source, row.after.source) == ("end", "window:Night", "base")


def test_overlaps_name_who_wins_and_why() -> None:
    freeze = Window("Release freeze", frozenset({4}), time(16), time(18), ceiling=0, priority=20)
    [one] = overlaps(Schedule("Europe/Berlin", (PEAK, freeze)))
    assert one.sentence == "Release freeze and Peak overlap Fri 16:00 to 18:00. Release freeze wins (priority 20)."
    [daily] = overlaps(Schedule("UTC", (NIGHT, replace(PEAK, name="Late", end=time(23), priority=0))))
    assert len(daily.spans) == 5
    assert daily.sentence == (
        "Night and Late overlap Mon 22:00 to 23:00 and 4 more times a week. "
        "Night wins (same priority, earlier in the list)."
    )


def test_windows_that_touch_or_share_no_pool_do_not_overlap() -> None:
    night = replace(NIGHT, start=time(22), end=time(7))
    assert overlaps(Schedule("UTC", (PEAK, night))) == []
    assert overlaps(Schedule("UTC", (replace(PEAK, pools=("a",)), replace(PEAK, name="B", pools=("b",))))) == []
    now = datetime(2026, 12, 9, 12, tzinfo=UTC)
    assert overlaps(Schedule(windows=(PEAK,), one_offs=(OneOff("One", now, now + timedelta(hours=1)),))) == []


def test_one_offs_that_overlap_are_told_with_their_dates() -> None:
    first = OneOff("First", datetime(2026, 12, 24, 12, tzinfo=UTC), datetime(2026, 12, 27, tzinfo=UTC))
    second = OneOff("Second", datetime(2026, 12, 26, tzinfo=UTC), datetime(2026, 12, 28, tzinfo=UTC))
    [one] = overlaps(Schedule(one_offs=(first, second)))
    assert one.sentence == (
        "Second and First overlap from 26 Dec 2026 00:00 to 27 Dec 2026 00:00. Second wins (it begins later)."
    )


NOW = datetime(2026, 12, 9, 12, tzinfo=UTC)
ONE_OFF = OneOff("One", NOW, NOW + timedelta(hours=1))


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (Schedule("Mars/Olympus"), "zone"),
        (Schedule("localtime"), "zone"),
        (Schedule("../../etc/passwd"), "zone"),
        (Schedule("Europe"), "zone"),
        (Schedule("\x00"), "zone"),
        (Schedule(""), "zone"),
        (Schedule(windows=(replace(NIGHT, zone="Nowhere"),)), "windows[0].zone"),
        (Schedule(windows=(replace(NIGHT, days=frozenset()),)), "windows[0].days"),
        (Schedule(windows=(replace(NIGHT, days=frozenset({7})),)), "windows[0].days"),
        (Schedule(windows=(replace(NIGHT, name=""),)), "windows[0].name"),
        (Schedule(windows=(replace(NIGHT, name=" a"),)), "windows[0].name"),
        (Schedule(windows=(replace(NIGHT, name="a\nb"),)), "windows[0].name"),
        (Schedule(windows=(replace(NIGHT, name="x" * 65),)), "windows[0].name"),
        (Schedule(windows=(NIGHT, replace(NIGHT, name="night"))), "windows[1].name"),
        (Schedule(windows=(replace(NIGHT, floor=9, ceiling=8),)), "windows[0].floor"),
        (Schedule(windows=(replace(NIGHT, floor=-1),)), "windows[0].floor"),
        (Schedule(windows=(replace(NIGHT, ceiling=10**9),)), "windows[0].ceiling"),
        (Schedule(windows=(replace(NIGHT, ceiling=True),)), "windows[0].ceiling"),
        (Schedule(windows=(replace(NIGHT, budgets=Budgets(float("nan"))),)), "windows[0].budgets.first_token_s"),
        (Schedule(windows=(replace(NIGHT, budgets=Budgets(1, float("inf"))),)), "windows[0].budgets.per_token_ms"),
        (Schedule(windows=(replace(NIGHT, budgets=Budgets(0)),)), "windows[0].budgets.first_token_s"),
        (Schedule(windows=(replace(NIGHT, budgets=Budgets(error_rate=1.5)),)), "windows[0].budgets.error_rate"),
        (Schedule(windows=(replace(NIGHT, priority=10**6),)), "windows[0].priority"),
        (Schedule(windows=(replace(NIGHT, start=time(22, tzinfo=UTC)),)), "windows[0].start"),
        (Schedule(windows=(replace(NIGHT, end=time(6, 0, 1)),)), "windows[0].end"),
        (Schedule(windows=(replace(NIGHT, pools=("a\x00",)),)), "windows[0].pools"),
        (Schedule(windows=tuple(replace(NIGHT, name=f"W{n}") for n in range(MAX_RULES + 1))), "windows"),
        (Schedule(one_offs=tuple(replace(ONE_OFF, name=f"O{n}") for n in range(MAX_RULES + 1))), "one_offs"),
        (Schedule(one_offs=(replace(ONE_OFF, end=NOW),)), "one_offs[0].end"),
        (Schedule(one_offs=(replace(ONE_OFF, end=NOW + timedelta(days=400)),)), "one_offs[0].end"),
        (Schedule(one_offs=(replace(ONE_OFF, start=datetime(2026, 1, 1)),)), "one_offs[0].start"),
        (Schedule(one_offs=(replace(ONE_OFF, end=datetime.max.replace(tzinfo=UTC)),)), "one_offs[0].end"),
        (Schedule(one_offs=(replace(ONE_OFF, reason="x" * 501),)), "one_offs[0].reason"),
    ],
)
def test_an_unsound_schedule_is_refused_by_the_name_of_the_field(schedule: Schedule, field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        validate(schedule)
    assert caught.value.field == field
    assert len(caught.value.message) < 200


def test_sound_schedules_pass() -> None:
    validate(Schedule())
    validate(Schedule("Europe/Berlin", (NIGHT, PEAK, replace(NIGHT, name="24 h", end=NIGHT.start)), (ONE_OFF,)))


WALLS = st.builds(time, st.integers(0, 23), st.sampled_from([0, 1, 15, 30, 59]))
WINDOWS = st.builds(
    Window,
    name=st.just("W"),
    days=st.frozensets(st.integers(0, 6), min_size=1),
    start=WALLS,
    end=WALLS,
    floor=st.none() | st.integers(0, 30),
    ceiling=st.none() | st.integers(0, 30),
    priority=st.integers(-1, 1),
    zone=st.sampled_from([None, "UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    pools=st.sampled_from([(), ("default",), ("other",)]),
)
STARTS = st.builds(
    lambda near, hours: near + timedelta(hours=hours),
    st.sampled_from([datetime(2027, 3, 27, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)]),
    st.integers(-100, 100),
)
ONE_OFFS = st.builds(
    lambda start, hours, ceiling: OneOff("O", start, start + timedelta(hours=hours), ceiling=ceiling),
    STARTS,
    st.integers(1, 60),
    st.none() | st.integers(0, 30),
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    windows = [replace(w, name=f"W{n}") for n, w in enumerate(draw(st.lists(WINDOWS, max_size=5)))]
    one_offs = [replace(o, name=f"O{n}") for n, o in enumerate(draw(st.lists(ONE_OFFS, max_size=3)))]
    zone = draw(st.sampled_from(["UTC", "Europe/Berlin", "Europe/Helsinki", "America/New_York"]))
    return Schedule(zone, tuple(windows), tuple(one_offs))


@settings(max_examples=150, deadline=None)
@given(schedules(), STARTS, st.lists(st.integers(0, 4 * 24 * 60), max_size=40))
def test_transitions_and_bounds_tell_the_same_story_at_every_instant(
    schedule: Schedule, start: datetime, offsets: list[int]
) -> None:
    rows = transitions(schedule, start, 4, pool="default", base=BASE)
    assert [row.at for row in rows] == sorted(row.at for row in rows)
    for row in rows:
        just_before = bounds_at(schedule, row.at - timedelta.resolution, pool="default", base=BASE)
        then = bounds_at(schedule, row.at, pool="default", base=BASE)
        assert (row.before.source, row.before.floor, row.before.ceiling) == (
            just_before.source,
            just_before.floor,
            just_before.ceiling,
        )
        assert (row.after.source, row.after.floor, row.after.ceiling) == (then.source, then.floor, then.ceiling)
    first = source_at(schedule, start)
    for offset in offsets:
        now = start + timedelta(minutes=offset, seconds=-1)
        past = [row for row in rows if row.at <= now]
        if now >= start:
            assert source_at(schedule, now) == (past[-1].after.source if past else first)


@settings(max_examples=100, deadline=None)
@given(schedules(), STARTS)
def test_nothing_changes_before_the_next_change_and_something_does_at_it(schedule: Schedule, now: datetime) -> None:
    then = next_change(schedule, now, "default")
    rows = transitions(schedule, now, 8, pool="default")
    changes = [row.at for row in rows if row.at > now and row.before.source != row.after.source]
    if then is None or then >= now + timedelta(days=8):
        assert changes == []
    else:
        assert changes[0] == then
    current = bounds_at(schedule, now, pool="default", base=BASE)
    if current.until is not None:
        assert now < current.until
        assert then is None or then <= current.until or source_at(schedule, current.until) == current.source
