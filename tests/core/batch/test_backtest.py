"""ETAs held against what then happened, and against what a person would reckon, in make-believe time."""

from dataclasses import replace
from datetime import timedelta

import pytest

from core.batch.backtest import best_kappa
from core.batch.learned import Learned
from core.batch.residuals import GivenEta
from core.batch.work import Load
from tests.eta_outlooks import NOW, batch, conditions, hours
from tests.eta_world import Backtest, Told, World, error, held, within


@pytest.fixture(scope="module")
def told() -> list[Told]:
    """Five days of one team's batches on a regular pool; the last two count."""
    return Backtest(World(seed=2, teams=False, day_noise=0.05)).run(5, first_day=3)


def test_etas_err_at_most_half_as_much_as_the_mean_rate(told: list[Told]) -> None:
    assert len(told) > 100
    assert error(told, "model") <= 0.5 * error(told, "global mean")
    assert within(told, "model") > within(told, "global mean")


def test_at_submission_they_err_less_than_the_rate_of_the_last_hour(told: list[Told]) -> None:
    first = [each for each in told if each.first]
    assert len(first) > 10
    assert error(first, "model") < error(first, "last hour")
    assert error(first, "model") < 0.25


def test_the_range_holds_about_as_often_as_it_says(told: list[Told]) -> None:
    assert 0.7 < held(told) <= 1.0


def mixed(kappa: float) -> tuple[Learned, list[GivenEta]]:
    """A week in which hours of long prompts and of long answers alternate, and prompts cost `kappa` in truth."""
    rows, scored = [], []
    for index, row in enumerate(hours(24 * 8)):
        output, prompt = (100.0, 4000.0) if index % 2 else (900.0, 100.0)
        items = 36_000 / (1 + output + kappa * prompt)
        rows.append(("default", replace(row, load=Load(items, items * prompt, items * output))))
        begin = row.start + timedelta(minutes=1)
        load = Load(items / 2, items * prompt / 2, items * output / 2)
        ended = begin + timedelta(minutes=30)
        scored.append(
            GivenEta(
                f"b{index}",
                "news",
                "default",
                begin,
                ended,
                ended,
                ended,
                load.items,
                load.input_tokens,
                load.output_tokens,
                ended_at=ended,
            )
        )
    return Learned(rows=rows), scored


@pytest.mark.parametrize("kappa", [0.1, 0.35, 0.5])
def test_the_kappa_that_fits_is_found(kappa: float) -> None:
    learned, scored = mixed(kappa)
    assert best_kappa(learned.rows("default"), scored, conditions(now=NOW), present=0.35) == kappa


def test_with_few_etas_or_few_days_the_present_kappa_stays() -> None:
    learned, scored = mixed(0.1)
    assert best_kappa(learned.rows("default"), scored[:90], conditions(), present=0.35) == 0.35
    assert best_kappa([], [], conditions(), present=0.2) == 0.2


def test_arrivals_of_other_teams_are_reckoned_with() -> None:
    learned = Learned()
    for day in range(14):
        for hour in (9, 10, 11, 12, 13, 14):
            at = NOW - timedelta(days=14 - day, hours=12 - hour)
            learned.submitted(batch(1800, id=f"b{day}-{hour}", tenant="qa", created_at=at, in_progress_at=at))
    expected = learned.arrivals.expected("default", NOW, zone="UTC")
    near, far = expected.within(3 * 3600.0), expected.within(86_400.0)
    assert 0 < near["qa"].items < 3 * 1800
    assert 2 * 1800 < far["qa"].items < 8 * 1800
    assert expected.within(0.0)["qa"].items == 0
    night = learned.arrivals.expected("default", NOW + timedelta(hours=11), zone="UTC").within(3 * 3600.0)
    assert night["qa"].items < 0.5 * near["qa"].items
    assert learned.arrivals.expected("other", NOW, zone="UTC").within(3600.0) == {}
