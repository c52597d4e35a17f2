"""Gives back the items of owners that died: their leases ran out and nobody renews them."""

from datetime import timedelta

import structlog

from core.lifecycle import Service
from core.ports import BatchStore, Clock

EVERY_S = 15.0
SPARE = timedelta(seconds=15)
"""How long after its end a lease still stands: a live owner that was cut off from the store renews it first."""

log = structlog.get_logger(__name__)


class Rescuer(Service):
    """Makes items pending again whose lease ran out a while ago. Any number of processes may run one."""

    name = "batch rescuer"

    def __init__(self, *, store: BatchStore, clock: Clock) -> None:
        super().__init__()
        self._store = store
        self._clock = clock

    async def run(self) -> None:
        """Look every few seconds until cancelled; a failing store is tried again."""
        while True:
            await self._clock.sleep(EVERY_S)
            try:
                rescued = await self._store.give_back(owner=None, before=self._clock.now() - SPARE)
            except Exception:
                log.exception("expired leases could not be looked for")
            else:
                if rescued:
                    log.warning("items of a dead owner go back to the queue", items=rescued)
