"""Looks for known vulnerabilities in the locked versions. Leaves with 1 where one is found, and with 0 otherwise: that
the advisory service cannot be reached, or does not know a package, is said and is no fault of the code."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = "requirements.lock"
PATIENCE_S = 300


def ask() -> str | None:
    """Return what pip-audit tells of the lock, as JSON; `None` where it cannot tell."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", LOCK, "--disable-pip", "--format", "json"]
    command += ["--progress-spinner", "off", "--timeout", "10"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.stdout.strip() else None


def verdict(told: str | None) -> tuple[int, list[str]]:
    """Return the exit status and what to say."""
    if told is None:
        return 0, ["Nothing was audited: the advisory service cannot be reached from here."]
    packages: list[dict[str, Any]] = json.loads(told)["dependencies"]
    found = [
        f"{package['name']} {package['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'none'}"
        for package in packages
        for flaw in package.get("vulns", ())
    ]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if found:
        return 1, ["Known vulnerabilities:", *found]
    if len(skipped) == len(packages):
        return 0, ["Nothing was audited: the advisory service that answers here knows none of the locked packages."]
    unknown = f"; it knows nothing of {', '.join(skipped)}" if skipped else ""
    return 0, [f"No known vulnerability in {len(packages) - len(skipped)} locked packages{unknown}."]


if __name__ == "__main__":
    status, lines = verdict(ask())
    print("\n".join(lines))
    raise SystemExit(status)
