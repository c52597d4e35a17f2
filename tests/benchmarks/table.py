"""The table of what was measured beside its targets; printed at the end of the run, never a verdict of a test."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One measurement. `measured` and the two bounds are in `unit`; all targets here are upper bounds but rates."""

    what: str
    measured: float
    aim: float | None = None
    must: float | None = None
    unit: str = ""
    at_least: bool = False

    @property
    def verdict(self) -> str:
        if self.must is None:
            return ""
        if self.aim is not None and self.keeps(self.aim):
            return "meets the aim"
        return "meets the must" if self.keeps(self.must) else "MISSES"

    def keeps(self, bound: float) -> bool:
        return self.measured >= bound if self.at_least else self.measured <= bound


ROWS: list[Row] = []
NOTES: list[str] = []


def measured(what: str, value: float, **target: float | str | bool) -> None:
    """Put a measurement into the table."""
    ROWS.append(Row(what, value, **target))  # type: ignore[arg-type]  # the fields of Row by name


def show(console: Console) -> None:
    table = Table(title="measured", title_justify="left")
    table.add_column("what")
    for name in ("measured", "aim", "must"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in ROWS:
        sign = ">=" if row.at_least else "<="
        bounds = [f"{sign} {bound:g}" if bound is not None else "" for bound in (row.aim, row.must)]
        table.add_row(row.what, f"{row.measured:.3g} {row.unit}".strip(), *bounds, row.verdict)
    console.print(table)
    for note in NOTES:
        console.print(note)
