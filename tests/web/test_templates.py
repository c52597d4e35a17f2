"""What no template may contain, because the content policy would refuse it or a person could slip something in."""

import re
from pathlib import Path

import pytest

from core.paths import STATIC, TEMPLATES

FILES = sorted(TEMPLATES.glob("*.html"))
BANNED = {
    "inline handler": r"\son\w+\s*=",
    "hx-on": r"hx-on",
    "js: expression": r"js:",
    "htmx filter": r"hx-trigger=\"[^\"]*\[",
    "style attribute": r"\sstyle\s*=",
    "style element": r"<style",
    "inline script": r"<script(?![^>]*\ssrc=)",
    "safe filter": r"\|\s*safe\b",
    "autoescape off": r"autoescape\s+false",
    "foreign address": r"(?:src|href|action)=\"(?:https?:)?//",
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_template_contains_what_is_banned(path: Path) -> None:
    text = path.read_text("utf-8")
    assert {name for name, pattern in BANNED.items() if re.search(pattern, text)} == set()


def test_the_search_would_find_them() -> None:
    planted = (
        '<p onclick="x" style="x" hx-on:click="x" hx-trigger="input[x]" hx-vals="js:{}"><script>x</script>'
        '<style></style>{{ x | safe }}{% autoescape false %}<img src="//evil">'
    )
    assert {name for name, pattern in BANNED.items() if re.search(pattern, planted)} == set(BANNED)


def test_every_button_names_its_type_and_every_post_form_its_action() -> None:
    for path in FILES:
        text = path.read_text("utf-8")
        assert all("type=" in tag for tag in re.findall(r"<button[^>]*>", text)), path.name
        assert all("action=" in tag for tag in re.findall(r"<form[^>]*method=\"post\"[^>]*>", text)), path.name


def test_pages_are_light() -> None:
    """Under 60 kB of JavaScript and 15 kB of style sheets, uncompressed."""
    scripts = [*STATIC.glob("*.js"), *(STATIC / "vendor").glob("*.js")]
    assert len(scripts) == 3
    assert sum(path.stat().st_size for path in scripts) < 60_000
    assert sum(path.stat().st_size for path in STATIC.glob("*.css")) < 15_000
