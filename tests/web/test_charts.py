from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from core.control.decisions import Decision
from core.history import Sample
from web.charts import HEIGHT, WIDTH, chart, kind_of

NOW = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)
DECISION = Decision(NOW, "gpt", "controller", "cut", "first_token", "p95 is over.", (9.0, 6.0), (4, 2))


def samples(count: int = 300, *, p95: float | None = 0.5, quota: int = 4) -> list[Sample]:
    return [
        Sample(NOW - timedelta(seconds=count - second), p95, 1.0, limit=8.0, quota=quota, interactive=1, batch=1)
        for second in range(count)
    ]


def drawn(given: Sequence[Sample], decisions: Sequence[Decision] = (), span: str = "5m"):  # type: ignore[no-untyped-def]
    made = chart(given, decisions, span=span, now=NOW, zone=UTC)
    assert made is not None
    return made


def test_fewer_than_two_samples_make_no_chart() -> None:
    assert chart(samples(1), (), span="5m", now=NOW, zone=UTC) is None


def test_the_title_says_what_the_picture_shows() -> None:
    assert drawn(samples()).title == (
        "Interactive p95 to the first token over the last 5 minutes, between 0.50 s and 0.50 s, against a budget of "
        "1 s; the learned limit, now 8.0 slots; and the batch quota, now 4."
    )


def test_without_data_there_is_no_line_and_no_number() -> None:
    """R95 linkerd/linkerd2 PR#750."""
    made = drawn(samples(p95=None))
    assert made.latency == ""
    assert "without data" in made.title
    assert {row.p95 for row in made.rows} == {"—"}
    assert "nan" not in repr(made).lower()


def test_a_gap_in_the_data_is_a_gap_in_the_line() -> None:
    given = samples()
    given[100:150] = [replace(each, p95_s=None) for each in given[100:150]]
    assert drawn(given).latency.count("M") == 2


def test_a_time_without_samples_is_a_gap_in_every_line() -> None:
    given = samples()
    made = drawn(given[:100] + given[200:])
    assert made.quota.count("M") == 2
    assert made.limit.count("M") == 2


def test_steps_are_level_until_the_quota_moves() -> None:
    given = samples()
    given[150:] = [replace(each, quota=2) for each in given[150:]]
    assert drawn(given).quota.count("V") in (1, 2), "one step, by way of the mean of the stretch it happened in"


def test_a_quota_that_gives_way_every_second_is_drawn_as_its_mean() -> None:
    given = [replace(each, quota=4 + n % 2) for n, each in enumerate(samples())]
    assert drawn(given).quota.count("V") < len(given) / 10


def test_everything_stays_inside_the_picture() -> None:
    given = [replace(each, p95_s=index * 3.0, limit=index / 3) for index, each in enumerate(samples())]
    made = drawn(given)
    points = [part.split(" ") for part in made.latency.replace("M", "L").split("L")[1:]]
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in points)
    assert 0 <= made.target_y <= 100


def test_a_decision_is_marked_where_and_when_it_moved_the_limit() -> None:
    cut = replace(DECISION, at=NOW - timedelta(seconds=150))
    (mark,) = drawn(samples(), [cut]).marks
    assert (mark.x, mark.kind, mark.title) == (50.0, "cut", "09:27:30: p95 is over.")


def test_deliberate_rest_and_older_decisions_are_not_marked() -> None:
    old = replace(DECISION, at=NOW - timedelta(hours=1))
    rest = replace(DECISION, action="hold")
    assert drawn(samples(), [old, rest]).marks == ()


def test_each_kind_of_actor_has_its_mark() -> None:
    kinds = [
        kind_of(replace(DECISION, actor=actor, action=action))
        for actor, action in (
            ("operator", "set"),
            ("schedule", "window"),
            ("restart", "start"),
            ("controller", "grow"),
            ("controller", "hold"),
        )
    ]
    assert kinds == ["person", "window", "window", "grow", "hold"]


def test_two_hours_are_a_few_hundred_points_and_a_short_table() -> None:
    made = drawn(samples(7200), span="2h")
    assert made.latency.count("L") <= 320
    assert len(made.rows) <= 15
    assert made.bottom == ("07:30", "08:00", "08:30", "09:00", "09:30")


def test_a_change_of_the_schedule_is_marked_on_the_quota_as_it_was() -> None:
    at = NOW - timedelta(seconds=30)
    changed = Decision(at, "*", "operator", "set", "schedule", "Window Peak added.", (0.0, 0.0), (0, 0))
    held = Decision(at, "gpt", "operator", "set", "hold", "Held at 4.", (8.0, 8.0), (6, 4))
    made = drawn(samples(quota=4), [changed, held])
    assert len({mark.y for mark in made.marks}) == 1
