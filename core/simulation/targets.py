"""The targets that the control law is held to on the ten scenarios, and whether a set of runs meets them. Pure."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from core.simulation.baselines import Baselines, allowed
from core.simulation.figures import Figures
from core.simulation.recovery import Recovery


@dataclass(frozen=True, slots=True)
class Results:
    """The means over the seeds: the law, and no batch, by scenario; stored yardsticks; recovery if it was run."""

    law: Mapping[str, Figures]
    none: Mapping[str, Figures]
    baselines: Baselines | None
    recovery: Recovery | None


@dataclass(frozen=True, slots=True)
class Target:
    """One target: `value` is what was measured, `None` where it was not; `at_most` tells on which side `bound` lies."""

    number: int
    text: str
    scenario: str
    value: float | None
    bound: float
    at_most: bool
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Tell whether it is met; `None`: not measured."""
        if self.value is None:
            return None
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    @property
    def verdict(self) -> str:
        """Return PASS, MISS or a dash."""
        return {True: "PASS", False: "MISS", None: "-"}[self.met]


FASTER: Mapping[str, float] = {
    "A": 0.90,
    "D": 0.90,
    "F": 0.90,
    "I": 0.90,
    "B": 1.15,
    "B2": 1.15,
    "C": 1.15,
    "E": 1.15,
    "H": 0.78,
}
"""Throughput against the best fixed total, at least."""


def check(results: Results) -> list[Target]:
    """Return every target that the runs say something about, in order."""
    targets: list[Target] = []
    for key, figures in results.law.items():
        none = results.none.get(key)
        bound = allowed(none.violations if none else 0.0)
        targets.append(Target(1, "violations", key, figures.violations, bound, True, "%"))
    targets += _against_fixed(results)
    targets += _mean_over_aimd(results)
    targets += _for_scenario(results, "A", _felt_in_a)
    targets += _recovered(results.recovery)
    targets += _for_scenario(results, "A", _calm_in_a)
    targets += [Target(11, "tokens wasted", key, f.wasted, 0.5, True, "%") for key, f in results.law.items()]
    if results.recovery is not None:
        cold = results.recovery.cold_start
        targets.append(Target(12, "cold start to 90 % of the limit", "R", _or_never(cold), 40.0, True, "s"))
    targets += _for_scenario(results, "C", _refused_in_c)
    return targets


def _against_fixed(results: Results) -> list[Target]:
    if results.baselines is None:
        return []
    targets = []
    for key, figures in results.law.items():
        total = results.baselines.get(key, "total")
        if key in FASTER and total is not None:
            number = 2 if FASTER[key] == 0.90 else 4 if key == "H" else 3
            value = _ratio(figures.batch_tokens, total.batch_tokens)
            targets.append(Target(number, "tok/s x best fixed total", key, value, FASTER[key], False))
    quota = results.baselines.get("A", "quota")
    if quota is not None and "A" in results.law:
        value = _ratio(results.law["A"].batch_tokens, quota.batch_tokens)
        targets.append(Target(5, "tok/s x best fixed quota", "A", value, 1.4, False))
    return sorted(targets, key=lambda target: target.number)


def _mean_over_aimd(results: Results) -> list[Target]:
    if results.baselines is None:
        return []
    ratios = []
    for key, figures in results.law.items():
        aimd = results.baselines.get(key, "aimd_total")
        if aimd is not None:
            ratios.append(_ratio(figures.batch_tokens, aimd.batch_tokens))
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(FASTER) + 1:
        return []
    return [Target(6, "tok/s x AIMD on latency", "mean", math.fsum(known) / len(known), 1.05, False)]


def _for_scenario(results: Results, key: str, make: Callable[[Figures, Figures], list[Target]]) -> list[Target]:
    return make(results.law[key], results.none[key]) if key in results.law and key in results.none else []


def _felt_in_a(law: Figures, none: Figures) -> list[Target]:
    p95, p99 = _ratio(law.first_token_p95, none.first_token_p95), _ratio(law.first_token_p99, none.first_token_p99)
    return [
        Target(7, "first token p95 x no batch", "A", p95, 1.5, True),
        Target(7, "first token p99 x no batch", "A", p99, 1.3, True),
    ]


def _calm_in_a(law: Figures, none: Figures) -> list[Target]:
    return [
        Target(10, "limit moves per minute", "A", law.moves, 4.0, True),
        Target(10, "reversals per minute", "A", law.reversals, 1.2, True),
        Target(10, "mean swing", "A", law.swing, 8.0, True, "slots"),
    ]


def _refused_in_c(law: Figures, none: Figures) -> list[Target]:
    value = _ratio(law.refused_interactive, none.refused_interactive)
    return [Target(13, "interactive 429s x no batch", "C", value, 4.0, True)]


def _recovered(recovery: Recovery | None) -> list[Target]:
    if recovery is None:
        return []
    return [
        Target(8, "loss: calm again after", "R", _or_never(recovery.calm_after), 180.0, True, "s"),
        Target(8, "loss: worst minute", "R", recovery.worst_minute, 20.0, True, "%"),
        Target(9, "90 % throughput after return", "R", _or_never(recovery.throughput_after), 240.0, True, "s"),
    ]


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None
