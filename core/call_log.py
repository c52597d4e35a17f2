"""Keeps one row per LLM request, in groups and behind the requests' backs: no request ever waits for the database."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import structlog

from core.call_record import CallRecord
from core.lanes import Lane, Outcome
from core.lifecycle import Service
from core.ports import CallStore, Clock
from core.samples import Observation
from core.scheduling.calls import Call

GROUP = 500
"""Rows stored in one transaction."""
LONGEST_TEXT = 200
PATIENCE_S = 2.0
"""Seconds that the database gets at the stop."""
_LANES = {lane: lane.value for lane in Lane}
_OUTCOMES = {outcome: outcome.value for outcome in Outcome}

log = structlog.get_logger(__name__)


class CallLog(Service):
    """Takes calls as they end and stores them every `every` seconds, until `rows` or `days` bound them.

    At most `capacity` calls wait to be stored. A database that is too slow, or down, costs rows, which `dropped`
    counts; nothing waits for it.
    """

    name = "call log"

    def __init__(
        self,
        *,
        store: CallStore,
        clock: Clock,
        rows: int,
        days: float,
        capacity: int = 20_000,
        every: float = 1.0,
    ) -> None:
        super().__init__()
        self.dropped = 0
        self._store = store
        self._clock = clock
        self._rows = rows
        self._kept = timedelta(days=days)
        self._capacity = capacity
        self._every = every
        self._waiting: deque[CallRecord] = deque()
        self._began = self._wall_at_zero()
        self._writing = asyncio.Lock()
        self._failing = False

    def of_pool(self, pool: str) -> Callable[[Call, Observation, Outcome, int, float], None]:
        """Return what the gateway of `pool` calls when a call has ended, with its status and the monotonic time."""
        waiting, capacity = self._waiting, self._capacity

        def ended(call: Call, seen: Observation, outcome: Outcome, status: int, now: float) -> None:
            if len(waiting) >= capacity:
                self.dropped += 1
                return
            arrived = seen.arrived
            waiting.append(
                CallRecord(
                    self._began + arrived,
                    call.id,
                    call.tenant,
                    call.key,
                    pool,
                    _text(call.model),
                    _LANES[call.lane],
                    call.source if call.durable else "",
                    _OUTCOMES[outcome],
                    status,
                    call.queued_s * 1000,
                    (seen.first - arrived) * 1000 if seen.streamed and seen.first is not None else None,
                    (now - arrived) * 1000,
                    call.input_tokens,
                    call.output_tokens,
                    call.estimated,
                )
            )

        return ended

    async def run(self) -> None:
        """Store what waits, again and again, until cancelled."""
        while True:
            await self._clock.sleep(self._every)
            await self.flush()

    async def stop(self) -> None:
        """Stop, then store what is left, if the database allows."""
        was_running = self.running
        # A statement that is cancelled in the middle costs its connection: let the writer come to its pause first.
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S), self._writing:
                pass
        await super().stop()
        if was_running:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await self.flush()

    async def flush(self) -> None:
        """Store all that waits now, group by group; what cannot be stored is dropped and counted.

        What ends meanwhile waits for the next time: else a busy gateway would store it by the handful, without a pause.
        """
        async with self._writing:
            self._began = self._wall_at_zero()
            left = len(self._waiting)
            while left > 0:
                group = [self._waiting.popleft() for _ in range(min(GROUP, left))]
                left -= len(group)
                await self._store_group(group)

    async def prune(self, now: datetime) -> int:
        """Delete what is too old or too much; return how many rows."""
        return await self._store.prune_calls(before=(now - self._kept).timestamp(), keep=self._rows)

    def _wall_at_zero(self) -> float:
        """Return the wall time at monotonic time 0, in seconds since 1970; it moves when the machine's clock is set."""
        return self._clock.now().timestamp() - self._clock.monotonic()

    async def _store_group(self, records: list[CallRecord]) -> None:
        try:
            await self._store.add_calls(records)
        except asyncio.CancelledError:
            self.dropped += len(records)
            raise
        except Exception as error:
            self.dropped += len(records)
            if not self._failing:
                log.error("the call log cannot be stored; calls are left out of it", exc_info=error)
            self._failing = True
        else:
            self._failing = False


def _text(text: str) -> str:
    if text.isascii() and len(text) <= LONGEST_TEXT and "\0" not in text:
        return text
    return text[:LONGEST_TEXT].replace("\0", "").encode("utf-8", "replace").decode()
