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


def tampered(data: Path, copy: Path, statements: str) -> None:
    """Make a copy of the data in which somebody who can get round the triggers did something."""
    copy.mkdir()
    original, target = sqlite3.connect(data / "tidegate.db"), sqlite3.connect(copy / "tidegate.db")
    original.backup(target)
    for kind in ("update", "delete", "replace"):
        target.execute(f"DROP TRIGGER audit_no_{kind}")
    target.executescript(statements)
    original.close()
    target.close()


LAST = "(SELECT max(number) FROM audit)"
FORGED = "SELECT {}, at, 'mallory', action, target, before, after, reason, way, hash, hash FROM audit WHERE number ="


@pytest.mark.parametrize(
    ("statements", "fault"),
    [
        ("UPDATE audit SET reason = 'nothing to see here' WHERE number = 2", "entry 2 was changed"),
        ("DELETE FROM audit WHERE number = 2", "entry 2 is missing"),
        ("DELETE FROM audit WHERE number = 1", "entry 1 is missing"),
        (f"DELETE FROM audit WHERE number = {LAST}", "is missing (the last one written is entry"),
        ("DELETE FROM audit", "entry 1 is missing"),
        (f"INSERT INTO audit {FORGED.format('number + 1')} {LAST}", "was changed after it was written"),
        (f"INSERT INTO audit {FORGED.format('0')} 1", "entry 1 is missing (entry 0"),
        (f"INSERT INTO audit {FORGED.format('-7')} 1", "entry 1 is missing (entry -7"),
        ("DELETE FROM audit_head", "entry 1 was added by hand (the last one written is entry 0)"),
        ("UPDATE audit_head SET number = 1", "entry 2 was added by hand (the last one written is entry 1)"),
        ("UPDATE audit_head SET hash = 'x'", "is not the one that was written last"),
    ],
)
def test_a_trail_that_was_tampered_with_names_the_first_broken_entry(
    data: Path, tmp_path: Path, statements: str, fault: str
) -> None:
    tampered(data, tmp_path / "data", statements)
    done = run(tmp_path / "data", "verify")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("The audit trail was tampered with: ")
    assert fault in done.stderr


def test_a_trail_cut_at_its_end_with_its_head_is_known_by_the_hash_of_an_earlier_run(
    data: Path, tmp_path: Path
) -> None:
    known = run(data, "verify").stdout.split()[-1].rstrip(".")
    assert run(data, "verify", "--known", known.upper()).returncode == 0
    cut = f"""
        DELETE FROM audit WHERE number = {LAST};
        UPDATE audit_head SET number = {LAST}, hash = (SELECT hash FROM audit WHERE number = {LAST});
    """
    tampered(data, tmp_path / "data", cut)
    assert run(tmp_path / "data", "verify").returncode == 0
    done = run(tmp_path / "data", "verify", "--known", known)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"The audit trail was tampered with: no entry has the hash {known} any more.\n"


def test_an_empty_trail_is_sound(tmp_path: Path) -> None:
    done = run(tmp_path / "data", "verify")
    assert done.returncode == 0
    assert done.stdout.startswith("0 entries")
