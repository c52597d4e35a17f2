"""How good ETAs are against what a person would reckon: the rate of the last hour, and the mean rate of all time.

Four weeks of about 400 batches in make-believe time, anew for each of five seeds; none of these was used to choose the
constants of `core.batch.residuals` (those were 1 to 8). Takes some minutes. Run: pytest -m benchmark -s
tests/benchmarks/test_eta.py.

With four teams much of the error is chance. Simulating what the others will bring, 48 times for each batch and from the
world's true rates and sizes, which nobody knows, erred at submission 16.3, 17.9, 11.3 and 12.0 % (seeds 1 to 4, days 7
to 21) where `core.batch.sharing` errs 15.2, 17.5, 12.2 and 13.7 %: not worth its code.
"""

from datetime import timedelta

import pytest

from tests.eta_world import (
    HORIZONS,
    START,
    Backtest,
    Told,
    World,
    ahead,
    error,
    held,
    in_week,
    report,
    submitted,
)

SEEDS = (101, 102, 103, 104, 105)
OUTAGES = ((24 * 9 + 10, 24 * 9 + 12.4), (24 * 12 + 20, 24 * 12 + 22.4), (24 * 24 + 9, 24 * 24 + 11.4))


def touching_an_outage(told: list[Told]) -> list[Told]:
    def touches(each: Told) -> bool:
        hours = [(at - START) / timedelta(hours=1) for at in (each.at, each.at + timedelta(seconds=each.actual))]
        return any(hours[0] < end and hours[1] > begin for begin, end in OUTAGES)

    return [each for each in told if touches(each)]


@pytest.mark.benchmark
@pytest.mark.parametrize("teams", [False, True], ids=["one team", "four teams"])
def test_four_weeks_of_batches(teams: bool) -> None:
    by_seed = {seed: Backtest(World(seed=seed, teams=teams, outages=OUTAGES)).run(28, first_day=0) for seed in SEEDS}
    told = [each for some in by_seed.values() for each in some]
    parts = {f"week {week}": in_week(told, week) for week in (1, 2, 4)}
    parts |= {f"{low:g} to {high:g} h ahead": ahead(told, low, high) for low, high in HORIZONS}
    parts["touching an outage"] = touching_an_outage(told)
    print(f"\n{'four teams' if teams else 'one team'}: median error / within 25 %, by method")
    for name, some in parts.items():
        print(f"  {name}: {report(some)}\n    at submission: {report(submitted(some))}")
    for seed, some in by_seed.items():
        first = submitted(some)
        print(f"  seed {seed}: error {error(some, 'model'):.1%}, at submission {error(first, 'model'):.1%};", end=" ")
        print(f"range held {held(some):.1%}, at submission {held(first):.1%}")
