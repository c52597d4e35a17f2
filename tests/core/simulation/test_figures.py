"""Figures, targets and recovery: arithmetic on small, made-up runs."""

import math
from dataclasses import replace

import pytest

from core.quotas import Budgets
from core.simulation.arrivals import Arrival
from core.simulation.baselines import Baseline, Baselines, allowed, best_level, yardsticks
from core.simulation.clients import Record
from core.simulation.driver import Generation
from core.simulation.figures import Figures, Level, RunLog, bad_windows, judged, mean, percentile, turns
from core.simulation.policies import AimdSettings
from core.simulation.recovery import Trail, recovery
from core.simulation.targets import Results, Target, check

BUDGETS = Budgets(first_token_s=1.0, per_token_ms=75.0)


def record(
    at: float, first: float | None, end: float | None = None, output: int = 11, *, failed: bool = False
) -> Record:
    """A request whose first token came `first` seconds after its arrival, its last one after `end`."""
    generation = Generation.__new__(Generation)
    generation.first = None if first is None else at + first
    generation.ended = None if end is None else at + end
    return Record(Arrival(at, 10, output), generation, failed=failed, done=end is not None or failed)


def figures(violations: float = 1.0, tokens: float = 100.0) -> Figures:
    log = RunLog(600.0, BUDGETS, [], [], [], 0, 0, 0, 0, 0)
    return replace(log.figures(), violations=violations, batch_tokens=tokens, first_token_p95=0.5, first_token_p99=1.0)


def test_percentiles_lie_between_neighbours_and_are_absent_without_data() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([0.0, 10.0], 0.95) == pytest.approx(9.5)
    assert percentile([], 0.95) is None


@pytest.mark.parametrize(
    ("made", "broken"),
    [
        (record(0, 0.9, 1.6), False),
        (record(0, 1.1, 1.6), True),
        (record(0, 0.5, 1.3), True),
        (record(0, 0.5, 9.0, output=8), False),
        (record(0, 0.5, failed=True), True),
        (record(0, None), True),
        (record(99.5, None), None),
        (record(98, 0.5), None),
    ],
)
def test_a_promise_is_broken_by_first_token_pace_or_failure(made: Record, broken: bool | None) -> None:
    verdicts = judged([made], BUDGETS, 100.0)
    assert verdicts == ([] if broken is None else [(made, broken)])


def test_turns_are_counted_once_each_with_their_swing() -> None:
    levels = [Level(0.0, limit, 0) for limit in (10.0, 12.0, 12.5, 8.0, 8.0, 11.0)]
    assert turns(levels) == (3, 2, pytest.approx((2.5 + 4.5) / 2))
    assert turns([]) == (0, 0, 0.0)


def test_only_windows_with_enough_requests_can_be_bad() -> None:
    busy = [(record(float(at), 0.5, 1.0), at < 3) for at in range(20)]
    sparse = [(record(300.0 + at, 0.5, 1.0), True) for at in range(5)]
    assert bad_windows(busy + sparse) == 100.0


def test_a_run_is_summed_up_without_its_warm_up() -> None:
    log = RunLog(
        seconds=1000.0,
        budgets=BUDGETS,
        records=[record(50, 5.0, 6.0), record(200, 0.2, 0.7), record(300, 2.0, 2.5)],
        items=[(90.0, 1000, 1), (100.0, 900, 1)],
        levels=[Level(200.0, 8.0, 4), Level(205.0, 9.0, 6)],
        aborts=3,
        generated_tokens=990,
        wasted_tokens=10,
        refused_interactive=2,
        refused_batch=1,
    )
    summed = log.figures()
    assert (summed.interactive, summed.violations, summed.batch_tokens) == (2, 50.0, 1.0)
    assert (summed.wasted, summed.limit, summed.quota) == (1.0, 8.5, 5.0)
    assert mean([summed, replace(summed, violations=0.0, total_p95=None)]).violations == 25.0
    assert mean([summed, replace(summed, total_p95=None)]).total_p95 == summed.total_p95


def test_the_best_level_is_the_highest_that_keeps_the_promise() -> None:
    tried: list[int] = []

    def run(level: int) -> Figures:
        tried.append(level)
        return figures(violations=level / 4, tokens=level)

    level, best = best_level(run, allowed=5.0, highest=63)
    assert (level, best.batch_tokens) == (20, 20)
    assert len(tried) <= 7
    assert best_level(lambda level: figures(violations=99.0), allowed=5.0, highest=63)[0] == 1
    assert (allowed(1.0), allowed(4.0)) == (5.0, 8.0)


def test_yardsticks_are_found_for_one_scenario() -> None:
    def run(policy: str, level: int, aimd: AimdSettings | None) -> Figures:
        return figures(violations=level / 4, tokens=200.0 if aimd else level)

    found = yardsticks("A", run, highest=63)
    assert set(found) == {"none", "total", "quota", "aimd_total", "aimd_first_token"}
    assert found["total"].level == 20
    assert "quota" not in yardsticks("B", run, highest=63)


def test_targets_pass_and_miss_on_the_side_of_their_bound() -> None:
    total = {"A": {"total": Baseline(4.0, 100.0), "quota": Baseline(4.0, 60.0)}}
    stored = Baselines("", (1,), 3.0, total)
    results = Results({"A": figures(5.0, 95.0)}, {"A": figures(0.5, 0.0)}, stored, None)
    verdicts = {(target.number, target.text): target.verdict for target in check(results)}
    assert verdicts[1, "violations"] == "PASS"
    assert verdicts[2, "tok/s x best fixed total"] == "PASS"
    assert verdicts[5, "tok/s x best fixed quota"] == "PASS"
    assert verdicts[7, "first token p95 x no batch"] == "PASS"
    worse = Results({"A": figures(5.1, 80.0)}, {"A": figures(0.5, 0.0)}, stored, None)
    missed = {target.number for target in check(worse) if target.met is False}
    assert missed == {1, 2, 5}
    assert Target(1, "", "A", None, 1.0, True).verdict == "-"


def test_stored_baselines_are_completed_only_by_those_on_the_same_terms() -> None:
    old = Baselines("model", (1,), 3.0, {"A": {}, "B": {}})
    new = Baselines("model", (1,), 3.0, {"A": {"none": Baseline(1.0, 0.0)}})
    assert new.over(old).scenarios == {"A": new.scenarios["A"], "B": {}}
    assert new.over(replace(old, model="other")) == new
    assert new.over(None) == new


def test_recovery_is_measured_from_the_loss_and_the_return() -> None:
    levels = [Level(5.0 * tick, min(40.0, 10.0 + 10 * tick), 0) for tick in range(840)]

    def requests(bad_until: float) -> list[tuple[float, bool]]:
        return [(float(at), at % 5 == 0 and 1800 <= at < bad_until) for at in range(4200)]

    items = [(float(at), 50 if 1800 <= at < 3100 else 100) for at in range(4200)]
    found = recovery([Trail(requests(1900.0), items, levels)], [Trail(requests(0.0), items, levels)])
    assert found.worst_minute == pytest.approx(20.0)
    assert found.worst_minute_without_batch == 0.0
    assert found.calm_after == pytest.approx(100.0, abs=20.0)
    assert found.throughput_after == pytest.approx(90.0, abs=10.0)
    assert found.cold_start == 15.0
    never = recovery([Trail(requests(4200.0), items, levels)], [Trail(requests(0.0), items, levels)])
    assert never.calm_after is None
    late = [target for target in check(Results({}, {}, None, never)) if target.number == 8]
    assert (late[0].value, late[0].met) == (math.inf, False)
