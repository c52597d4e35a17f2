"""Tidegate's commands as real processes."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from core.paths import CHECKOUT
from tests.servers import until

PATIENCE_S = 60.0
ADDRESS = re.compile(r"(?:OpenAI API  |ready: )(http://\S+)/v1\n")


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Running:
    """A command that serves; `url` is where, `folder` holds what it writes."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path

    def stop(self, number: signal.Signals = signal.SIGTERM) -> Outcome:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE_S)
        return Outcome(status, (self.folder / "out").read_text(), (self.folder / "err").read_text())


@dataclass(frozen=True)
class Program:
    """The command line: of the checkout, or of an installed package. No setting of this process reaches it."""

    command: tuple[str, ...] = (sys.executable, "-m", "web.cli")
    variables: dict[str, str] = field(default_factory=lambda: {"PYTHONPATH": str(CHECKOUT)})

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment in which it runs."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "PYTHONPATH"))}
        return {**kept, **self.variables, **more}

    def run(self, folder: Path, *arguments: str, **variables: str) -> Outcome:
        """Run a command in `folder` to its end."""
        done = subprocess.run(
            [*self.command, *arguments],
            cwd=folder,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def serving(self, folder: Path, *arguments: str, **variables: str) -> Iterator[Running]:
        """Run a command in `folder` that serves, until it says where; kill it in the end if it still runs."""
        with tempfile.TemporaryDirectory() as kept:
            written = Path(kept)
            with (written / "out").open("wb") as out, (written / "err").open("wb") as err:
                process = subprocess.Popen(
                    [*self.command, *arguments], cwd=folder, env=self.environment(**variables), stdout=out, stderr=err
                )
            try:
                yield Running(process, until(lambda: _address(process, written), PATIENCE_S), written)
            finally:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], written: Path) -> str | None:
    assert process.poll() is None, (written / "err").read_text()
    found = ADDRESS.search((written / "out").read_text())
    return found[1] if found else None
