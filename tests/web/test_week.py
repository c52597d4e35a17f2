from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from core.control.windows import OneOff, Schedule, Window
from core.quotas import Bounds
from web.week import COLOURS, days_text, week

NOW = datetime(2026, 11, 4, 9, 30, tzinfo=UTC)
BASE = Bounds(1, 7)
PEAK = Window("Peak", frozenset(range(5)), time(8), time(20), ceiling=3, priority=10)
NIGHT = Window("Night", frozenset(range(7)), time(22), time(6), ceiling=6)


def shown(*windows: Window, one_offs: tuple[OneOff, ...] = (), zone: str = "UTC", now: datetime = NOW):  # type: ignore[no-untyped-def]
    schedule = Schedule(zone, windows, one_offs)
    return week(schedule, now=now, zone=ZoneInfo(zone), pool="gpt", base=BASE)


def test_the_week_runs_from_monday_and_marks_today_and_now() -> None:
    days = shown().days
    assert [day.label for day in days] == [
        "Mon 2 Nov", "Tue 3 Nov", "Wed 4 Nov", "Thu 5 Nov", "Fri 6 Nov", "Sat 7 Nov", "Sun 8 Nov",
    ]  # fmt: skip
    assert [day.today for day in days].index(True) == 2
    assert days[2].now == 39.583


def test_without_windows_the_base_holds_all_day() -> None:
    assert {day.sentence for day in shown().days} == {"00:00 to 24:00 Base settings 1 to 7"}


def test_each_day_tells_what_wins_hour_by_hour() -> None:
    wednesday, saturday = (shown(PEAK, NIGHT).days[n] for n in (2, 5))
    assert wednesday.sentence == (
        "00:00 to 06:00 Night 1 to 6; 06:00 to 08:00 Base settings 1 to 7; 08:00 to 20:00 Peak 1 to 3; "
        "20:00 to 22:00 Base settings 1 to 7; 22:00 to 24:00 Night 1 to 6"
    )
    assert "Peak" not in saturday.sentence


def test_a_loser_is_drawn_as_written_but_not_in_the_result() -> None:
    loser = Window("Quiet", frozenset({2}), time(9), time(10), ceiling=0)
    day = shown(PEAK, loser).days[2]
    assert "Quiet 1 to 0" in {bar.label for bar in day.rules}
    assert "Quiet" not in day.sentence


def test_a_one_off_beats_windows_over_midnight() -> None:
    freeze = OneOff("Freeze", NOW, NOW + timedelta(hours=24), ceiling=0, floor=0)
    days = shown(PEAK, one_offs=(freeze,)).days
    assert "09:30 to 24:00 Freeze 0 to 0" in days[2].sentence
    assert days[3].sentence.startswith("00:00 to 09:30 Freeze 0 to 0")


def test_bars_fill_each_day_without_gap_on_the_nights_the_clock_changes() -> None:
    for now in (datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2027, 3, 27, 12, tzinfo=UTC)):
        for day in shown(PEAK, NIGHT, zone="Europe/Berlin", now=now).days:
            assert day.result[0].x == 0
            assert round(sum(bar.width for bar in day.result), 2) == 100


def test_rules_of_other_pools_are_left_out() -> None:
    other = Window("Other", frozenset(range(7)), time(1), time(2), ceiling=0, pools=("embed",))
    assert "Other" not in shown(other).days[0].sentence


def test_colours_repeat_after_a_while() -> None:
    many = [Window(f"W{n}", frozenset({n % 7}), time(n), time(n + 1)) for n in range(20)]
    assert {entry.colour for entry in shown(*many).legend} == {"w-base", *(f"w{n}" for n in range(COLOURS))}


def test_weekdays_read_well() -> None:
    assert days_text(frozenset(range(7))) == "every day"
    assert days_text(frozenset(range(5))) == "Mon–Fri"
    assert days_text(frozenset({5, 6})) == "Sat, Sun"
    assert days_text(frozenset({0, 2, 4})) == "Mon, Wed, Fri"
