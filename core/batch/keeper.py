"""Watches over all batches that are not ended: validates new ones, ends those that have to end."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from core.batch.closer import Closer
from core.batch.intake import Intake
from core.batch.values import Batch, BatchStatus
from core.batch.wake import Wake
from core.lifecycle import Service
from core.ports import BatchStore

EVERY_S = 2.0
IDLE_EVERY_S = 5.0
AT_ONCE = 4

log = structlog.get_logger(__name__)


class Keeper(Service):
    """Looks at every batch when it is woken, and every two seconds, or five while there is none.

    A batch that fails to be kept is tried again.
    """

    name = "batch keeper"

    def __init__(self, *, store: BatchStore, intake: Intake, closer: Closer, wake: Wake) -> None:
        super().__init__()
        self._store = store
        self._intake = intake
        self._closer = closer
        self._wake = wake
        self._jobs: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look, start what is to be done, wait."""
        seen = self._wake.count
        while True:
            idle = False
            try:
                batches = await self._store.active()
                idle = not batches
                for batch in batches:
                    self._look_at(batch)
            except Exception:
                log.exception("batches could not be read")
            seen = await self._wake.wait(seen, IDLE_EVERY_S if idle else EVERY_S)

    async def stop(self) -> None:
        """Stop looking, and break off what is being done: the next start goes on with it."""
        await super().stop()
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    def _look_at(self, batch: Batch) -> None:
        if batch.id in self._jobs or len(self._jobs) >= AT_ONCE:
            return
        if batch.status is BatchStatus.VALIDATING:
            self._do(batch, partial(self._intake.run, batch))
        elif self._closer.due(batch):
            self._do(batch, partial(self._closer.settle, batch.id))

    def _do(self, batch: Batch, work: Callable[[], Awaitable[Batch]]) -> None:
        job = asyncio.get_running_loop().create_task(self._done(batch, work), name=f"keep {batch.id}")
        self._jobs[batch.id] = job
        job.add_done_callback(lambda _: self._jobs.pop(batch.id, None))

    async def _done(self, batch: Batch, work: Callable[[], Awaitable[Batch]]) -> None:
        try:
            after = await work()
        except Exception:
            log.exception("batch could not be kept", batch=batch.id)
            return
        if after.status is not batch.status or after.left != batch.left:
            self._wake.notify()
