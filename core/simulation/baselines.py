"""What the law is compared with: no batch, the best fixed total and quota in hindsight, AIMD with feed-forward.

They cost far more to compute than the law's own runs, so they are kept in `baselines.json` beside this file, with a
hash of the model that they were computed on.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from core.simulation.figures import Figures
from core.simulation.policies import AimdSettings

STORED = Path(__file__).with_name("baselines.json")
MODEL = ("engine.py", "arrivals.py", "scenarios.py")
"""The sources whose change makes stored baselines worthless."""

SEEDS = (51, 52, 53)
PROMISE = 5.0
"""Percent of interactive requests that may break their promise, or twice the share without batch if that is more."""

AIMD_TOTAL = AimdSettings(signal="total", target=24.0, add=1.0, cut=0.85, window=30.0, period=5.0)
AIMD_FIRST_TOKEN = AimdSettings(signal="first_token", target=0.6, add=1.0, cut=0.85, window=30.0, period=5.0)
"""Both tuned over all ten scenarios: of those that keep the promise everywhere, the ones with the most throughput."""

QUOTA_SCENARIOS = ("A",)
"""Where the best fixed quota is asked for."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A yardstick in one scenario: its percentage of violations, tokens per second, and the level it was fixed at."""

    violations: float
    batch_tokens: float
    level: int | None = None
    first_token_p95: float | None = None
    first_token_p99: float | None = None
    refused_interactive: float = 0.0

    @classmethod
    def of(cls, figures: Figures, level: int | None = None) -> "Baseline":
        """Return what of `figures` is worth keeping."""
        return cls(
            violations=round(figures.violations, 3),
            batch_tokens=round(figures.batch_tokens, 2),
            level=level,
            first_token_p95=_rounded(figures.first_token_p95),
            first_token_p99=_rounded(figures.first_token_p99),
            refused_interactive=round(figures.refused_interactive, 2),
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@dataclass(frozen=True, slots=True)
class Baselines:
    """All yardsticks, by scenario and name (`none`, `total`, `quota`, `aimd_total`, `aimd_first_token`)."""

    model: str
    seeds: tuple[int, ...]
    hours: float
    scenarios: dict[str, dict[str, Baseline]]

    def get(self, scenario: str, name: str) -> Baseline | None:
        """Return a yardstick, `None` where it was not computed."""
        return self.scenarios.get(scenario, {}).get(name)

    def over(self, other: "Baselines | None") -> "Baselines":
        """Return these, with the scenarios of `other` that these lack if it was computed on the same terms."""
        if other is None or (other.model, other.seeds, other.hours) != (self.model, self.seeds, self.hours):
            return self
        return replace(self, scenarios=other.scenarios | self.scenarios)

    def save(self, path: Path = STORED) -> None:
        """Write them to `path`."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def load(path: Path = STORED) -> Baselines | None:
    """Read stored baselines, `None` where there are none."""
    if not path.exists():
        return None
    stored = json.loads(path.read_text(encoding="utf-8"))
    scenarios = {
        key: {name: Baseline(**fields) for name, fields in yardsticks.items()}
        for key, yardsticks in stored["scenarios"].items()
    }
    return Baselines(stored["model"], tuple(stored["seeds"]), stored["hours"], scenarios)


def model_hash() -> str:
    """Return the hash of the model's sources."""
    digest = hashlib.sha256()
    for name in MODEL:
        digest.update(STORED.with_name(name).read_bytes())
    return digest.hexdigest()


def allowed(without_batch: float) -> float:
    """Return the percentage of violations that keeps the promise."""
    return max(PROMISE, 2 * without_batch)


def best_level(run: Callable[[int], Figures], *, allowed: float, highest: int) -> tuple[int, Figures]:
    """Return the highest fixed level whose violations are allowed, by bisection (violations rise with the level).

    Level 1 is taken for allowed.
    """
    low, high = 1, highest + 1
    best: Figures | None = None
    while high - low > 1:
        middle = (low + high) // 2
        figures = run(middle)
        if figures.violations <= allowed:
            low, best = middle, figures
        else:
            high = middle
    return low, best or run(low)


Runner = Callable[[str, int, AimdSettings | None], Figures]
"""Runs one policy at a level, or with settings, in one scenario; returns the mean over the seeds."""


def yardsticks(key: str, run: Runner, *, highest: int) -> dict[str, Baseline]:
    """Compute the yardsticks of one scenario; `highest` is the highest level to try."""
    none = run("none", 0, None)
    bound = allowed(none.violations)
    level, total = best_level(lambda level: run("total", level, None), allowed=bound, highest=highest)
    found = {"none": Baseline.of(none), "total": Baseline.of(total, level)}
    if key in QUOTA_SCENARIOS:
        level, quota = best_level(lambda level: run("quota", level, None), allowed=bound, highest=highest)
        found["quota"] = Baseline.of(quota, level)
    found["aimd_total"] = Baseline.of(run("aimd", 0, AIMD_TOTAL))
    found["aimd_first_token"] = Baseline.of(run("aimd", 0, AIMD_FIRST_TOKEN))
    return found
