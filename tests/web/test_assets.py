import ast
import json
import shutil
import sys
from pathlib import Path

import pytest

from core.paths import CHECKOUT
from web import assets


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout whose browser files are there."""
    if not assets.up_to_date(CHECKOUT):
        assets.ensure(CHECKOUT, log=lambda text: None)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(CHECKOUT / name, tmp_path)
    shutil.copytree(assets.vendor_dir(CHECKOUT), assets.vendor_dir(tmp_path))
    return tmp_path


@pytest.fixture
def no_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(assets.importlib.util, "find_spec", lambda name: None)


def test_complete_files_need_nothing(root: Path, no_npm: None) -> None:
    told: list[str] = []
    assets.ensure(root, log=told.append)
    assert told == ["browser files are up to date"]
    assert assets.build_requirements(root) == []
    assert assets.main(["--check"], root) == 0


@pytest.mark.parametrize("name", [*assets.FILES, "manifest.json"])
def test_a_missing_or_changed_file_is_noticed(root: Path, name: str) -> None:
    path = assets.vendor_dir(root) / name
    path.write_bytes(path.read_bytes() + b" ")
    changed = assets.up_to_date(root) if name != "manifest.json" else False
    path.unlink()
    assert not changed
    assert not assets.up_to_date(root)
    assert assets.main(["--check"], root) == 1


def test_another_lock_file_makes_them_stale(root: Path) -> None:
    lock = root / "package-lock.json"
    lock.write_text(lock.read_text("utf-8") + "\n", "utf-8")
    assert not assets.up_to_date(root)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}', '{"files": {}, "stamp": "x"}', "\x00"])
def test_a_broken_manifest_is_no_manifest(root: Path, text: str) -> None:
    (assets.vendor_dir(root) / "manifest.json").write_text(text, "utf-8")
    assert not assets.up_to_date(root)


def test_without_npm_a_build_asks_for_node_and_a_run_says_what_to_do(
    root: Path, no_npm: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (assets.vendor_dir(root) / assets.BUNDLE).unlink()
    assert assets.build_requirements(root) == [assets.NODE_REQUIREMENT]
    assert assets.main([], root) == 1
    assert "pip install" in capsys.readouterr().err


def test_a_failing_npm_leaves_the_old_files_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = root / "package-lock.json"
    lock.write_text(lock.read_text("utf-8") + "\n", "utf-8")
    fails = [sys.executable, "-c", "import sys; sys.exit('no network')"]
    monkeypatch.setattr(assets, "_npm_command", lambda: fails)
    with pytest.raises(assets.AssetsError, match="no network"):
        assets.ensure(root)
    assert (assets.vendor_dir(root) / assets.BUNDLE).is_file()


def test_the_bundle_holds_both_scripts_and_its_licence_comes_along(root: Path) -> None:
    bundle = (assets.vendor_dir(root) / assets.BUNDLE).read_text("utf-8")
    assert "hx-sse" in bundle
    assert "Zero-Clause BSD" in (assets.vendor_dir(root) / "htmx.LICENSE").read_text("utf-8")


def test_one_dependency_is_pinned_exactly_and_by_hash() -> None:
    lock = json.loads((CHECKOUT / "package-lock.json").read_text("utf-8"))
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert set(packages) == {"node_modules/htmx.org"}
    entry = packages["node_modules/htmx.org"]
    assert entry["integrity"].startswith("sha512-")
    assert "resolved" not in entry
    wanted = json.loads((CHECKOUT / "package.json").read_text("utf-8"))["dependencies"]
    assert wanted == {"htmx.org": entry["version"]}


def test_the_module_needs_the_standard_library_alone() -> None:
    tree = ast.parse((CHECKOUT / "web" / "assets.py").read_text("utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
