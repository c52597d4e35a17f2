from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from core import wording

NOW = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (0, "0.00 s"),
        (0.04, "0.04 s"),
        (41.4, "41 s"),
        (60, "1 min"),
        (212, "3 min 32 s"),
        (7500, "2 h 5 min"),
        (7200, "2 h"),
        (274_000, "3 d 4 h"),
    ],
)
def test_durations_have_at_most_two_units(value: float | None, text: str) -> None:
    assert wording.seconds(value) == text


def test_no_data_is_a_dash_everywhere() -> None:
    told = {wording.seconds(None), wording.milliseconds(None), wording.percent(None), wording.count(None)}
    assert told == {"—"}
    assert wording.clock(None, UTC) == "—"


def test_a_moment_names_the_day_only_where_it_is_another_one() -> None:
    assert wording.moment(NOW + timedelta(hours=2), NOW, BERLIN) == "12:30"
    assert wording.moment(NOW + timedelta(days=1), NOW, BERLIN) == "Tue 3 Nov 10:30"
    assert wording.moment(NOW + timedelta(days=100), NOW, BERLIN) == "Wed 10 Feb 2027 10:30"


def test_plain_numbers_are_as_one_types_them() -> None:
    assert [wording.plain(value) for value in (1.0, 0.85, 75, 2.0000000001)] == ["1", "0.85", "75", "2"]


def test_sources_are_told_in_words() -> None:
    assert wording.source("base") == "base settings"
    assert wording.source("window:Peak: two") == "window Peak: two"
    assert wording.source("one_off:holiday") == "one-off holiday"
