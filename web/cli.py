"""The command line. A wrong setting is one line on standard error and exit status 2, never a traceback."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from core.addresses import base_url
from core.config import Settings, pool_settings
from core.errors import ConfigError
from core.sources import Loaded, load, shown
from web import cli_audit, cli_batch, cli_people

app = typer.Typer(
    name="tidegate",
    help="A gateway in front of OpenAI-compatible model servers: interactive first, batch in what is left.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.add_typer(cli_audit.app)
app.add_typer(cli_batch.app)
app.add_typer(cli_people.keys)
app.add_typer(cli_people.accounts)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The settings file. (default tidegate.toml, if there)")
]
DataFolder = Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The folder that holds all state.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def serve(
    *,
    host: Annotated[str | None, typer.Option(help="The address to listen on. (default 127.0.0.1)")] = None,
    port: Annotated[str | None, typer.Option(metavar="PORT", help="The port to listen on. (default 3456)")] = None,
    config: ConfigFile = None,
    data: DataFolder = None,
    upstream: Annotated[str | None, typer.Option(metavar="URL", help="The model server's base URL.")] = None,
    slots: Annotated[str | None, typer.Option(metavar="N", help="Requests in flight to it, at most.")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Allow listening beyond loopback.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.")] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Where no upstream is set, start a simulated model server beside it.")
    ] = False,
    setup: Annotated[bool, typer.Option("--setup", help="Print a one-time link that makes the first admin.")] = False,
) -> None:
    """Run the gateway."""
    given = {
        "host": host,
        "port": port,
        "data": data,
        "upstream": upstream,
        "slots": slots,
        "insecure": insecure,
        "log_level": log_level,
        "log_format": log_format,
    }
    _serve(_load(config, given), simulate=simulate, set_up=setup)


def _serve(loaded: Loaded, *, simulate: bool, set_up: bool) -> None:
    from core import logs
    from web import serving

    settings = loaded.settings
    logs.configure(level=settings.log_level, style=settings.log_format, secrets=settings.secrets())
    _warn(loaded)
    if not simulate or settings.pools or settings.upstream is not None:
        serving.serve(settings, on_ready=_say_ready, set_up=set_up, on_set_up=_say_set_up)
        return
    from web.simulated import simulated_upstream

    def say(address: str) -> None:
        _say_ready(
            address, "A simulated model server answers, as TIDEGATE_UPSTREAM is not set; its texts mean nothing."
        )

    with simulated_upstream(slots=_with_upstream(settings, "http://127.0.0.1/v1").pool_configs[0].slots) as upstream:
        serving.serve(_with_upstream(settings, upstream), on_ready=say, set_up=set_up, on_set_up=_say_set_up)


def _with_upstream(settings: Settings, upstream: str) -> Settings:
    return settings.model_copy(update={"upstream": upstream})


def _say_ready(address: str, more: str = "") -> None:
    typer.echo(f"Tidegate is ready. {more}".rstrip())
    typer.echo(f"  Dashboard   {address}/\n  OpenAI API  {address}/v1")
    sys.stdout.flush()


def _say_set_up(link: str) -> None:
    typer.echo(f"  Set-up      {link}\n              (makes the first admin; works once, for a day)")
    sys.stdout.flush()


@app.command("mock-server")
def mock_server(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8000,
    slots: Annotated[int, typer.Option(min=1, help="Sequences that it runs at once; more wait.")] = 8,
    speed: Annotated[float, typer.Option(min=0.01, help="How many times faster than a real one it is.")] = 1.0,
    handle: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a simulated model server, for trying Tidegate out."""
    from web.simulated import run_mock_server

    def say(address: str) -> None:
        if handle is None:
            typer.echo(f"The simulated model server is ready: {address}/v1")
            sys.stdout.flush()

    run_mock_server(host=host, port=port, slots=slots, speed=speed, handle=handle, on_ready=say)


