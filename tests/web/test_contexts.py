"""One dataclass per template: each names exactly what its template uses."""

import dataclasses
import re

import pytest
from jinja2 import meta, nodes

from core.paths import TEMPLATES
from web import audit_contexts, batch_contexts, contexts, people_contexts, schedule_contexts, webhook_contexts
from web.contexts import Context, Shell
from web.templating import environment

GLOBALS = {"asset", "may", "words"}


MODULES = (contexts, audit_contexts, batch_contexts, people_contexts, schedule_contexts, webhook_contexts)
MADE = {each for module in MODULES for each in vars(module).values() if isinstance(each, type)}
CONTEXTS = sorted(
    (each for each in MADE if issubclass(each, Context) and each.template),
    key=lambda each: each.template,
)


def tree(template: str) -> nodes.Template:
    source, _, _ = environment().loader.get_source(environment(), template)  # type: ignore[union-attr]
    return environment().parse(source)


def closure(template: str) -> set[str]:
    """Return the templates that `template` extends or includes, with itself."""
    found = {template}
    for name in meta.find_referenced_templates(tree(template)):
        if name and not is_library(name):
            found |= closure(name)
    return found


def is_library(template: str) -> bool:
    return "{% macro" in (TEMPLATES / template).read_text("utf-8")


def names_used(template: str) -> set[str]:
    trees = [tree(each) for each in closure(template)]
    return set().union(*map(meta.find_undeclared_variables, trees)) - set().union(*map(names_made, trees)) - GLOBALS


def names_made(template: nodes.Template) -> set[str]:
    """Return what the template imports or sets by itself."""
    imported = {
        name[1] if isinstance(name, tuple) else name
        for node in template.find_all(nodes.FromImport)
        for name in node.names
    }
    assigned = {node.target.name for node in template.find_all(nodes.Assign) if isinstance(node.target, nodes.Name)}
    return imported | assigned


def attributes_used(template: str, variable: str) -> set[str]:
    own = {variable}
    return {
        node.attr
        for node in tree(template).find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name in own
    }


def test_every_template_but_the_libraries_and_the_base_has_a_dataclass() -> None:
    files = {path.name for path in TEMPLATES.glob("*.html")}
    assert {each.template for each in CONTEXTS} == {name for name in files if not is_library(name)} - {"base.html"}


@pytest.mark.parametrize("context", [c for c in CONTEXTS if issubclass(c, Shell)], ids=lambda c: c.template)
def test_a_page_uses_its_fields_and_no_other_name(context: type[Context]) -> None:
    fields = {field.name for field in dataclasses.fields(context)}
    inner = {each.variable for each in CONTEXTS if each.template in closure(context.template) and each.variable}
    assert names_used(context.template) - inner <= fields
    assert fields <= names_used(context.template)
    assert inner - fields <= {"preview", "cells"}


@pytest.mark.parametrize("context", [c for c in CONTEXTS if not issubclass(c, Shell)], ids=lambda c: c.template)
def test_a_partial_uses_the_fields_of_its_dataclass_and_no_other(context: type[Context]) -> None:
    assert context.variable in meta.find_undeclared_variables(tree(context.template))
    assert attributes_used(context.template, context.variable) == {f.name for f in dataclasses.fields(context)}


def test_contexts_are_frozen() -> None:
    made = [each for each in MADE if dataclasses.is_dataclass(each)]
    assert len(made) > 20
    assert all(re.search("frozen=True", repr(each.__dataclass_params__)) for each in made)  # type: ignore[attr-defined]
