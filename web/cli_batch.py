"""`tidegate batch`: durable batches from the command line, over HTTP.

Exit status: 0 done, 1 the batch failed, expired, was cancelled or has no good result, 2 a wrong call or no server.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:  # these load slowly, and most calls of `tidegate` need them not
    from rich.console import Console

    from web.cli_client import Client

FAILED, WRONG = 1, 2
KINDS = (("inputs", "input_file_id"), ("outputs", "output_file_id"), ("errors", "error_file_id"))
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

app = typer.Typer(
    name="batch",
    help="Submit, watch and fetch durable batches of the Tidegate at TIDEGATE_URL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

InputFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="A JSONL file of requests.", exists=True, dir_okay=False, readable=True)
]
BatchId = Annotated[str, typer.Argument(metavar="ID", help="The batch's id.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Window = Annotated[str, typer.Option(help="By when it must be done: 1h to 14d.")]


class _Line(msgspec.Struct):
    url: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"{}")


class _Body(msgspec.Struct):
    model: object = None


@app.command()
def submit(
    file: InputFile,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended.")] = False,
    window: Window = "24h",
    endpoint: Annotated[
        str | None, typer.Option(metavar="PATH", help="Such as /v1/chat/completions. (default: as the first line says)")
    ] = None,
    metadata: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A label; may be repeated.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call it. (default: the file's name)")] = None,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher goes first among your own.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Upload a file and make a batch of it; prints its id."""
    from web.cli_view import plain

    with _session() as (client, console):
        order = {
            "endpoint": endpoint or _endpoint(file),
            "completion_window": window,
            "metadata": _labels(metadata or []),
            "name": name or file.stem[:200],
            "priority": priority,
        }
        stored = _upload(client, file, console, quiet=as_json)
        batch = client.create({**order, "input_file_id": stored["id"]})
        if not as_json:
            plain(console, batch["id"])
        if wait:
            _wait(client, batch["id"], console, as_json=as_json)
        elif as_json:
            typer.echo(json.dumps(batch))


@app.command()
def status(batch: BatchId, *, as_json: AsJson = False) -> None:
    """Tell how far a batch is, and when it will be done."""
    from web.cli_view import lines, plain

    with _session() as (client, console):
        found = client.batch(batch)
        if as_json:
            typer.echo(json.dumps(found))
            return
        for each in lines(found):
            plain(console, each)


@app.command("list")
def list_batches(
    *, limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 20, as_json: AsJson = False
) -> None:
    """List the newest batches, newest first."""
    from web.cli_view import plain, table

    with _session() as (client, console):
        found = client.batches(limit=limit)
        if as_json:
            typer.echo(json.dumps(found))
            return
        for each in table(found) if found else ["No batches yet."]:
            plain(console, each)


@app.command()
def wait(batch: BatchId, *, as_json: AsJson = False) -> None:
    """Wait until a batch has ended; a server that restarts meanwhile is waited for."""
    with _session() as (client, console):
        _wait(client, batch, console, as_json=as_json)


@app.command()
def results(
    batch: BatchId,
    *,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.", file_okay=False)],
    as_json: AsJson = False,
) -> None:
    """Fetch a batch's files into DIR/YYYY-MM-DD/inputs, outputs and errors; the day is that of its creation."""
    from web.cli_client import CommandError, ended
    from web.cli_view import plain

    with _session() as (client, console):
        found = client.batch(batch)
        if not ended(found):
            raise CommandError(f"{batch} is still {found['status']}; see `tidegate batch wait {batch}`")
        written = _fetch(client, found, to, console, quiet=as_json)
        if as_json:
            typer.echo(json.dumps({kind: str(path) for kind, path in written.items()}))
            return
        for path in written.values():
            plain(console, str(path))


@app.command()
def cancel(
    batch: BatchId,
    *,
    reason: Annotated[str, typer.Option(help="Why, for the audit trail.")] = "",
    as_json: AsJson = False,
) -> None:
    """Cancel a batch; what is done already is kept."""
    from web.cli_view import plain, progress

    with _session() as (client, console):
        found = client.cancel(batch, reason)
        if as_json:
            typer.echo(json.dumps(found))
        else:
            plain(console, f"{found['id']} is {found['status']}: {progress(found)}")


