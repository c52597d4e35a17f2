"""Runs the gateway as a process: its folder, its lock, its socket, its server and its end."""

import asyncio
import contextlib
import errno
import gc
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType

import structlog
import uvicorn
from filelock import FileLock, Timeout
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.server import HANDLED_SIGNALS

from core.addresses import is_loopback
from core.config import Settings
from core.entrance import Doors
from core.errors import ConfigError, TidegateError
from web.edges import protocol_with

KEEP_ALIVE_S = 75
BACKLOG = 2048
THREADS_END_S = 0.5
# Before the server breaks off what still runs, which then can be told nothing.
LAST_WORDS_S = 0.3
COLLECTOR_THRESHOLDS = (20_000, 10, 20)
LOCK_NAME = "tidegate.lock"

log = structlog.get_logger(__name__)


def refuse_exposure(settings: Settings, doors: Doors) -> None:
    """Raise ConfigError where Tidegate would be reachable from other machines although nobody has to sign in.

    With `insecure` it is said loudly instead.
    """
    if doors.guarded or is_loopback(settings.host):
        return
    lacking = " and ".join(
        [*(["an admin account"] if not doors.admin else []), *(["an API key"] if not doors.keys else [])]
    )
    if not settings.insecure:
        commands = ["`tidegate accounts create NAME --role admin`"] if not doors.admin else []
        commands += ["`tidegate keys create --tenant TEAM --name NAME`"] if not doors.keys else []
        raise ConfigError(
            f"host = {settings.host!r}: reachable beyond this machine while there is no {lacking.removeprefix('an ')}; "
            f"make one with {' and '.join(commands)}, keep 127.0.0.1, or add --insecure if you mean it"
        )
    may = "call the models" if doors.admin else "see and change everything here" + ("" if doors.keys else ", and call")
    log.warning(f"INSECURE: whoever reaches {settings.host} may {may} without signing in; make {lacking}")


def look_at_doors(settings: Settings, *, set_up: bool) -> Doors | None:
    """Return what guards a gateway that other machines reach, or for which a set-up link is asked; else `None`."""
    if is_loopback(settings.host) and not set_up:
        return None
    from core.runtime import doors

    found: list[Doors] = []

    async def look() -> None:
        found.append(await doors(settings, set_up=set_up or settings.insecure))

    run_to_end(look())
    return found[0]


def prepare_folder(settings: Settings) -> Path:
    """Make the data folder, for this user alone, and return it. Raises ConfigError."""
    folder = settings.data.absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / LOCK_NAME).touch(mode=0o600)
    except OSError as error:
        fault = error.strerror or "not usable"
        raise ConfigError(f"data = {str(settings.data)!r}: {fault}; choose a folder to write in with --data") from None
    return folder


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the data folder against any other process. Raises ConfigError where one has it."""
    lock = FileLock(folder / LOCK_NAME)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"data = {str(folder)!r}: another Tidegate is running on it; stop that one or choose another --data"
        ) from None
    try:
        yield
    finally:
        lock.release()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the address; who connects before the server runs waits. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"host = {host!r}: {error.strerror}; give an address of this machine") from None
    except ValueError:
        raise ConfigError(f"host = {host!r}: can be no host's name; give an address of this machine") from None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise ConfigError(_bind_fault(host, port, error)) from None
    return bound


def _bind_fault(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port = {port}: is in use on {host}; stop what listens there or choose another with --port"
    if error.errno == errno.EACCES:
        return f"port = {port}: needs more rights than this user has; choose one above 1023 with --port"
    return f"host = {host!r}: cannot be listened on ({error.strerror}); give an address of this machine"


def url_of(bound: socket.socket) -> str:
    """Return the http address of a listening socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_open_files() -> None:
    """Let the process open as many files, hence connections, as the machine allows it."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Server(uvicorn.Server):
    """uvicorn's server that tells when it is ready and when it was asked to stop, and leaves the end to its owner.

    uvicorn's own raises the captured signal again after the last request, which would kill the process before the
    runtime has stopped.
    """

    def __init__(
        self, config: uvicorn.Config, *, on_ready: Callable[[], object], on_stop: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections, then say so."""
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop taking requests and end the streams that would never end."""
        super().handle_exit(sig, frame)
        self._on_stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals to stop for as long as the context lasts."""
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def run_app(
    app: Starlette,
    bound: socket.socket,
    *,
    entrance: ASGIApp | None = None,
    grace_s: int = 5,
    stall: float = 30.0,
    on_ready: Callable[[], object] = lambda: None,
) -> None:
    """Serve `app` on the listening socket `bound` until a signal to stop; running answers get `grace_s` seconds to end.

    Requests come in at its `entrance`, where it has one. The app's own start and stop run here, so that what they raise
    reaches the caller as it is.
    """
    loop = asyncio.get_running_loop()

    def wind_up() -> None:
        hub, runtime = getattr(app.state, "hub", None), getattr(app.state, "runtime", None)
        if hub is not None:
            hub.close()
        if runtime is not None:
            runtime.wind_up(waiting_only=True)
            loop.call_later(max(0.0, grace_s - LAST_WORDS_S), lambda: runtime.wind_up(waiting_only=False))

    server = Server(
        server_config(entrance or app, grace_s, stall=stall),
        on_ready=on_ready,
        on_stop=lambda: loop.call_soon_threadsafe(wind_up),
    )
    with server.capture_signals():
        async with contextlib.AsyncExitStack() as running:
            await _start(app, running)
            await server.serve(sockets=[bound])


