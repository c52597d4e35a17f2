"""Draws templates. Each is given one dataclass (web.contexts); everything is escaped."""

import dataclasses
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from core import wording
from core.paths import STATIC, TEMPLATES
from core.people.identity import ASKING
from core.people.permissions import Action, may
from web.contexts import Context


@cache
def environment() -> Environment:
    """Return the one Jinja environment: autoescape on, an unknown name is an error."""
    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals["asset"] = asset
    env.globals["words"] = wording
    env.globals["may"] = may_visitor
    return env


def render(context: Context) -> str:
    """Return the template of `context`, drawn."""
    values: dict[str, Any] = {field.name: getattr(context, field.name) for field in dataclasses.fields(context)}
    if context.variable:
        values = {context.variable: context}
    return environment().get_template(context.template).render(values)


def may_visitor(action: str) -> bool:
    """Tell whether who looks at the page may do this; what he may not is not shown."""
    return may(ASKING.get(), Action(action))


@cache
def asset(name: str) -> str:
    """Return the address of a static file, with its digest, so that browsers may keep it for ever."""
    return f"/static/{name}?v={_digest(STATIC / name)}"


def has_bundle() -> bool:
    """Tell whether the browser files were built; without them the pages work as plain forms."""
    return (STATIC / "vendor" / "htmx-bundle.js").is_file()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]