@app.command()
def quote(file: InputFile, *, window: Window = "24h", as_json: AsJson = False) -> None:
    """Tell when a batch of this file would be done, without uploading it."""
    from core import wording
    from web.cli_view import RISKS, eta_words, plain

    with _session() as (client, console):
        found = client.quote({**_size(file), "completion_window": window})
        if as_json:
            typer.echo(json.dumps(found))
            return
        size = f"{wording.count(found['lines'])} requests, about {wording.count(found['prompt_tokens'])} prompt tokens"
        risk = RISKS.get(found["deadline_risk"] or "")
        sure = " (9 in 10)" if found["eta"]["state"] == "estimated" else ""
        plain(console, f"{size} for pool {found['pool']}")
        plain(console, f"{wording.sentence_case(eta_words(found['eta']))}{sure}{f'; {risk}' if risk else ''}.")
        if found["eta"]["basis"]:
            plain(console, found["eta"]["basis"])


@contextmanager
def _session() -> Iterator[tuple["Client", "Console"]]:
    """Give a client and where to print; turn what goes wrong into one line and status 2."""
    from rich.console import Console

    from web.cli_client import CommandError, client_of

    try:
        with client_of() as client:
            yield client, Console()
    except CommandError as error:
        typer.echo(f"tidegate: {error}", err=True)
        raise typer.Exit(WRONG) from None


def _wait(client: "Client", batch_id: str, console: "Console", *, as_json: bool) -> None:
    from web.cli_client import succeeded
    from web.cli_view import lines, plain, watch

    found = watch(client, batch_id, console, quiet=as_json)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for each in lines(found)[1:]:
            plain(console, each)
    if not succeeded(found):
        raise typer.Exit(FAILED)


def _upload(client: "Client", file: Path, console: "Console", *, quiet: bool) -> dict[str, Any]:
    from web.cli_client import CommandError
    from web.cli_view import reading

    try:
        with file.open("rb") as raw, reading(file, raw, console, quiet=quiet) as shown:
            return client.upload(shown, file.name)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or 'cannot be read'}") from None


def _fetch(client: "Client", batch: dict[str, Any], to: Path, console: "Console", *, quiet: bool) -> dict[str, Path]:
    from web.cli_view import loading

    day = datetime.fromtimestamp(batch["created_at"]).astimezone().date().isoformat()
    written: dict[str, Path] = {}
    with loading(console, quiet=quiet) as bar:
        for kind, field in KINDS:
            if batch.get(field):
                path = to / day / kind / f"{batch['id']}.jsonl"
                task = bar.add_task(kind, total=None)
                client.download(batch[field], path, came=partial(bar.advance, task))
                written[kind] = path
    return written


def _endpoint(file: Path) -> str:
    """Return the endpoint that the file's first line names."""
    from web.cli_client import CommandError

    first = next(_lines(file), _Line())
    if first.url is None:
        raise CommandError(f"{file}: the first line names no url; give --endpoint, such as /v1/chat/completions")
    return first.url


def _labels(given: list[str]) -> dict[str, str]:
    from web.cli_client import CommandError

    labels = dict(pair.split("=", 1) for pair in given if re.fullmatch(r"[^=]+=.*", pair, re.DOTALL))
    if len(labels) < len(given):
        raise CommandError("--metadata must be NAME=VALUE, each name once")
    return labels


def _size(file: Path) -> dict[str, Any]:
    """Return what a file would cost: lines and prompt tokens as the server estimates them, and the model if one."""
    from core.batch.lines import BYTES_PER_TOKEN
    from web.cli_client import CommandError

    lines, size, models = 0, 0, set[object]()
    for line in _lines(file):
        lines, size = lines + 1, size + len(bytes(line.body))
        models.add(msgspec.json.decode(line.body, type=_Body).model)
    if not lines:
        raise CommandError(f"{file}: holds no requests")
    told: dict[str, Any] = {"lines": lines, "prompt_tokens": max(lines, round(size / BYTES_PER_TOKEN))}
    only = models.pop() if len(models) == 1 else None
    return {**told, "model": only} if isinstance(only, str) else told


def _lines(file: Path) -> Iterator[_Line]:
    """Yield the requests of a file, one by one."""
    from web.cli_client import CommandError

    try:
        with file.open("rb") as opened:
            for number, raw in enumerate(opened, 1):
                line = raw.removeprefix(BYTE_ORDER_MARK).strip()
                if line:
                    yield _request(line, f"{file}: line {number} is no request")
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or 'cannot be read'}") from None


def _request(line: bytes, fault: str) -> _Line:
    from web.cli_client import CommandError

    try:
        found = msgspec.json.decode(line, type=_Line)
        msgspec.json.decode(found.body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CommandError(fault) from None
    return found
