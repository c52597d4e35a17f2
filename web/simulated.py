"""The simulated model server as a process of its own, beside a gateway that has no other upstream."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

from core.simulation.engine import EngineSettings
from web import serving
from web.mock_server import create_app

PATIENCE_S = 3.0


@contextlib.contextmanager
def simulated_upstream(*, slots: int, speed: float = 1.0) -> Iterator[str]:
    """Run a simulated server that takes `slots` requests at once; yield its base URL; stop it at the end.

    It listens before it has started, so no request meets a closed port. It is in a session of its own, so that Ctrl-C
    reaches it through its owner alone, and stops when its owner is gone, however that ended.
    """
    with serving.listen("127.0.0.1", 0) as bound:
        address = serving.url_of(bound)
        child = _start(bound.fileno(), slots, speed)
    try:
        yield f"{address}/v1"
    finally:
        _stop(child)


def _start(handle: int, slots: int, speed: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "web.cli", "mock-server", "--handle", str(handle), "--slots", str(slots)]
    command += ["--speed", str(speed)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(handle,), start_new_session=True)  # nosec B603


def _stop(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def run_mock_server(
    *, host: str, port: int, slots: int, speed: float, handle: int | None, on_ready: Callable[[str], object]
) -> None:
    """Serve an engine that runs `slots` sequences at once, `speed` times as fast as real, until a signal to stop.

    With `handle`, the socket of an owner is served instead of `host` and `port`, until the owner closes its end of
    standard input. Raises ConfigError where the address cannot be listened on.
    """
    if handle is not None:
        threading.Thread(target=_stop_with_owner, name="owner", daemon=True).start()
    with socket.socket(fileno=handle) if handle is not None else serving.listen(host, port) as bound:
        address = serving.url_of(bound)
        simulated = create_app(engine=EngineSettings(max_sequences=slots), speed=speed, slots=slots)
        serving.run_to_end(serving.run_app(simulated, bound, grace_s=1, on_ready=lambda: on_ready(address)))


def _stop_with_owner() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
