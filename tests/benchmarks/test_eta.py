"""How good ETAs are against what a person would reckon: the rate of the last hour, and the mean rate of all time.

A fortnight of about 200 batches in make-believe time; the second week counts. Run: pytest -m benchmark -s
tests/benchmarks/test_eta.py.
"""

from datetime import timedelta

import pytest

from tests.eta_world import START, Backtest, Told, World, report

OUTAGES = ((24 * 9 + 10, 24 * 9 + 12.4), (24 * 12 + 20, 24 * 12 + 22.4))


def touching_an_outage(told: list[Told]) -> list[Told]:
    def touches(each: Told) -> bool:
        hours = [(at - START) / timedelta(hours=1) for at in (each.at, each.at + timedelta(seconds=each.actual))]
        return any(hours[0] < end and hours[1] > begin for begin, end in OUTAGES)

    return [each for each in told if touches(each)]


@pytest.mark.benchmark
@pytest.mark.parametrize("teams", [False, True], ids=["one team", "four teams"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fortnight_of_batches(seed: int, teams: bool) -> None:
    world = World(seed=seed, teams=teams, outages=OUTAGES)
    backtest = Backtest(world)
    told = backtest.run(14, first_day=7)
    print(f"\nseed {seed}, {'four teams' if teams else 'one team'}: {world.count} batches, kappa {backtest.kappa}")
    print("median error / within 25 %, by method")
    for line in report(told, touching_an_outage(told)):
        print(f"  {line}")
