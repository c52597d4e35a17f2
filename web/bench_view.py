"""How the bench is shown: a progress bar while it runs, then tables or JSON. Also its exit status."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from core.errors import ConfigError, InvalidValue
from core.simulation.arms import Arm, Target
from web.bench import Interrupted, Plan, Report, bench

INTERRUPTED = 130
ROWS = (
    *("calls", "first token p50", "first token p95", "first token p99", "total p50", "total p95", "total p99"),
    *("errors", "batch items/s", "batch tokens/s", "batch errors", "most in flight"),
)
SCANNED = ("first token p95", "total p95", "errors", "batch items/s", "batch tokens/s", "most in flight")
VERDICTS = {True: "PASS", False: "MISS", None: "not judged"}


def command(plan: Plan, *, as_json: bool, strict: bool) -> int:
    """Do what `tidegate bench` does; return its exit status.

    0 if it measured, whatever came out; 1 where `strict` and a target is missed, or no call was ever answered. Raises
    ConfigError.
    """
    _check_trace(plan)
    try:
        with _bar(Console(stderr=True)) as bar:
            report = bench(plan, progress=bar.begin)
    except Interrupted:
        print("stopped before the end", file=sys.stderr)
        return INTERRUPTED
    if as_json:
        print(json.dumps(as_builtins(report), indent=2))
    else:
        show(report, Console())
    if all(arm.first_token.p50 is None for arm in report.arms):
        faults = ", ".join(report.arms[0].errors) or "no calls"
        server = plan.upstream or "the simulated server"
        print(f"nothing was measured ({faults}): see that {server} answers, or give it more --seconds", file=sys.stderr)
        return 1
    return int(strict and any(target.met is False for target in report.targets))


def _check_trace(plan: Plan) -> None:
    try:
        plan.arrivals(1.0)
    except InvalidValue as error:
        raise ConfigError(f"trace = {str(plan.trace)!r}: {error.message}") from None
    except OSError as error:
        fault = error.strerror or "cannot be read"
        raise ConfigError(f"trace = {str(plan.trace)!r}: {fault}; name a CSV file") from None


class _Bar:
    """One bar over all runs."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._before = 0.0
        self._now = ("", 0.0)

    def begin(self, total: float) -> "_Bar":
        """Take the seconds of all runs together."""
        self._progress.update(self._task, total=total)
        return self

    def __call__(self, name: str, seconds: float) -> None:
        """Show the run `name`, `seconds` after its start."""
        last, passed = self._now
        if name != last:
            self._before += passed
        self._now = (name, seconds)
        self._progress.update(self._task, description=name, completed=self._before + seconds)


@contextmanager
def _bar(console: Console) -> Iterator[_Bar]:
    columns = (TextColumn("{task.description:<24}"), BarColumn(), TimeRemainingColumn(elapsed_when_finished=True))
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress, progress.add_task("starting", total=None))


def as_builtins(report: Report) -> dict[str, Any]:
    """Return the report as it goes into JSON; never with a key."""
    plan = asdict(report.plan) | {"trace": str(report.plan.trace) if report.plan.trace else None}
    del plan["api_key"]
    return {
        "plan": plan,
        "arms": [asdict(arm) for arm in report.arms],
        "scan": [asdict(arm) for arm in report.scan],
        "targets": [asdict(t) | {"verdict": VERDICTS[t.met]} for t in report.targets],
    }


def show(report: Report, console: Console) -> None:
    """Print the report's tables."""
    plan = report.plan
    server = plan.upstream or "simulated server"
    console.print(_arms(f"{server}, {plan.slots} slots, {plan.seconds:g} s an arm; seconds", report.arms))
    if report.scan:
        console.print(_scan(f"fixed quotas through Tidegate, {plan.seconds / 2:g} s each; seconds", report.scan))
    console.print(_targets(report.targets))


def _arms(title: str, arms: Sequence[Arm]) -> Table:
    """Return the arms side by side, a column each: so it fits a terminal of 80 columns."""
    table = Table(title=title)
    table.add_column("")
    for arm in arms:
        table.add_column(arm.name, justify="right")
    for name in ROWS:
        table.add_row(name, *(_cells(arm)[name] for arm in arms))
    return table


def _scan(title: str, arms: Sequence[Arm]) -> Table:
    """Return the fixed quotas one below the other: there may be many."""
    table = Table(title=title)
    table.add_column("quota", justify="right")
    for name in SCANNED:
        table.add_column(name, justify="right")
    for arm in arms:
        table.add_row(str(arm.quota), *(_cells(arm)[name] for name in SCANNED))
    return table


def _cells(arm: Arm) -> dict[str, str]:
    first, total, server = arm.first_token, arm.total, arm.server
    times = (first.p50, first.p95, first.p99, total.p50, total.p95, total.p99)
    told = (
        str(arm.calls),
        *(_number(value) for value in times),
        ", ".join(f"{n} {word}" for word, n in arm.errors.items()) or "0",
        f"{arm.batch_items_per_s:.2f}",
        f"{arm.batch_tokens_per_s:.0f}",
        str(arm.batch_errors),
        "-" if server is None else str(server.max_in_flight),
    )
    return dict(zip(ROWS, told, strict=True))


def _targets(targets: Sequence[Target]) -> Table:
    table = Table(title="targets")
    table.add_column("target")
    for name in ("measured", "bound", "verdict"):
        table.add_column(name, justify="right")
    for target in targets:
        bound = f"{'<=' if target.at_most else '>='} {target.bound:g}"
        table.add_row(target.text, _number(target.measured), bound, VERDICTS[target.met])
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}".rstrip("0").rstrip(".") if value else "0"