@app.command()
def config(
    *,
    config: ConfigFile = None,
    data: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Print the settings in force and where each came from, secrets masked."""
    loaded = _load(config, {"data": data})
    _warn(loaded)
    values = shown(loaded.settings)
    pools = _effective_pools(loaded.settings)
    if as_json:
        rows = {name: {"value": value, "origin": loaded.origin[name]} for name, value in values.items()}
        typer.echo(json.dumps({"settings": rows, "pools": pools}, indent=2))
        return
    for line in [*_columns(values, loaded.origin), *(f"pool {pool.pop('name')}: {_pairs(pool)}" for pool in pools)]:
        typer.echo(line)


def _columns(values: dict[str, Any], origin: Mapping[str, str]) -> list[str]:
    width = max(map(len, values))
    return [f"{name:<{width}}  {origin[name]:<12}  {_written(value)}" for name, value in values.items()]


def _effective_pools(settings: Settings) -> list[dict[str, Any]]:
    """Return what each pool starts from, defaults that depend on other settings filled in."""
    if not settings.pools and settings.upstream is None:
        return []
    names = ("name", "slots", "reserve", "headroom", "floor", "ceiling")
    wanted = [pool_settings(pool) for pool in settings.pool_configs]
    return [{name: getattr(pool, name) for name in names} for pool in wanted]


def _pairs(pool: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in pool.items())


def _written(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


@app.command()
def migrate(*, config: ConfigFile = None, data: DataFolder = None) -> None:
    """Bring the database to the schema of this version; `serve` does so by itself."""
    from core.runtime import migrate_database
    from web import serving

    settings = _load(config, {"data": data}).settings
    with serving.locked(serving.prepare_folder(settings)):
        serving.run_to_end(migrate_database(settings))
    typer.echo("The database is up to date.")


@app.command()
def simulate(
    *,
    scenario: Annotated[
        list[str] | None, typer.Option(help="A scenario, A to I, B2 or R; may be repeated. (default all)")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed of the arrivals; may be repeated.")] = None,
    hours: Annotated[float, typer.Option(help="Hours of virtual time of each run.")] = 3.0,
    baselines: Annotated[bool, typer.Option("--baselines", help="First compute the yardsticks anew (slow).")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the controller against the simulated engine in virtual time and check its targets."""
    from core.simulation.command import command

    raise typer.Exit(command(scenario or [], seed or [], baselines, hours, as_json))


@app.command()
def demo(
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 3456,
    slots: Annotated[int, typer.Option(min=2, help="Requests that the simulated server runs at once.")] = 16,
    speed: Annotated[float, typer.Option(min=0.1, max=50, help="How many times faster than real all goes.")] = 1.0,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop by itself after so many seconds.")] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FOLDER", help="Keep state here. (default: none)")
    ] = None,
) -> None:
    """Watch the tide move: chat users and a batch flood before a simulated server that loses half its capacity."""
    from core import logs
    from web.demo import Play
    from web.demo_view import command

    logs.configure(level="error")
    command(Play(port=port, slots=slots, speed=speed, seconds=seconds, data=data))


@app.command()
def bench(
    *,
    upstream: Annotated[
        str | None, typer.Option(metavar="URL", help="A real server's base URL. (default: the simulated server)")
    ] = None,
    model: Annotated[str, typer.Option(help="The model to ask.")] = "simulated",
    api_key_env: Annotated[
        str, typer.Option(metavar="NAME", help="The environment variable that holds the real server's key.")
    ] = "TIDEGATE_UPSTREAM_KEY",
    slots: Annotated[int, typer.Option(min=1, help="Requests in flight to the server, at most.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds that each arm counts; each fixed quota half.")] = 60.0,
    warm_up: Annotated[
        float, typer.Option(min=0, help="Seconds before that, in which the controller finds its limit.")
    ] = 20.0,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Interactive calls per second. (default: one per 8 slots)")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV of offset_s,input_tokens,output_tokens instead.")
    ] = None,
    speed: Annotated[float, typer.Option(min=0.1, max=50, help="How many times faster the simulated server is.")] = 1.0,
    stream: Annotated[bool, typer.Option("--stream", help="Let the calls of the flood stream, too.")] = False,
    scan: Annotated[bool, typer.Option(help="Try every fixed quota, to compare with the best.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Leave with status 1 where a target is missed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure interactive alone, with a batch flood straight to the server, and the same through Tidegate."""
    from core import logs
    from web.bench import Plan
    from web.bench_view import command

    logs.configure(level="error")
    plan = Plan(
        slots=slots,
        seconds=seconds,
        warm_up=warm_up,
        rate=rate,
        trace=trace,
        upstream=None if upstream is None else _base_url(upstream),
        model=model,
        api_key=os.environ.get(api_key_env) or None,
        speed=1.0 if upstream else speed,
        stream=stream,
        scan=scan,
    )
    raise typer.Exit(command(plan, as_json=as_json, strict=strict))


def _base_url(text: str) -> str:
    try:
        return base_url(text)
    except ValueError as error:
        raise ConfigError(f"upstream {error}") from None


def _load(file: Path | None, given: dict[str, Any]) -> Loaded:
    return load(file=file, environ=os.environ, given=given)


def _warn(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        typer.echo(f"tidegate: {warning}", err=True)


def main() -> None:
    """Run the command line and leave with its exit status."""
    try:
        app()
    except ConfigError as error:
        typer.echo(f"tidegate: {error}", err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
