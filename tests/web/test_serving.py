"""The process around the gateway: folder, lock, socket, signals."""

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from core.config import Settings
from core.entrance import Doors
from core.errors import ConfigError
from web import serving


def test_the_data_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = serving.prepare_folder(Settings(data=tmp_path / "a" / "b"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"data = '.*file/x': .*--data"):
        serving.prepare_folder(Settings(data=tmp_path / "file" / "x"))


def test_a_second_holder_of_the_data_folder_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with serving.locked(tmp_path), pytest.raises(ConfigError, match="another Tidegate"), serving.locked(tmp_path):
        pass
    with serving.locked(tmp_path):
        pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.7.7", "gate.example"])
def test_listening_beyond_loopback_needs_an_admin_and_a_key_or_the_word_insecure(host: str) -> None:
    for doors in (Doors(admin=False, keys=False), Doors(admin=True, keys=False), Doors(admin=False, keys=True)):
        with pytest.raises(ConfigError, match=r"host = .* make one with .*--insecure"):
            serving.refuse_exposure(Settings(host=host), doors)
        serving.refuse_exposure(Settings(host=host, insecure=True), doors)
        serving.refuse_exposure(Settings(host="127.0.0.1"), doors)
    serving.refuse_exposure(Settings(host=host), Doors(admin=True, keys=True))


def test_a_refusal_to_listen_names_what_is_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        serving.refuse_exposure(Settings(host="0.0.0.0"), Doors(admin=True, keys=False))
    assert "keys create" in str(caught.value)
    assert "accounts create" not in str(caught.value)


def test_a_port_in_use_is_named_with_the_mend() -> None:
    with serving.listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port = {port}: is in use .*--port"):
            serving.listen("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"host = '192\.0\.2\.1'"):
        serving.listen("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["a" * 70, "é..x", "a\0b"])
def test_a_host_that_no_name_can_be_is_refused_in_one_line(host: str) -> None:
    with pytest.raises(ConfigError, match=r"host = .* give an address of this machine$"):
        serving.listen(host, 0)


def test_an_address_is_written_as_a_browser_wants_it() -> None:
    with serving.listen("127.0.0.1", 0) as bound:
        assert serving.url_of(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"


class Probe:
    """An app with an endless stream, a hub that ends it, and a note of what happened."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.closed = asyncio.Event()
        self.app = Starlette(routes=[Route("/", self.index), Route("/stream", self.stream)], lifespan=self.lifespan)
        self.app.state.hub = self

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.notes.append("started")
        yield
        self.notes.append("stopped")

    async def index(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("here")

    async def stream(self, request: Request) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"open"
            await self.closed.wait()
            self.notes.append("stream ended")

        return StreamingResponse(pieces())

    def close(self) -> None:
        self.closed.set()


async def exchange(port: int, path: str, *, until: bytes) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    await reader.readuntil(until)
    return writer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_streams_then_the_app_then_returns(number: signal.Signals) -> None:
    async def scenario() -> list[str]:
        probe, ready = Probe(), asyncio.Event()
        bound = serving.listen("127.0.0.1", 0)
        port = bound.getsockname()[1]
        running = asyncio.create_task(serving.run_app(probe.app, bound, grace_s=30, on_ready=ready.set))
        await ready.wait()
        plain = await exchange(port, "/", until=b"here")
        stream = await exchange(port, "/stream", until=b"open")
        os.kill(os.getpid(), number)
        async with asyncio.timeout(20):
            await running
        plain.close()
        stream.close()
        return probe.notes

    before = signal.getsignal(number)
    assert asyncio.run(scenario()) == ["started", "stream ended", "stopped"]
    assert signal.getsignal(number) is before


def test_what_the_start_of_the_app_raises_reaches_the_caller() -> None:
    @asynccontextmanager
    async def broken(app: Starlette) -> AsyncIterator[None]:
        raise ConfigError("database = ...: wrong; mend it")
        yield

    with serving.listen("127.0.0.1", 0) as bound, pytest.raises(ConfigError, match="mend it"):
        serving.run_to_end(serving.run_app(Starlette(lifespan=broken), bound))
