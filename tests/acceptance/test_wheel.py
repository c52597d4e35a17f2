"""The wheel, installed in a clean environment and run from another folder."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import httpx2
import pytest

from core.paths import CHECKOUT
from tests.processes import PATIENCE_S, Program
from tests.servers import CHAT


def run(*command: str | Path, cwd: Path = CHECKOUT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out)
    (built,) = out.glob("tidegate-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and, by reference, the libraries of this one, but nothing of the checkout."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return folder


def test_the_wheel_holds_all_that_runs_and_nothing_at_a_top_level_of_its_own(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"core", "web"}
    assert "core/migrations/env.py" in names
    assert any(name.startswith("core/migrations/versions/0001_") for name in names)
    assert not any(name.startswith("core/migrations/") and name.endswith("__init__.py") for name in names)
    for wanted in ("web/templates/base.html", "web/static/app.css", "web/static/vendor/htmx-bundle.js"):
        assert wanted in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_it_finds_its_files_beside_the_package(installed: Path, tmp_path: Path) -> None:
    code = "import core.paths as p; print(p.STATIC, p.TEMPLATES, p.MIGRATIONS, sep='\\n')"
    for line in run(installed / "bin" / "python", "-I", "-c", code, cwd=tmp_path).splitlines():
        assert Path(line).is_relative_to(installed)
        assert Path(line).is_dir()


def test_it_serves_pages_files_and_requests_from_another_folder(installed: Path, tmp_path: Path) -> None:
    program = Program((str(installed / "bin" / "tidegate"),), {})
    with program.serving(tmp_path, "serve", "--simulate", "--port", "0") as running:
        page = httpx2.get(f"{running.url}/")
        assert page.status_code == 200
        assert "Tidegate" in page.text
        assert httpx2.get(f"{running.url}/static/app.css").status_code == 200
        answer = httpx2.post(f"{running.url}/v1/chat/completions", json=CHAT | {"max_tokens": 2}, timeout=PATIENCE_S)
        assert answer.status_code == 200
        stopped = running.stop()
    assert (stopped.status, stopped.err) == (0, "")
    assert (tmp_path / "data" / "tidegate.db").exists()
