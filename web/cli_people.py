"""`tidegate keys` and `tidegate accounts`: with or without a running server, which learns of it within 5 s.

Exit status: 0 done, 2 a wrong call or no database.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from core.config import Settings
from core.errors import ConfigError, InvalidValue, NotFound
from core.sources import load

if TYPE_CHECKING:  # these load slowly, and most calls of `tidegate` need them not
    from core.entrance import People
    from core.people.keys import Issued

T = TypeVar("T")

keys = typer.Typer(
    name="keys",
    help="Make, list, rotate and revoke API keys.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
accounts = typer.Typer(
    name="accounts",
    help="Make, list and disable the accounts that sign in to the dashboard.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The settings file. (default tidegate.toml, if there)")
]
DataFolder = Annotated[Path | None, typer.Option("--data", metavar="FOLDER", help="The folder that holds all state.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
KeyName = Annotated[str, typer.Argument(metavar="NAME", help="The key's name.")]
AccountName = Annotated[str, typer.Argument(metavar="NAME", help="The account's name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it: this cannot be taken back.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the audit trail.")]
RoleName = Annotated[str, typer.Option("--role", metavar="ROLE", help="viewer, member, operator or admin.")]


@keys.command("create")
def create_key(
    *,
    name: Annotated[str, typer.Option(help="The key's name; unique.")],
    tenant: Annotated[str, typer.Option(help="Its team; made if there is none of that name.")] = "default",
    lane: Annotated[
        str, typer.Option(help="The lane of a request that asks for none. (default interactive, if allowed)")
    ] = "",
    lanes: Annotated[str, typer.Option(help="The lanes that it may use, with commas. (default both)")] = "",
    role: RoleName = "member",
    expires: Annotated[str, typer.Option(help="90d, a day such as 2027-01-31, or never.")] = "never",
    models: Annotated[list[str] | None, typer.Option(help="A model or glob that it may use; may be repeated.")] = None,
    cidr: Annotated[
        list[str] | None, typer.Option(help="An address range that it may be used from; may be repeated.")
    ] = None,
    reason: Reason = "",
    config: ConfigFile = None,
    data: DataFolder = None,
) -> None:
    """Make a key and print it, this once: standard output is the key alone."""
    given: dict[str, Any] = {
        "name": name,
        "tenant": tenant,
        "lane": lane,
        "lanes": lanes,
        "role": role,
        "expires": expires,
        "models": ",".join(models or []),
        "cidrs": ",".join(cidr or []),
    }

    async def work(people: "People") -> "tuple[Issued, bool]":
        from core.clock import SystemClock
        from core.people import asked
        from core.people.acting import shell

        first = not (await people.store.everyone()).keys
        return await people.teams.create_key(asked.new_key(given, SystemClock().now()), by=shell(reason)), first

    issued, first = _run(work, config, data)
    if issued.new_tenant:
        _note(f"made tenant {issued.key.tenant} with defaults")
    if first:
        _note("from now on every call needs a key")
    typer.echo(issued.token)


@keys.command("list")
def list_keys(*, as_json: AsJson = False, config: ConfigFile = None, data: DataFolder = None) -> None:
    """List all stored keys; of none its secret."""

    async def work(people: "People") -> list[dict[str, Any]]:
        from core.clock import SystemClock
        from core.people.told import key_json

        now = SystemClock().now()
        return [key_json(key, now) for key in (await people.store.everyone()).keys]

    columns = ("name", "tenant", "prefix", "state", "role", "lane", "last_used_at", "expires_at")
    _print(_run(work, config, data), columns, as_json=as_json)


@keys.command("rotate")
def rotate_key(
    name: KeyName,
    *,
    overlap: Annotated[
        str, typer.Option(help="For how long the present secret is still taken; 0 ends it now.")
    ] = "24h",
    reason: Reason = "",
    config: ConfigFile = None,
    data: DataFolder = None,
) -> None:
    """Give a key a new secret and print it, this once; the present one is taken a while longer."""

    async def work(people: "People") -> "Issued":
        from core.people import asked
        from core.people.acting import shell

        return await people.teams.rotate_key(name, by=shell(reason), overlap=asked.length("overlap", overlap))

    issued = _run(work, config, data)
    if issued.key.old_until is not None:
        _note(f"the secret {issued.key.old_prefix}... is taken until {issued.key.old_until:%Y-%m-%d %H:%M} UTC")
    typer.echo(issued.token)


@keys.command("revoke")
def revoke_key(
    name: KeyName, *, yes: Yes = False, reason: Reason = "", config: ConfigFile = None, data: DataFolder = None
) -> None:
    """Let a key never be taken again. Answers that are running come to their end."""
    _sure(yes, f"revoke {name}")

    async def work(people: "People") -> None:
        from core.people.acting import shell

        await people.teams.revoke_key(name, by=shell(reason))

    _run(work, config, data)
    _note(f"key {name} is revoked; a running server refuses it within 5 seconds")


@keys.command("reset-open")
def reset_open(*, yes: Yes = False, reason: Reason = "", config: ConfigFile = None, data: DataFolder = None) -> None:
    """Forget every stored key, so that calls need none, as before the first one was made."""
    _sure(yes, "reset-open")

    async def work(people: "People") -> int:
        from core.people.acting import shell

        return await people.teams.reset_open(by=shell(reason))

    settings = _settings(config, data)
    gone = _run(work, config, data)
    _note(f"{gone} keys are forgotten")
    if settings.keys:
        _note("the settings name keys, so calls still need one")


@accounts.command("create")
def create_account(
    name: AccountName,
    *,
    role: RoleName,
    tenant: Annotated[str, typer.Option(help="The team that it belongs to.")] = "default",
    no_password: Annotated[
        bool, typer.Option("--no-password", help="It signs in through a proxy or provider under that name.")
    ] = False,
    reason: Reason = "",
    config: ConfigFile = None,
    data: DataFolder = None,
) -> None:
    """Make an account; its password is the first line of standard input."""
    password = None if no_password else _password()

    async def work(people: "People") -> str:
        from core.people.acting import shell
        from core.people.names import check_role

        made = await people.roster.create(
            name, role=check_role("role", role), password=password, tenant=tenant, by=shell(reason)
        )
        return made.name

    _note(f"account {_run(work, config, data)} is made; a running server knows it within 5 seconds")


@accounts.command("list")
def list_accounts(*, as_json: AsJson = False, config: ConfigFile = None, data: DataFolder = None) -> None:
    """List all accounts."""

    async def work(people: "People") -> list[dict[str, Any]]:
        from core.people.told import account_json

        return [account_json(account) for account in (await people.store.everyone()).accounts]

    columns = ("name", "role", "tenant", "sign_in", "disabled", "last_sign_in_at")
    _print(_run(work, config, data), columns, as_json=as_json)


@accounts.command("disable")
def disable_account(
    name: AccountName, *, reason: Reason = "", config: ConfigFile = None, data: DataFolder = None
) -> None:
    """Let somebody sign in no more, and sign him out everywhere."""
    _change(name, reason, config, data, disabled=True)
    _note(f"account {name} is disabled and signed out")


@accounts.command("enable")
def enable_account(
    name: AccountName, *, reason: Reason = "", config: ConfigFile = None, data: DataFolder = None
) -> None:
    """Let somebody who was disabled sign in again."""
    _change(name, reason, config, data, disabled=False)
    _note(f"account {name} may sign in again")


@accounts.command("role")
def change_role(
    name: AccountName, *, role: RoleName, reason: Reason = "", config: ConfigFile = None, data: DataFolder = None
) -> None:
    """Give an account another role."""
    _change(name, reason, config, data, role=role)
    _note(f"account {name} is {role} now")


@accounts.command("password")
def set_password(name: AccountName, *, reason: Reason = "", config: ConfigFile = None, data: DataFolder = None) -> None:
    """Give an account the password that is the first line of standard input, and sign it out everywhere."""
    password = _password()

    async def work(people: "People") -> None:
        from core.people.acting import shell

        await people.roster.set_password(name, password, by=shell(reason))

    _run(work, config, data)
    _note(f"account {name} has a new password and is signed out everywhere")


def _change(name: str, reason: str, config: Path | None, data: Path | None, **given: object) -> None:
    async def work(people: "People") -> None:
        from core.people import asked
        from core.people.acting import shell

        await people.roster.change(name, asked.account_patch(given), by=shell(reason))

    _run(work, config, data)


def _run(work: "Callable[[People], Awaitable[T]]", config: Path | None, data: Path | None) -> T:
    """Do `work` on the database that the settings name. Raises ConfigError in one line, whatever is wrong."""
    from web import serving

    settings = _settings(config, data)
    serving.prepare_folder(settings)

    async def whole() -> T:
        from core.runtime import open_people

        async with open_people(settings) as people:
            return await work(people)

    try:
        return asyncio.run(whole())
    except InvalidValue as error:
        raise ConfigError(f"{error.field}: {error.message}") from None
    except NotFound as error:
        raise ConfigError(str(error)) from None


def _settings(config: Path | None, data: Path | None) -> Settings:
    return load(file=config, environ=os.environ, given={"data": data}).settings


def _password() -> str:
    """Read a password: typed twice at a terminal, else the first line of standard input."""
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")


def _sure(yes: bool, what: str) -> None:
    if not yes:
        raise ConfigError(f"{what}: this cannot be taken back; add --yes if you mean it")


def _note(text: str) -> None:
    """Say something that is no result."""
    typer.echo(text, err=True)


def _print(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = [[column.removesuffix("_at").replace("_", " ") for column in columns]]
    table += [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(row[at]) for row in table) for at in range(len(columns))]
    for row in table:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    return "-" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
