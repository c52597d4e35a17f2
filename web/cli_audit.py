"""`tidegate audit`: check and export the audit trail, with or without a running server.

Exit status: 0 sound or exported, 1 the trail was tampered with, 2 a wrong call or no database.
"""

import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from core.config import Settings
from core.people import telling
from core.people.audit import GENESIS, AuditRecord, Verifier
from core.ports import AuditStore
from core.sources import load

BROKEN = 1
PAGE = 500
BEFORE_ALL = -(2**63)
"""The first entry is number 1; one with a lower number was added by hand, and must not escape."""

app = typer.Typer(
    name="audit",
    help="Check and export the audit trail: who changed what, when, why and by which way.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The settings file. (default tidegate.toml, if there)")
]
DataFolder = Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The folder that holds all state.")]


@app.command()
def verify(
    *,
    known: Annotated[
        str, typer.Option("--known", metavar="HASH", help="The last hash of an earlier run, which must still be there.")
    ] = "",
    config: ConfigFile = None,
    data: DataFolder = None,
) -> None:
    """Follow the chain of hashes and name the first entry that does not fit; exit status 1 if one does not."""
    checked: list[tuple[Verifier, str | None]] = []

    async def follow(settings: Settings) -> None:
        from core.runtime import open_audit

        async with open_audit(settings) as trail:
            checked.append(await _follow(trail, known.strip().lower()))

    _run(follow, config, data)
    [(verifier, fault)] = checked
    if fault is not None:
        typer.echo(f"The audit trail was tampered with: {fault}.", err=True)
        raise typer.Exit(BROKEN)
    typer.echo(f"{verifier.number:,} entries, each as it was written. The last hash is {verifier.hash}.")


@app.command()
def export(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one entry a line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV. (the default)")] = False,
    config: ConfigFile = None,
    data: DataFolder = None,
) -> None:
    """Print the whole audit trail, oldest first."""
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv exclude each other")

    async def write(settings: Settings) -> None:
        from core.runtime import open_audit

        async with open_audit(settings) as trail:
            if not as_json:
                sys.stdout.write(telling.csv_line(telling.COLUMNS))
            async for page in _pages(trail):
                sys.stdout.writelines(_lines(page) if as_json else telling.as_csv(page))

    _run(write, config, data)


async def _follow(trail: AuditStore, known: str) -> tuple[Verifier, str | None]:
    """Follow the chain to its end; return where that is, and what is wrong."""
    verifier, found, last = Verifier(), known in ("", GENESIS), -1
    # What is appended meanwhile is followed, too: the head, read after the rows, never stands before the last of them.
    while verifier.number > last:
        last = verifier.number
        async for page in _pages(trail, after=last or BEFORE_ALL):
            for record in page:
                if fault := verifier.check(record):
                    return verifier, fault
                found = found or record.hash == known
        head = await trail.audit_head()
        if head.number <= verifier.number:
            break
    return verifier, verifier.end(head) or (None if found else f"no entry has the hash {known[:64]} any more")


async def _pages(trail: AuditStore, *, after: int = BEFORE_ALL) -> AsyncIterator[list[AuditRecord]]:
    while page := await trail.audit_chain(after=after, limit=PAGE):
        yield page
        after = page[-1].number


def _lines(page: Iterable[AuditRecord]) -> Iterable[str]:
    return (msgspec.json.encode(telling.as_json(record)).decode() + "\n" for record in page)


def _run(main: Callable[[Settings], Coroutine[None, None, None]], config: Path | None, data: Path | None) -> None:
    """Run `main` with the settings that hold. Raises ConfigError."""
    from web import serving

    settings = load(file=config, environ=os.environ, given={"data": data}).settings
    serving.prepare_folder(settings)
    serving.run_to_end(main(settings))
