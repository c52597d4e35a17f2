"""Runs scenarios over seeds on all processors and judges them by the targets."""

import json
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from core.simulation.baselines import SEEDS, Baseline, Baselines, model_hash, yardsticks
from core.simulation.figures import Figures, mean
from core.simulation.policies import AimdSettings
from core.simulation.recovery import Recovery, Trail, recovery
from core.simulation.run import Plan, simulate_one
from core.simulation.scenarios import HOURS, KEYS, scenario
from core.simulation.targets import Results, Target, check

T = TypeVar("T")

RECOVERY = "R"
RECOVERY_SEEDS = tuple(range(51, 61))


class Track(Protocol):
    """Shows progress over `total` results named `name` while passing them on."""

    def __call__(self, results: Iterable[T], name: str, total: int) -> Iterable[T]:
        """Yield each of `results`."""


def quietly(results: Iterable[T], name: str, total: int) -> Iterable[T]:
    """Show nothing."""
    return results


@dataclass(frozen=True, slots=True)
class Report:
    """What `simulate` found: means over the seeds by scenario, the yardsticks used, recovery, and the targets."""

    seeds: tuple[int, ...]
    hours: float
    law: dict[str, Figures]
    none: dict[str, Figures]
    baselines: Baselines | None
    recovery: Recovery | None
    targets: list[Target]

    def as_json(self) -> str:
        """Return it as JSON; what is not finite becomes null."""
        rows = [asdict(target) | {"verdict": target.verdict} for target in self.targets]
        return json.dumps(_finite(asdict(replace(self, targets=[])) | {"targets": rows}), indent=1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run_figures(plan: Plan) -> Figures:
    """Run a plan and return its figures (in a worker process: a run's log stays there)."""
    return simulate_one(plan).figures()


def run_trail(plan: Plan) -> Trail:
    """Run a plan and return its trail."""
    return Trail.of(simulate_one(plan))


def run_yardsticks(key: str, *, seeds: tuple[int, ...], hours: float) -> dict[str, Baseline]:
    """Compute the yardsticks of one scenario."""

    def run(policy: str, level: int, aimd: AimdSettings | None) -> Figures:
        return mean([run_figures(Plan(key, seed, policy, level, aimd, hours)) for seed in seeds])

    return yardsticks(key, run, highest=scenario(key, hours=hours).slots - 1)


def compute_baselines(
    scenarios: Sequence[str] = KEYS, seeds: Sequence[int] = SEEDS, *, hours: float = HOURS, track: Track = quietly
) -> Baselines:
    """Compute the yardsticks of all `scenarios`, which takes many runs of each."""
    job = partial(run_yardsticks, seeds=tuple(seeds), hours=hours)
    with _spread(None) as run_all:
        found = dict(zip(scenarios, track(run_all(job, scenarios), "baselines", len(scenarios)), strict=True))
    return Baselines(model_hash(), tuple(seeds), hours, found)


def simulate(
    scenarios: Sequence[str] = KEYS,
    seeds: Sequence[int] = SEEDS,
    *,
    hours: float = HOURS,
    baselines: Baselines | None = None,
    recovery_seeds: Sequence[int] = (),
    processes: int | None = None,
    track: Track = quietly,
) -> Report:
    """Run the law and no batch at all in each scenario with each seed, and judge them.

    `baselines` of another length are not used. Recovery is judged where `recovery_seeds` are given.
    """
    if baselines is not None and baselines.hours != hours:
        baselines = None
    plans = [Plan(key, seed, policy, hours=hours) for key in scenarios for policy in ("law", "none") for seed in seeds]
    trails = [Plan(RECOVERY, seed, policy) for policy in ("law", "none") for seed in recovery_seeds]
    with _spread(processes) as run_all:
        figures = run_all(run_figures, plans)
        walked = run_all(run_trail, trails)
        done = dict(zip(plans, track(figures, "scenarios", len(plans)), strict=True))
        paths = dict(zip(trails, track(walked, "recovery", len(trails)), strict=True))
    law, none = (_means(done, scenarios, policy) for policy in ("law", "none"))
    recovered = recovery(_of(paths, "law"), _of(paths, "none")) if paths else None
    targets = check(Results(law, none, baselines, recovered))
    return Report(tuple(seeds), hours, law, none, baselines, recovered, targets)


def _means(done: dict[Plan, Figures], scenarios: Sequence[str], policy: str) -> dict[str, Figures]:
    def of(key: str) -> list[Figures]:
        return [run for plan, run in done.items() if plan.scenario == key and plan.policy == policy]

    return {key: mean(of(key)) for key in scenarios}


def _of(paths: dict[Plan, Trail], policy: str) -> list[Trail]:
    return [trail for plan, trail in paths.items() if plan.policy == policy]


@contextmanager
def _spread(processes: int | None) -> Iterator[Callable[..., Iterator[Any]]]:
    """Give a `map` that spreads its calls over processes, one for each processor by default; 1 stays in this one."""
    if processes == 1:
        yield map
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as workers:
        yield workers.map
