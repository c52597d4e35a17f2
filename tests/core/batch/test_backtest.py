"""ETAs held against what then happened, and against what a person would reckon, in make-believe time."""

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from core.batch.backtest import best_kappa
from core.batch.learned import Learned
from core.batch.residuals import GivenEta, Ranges
from core.batch.work import Load
from tests.eta_outlooks import NOW, batch, conditions, hours, scored
from tests.eta_world import Backtest, Told, World, error, held, width, within


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


def test_the_range_holds_about_as_often_as_it_says_and_is_no_wider_than_the_rule_of_thumb(told: list[Told]) -> None:
    assert held(told) > 0.87
    assert width(told) < 2.5


def lived(seed: int, batches: int, *, own: float = 0.3, later: float = 0.12) -> tuple[list[bool], list[bool]]:
    """Tell how often ranges held, at submission and later, of batches that err by chance and each in its own way.

    A batch's error is `own` at submission and shrinks to `later`, in which its nine later ETAs are nearly one.
    """
    chance, ranges = Random(seed), Ranges()
    at_submission, afterwards = [], []
    for number in range(batches):
        errors = [chance.gauss(0, own), *[chance.gauss(0, later)] * 9]
        etas = []
        for wrong, first in zip(errors, [True] + [False] * 9, strict=True):
            made = scored(wrong + chance.gauss(0, 0.02), batch=f"{number}", first=first, calibrated=ranges.calibrated)
            low, high = ranges.factors(made.predicted_s, fresh=first)
            seconds = timedelta(seconds=made.predicted_s)
            etas.append(replace(made, low=made.at + low * seconds, high=made.at + high * seconds))
        ranges.learn(etas)
        at_submission.append(etas[0].held)
        afterwards += [each.held for each in etas[1:]]
    return at_submission, afterwards


@pytest.mark.parametrize("batches", [40, 160])
def test_ranges_hold_9_times_in_10_after_few_batches_and_after_many(batches: int) -> None:
    found = [lived(seed, batches) for seed in range(12)]
    for part in (0, 1):
        latest = [one for each in found for one in each[part][len(each[part]) // 2 :]]
        assert 0.87 < sum(latest) / len(latest) < 0.97


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
