"""Sends events from the outbox to the endpoints, again and again until they arrive or were tried too often."""

import asyncio
import random
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from core.batch.wake import Wake
from core.errors import NotFound
from core.lifecycle import Service
from core.ports import Clock, WebhookStore
from core.webhooks.posting import Poster
from core.webhooks.values import Delivery, DeliveryState, Posting

BACK_OFF_S = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, 28_800, 43_200)
"""Seconds until the next attempt, after the first, the second, ...: about 28 hours in all."""
JITTER = 0.2
AT_ONCE = 32
EVERY_S = 2.0
# Longer than any attempt takes: what a crash left behind is tried again after it.
LEASE = timedelta(seconds=60)
KEPT = timedelta(days=30)
PRUNE_EVERY = timedelta(hours=1)
PRUNED_AT_ONCE = 500
GONE = 410

log = structlog.get_logger(__name__)


def after(delivery: Delivery, posting: Posting, now: datetime, jitter: float) -> Delivery:
    """Return a delivery after one more attempt; `jitter`, -1 to 1, spreads those that failed together.

    An endpoint that answers 410 is gone and is not asked for this event again.
    """
    tried = replace(
        delivery, attempts=delivery.attempts + 1, last_at=now, status=posting.status, error=posting.error, due=None
    )
    if posting.arrived:
        return replace(tried, state=DeliveryState.DELIVERED)
    if delivery.attempts >= len(BACK_OFF_S) or posting.status == GONE:
        return replace(tried, state=DeliveryState.GIVEN_UP)
    return replace(tried, due=now + timedelta(seconds=BACK_OFF_S[delivery.attempts] * (1 + JITTER * jitter)))


class WebhookSender(Service):
    """Posts what is due, one event at a time to each endpoint, 32 at a time in all.

    Events are in the outbox since the transaction that ended their batch, so that none is lost in a crash; one that was
    being sent then is sent once more, under the same id.
    """

    name = "webhooks"

    def __init__(
        self,
        *,
        store: WebhookStore,
        poster: Poster,
        clock: Clock,
        every_s: float = EVERY_S,
    ) -> None:
        super().__init__()
        self._store = store
        self._poster = poster
        self._clock = clock
        self._every_s = every_s
        self._look = Wake()
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._prune_at: datetime | None = None

    async def run(self) -> None:
        """Send until cancelled; a failing database is tried again."""
        seen = self._look.count
        while True:
            try:
                await self._begin()
                await self._prune()
            except Exception:
                log.exception("webhooks could not be read")
            seen = await self._look.wait(seen, self._every_s)

    async def stop(self) -> None:
        """Stop sending; what is under way is tried again at the next start."""
        await super().stop()
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await self._poster.close()

    async def _begin(self) -> None:
        free = AT_ONCE - len(self._jobs)
        if free <= 0:
            return
        now = self._clock.now()
        due = await self._store.claim_deliveries(now=now, until=now + LEASE, busy=tuple(self._jobs), limit=free)
        for delivery in due:
            job = asyncio.get_running_loop().create_task(self._deliver(delivery), name=f"webhook {delivery.event.id}")
            self._jobs[delivery.endpoint] = job
            job.add_done_callback(partial(self._ended, delivery.endpoint))

    def _ended(self, endpoint: str, _: object) -> None:
        del self._jobs[endpoint]
        self._look.notify()

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            endpoint = await self._store.webhook(delivery.endpoint, tenant=None)
            if endpoint.disabled_at is not None:
                return
            posting = await self._poster.post(endpoint, delivery.event)
            tried = after(delivery, posting, self._clock.now(), random.uniform(-1, 1))
            await self._store.end_attempt(tried)
        except NotFound:
            return
        except Exception:
            log.exception("a webhook could not be sent", event_id=delivery.event.id)
            return
        if tried.state is DeliveryState.GIVEN_UP:
            log.warning(
                "a webhook is given up", endpoint=tried.endpoint, event_id=tried.event.id, attempts=tried.attempts
            )

    async def _prune(self) -> None:
        now = self._clock.now()
        if self._prune_at is not None and now < self._prune_at:
            return
        while await self._store.prune_deliveries(before=now - KEPT, limit=PRUNED_AT_ONCE) == PRUNED_AT_ONCE:
            pass
        self._prune_at = now + PRUNE_EVERY