async def _start(app: Starlette, running: contextlib.AsyncExitStack) -> None:
    """Start what the app runs. Raises ConfigError, in one line, whatever the fault: a database that is down, say."""
    try:
        await running.enter_async_context(app.router.lifespan_context(app))
    except TidegateError:
        raise
    except Exception as error:
        log.debug("the start failed", exc_info=error)
        fault = next(iter(str(error).splitlines()), "")
        raise ConfigError(f"cannot start: {type(error).__name__}: {fault} (more with --log-level debug)") from None


def server_config(app: ASGIApp, grace_s: int, *, stall: float = 30.0) -> uvicorn.Config:
    """Return how uvicorn serves `app`; its logs go where all logs go. Clients that stall for so long are cut off."""
    return uvicorn.Config(
        app,
        interface="asgi3",
        http=protocol_with(stall),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=BACKLOG,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
    )


def rest_the_collector() -> None:
    """Let the garbage collector leave alone what the start made, and look less often at what requests leave behind.

    Requests leave next to no cycles; as it comes the collector takes a third of the processor, going through all that
    was imported again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def run_to_end(main: Coroutine[None, None, None]) -> None:
    """Run `main` on the fastest event loop that this machine has; what it raises comes out."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(main)
        except TidegateError:
            _let_threads_end()
            raise


def _let_threads_end() -> None:
    """Give the threads of connections that failed the time to say so to the loop, before it closes under them."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(THREADS_END_S)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    if sys.platform == "win32":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


def serve(
    settings: Settings,
    *,
    on_ready: Callable[[str], object],
    set_up: bool = False,
    on_set_up: Callable[[str], object] = lambda link: None,
) -> None:
    """Run the gateway until it is told to stop; `on_ready` gets its address. Raises ConfigError.

    `on_set_up` gets the one-time link that makes the first admin: at the first start, where `set_up` asks for it, and
    where anybody could come in.
    """
    _ = settings.pool_configs
    raise_open_files()
    set_up = set_up or not (settings.data / LOCK_NAME).exists()
    with contextlib.ExitStack() as held:
        held.enter_context(locked(prepare_folder(settings)))
        doors = look_at_doors(settings, set_up=set_up)
        if doors is not None:
            refuse_exposure(settings, doors)
        bound = held.enter_context(listen(settings.host, settings.port))
        from web.app import create_app

        address = url_of(bound)
        app = create_app(settings)

        def ready() -> None:
            rest_the_collector()
            on_ready(address)
            if doors is not None and doors.set_up is not None:
                on_set_up(f"{settings.public_url or address}/setup?token={doors.set_up}")

        run_to_end(
            run_app(
                app,
                bound,
                entrance=app.entrance,
                grace_s=settings.shutdown_grace,
                stall=settings.client_stall,
                on_ready=ready,
            )
        )
