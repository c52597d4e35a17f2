"""Starts what is measured, each as a process of its own, and reads what it costs from the kernel."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TICK = os.sysconf("SC_CLK_TCK")
DEADLINE_S = 30.0
NGINX = """
worker_processes 1;
worker_rlimit_nofile 65536;
pid {folder}/pid;
error_log {folder}/error.log;
daemon off;
events {{ worker_connections 32768; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    upstream stub {{ server 127.0.0.1:{stub}; keepalive 512; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://stub;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


class Missing(Exception):
    """A program is not installed."""


@dataclass(frozen=True)
class Target:
    """A running server: its port, and the process whose cost counts."""

    name: str
    port: int
    pid: int = 0

    def cpu_s(self) -> float:
        """The processor time that it has used, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def memory_bytes(self) -> int:
        """The memory that it holds now."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def only_child(pid: int) -> int:
    """Return the process that `pid` started: nginx's worker does the work, not its master."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    return int(folder.name)
        time.sleep(0.01)
    raise AssertionError(f"{pid} has no child")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until_listening(port: int, child: subprocess.Popen[Any]) -> float:
    """Wait until something listens; return the monotonic time."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        assert child.poll() is None, f"it ended with status {child.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return time.monotonic()
        time.sleep(0.005)
    raise AssertionError("it never listened")


def until_ready(port: int) -> None:
    """Wait until Tidegate says that it is ready."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with suppress(httpx2.TransportError):
            if httpx2.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return
        time.sleep(0.01)
    raise AssertionError("it was never ready")


@contextmanager
def running(*command: str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a process of ours for as long as the context lasts."""
    child = subprocess.Popen(command, **options)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def stub() -> Iterator[Target]:
    """The model server."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(4096)
        port, handle = bound.getsockname()[1], bound.fileno()
        with running(sys.executable, str(HERE / "stub.py"), str(handle), pass_fds=(handle,)) as child:
            yield Target("straight", port, child.pid)


@contextmanager
def nginx(behind: int) -> Iterator[Target]:
    """The anchor: nginx with one worker. Raises Missing where there is none."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise Missing("nginx")
    with tempfile.TemporaryDirectory() as folder:
        port, config = free_port(), Path(folder) / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, port=port, stub=behind))
        with running(program, "-c", str(config), "-p", folder, "-e", f"{folder}/error.log") as child:
            until_listening(port, child)
            yield Target("nginx", port, only_child(child.pid))


@contextmanager
def passthrough(behind: int) -> Iterator[Target]:
    """The anchor where nginx is missing: ASGI that forwards bytes and decides nothing."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "passthrough:app", "--app-dir", str(HERE), "--port", str(port)]
    options = ["--no-access-log", "--log-level", "critical", "--lifespan", "off"]
    with running(*command, *options, env=os.environ | {"STUB_PORT": str(behind)}) as child:
        until_listening(port, child)
        yield Target("bare ASGI", port, child.pid)


@contextmanager
def tidegate(behind: int, **settings: str) -> Iterator[Target]:
    """The gateway as `serve` runs it, with slots enough that nothing waits."""
    port = free_port()
    with tempfile.TemporaryDirectory() as data, ExitStack() as stack:
        given = {
            "TIDEGATE_UPSTREAM": f"http://127.0.0.1:{behind}/v1",
            "TIDEGATE_DATA": data,
            "TIDEGATE_SLOTS": "20000",
            "TIDEGATE_LOG_LEVEL": "error",
            **settings,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        command = [sys.executable, "-m", "web.cli", "serve", "--port", str(port)]
        child = stack.enter_context(
            running(*command, env=kept | given | {"PYTHONPATH": str(ROOT)}, cwd=data, stdout=subprocess.DEVNULL)
        )
        until_listening(port, child)
        until_ready(port)
        yield Target("Tidegate", port, child.pid)


def load(target: Target, **wanted: Any) -> dict[str, Any]:
    """Put load on a server and return what its clients measured."""
    command = [sys.executable, str(HERE / "client.py"), str(target.port), json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@contextmanager
def held_streams(target: Target, streams: int, gap: float) -> Iterator[None]:
    """Hold so many streams open, which get an event every `gap` seconds."""
    wanted = {"kind": "streams", "streams": streams, "chunks": 1_000_000, "gap": gap, "hold": True}
    command = [sys.executable, str(HERE / "client.py"), str(target.port), json.dumps(wanted)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdin is not None
        try:
            assert client.stdout.readline() == "open\n", "the streams did not open"
            yield
        finally:
            client.stdin.close()
            client.wait(30)
