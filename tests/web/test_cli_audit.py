"""`tidegate audit` as a person meets it: real processes, their output and exit status."""

import csv
import io
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import gate

COMMAND = [sys.executable, "-m", "web.cli", "audit"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which changes were made."""
    folder = tmp_path_factory.mktemp("run") / "data"
    with gate(folder) as running:
        for n, ceiling in enumerate((6, 5, 4)):
            assert running.change(ceiling=ceiling, reason=f"step {n}").status_code == 200
    return folder


def run(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    given = [*COMMAND, *arguments, "--data", str(data)]
    return subprocess.run(given, capture_output=True, text=True, timeout=60, check=False)


def test_a_sound_trail_is_told_with_its_last_hash(data: Path) -> None:
    done = run(data, "verify")
    assert (done.returncode, done.stderr) == (0, "")
    database = sqlite3.connect(data / "tidegate.db")
    [(count, last)] = database.execute("SELECT number, hash FROM audit_head").fetchall()
    database.close()
    assert done.stdout == f"{count} entries, each as it was written. The last hash is {last}.\n"
    assert count >= 3


def test_the_export_is_the_whole_trail_oldest_first_as_csv_and_json(data: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(data, "export").stdout)))
    assert [row["reason"] for row in rows if row["action"].startswith("pool.")] == ["step 0", "step 1", "step 2"]
    assert [row["number"] for row in rows] == [str(n + 1) for n in range(len(rows))]
    lines = [json.loads(line) for line in run(data, "export", "--json").stdout.splitlines()]
    assert [line["hash"] for line in lines] == [row["hash"] for row in rows]
    assert run(data, "export", "--json", "--csv").returncode == 2


def test_a_trail_that_was_tampered_with_names_the_first_broken_entry(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    copy.mkdir()
    with sqlite3.connect(data / "tidegate.db") as original, sqlite3.connect(copy / "tidegate.db") as target:
        original.backup(target)
        target.execute("DROP TRIGGER audit_no_update")
        target.execute("UPDATE audit SET reason = 'nothing to see here' WHERE number = 2")
    original.close()
    target.close()
    done = run(copy, "verify")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "The audit trail was tampered with: entry 2 was changed after it was written.\n"


def test_an_empty_trail_is_sound(tmp_path: Path) -> None:
    done = run(tmp_path / "data", "verify")
    assert done.returncode == 0
    assert done.stdout.startswith("0 entries")
