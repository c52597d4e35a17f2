"""One base for everything that runs in the background."""

import asyncio
from collections.abc import Coroutine

import structlog

log = structlog.get_logger(__name__)


class Service:
    """A background loop with a start and a stop.

    Holds: stop before start, and stopping twice, are legal; starting a running service is an error. `run` is the
    loop; if it raises, the service is dead, `failure` tells why, and it is logged once, here.
    """

    name = "service"

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    def run(self) -> Coroutine[None, None, None]:
        """Return the loop to run until it is cancelled."""
        raise NotImplementedError

    @property
    def running(self) -> bool:
        """Tell whether the loop is alive."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start the loop in a task named after the service."""
        if self.running:
            raise RuntimeError(f"{self.name} is already running")
        self._task = asyncio.get_running_loop().create_task(self._guarded(), name=self.name)

    async def stop(self) -> None:
        """Cancel the loop and wait until it is gone."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _guarded(self) -> None:
        try:
            await self.run()
        except Exception as error:
            self.failure = error
            log.exception("service died", service=self.name)
