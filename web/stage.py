"""The gateway inside the process of the demo or the bench: the same app as `serve` runs, on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from core.config import Settings
from core.runtime import Runtime
from web.app import create_app
from web.serving import Server, listen, locked, prepare_folder, server_config, url_of

GRACE_S = 1


@dataclass(frozen=True, slots=True)
class Stage:
    """A running gateway: where it listens, its inside, and whether a signal asked it to stop."""

    address: str
    runtime: Runtime
    stopped: asyncio.Event


@asynccontextmanager
async def gateway(settings: Settings) -> AsyncIterator[Stage]:
    """Run the gateway of `settings` for as long as the context lasts. Raises ConfigError, as `serve` does.

    Ctrl-C is taken meanwhile: it sets `stopped`, and the owner is to leave the context.
    """
    loop, ready, stopped = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    with locked(prepare_folder(settings)), listen(settings.host, settings.port) as bound:
        app = create_app(settings)
        server = Server(
            server_config(app.entrance, GRACE_S),
            on_ready=ready.set,
            on_stop=lambda: loop.call_soon_threadsafe(stopped.set),
        )
        async with app.router.lifespan_context(app):
            serving = asyncio.create_task(server.serve(sockets=[bound]), name="gateway")
            await ready.wait()
            try:
                yield Stage(url_of(bound), app.state.runtime, stopped)
            finally:
                _end_streams(app.state)
                server.should_exit = True
                await serving


async def play(stage: Stage, *acts: Coroutine[Any, Any, None], seconds: float | None = None) -> None:
    """Run `acts` until one of them ends, `seconds` are over or a signal asked to stop; then cancel the others.

    Raises what an act raises.
    """
    tasks = [asyncio.create_task(act) for act in acts]
    stopped = asyncio.create_task(stage.stopped.wait(), name="stopped")
    try:
        await asyncio.wait({*tasks, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, stopped):
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


def _end_streams(state: object) -> None:
    hub = getattr(state, "hub", None)
    if hub is not None:
        hub.close()
