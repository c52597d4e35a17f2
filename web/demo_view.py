"""How the demo is shown: a live table where there is a terminal, plain lines elsewhere."""

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from core import wording
from core.overview import promises
from web.demo import Picture, Play, demo

LINE_EVERY = 2.0
"""Seconds between two plain lines."""
BATCH, INTERACTIVE, FREE = "▓", "█", "·"


def command(script: Play, console: Console | None = None) -> None:
    """Do what `tidegate demo` does. Raises ConfigError."""
    console = console or Console()
    if not console.is_terminal:
        demo(script, show=Lines(console))
        return
    with Live(console=console, refresh_per_second=4) as live:
        demo(script, show=lambda picture: live.update(table(picture)))


class Lines:
    """Prints a line every few seconds, and first of all where the dashboard is."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def __call__(self, picture: Picture) -> None:
        """Print what there is to see, if it is time."""
        if picture.passed < self._next:
            return
        if self._next == 0.0:
            self._print(f"Dashboard {picture.address}/   OpenAI API {picture.address}/v1   Ctrl-C ends it")
        self._next = picture.passed + LINE_EVERY
        self._print(line(picture))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def line(picture: Picture) -> str:
    """Return the picture in one line."""
    reading = picture.reading
    counts, seen = reading.counts, reading.seen
    return "  ".join(
        (
            f"{_time(picture.passed)}",
            f"server {picture.capacity:4.0%}",
            f"quota {reading.quota:2d}",
            f"limit {reading.limit:4.1f}",
            f"in flight {counts.interactive:2d} + {counts.batch:2d} of {reading.settings.slots}",
            f"waiting {counts.interactive_waiting} + {counts.backlog}",
            f"p95 first token {wording.seconds(seen.first_token_p95_s)}, "
            f"token {wording.milliseconds(seen.per_token_p95_ms)}, total {wording.seconds(seen.total_p95_s)}",
            f"| {picture.why}",
        )
    )


def table(picture: Picture) -> Group:
    """Return the picture as a table."""
    reading = picture.reading
    counts, settings = reading.counts, reading.settings
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    grid.add_row("Time", f"{_time(picture.passed)}   {_server(picture.capacity)}")
    grid.add_row("Slots", slots_bar(picture))
    grid.add_row("Quota", f"batch may hold {reading.quota} of {settings.slots} slots ({settings.reserve} never)")
    grid.add_row("Limit", f"{reading.limit:.1f} in flight, as learned")
    grid.add_row("In flight", f"{counts.interactive} interactive, {counts.batch} batch")
    grid.add_row("Waiting", f"{counts.interactive_waiting} interactive, {counts.backlog} batch")
    for promise in promises(reading.seen, reading.bounds.budgets):
        style = "red" if promise.broken else "green"
        grid.add_row(promise.name, Text.assemble((promise.seen, style), f" of {promise.budget}"))
    grid.add_row("Total, p95", wording.seconds(reading.seen.total_p95_s))
    grid.add_row("So far", f"{picture.chats} chat calls, {picture.items} batch items, {picture.failures} failed")
    grid.add_row("Controller", picture.why or wording.NO_DATA)
    grid.add_row("Last logged", picture.decision or wording.NO_DATA)
    title = Text.assemble(("Tidegate  ", "bold"), f"{picture.address}/", ("   Ctrl-C ends it", "dim"))
    return Group(title, grid)


def slots_bar(picture: Picture) -> Text:
    """Return the pool's slots: interactive, batch, free."""
    counts, slots = picture.reading.counts, picture.reading.settings.slots
    free = max(0, slots - counts.interactive - counts.batch)
    return Text.assemble(
        (INTERACTIVE * counts.interactive, "cyan"), (BATCH * counts.batch, "yellow"), (FREE * free, "dim")
    )


def _server(capacity: float) -> str:
    return "the server is whole" if capacity == 1 else f"the server has {capacity:.0%} of its capacity left"


def _time(passed: float) -> str:
    return f"{int(passed) // 60:02d}:{int(passed) % 60:02d}"
