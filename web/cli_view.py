"""How batches are told on the command line: in words, with clock times of this machine's zone."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    wrap_file,
)

from core import wording
from web.cli_client import Client, Json, Unreachable, ended

LOOK_EVERY_S = 1.0
LINE_EVERY_S = 10.0
PATIENCE_S = 60.0
"""Seconds without an answer after which waiting ends: a server may be restarted meanwhile."""
RISKS = {"on_time": "on time", "at_risk": "at risk", "will_miss": "will miss it"}


def moment(given: str | int | None) -> str:
    """Return an instant of the API as a clock time here, with the day if that is another."""
    if given is None:
        return wording.NO_DATA
    at = datetime.fromtimestamp(given, UTC) if isinstance(given, int) else datetime.fromisoformat(given)
    here = at.astimezone()
    return wording.moment(here, datetime.now(UTC), here.tzinfo or UTC)


def progress(batch: Json) -> str:
    """Return how far a batch is."""
    counts = batch["request_counts"]
    if not counts["total"]:
        return "-"
    failed = f", {wording.count(counts['failed'])} failed" if counts["failed"] else ""
    return f"{wording.count(counts['completed'])} of {wording.count(counts['total'])} done{failed}"


def state(batch: Json) -> str:
    """Return one word for where a batch is."""
    own = (batch.get("tidegate") or {}).get("state")
    return str(batch["status"]) if own in (None, "done") else str(own)


def when(batch: Json) -> str:
    """Return when a batch will be done, or was."""
    own = batch.get("tidegate") or {}
    if ended(batch):
        status = batch["status"]
        return f"{status} {moment(batch.get(f'{status}_at'))}"
    return eta_words(own.get("eta") or {})


def eta_words(eta: Json) -> str:
    """Return an ETA in words."""
    if eta.get("state") == "estimated":
        low, high = moment(eta["low"]), moment(eta["high"])
        return f"done about {low}" if low == high else f"done {low} to {high}"
    if eta.get("state") == "paused":
        return eta.get("waiting_for") or "paused"
    return "not enough data yet"


def deadline(batch: Json) -> str:
    """Return by when a batch must be done, and whether it will be."""
    risk = RISKS.get((batch.get("tidegate") or {}).get("deadline_risk") or "")
    return moment(batch["expires_at"]) + (f", {risk}" if risk else "")


def lines(batch: Json) -> list[str]:
    """Return all that `status` tells."""
    own = batch.get("tidegate") or {}
    told = [batch["id"], f"{state(batch)}: {progress(batch)}"]
    if ended(batch):
        told.append(f"{when(batch)}.")
    else:
        eta = own.get("eta") or {}
        told.append(f"{wording.sentence_case(when(batch))}{' (9 in 10)' if eta.get('state') == 'estimated' else ''}.")
        told.append(f"Deadline {deadline(batch)}.")
        told += [eta["basis"]] if eta.get("basis") else []
        told += [f"Waits for: {own['waiting_for']}."] if own.get("waiting_for") else []
    told += [_error(error) for error in ((batch.get("errors") or {}).get("data") or [])[:10]]
    return told


def _error(error: Json) -> str:
    where = f"line {error['line']}: " if error.get("line") else ""
    return f"{where}{error['code']}: {error['message']}"


def table(batches: list[Json]) -> list[str]:
    """Return a line for each batch, in columns."""
    rows = [("ID", "STATE", "DONE", "ETA", "DEADLINE")]
    rows += [
        (batch["id"], state(batch), progress(batch), when(batch), "-" if ended(batch) else deadline(batch))
        for batch in batches
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def plain(console: Console, text: str) -> None:
    """Print a line as it is, whatever its length."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def watch(client: Client, batch_id: str, console: Console, *, quiet: bool) -> Json:
    """Wait until a batch has ended and return it: with a bar on a terminal, else with a line now and then."""
    if quiet:
        return _until_ended(client, batch_id, lambda batch: None)
    if not console.is_terminal:
        return _until_ended(client, batch_id, _Lines(console))
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[eta]}"),
        console=console,
    ) as bar:
        return _until_ended(client, batch_id, _Bar(bar))


class _Bar:
    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID | None = None

    def __call__(self, batch: Json) -> None:
        if self._task is None:
            self._task = self._bar.add_task("", total=None, eta="")
        counts = batch["request_counts"]
        self._bar.update(
            self._task,
            description=state(batch),
            total=counts["total"] or None,
            completed=counts["completed"] + counts["failed"],
            eta=f"{when(batch)}{_failed(counts)}",
        )


def _failed(counts: Json) -> str:
    return f", {wording.count(counts['failed'])} failed" if counts["failed"] else ""


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._state = ""
        self._told = ""
        self._next = 0.0

    def __call__(self, batch: Json) -> None:
        told = f"{state(batch)}  {progress(batch)}  {when(batch)}"
        if state(batch) == self._state and (told == self._told or time.monotonic() < self._next):
            return
        self._state, self._told, self._next = state(batch), told, time.monotonic() + LINE_EVERY_S
        plain(self._console, f"{datetime.now():%H:%M:%S}  {told}")


def _until_ended(client: Client, batch_id: str, show: Callable[[Json], object]) -> Json:
    silent_since: float | None = None
    while True:
        try:
            batch = client.batch(batch_id)
        except Unreachable:
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > PATIENCE_S:
                raise
        else:
            silent_since = None
            show(batch)
            if ended(batch):
                return batch
        time.sleep(LOOK_EVERY_S)


def reading(path: Path, file: BinaryIO, console: Console, *, quiet: bool) -> AbstractContextManager[Any]:
    """Return the file, or on a terminal one that shows how far it was read."""
    if quiet or not console.is_terminal:
        return nullcontext(file)
    return wrap_file(file, path.stat().st_size, description="Uploading", console=console, transient=True)


def loading(console: Console, *, quiet: bool) -> Progress:
    """Return the bar of a download, switched off where nobody looks."""
    return Progress(
        TextColumn("{task.description}"),
        DownloadColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )
