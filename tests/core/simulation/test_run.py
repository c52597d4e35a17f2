"""Whole runs in virtual time through the product's own gateway, dispatcher and controller."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial

import pytest

from core import runtime
from core.clock import LoopClock
from core.quotas import PoolLimits
from core.simulation import command as command_module
from core.simulation import run as run_module
from core.simulation.baselines import AIMD_TOTAL, Baselines, load, model_hash
from core.simulation.command import command
from core.simulation.figures import Figures
from core.simulation.report import simulate
from core.simulation.run import Plan, build_world, simulate_one
from core.simulation.scenarios import KEYS, recovery, scenario
from core.simulation.virtual_time import run_virtual

EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
SHORT = 0.25
MEASURED = {"A": 499, "B": 326, "B2": 340, "C": 1070, "D": 517, "E": 387, "F": 524, "G": 452, "H": 313, "I": 543}
"""Batch tokens per second in a quarter of an hour; samples that outlive a cut alone cost 14 % in A and 31 % in G."""


@cache
def figures(key: str, policy: str = "law", level: int = 0) -> Figures:
    aimd = AIMD_TOTAL if policy == "aimd" else None
    return simulate_one(Plan(key, 61, policy, level, aimd, hours=SHORT)).figures()


def test_simulations_build_their_pool_with_the_factory_of_the_server() -> None:
    assert run_module.build_pool is runtime.build_pool


def test_the_same_plan_gives_the_same_run() -> None:
    plan = Plan("B", 61, hours=0.1)
    first, second, other = (simulate_one(p).figures() for p in (plan, plan, replace(plan, seed=62)))
    assert first == second
    assert first != other


@pytest.mark.parametrize("key", KEYS)
def test_the_law_keeps_the_promise_in_every_scenario_and_gets_work_done(key: str) -> None:
    law, none = figures(key), figures(key, "none")
    assert none.batch_tokens == 0.0
    assert law.violations <= max(5.0, 2 * none.violations)
    assert law.batch_tokens >= 0.9 * MEASURED[key]
    assert law.wasted <= 1.0


def test_a_small_pool_keeps_the_promise_and_does_far_more_than_a_quota_that_is_as_safe() -> None:
    law, none = (simulate_one(Plan("S8", 61, policy, hours=1.0)).figures() for policy in ("law", "none"))
    safe = simulate_one(Plan("S8", 61, "quota", 1, hours=1.0)).figures()
    assert law.violations <= max(5.0, 2 * none.violations)
    assert law.batch_tokens > 3 * safe.batch_tokens


@pytest.mark.parametrize("seed", [61, 62])
def test_what_one_wave_of_batch_taught_is_not_lost_before_the_next(seed: int) -> None:
    """Bursts of interactive alone once took the limit from 39 to 2.5, and from 42 to 6, between two waves."""
    levels = simulate_one(Plan("H", seed, hours=1.0)).levels
    between = [level.limit for level in levels if 700 <= level.at <= 1800]
    assert between[0] > 30.0
    assert min(between) == between[0]


def test_a_fixed_total_that_is_too_high_breaks_the_promise_the_law_keeps() -> None:
    greedy = figures("A", "total", 63)
    assert greedy.violations > 3 * max(5.0, figures("A").violations)


def test_a_fixed_quota_ignores_interactive_and_a_total_makes_room() -> None:
    quota, total = figures("A", "quota", 30), figures("A", "total", 40)
    assert quota.quota == 30.0
    assert total.quota < 40.0
    assert total.violations < quota.violations


def test_aimd_on_latency_moves_and_works() -> None:
    aimd = figures("A", "aimd")
    assert aimd.batch_tokens > 100.0
    assert aimd.moves > 0.0


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="no such policy"):
        figures("A", "magic")


def test_no_quota_ever_takes_the_reserve() -> None:
    log = simulate_one(Plan("A", 61, "quota", 64, hours=0.05, pool=(("reserve", 8),)))
    assert {level.quota for level in log.levels} == {56}


def test_a_world_is_set_up_without_anything_happening() -> None:
    async def main(clock: LoopClock) -> PoolLimits:
        world = build_world(Plan("A", 1), clock)
        assert world.driver.requests == 0
        return world.pool.dispatcher.limits

    limits = run_virtual(main, EPOCH)
    assert (limits.slots, limits.reserve, limits.headroom, limits.floor, limits.ceiling) == (64, 1, 1, 1, 63)


def test_scenarios_squeeze_their_times_into_shorter_runs() -> None:
    for key in KEYS:
        whole, short = scenario(key), scenario(key, hours=SHORT)
        assert (whole.seconds, short.seconds) == (10_800.0, 900.0)
        for long, squeezed in zip(whole.mishaps, short.mishaps, strict=True):
            assert squeezed.start == pytest.approx(long.start / 12)
    assert recovery() == scenario("R")


def test_stored_baselines_belong_to_this_model() -> None:
    """Recompute them with `tidegate simulate --baselines` when the engine, its scenarios or arrivals change."""
    stored = load()
    assert stored is not None
    assert stored.model == model_hash()
    assert set(stored.scenarios) == set(KEYS)


def test_a_report_judges_what_was_run_and_reads_as_json() -> None:
    report = simulate(["A"], [61], hours=0.1, baselines=load(), processes=1)
    assert report.baselines is None
    told = json.loads(report.as_json())
    assert set(told["law"]) == {"A"}
    assert {row["number"] for row in told["targets"]} >= {1, 7, 10, 11}


def test_runs_are_spread_over_processes_without_changing_anything() -> None:
    spread, alone = (simulate(["H"], [61], hours=0.05, processes=processes) for processes in (2, 1))
    assert spread == alone


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "simulate", partial(simulate, processes=1))


@pytest.mark.usefixtures("in_one_process")
def test_the_command_prints_its_tables_and_refuses_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["Z"], [], False, 3.0, False) == 2
    assert command([], [], False, 0.0, False) == 2
    told = capsys.readouterr().err
    assert "no such scenario: Z" in told
    assert "--hours" in told
    assert command(["H"], [61], False, 0.1, False) in (0, 1)
    assert "targets checked" in capsys.readouterr().out


@pytest.mark.usefixtures("in_one_process")
def test_the_command_stores_baselines_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Baselines("model", (61,), 0.1, {})
    saved: list[str] = []
    monkeypatch.setattr(command_module, "compute_baselines", lambda *args, **kwargs: stored)
    monkeypatch.setattr(Baselines, "save", lambda self: saved.append(self.model))
    command(["A"], [61], True, 0.1, True)
    assert saved == ["model"]
