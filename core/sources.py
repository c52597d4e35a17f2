"""Gathers the settings: tidegate.toml < .env < environment < command line, and tells where each came from."""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dotenv import dotenv_values
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from core.config import BudgetConfig, KeyConfig, LaneTimeouts, PoolConfig, PoolTuning, Settings
from core.errors import ConfigError

Origin = Literal["default", "file", ".env", "environment", "command line"]
PREFIX = "TIDEGATE_"
DEFAULT_FILE = Path("tidegate.toml")
UNSHOWN = frozenset(
    (
        *("upstream", "base_url", "upstream_key", "api_key", "key", "database", "secret", "client_secret", "file_key"),
        *("keys", "pools"),
    )
)
"""Settings of which a wrong value is never repeated: it may be, or hold, a secret."""
MASK = "********"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force, with where each came from by its dotted name, and what looked wrong but may be meant."""

    settings: Settings
    origin: dict[str, Origin]
    file: Path | None = None
    warnings: tuple[str, ...] = ()


def load(
    *,
    file: Path | None = None,
    environ: Mapping[str, str],
    env_file: Path | None = Path(".env"),
    given: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read all four sources and return the settings.

    `file` is the TOML file (`None`: ./tidegate.toml if it is there), `given` what the command line says (`None` values
    are not given). `env:NAME` is replaced by that variable, from `environ` or else .env. Raises ConfigError.
    """
    dotenv = _dotenv(env_file)
    path = file or (DEFAULT_FILE if DEFAULT_FILE.is_file() else None)
    layers: list[tuple[Origin, dict[str, Any]]] = [
        ("file", _toml(path)),
        (".env", _from_variables(dotenv)),
        ("environment", _from_variables(environ)),
        ("command line", {name: value for name, value in (given or {}).items() if value is not None}),
    ]
    merged: dict[str, Any] = {}
    origin: dict[str, Origin] = {}
    for name, layer in layers:
        _drop_the_other(merged, origin, layer)
        _merge(merged, layer)
        origin.update({leaf: name for leaf, _ in leaves(layer)})
    try:
        settings = Settings(**_resolve(merged, {**dotenv, **environ}, ""))
    except ValidationError as error:
        raise ConfigError(_one_line(error, origin, path)) from None
    known = {leaf: origin.get(leaf, "default") for leaf, _ in leaves(settings.model_dump())}
    return Loaded(settings, known, path, tuple(_unknown_variables({**dotenv, **environ})))


def shown(settings: Settings) -> dict[str, Any]:
    """Return the settings by dotted name, ready for JSON, every secret masked."""
    tree = settings.model_dump()
    server_first = sorted(tree, key=lambda name: name in PoolTuning.model_fields)
    return {leaf: _showable(value) for leaf, value in leaves({name: tree[name] for name in server_first})}


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and value of each setting; lists, and empty tables, are values."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _showable(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, Mapping):
        return {name: _showable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_showable(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def _toml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"config = {str(path)!r}: cannot be read ({error.strerror}); name a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config = {str(path)!r}: is no valid TOML; mend it: {_place(error)}") from None


def _place(error: tomllib.TOMLDecodeError | UnicodeDecodeError) -> str:
    return "it must be UTF-8" if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0]


def _dotenv(path: Path | None) -> dict[str, str]:
    if path is None or not path.is_file():
        return {}
    try:
        return {name: value for name, value in dotenv_values(path, interpolate=False).items() if value is not None}
    except UnicodeDecodeError:
        raise ConfigError(f"{str(path)!r}: is no UTF-8; mend it") from None
    except OSError as error:
        raise ConfigError(f"{str(path)!r}: cannot be read ({error.strerror}); mend it, or take it away") from None


def _from_variables(variables: Mapping[str, str]) -> dict[str, Any]:
    source = EnvSettingsSource(Settings)
    source.env_vars = {name.lower(): value for name, value in variables.items() if value != ""}
    try:
        return source()
    except SettingsError as error:
        name = str(error).split('"')[1] if '"' in str(error) else "a variable"
        raise ConfigError(f"{PREFIX}{name.upper()}: is no valid JSON; write a table or list as JSON") from None


def _drop_the_other(merged: dict[str, Any], origin: dict[str, Origin], layer: Mapping[str, Any]) -> None:
    """Let a later source give slots where an earlier one gave upstream_capacity, and the other way round."""
    for one, other in (("slots", "upstream_capacity"), ("upstream_capacity", "slots")):
        if one in layer and other not in layer and merged.pop(other, None) is not None:
            del origin[other]


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for name, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = dict(value) if isinstance(value, Mapping) else value


def _resolve(value: Any, variables: Mapping[str, str], where: str) -> Any:
    if isinstance(value, dict):
        return {name: _resolve(inner, variables, f"{where}.{name}".lstrip(".")) for name, inner in value.items()}
    if isinstance(value, list):
        return [_resolve(inner, variables, f"{where}[{index}]") for index, inner in enumerate(value)]
    if not isinstance(value, str) or not value.startswith("env:"):
        return value
    name = value.removeprefix("env:")
    if not variables.get(name):
        raise ConfigError(f"{where} = {value!r}: the environment variable {name} is not set; set it")
    return variables[name]


def _one_line(error: ValidationError, origin: Mapping[str, Origin], path: Path | None) -> str:
    problems = error.errors(include_url=False)
    first = problems[0]
    loc = first["loc"]
    setting = _dotted(loc)
    source = origin.get(setting) or origin.get(str(loc[0]) if loc else "", "default")
    if first["type"] == "extra_forbidden":
        line = f"{_named(setting, source, path)}: is not a setting{_did_you_mean(str(loc[-1]), _fields_at(loc))}"
    elif not loc:
        line = _message(first["msg"])
    else:
        value = first.get("input")
        name = next(part for part in reversed(loc) if isinstance(part, str))
        hidden = name in UNSHOWN or first["type"] == "missing" or isinstance(value, dict | list | tuple)
        line = _named(setting, source, path) + ("" if hidden else f" = {value!r:.60}") + f": {_message(first['msg'])}"
    return line + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def _named(setting: str, source: Origin, path: Path | None) -> str:
    if source in ("environment", ".env"):
        return PREFIX + setting.replace(".", "__").upper() + (" in .env" if source == ".env" else "")
    if source == "command line":
        return "--" + setting.replace("_", "-")
    return f"{setting} in {path.name}" if source == "file" and path else setting


def _dotted(loc: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _message(text: str) -> str:
    text = text.removeprefix("Value error, ")
    return text.replace("Input should be", "must be").replace("Field required", "is missing; give it")


def _fields_at(loc: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    tables: dict[int | str, type[BaseModel]] = {"pools": PoolConfig, "keys": KeyConfig}
    for part in loc[:-1]:
        name = str(part)
        model = LaneTimeouts if name.endswith("_timeouts") else BudgetConfig if "budgets" in name else model
        model = tables.get(part, model)
    return list(model.model_fields)


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {close[0]}?" if close else "; see `tidegate config` for all settings"


def _unknown_variables(variables: Mapping[str, str]) -> Iterator[str]:
    known = [name.upper() for name in Settings.model_fields]
    for name in sorted(variables):
        head = name.upper().removeprefix(PREFIX).split("__", 1)[0]
        if name.upper().startswith(PREFIX) and head not in known:
            close = difflib.get_close_matches(head, known, n=1, cutoff=0.75)
            yield f"{name} is not a setting and is ignored" + (f"; did you mean {PREFIX}{close[0]}?" if close else "")
