"""Brings batches to their end: lines that never ran, result files, final status."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

import structlog

from core.batch.output import NEVER_RUN, never_run_line
from core.batch.states import move
from core.batch.values import Batch, BatchStatus, ItemState, StoredFile
from core.errors import NotFound, StaleVersion
from core.ports import BatchStore, Clock, FileStore

AT_ONCE = 1000
OUTPUT_PURPOSE = "batch_output"

log = structlog.get_logger(__name__)


class Closer:
    """Ends what has to end. `settle` may be called for any batch, at any time, any number of times.

    `retention` is how long result files are kept where a batch says nothing; `ended` is told of each batch that
    reached a final status.
    """

    def __init__(
        self,
        *,
        store: BatchStore,
        files: FileStore,
        clock: Clock,
        retention: timedelta,
        ended: Callable[[Batch], object] = lambda batch: None,
    ) -> None:
        self._store = store
        self._files = files
        self._clock = clock
        self._retention = retention
        self._ended = ended
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def due(self, batch: Batch) -> bool:
        """Tell whether `settle` would change this batch."""
        if batch.status in (BatchStatus.CANCELLING, BatchStatus.FINALIZING):
            return True
        return batch.status is BatchStatus.IN_PROGRESS and (not batch.left or self._late(batch))

    async def settle(self, batch_id: str) -> Batch:
        """End what is to be ended of a batch, and return it as it then is.

        Pending items of a batch that is cancelled or past its window end at once; those that run are left to whoever
        runs them. When no item is left the result files are closed and the final status is reached.
        """
        lock = self._locks.setdefault(batch_id, asyncio.Lock())
        async with lock:
            while True:
                try:
                    return await self._settle(await self._store.batch(batch_id))
                except StaleVersion:
                    continue

    def _late(self, batch: Batch) -> bool:
        return self._clock.now() >= batch.expires_at

    async def _settle(self, batch: Batch) -> Batch:
        if batch.ended or not self.due(batch):
            return batch
        batch = await self._end_rest(batch)
        if batch.left:
            return batch
        if batch.status is BatchStatus.IN_PROGRESS:
            batch = await self._store.update(move(batch, BatchStatus.FINALIZING, self._clock.now()))
        return await self._close(batch)

    async def _end_rest(self, batch: Batch) -> Batch:
        if batch.status is BatchStatus.CANCELLING and batch.in_progress_at is None:
            while await self._store.drop_items(batch.id, limit=AT_ONCE) == AT_ONCE:
                pass
        elif batch.status is BatchStatus.CANCELLING or self._late(batch):
            state = ItemState.CANCELLED if batch.status is BatchStatus.CANCELLING else ItemState.EXPIRED
            while len(await self._store.end_rest(batch.id, state, limit=AT_ONCE)) == AT_ONCE:
                pass
        return await self._store.batch(batch.id)

    async def _close(self, batch: Batch) -> Batch:
        await self._files.truncate(batch.output_file, batch.output_size)
        error_size, expired = await self._write_never_run(batch)
        now = self._clock.now()
        output = await self._register(batch, batch.output_file, "output", batch.output_size, now)
        error = await self._register(batch, batch.error_file, "error", error_size, now)
        closed = replace(batch, output_file_id=output, error_file_id=error)
        batch = await self._store.update(move(closed, _final(batch, expired=expired), now))
        log.info("batch ended", batch=batch.id, status=batch.status.value, done=batch.completed, failed=batch.failed)
        self._ended(batch)
        return batch

    async def _write_never_run(self, batch: Batch) -> tuple[int, bool]:
        """Append the lines of items that never ran; return the error file's size and whether any expired.

        What a crash left behind of an earlier try stands beyond the committed size, and is cut off first.
        """
        name = batch.error_file
        await self._files.truncate(name, batch.error_size)
        size, after, expired = batch.error_size, -1, False
        while rows := await self._store.items(batch.id, states=tuple(NEVER_RUN), after=after, limit=AT_ONCE):
            lines = b"".join(never_run_line(batch, row) for row in rows)
            size = await self._files.append(name, lines) + len(lines)
            after = rows[-1].index
            expired = expired or any(row.state is ItemState.EXPIRED for row in rows)
        await self._files.sync(name)
        return size, expired

    async def _register(self, batch: Batch, file_id: str, kind: str, size: int, now: datetime) -> str | None:
        if not size:
            with suppress(NotFound):  # of an earlier round, whose failed lines all succeeded since
                await self._store.delete_file(file_id, tenant=None)
            return None
        await self._store.add_file(
            StoredFile(
                id=file_id,
                tenant=batch.tenant,
                filename=f"{batch.id}_{kind}.jsonl",
                purpose=OUTPUT_PURPOSE,
                bytes=size,
                created_at=now,
                expires_at=now + (batch.output_expires_after or self._retention),
            )
        )
        return file_id


def _final(batch: Batch, *, expired: bool) -> BatchStatus:
    if batch.status is BatchStatus.CANCELLING:
        return BatchStatus.CANCELLED
    return BatchStatus.EXPIRED if expired else BatchStatus.COMPLETED
