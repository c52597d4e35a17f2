"""Stores how items ended: result lines first, then the items, many at a time.

A line stands in its file, and would survive a power cut, before the item that points to it is stored; what a crash
leaves behind beyond the committed size is cut off when the batch is taken up again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from core.batch.values import Batch, ItemEnd, ItemState
from core.lifecycle import Service
from core.ports import BatchStore, Clock, FileStore

MOST_AT_ONCE = 256
MOST_BYTES_AT_ONCE = 8 * 1024 * 1024
GATHER_S = 0.02
AGAIN_AFTER_S = 1.0

log = structlog.get_logger(__name__)

T = TypeVar("T")
Stored = Callable[[Sequence[ItemEnd], Sequence[ItemEnd]], object]
"""Told of the ends that were stored, and of those whose items were no longer leased."""


@dataclass(frozen=True, slots=True)
class Result:
    """One end and the line that goes into the batch's output or error file, if any."""

    batch: Batch
    end: ItemEnd
    line: bytes = b""

    @property
    def succeeded(self) -> bool:
        """Tell whether this is a good answer."""
        return self.end.state is ItemState.SUCCEEDED

    @property
    def file(self) -> str:
        """The file that the line goes into."""
        return self.batch.output_file if self.succeeded else self.batch.error_file


class ResultWriter(Service):
    """The one writer of result lines in this process: about 256 ends, or those of 20 ms, in one transaction.

    What cannot be stored is tried again for as long as it takes. `behind` tells that it is, and that nobody should
    produce more results until it has caught up.
    """

    name = "batch results"

    def __init__(
        self,
        *,
        store: BatchStore,
        files: FileStore,
        clock: Clock,
        owner: str,
        stored: Stored,
        sure: Callable[[], bool] = lambda: True,
        alone: bool = True,
    ) -> None:
        """`alone` tells that no other process writes these files.

        While `sure` says that leases may have run out, ends are stored one by one, so that what is lost can be cut off.
        """
        super().__init__()
        self._store = store
        self._files = files
        self._clock = clock
        self._owner = owner
        self._stored = stored
        self._sure = sure
        self._alone = alone
        self._waiting: list[Result] = []
        self._sizes: dict[str, tuple[int, int]] = {}
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._failing = False

    @property
    def behind(self) -> bool:
        """Tell whether results cannot be stored at present, or too many wait for it."""
        return self._failing or len(self._waiting) > 4 * MOST_AT_ONCE

    async def take_up(self, batch: Batch) -> None:
        """Begin with a batch; alone, its result files lose what was never committed."""
        if self._alone:
            await self._files.truncate(batch.output_file, batch.output_size)
            await self._files.truncate(batch.error_file, batch.error_size)
        self._sizes[batch.id] = (batch.output_size, batch.error_size)

    def forget(self, batch_id: str) -> None:
        """Forget a batch of which nothing waits."""
        self._sizes.pop(batch_id, None)

    def put(self, result: Result) -> None:
        """Have an end stored soon."""
        self._waiting.append(result)
        self._idle.clear()
        self._more.set()

    async def drained(self) -> None:
        """Wait until everything that was put is stored."""
        await self._idle.wait()

    async def run(self) -> None:
        """Store what comes, until cancelled."""
        while True:
            await self._more.wait()
            if len(self._waiting) < MOST_AT_ONCE:
                await self._clock.sleep(GATHER_S)
            await self._store_group(self._waiting[: self._group_size()])
            if not self._waiting:
                self._more.clear()
                self._idle.set()

    def _group_size(self) -> int:
        """Return how many of those that wait go together."""
        if not self._sure():
            return 1
        size = 0
        for count, result in enumerate(self._waiting[:MOST_AT_ONCE]):
            size += len(result.line)
            if size > MOST_BYTES_AT_ONCE:
                return max(1, count)
        return min(len(self._waiting), MOST_AT_ONCE)

    async def _store_group(self, group: list[Result]) -> None:
        ends = await self._until_done(lambda: self._append(group))
        kept = {_key(end) for end in await self._until_done(lambda: self._finish(ends))}
        lost = [end for end in ends if _key(end) not in kept]
        if lost:
            await self._until_done(lambda: self._cut_lost(lost))
        del self._waiting[: len(group)]
        self._stored([end for end in ends if _key(end) in kept], lost)

    async def _append(self, group: list[Result]) -> list[ItemEnd]:
        """Append the lines, one write per file, and return the ends with the places of their lines."""
        by_file: dict[str, list[Result]] = defaultdict(list)
        for result in group:
            if result.line:
                by_file[result.file].append(result)
        placed = [result.end for result in group if not result.line]
        before = dict(self._sizes)
        try:
            for results in by_file.values():
                placed += await self._append_to_file(results)
            await asyncio.gather(*(self._files.sync(name) for name in by_file))
        except Exception:
            self._sizes = before
            await self._cut([results[0] for results in by_file.values()])
            raise
        return placed

    async def _append_to_file(self, results: list[Result]) -> list[ItemEnd]:
        offset = await self._files.append(results[0].file, b"".join(result.line for result in results))
        placed = []
        for result in results:
            placed.append(replace(result.end, offset=offset, length=len(result.line)))
            offset += len(result.line)
        batch_id = results[0].batch.id
        output, error = self._sizes[batch_id]
        self._sizes[batch_id] = (offset, error) if results[0].succeeded else (output, offset)
        return placed

    async def _cut(self, firsts: list[Result]) -> None:
        """Cut files back to the sizes known, after a write that failed half way."""
        if self._alone:
            for result in firsts:
                output, error = self._sizes[result.batch.id]
                await self._files.truncate(result.file, output if result.succeeded else error)

    async def _finish(self, ends: list[ItemEnd]) -> list[ItemEnd]:
        sizes = {end.batch_id: self._sizes[end.batch_id] for end in ends}
        return await self._store.finish(ends, owner=self._owner, sizes=sizes)

    async def _cut_lost(self, lost: list[ItemEnd]) -> None:
        """Cut off what was appended for items that we lost, as far as the store says that it was not committed."""
        for batch_id in {end.batch_id for end in lost}:
            log.warning("results of items that are no longer leased are dropped", batch=batch_id)
            await self.take_up(await self._store.batch(batch_id))

    async def _until_done(self, do: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                done = await do()
            except Exception as error:
                if not self._failing:
                    log.error("results cannot be stored; this is tried again", exc_info=error)
                self._failing = True
                await self._clock.sleep(AGAIN_AFTER_S)
            else:
                if self._failing:
                    log.info("results can be stored again")
                self._failing = False
                return done


def _key(end: ItemEnd) -> tuple[str, int]:
    return end.batch_id, end.index
