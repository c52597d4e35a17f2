"""Real servers for tests: uvicorn in a thread on a free port, and Tidegate in front of a simulated model server."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import structlog
import uvicorn
from starlette.applications import Starlette

from core.config import Settings
from core.runtime import Runtime
from web import mock_server
from web.app import create_app
from web.edges import EdgeProtocol

DEADLINE_S = 20.0
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def until(condition: Callable[[], Any], seconds: float = DEADLINE_S) -> Any:
    """Poll until `condition()` is true and return what it returned; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "this never came true"
        time.sleep(0.01)
    return value


@contextmanager
def log_lines() -> Iterator[list[Any]]:
    """Collect what is logged, at any level, whatever another test has configured."""
    before = structlog.get_config()
    structlog.reset_defaults()
    try:
        with structlog.testing.capture_logs() as lines:
            yield lines
    finally:
        structlog.configure(**before)


@contextmanager
def running(app: Any, *, lifespan: str = "on") -> Iterator[str]:
    """Serve `app` for as long as the context lasts; yields its address."""
    config = uvicorn.Config(
        getattr(app, "entrance", app),
        interface="asgi3",
        port=0,
        log_level="critical",
        lifespan=lifespan,  # type: ignore[arg-type]  # "on" and "off" are
        http=EdgeProtocol,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive())
    assert server.started
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@dataclass
class Gate:
    """Tidegate at `url`, in front of the simulated server at `model`."""

    url: str
    model: str
    app: Starlette

    @property
    def runtime(self) -> Runtime:
        """The running gateway's inside, for reading only."""
        runtime: Runtime = self.app.state.runtime
        return runtime

    def chat(self, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx2.Response:
        """Send one chat call and return its whole answer."""
        return httpx2.post(f"{self.url}/v1/chat/completions", json=CHAT | fields, headers=headers, timeout=DEADLINE_S)

    def sim(self, **fields: Any) -> dict[str, Any]:
        """Change the simulated server, if fields are given, and return what it tells of itself."""
        if fields:
            httpx2.post(f"{self.model}/sim", json=fields).raise_for_status()
        told: dict[str, Any] = httpx2.get(f"{self.model}/sim").json()
        return told

    def pool(self, name: str = "default") -> dict[str, Any]:
        """Return the pool as the operator API tells it."""
        told: dict[str, Any] = httpx2.get(f"{self.url}/api/pools/{name}").json()
        return told

    def change(self, name: str = "default", **fields: Any) -> httpx2.Response:
        """PATCH the pool, whatever its version."""
        return httpx2.patch(f"{self.url}/api/pools/{name}", json=fields, headers={"if-match": "*"})


@contextmanager
def gate(folder: Path, *, speed: float = 20.0, engine: dict[str, Any] | None = None, **settings: Any) -> Iterator[Gate]:
    """Run Tidegate in front of a simulated model server, both over real sockets."""
    folder.mkdir(exist_ok=True)
    with running(mock_server.create_app(speed=speed, **(engine or {})), lifespan="off") as model:
        given = {"upstream": model, "data": folder, "tick": 0.5, **settings}
        if "pools" in given:
            del given["upstream"]
        app = create_app(Settings(**given))
        with running(app) as url:
            yield Gate(url, model, app)
