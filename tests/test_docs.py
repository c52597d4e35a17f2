"""What the documents say is true."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from core.config import KeyConfig, PoolConfig, PoolTuning, Settings
from core.paths import CHECKOUT
from tests.servers import gate
from web.cli import app

README = (CHECKOUT / "README.md").read_text("utf-8")
CLIENT_VARIABLES = {"URL", "API_KEY"}
"""Read by `tidegate batch`, which is a client of some server."""
ROWS = {row.split("`")[1]: row for row in README.splitlines() if row.startswith("| `")}


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any, str | None]]:
    """Each setting's dotted name, default and description."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            for inner, nested in type(field.default).model_fields.items():
                yield f"{prefix}{name}.{inner}", getattr(field.default, inner), nested.description
        else:
            yield f"{prefix}{name}", field.default, field.description


@pytest.mark.parametrize("setting", list(settings_of(Settings)), ids=lambda setting: setting[0])
def test_every_setting_stands_in_the_readme_with_variable_default_and_meaning(
    setting: tuple[str, Any, str | None],
) -> None:
    name, default, description = setting
    row = ROWS[name]
    assert f"`TIDEGATE_{name.replace('.', '__').upper()}`" in row
    assert description
    assert row.endswith(f"| {description} |")
    if isinstance(default, bool | str):
        assert row.split("|")[3].strip(" `") == str(default).lower()
    elif isinstance(default, int | float):
        assert row.split("|")[3].strip() == f"{default:.10g}"


@pytest.mark.parametrize("model", [PoolConfig, KeyConfig])
def test_every_setting_of_pools_and_keys_stands_in_the_readme(model: type[BaseModel]) -> None:
    own = [name for name in model.model_fields if name not in PoolTuning.model_fields]
    assert [name for name in own if name not in ROWS] == []


def test_no_setting_of_the_readme_is_made_up() -> None:
    named = set(re.findall(r"`TIDEGATE_(\w+)`", README)) | set(re.findall(r"\bTIDEGATE_(\w+)=", README))
    known = {name.replace(".", "__").upper() for name, _, _ in settings_of(Settings)}
    assert named - known - CLIENT_VARIABLES == set()


def test_every_command_stands_in_the_readme() -> None:
    alone = {name for name in commands_of(app) if " " not in name}
    told = {row.removeprefix("tidegate ").split(" --")[0] for row in ROWS if row.startswith("tidegate ")}
    assert alone <= told <= set(commands_of(app))
    for name in commands_of(app):
        assert f"tidegate {name}" in README, name


def commands_of(of: typer.Typer, prefix: str = "") -> Iterator[str]:
    """Each command, those of groups after the group's name."""
    for command in of.registered_commands:
        yield f"{prefix}{command.name or (command.callback.__name__ if command.callback else '')}"
    for group in of.registered_groups:
        inner = group.typer_instance
        if inner is not None:
            yield from commands_of(inner, f"{prefix}{inner.info.name} ")


def test_every_metric_stands_in_the_readme_with_its_labels_and_no_other(tmp_path: Path) -> None:
    with gate(tmp_path / "data") as running:
        running.chat()
        text = httpx2.get(f"{running.url}/metrics").text
    served = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        if not name.endswith("_created"):
            served[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    documented = {name: row for name, row in ROWS.items() if name.startswith("tidegate_")}
    assert set(documented) == set(served)
    for name, labels in served.items():
        assert labels <= set(re.findall(r"\w+", documented[name].split("|")[3])), name


def test_the_locks_name_no_address() -> None:
    for lock in sorted(CHECKOUT.glob("requirements*.lock")):
        assert "://" not in lock.read_text("utf-8"), lock.name


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
