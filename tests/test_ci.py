"""The audit of the locked versions: fails for a vulnerability, and for nothing that is no fault of ours."""

import importlib.util
import json
from types import ModuleType
from typing import Any

import pytest

from core.paths import CHECKOUT

FLAW = {"id": "PYSEC-2026-1", "fix_versions": ["2.0"], "aliases": [], "description": ""}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_audit", CHECKOUT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


SOUND = {"name": "a", "version": "1.0", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "not found"}
BAD = {"name": "c", "version": "1.9", "vulns": [FLAW]}


@pytest.mark.parametrize(
    ("answer", "status", "line"),
    [
        (None, 0, "Nothing was audited: the advisory service cannot be reached from here."),
        (told(SKIPPED), 0, "Nothing was audited: the advisory service that answers here knows none of"),
        (told(SOUND), 0, "No known vulnerability in 1 locked packages."),
        (told(SOUND, SKIPPED), 0, "No known vulnerability in 1 locked packages; it knows nothing of b."),
        (told(SOUND, BAD), 1, "c 1.9: PYSEC-2026-1, mended in 2.0"),
    ],
)
def test_the_verdict_says_what_was_found_and_what_was_not_looked_at(
    audit: ModuleType, answer: str | None, status: int, line: str
) -> None:
    given, lines = audit.verdict(answer)
    assert given == status
    assert lines[-1].startswith(line)
