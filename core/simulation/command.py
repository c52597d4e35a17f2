"""`tidegate simulate`: the tables, and the exit code."""

import sys
from collections.abc import Iterable
from typing import TypeVar

from rich.console import Console
from rich.progress import track as rich_track
from rich.table import Table

from core.simulation.baselines import SEEDS, Baseline, Baselines, load, model_hash
from core.simulation.figures import Figures
from core.simulation.report import RECOVERY, RECOVERY_SEEDS, Report, compute_baselines, simulate
from core.simulation.scenarios import KEYS, scenario
from core.simulation.targets import Target

T = TypeVar("T")
WIDTH = 150
"""Columns that the tables need; where there are fewer, or no terminal, lines are rather long than cut."""


def command(scenarios: list[str], seeds: list[int], baselines: bool, hours: float, as_json: bool) -> int:
    """Do what `tidegate simulate` does; return its exit code: 0 if no target is missed, else 1, 2 for bad arguments.

    Empty lists stand for all ten scenarios and the default seeds. `baselines` first computes and stores the yardsticks,
    which takes half an hour for all. Recovery, scenario R, is judged when it is named or none is. Progress goes to
    standard error.
    """
    wrong = _wrong(scenarios, hours)
    if wrong:
        print(wrong, file=sys.stderr)
        return 2
    chosen = [key for key in scenarios if key != RECOVERY] if scenarios else list(KEYS)
    used = seeds or list(SEEDS)
    if baselines:
        compute_baselines(chosen, used, hours=hours, track=_track).over(load()).save()
    recovery_seeds = RECOVERY_SEEDS if not scenarios or RECOVERY in scenarios else ()
    report = simulate(chosen, used, hours=hours, baselines=_usable(), recovery_seeds=recovery_seeds, track=_track)
    if as_json:
        print(report.as_json())
    else:
        show(report, Console(width=max(Console().width, WIDTH)))
    return 1 if any(target.met is False for target in report.targets) else 0


def show(report: Report, console: Console) -> None:
    """Print a report's tables."""
    console.print(_runs(report))
    console.print(_targets(report.targets))
    missed = sum(target.met is False for target in report.targets)
    console.print(f"{len(report.targets)} targets checked, {missed} missed.")


def _wrong(scenarios: list[str], hours: float) -> str | None:
    unknown = [key for key in scenarios if key not in (*KEYS, RECOVERY)]
    if unknown:
        return f"no such scenario: {', '.join(unknown)}; there are {', '.join((*KEYS, RECOVERY))}"
    return None if 0 < hours <= 24 else "--hours must be above 0 and at most 24"


def _usable() -> Baselines | None:
    stored = load()
    if stored is not None and stored.model != model_hash():
        print("the stored baselines belong to another model; run with --baselines", file=sys.stderr)
        return None
    return stored


def _track(results: Iterable[T], name: str, total: int) -> Iterable[T]:
    return rich_track(results, name, total, console=Console(stderr=True), transient=True) if total else results


def _runs(report: Report) -> Table:
    seeds = ", ".join(map(str, report.seeds))
    table = Table(title=f"{report.hours:g} h of virtual time, seeds {seeds}; violations % / batch tok/s")
    for name in ("scenario", "no batch", "fixed total", "AIMD first token", "AIMD latency", "law"):
        table.add_column(name)
    for name in ("first token p95 s", "per token p95 ms", "limit", "moves/min", "aborts", "429s"):
        table.add_column(name, justify="right")
    for key, figures in report.law.items():
        table.add_row(f"{key} {scenario(key).title}", *_cells(report, key, figures))
    return table


def _cells(report: Report, key: str, law: Figures) -> list[str]:
    stored = [report.baselines.get(key, name) for name in YARDSTICKS] if report.baselines else [None] * len(YARDSTICKS)
    return [
        _cell(report.none[key]),
        *(_cell(yardstick) for yardstick in stored),
        f"[bold]{_cell(law)}[/bold]",
        _number(law.first_token_p95, 2),
        _number(law.per_token_p95_ms, 0),
        _number(law.limit, 1),
        _number(law.moves, 1),
        _number(law.aborts, 0),
        _number(law.refused_interactive, 0),
    ]


YARDSTICKS = ("total", "aimd_first_token", "aimd_total")


def _cell(run: Figures | Baseline | None) -> str:
    return "-" if run is None else f"{run.violations:.1f} / {run.batch_tokens:.0f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _targets(targets: list[Target]) -> Table:
    table = Table(title="targets")
    for name in ("#", "target", "scenario"):
        table.add_column(name)
    for name in ("measured", "bound", "verdict"):
        table.add_column(name, justify="right")
    for target in targets:
        sign = "<=" if target.at_most else ">="
        bound = f"{sign} {target.bound:.4g} {target.unit}".rstrip()
        table.add_row(str(target.number), target.text, target.scenario, _number(target.value, 2), bound, target.verdict)
    return table
