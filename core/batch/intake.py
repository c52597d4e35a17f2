"""From an uploaded file to queued items: all of it, or none and the errors."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog

from core.batch.lines import LineCutter, LineReader, RawLine, Route
from core.batch.states import move
from core.batch.values import Batch, BatchStatus, LineError, NewItem
from core.errors import InvalidValue, NotFound, StaleVersion
from core.ports import BatchStore, Clock, FileStore

ERRORS_KEPT = 100
ITEMS_AT_ONCE = 200
# The event loop is never kept longer than this, and gets as long for itself before the next turn.
TURN_S = 0.0005
EMPTY = LineError("empty_file", "The file has no requests.")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """How many lines a batch may have, and how many bytes a line."""

    lines: int
    line_bytes: int


class Intake:
    """Validates batches. Reads the stored file once, in order, and stores items as it goes.

    Until the batch leaves `validating` nothing runs and nothing is told of its items; a crash means to begin anew.
    """

    def __init__(
        self,
        *,
        store: BatchStore,
        files: FileStore,
        clock: Clock,
        route: Route,
        limits: IntakeLimits,
        may_use: Callable[[str | None, str], bool] = lambda key, model: True,
    ) -> None:
        self._may_use = may_use
        self._store = store
        self._files = files
        self._clock = clock
        self._route = route
        self._limits = limits

    async def run(self, batch: Batch) -> Batch:
        """Validate a batch and return it as it is afterwards: in progress, failed, or what else became of it."""
        await self._drop_items(batch)
        reader = LineReader(
            endpoint=batch.endpoint,
            route=partial(self._route_of, batch.key),
            most=self._limits.lines,
            longest=self._limits.line_bytes,
        )
        try:
            errors = await self._take(batch, reader)
        except InvalidValue:  # cancelled meanwhile
            return await self._store.batch(batch.id)
        except NotFound:
            errors = [LineError("file_not_found", "The input file is gone.", param="input_file_id")]
        if errors:
            await self._drop_items(batch)
            failed = await self._finish(batch, lambda found: self._failed(found, errors))
            log.info("batch refused", batch=batch.id, errors=len(errors), code=errors[0].code)
            return failed
        pool, model = reader.pool or batch.pool, reader.model
        return await self._finish(batch, lambda found: self._accepted(found, pool, model))

    def _route_of(self, key: str | None, model: str) -> tuple[str, str] | None:
        """Return where a model is served; a model that the batch's key may not use is served nowhere."""
        return self._route(model) if self._may_use(key, model) else None

    async def _take(self, batch: Batch, reader: LineReader) -> list[LineError]:
        """Store the file's items as far as no line is wrong; return the errors found."""
        errors: list[LineError] = []
        items: list[NewItem] = []
        async for line in self._lines(batch):
            found = reader.read(line)
            if isinstance(found, LineError):
                errors.append(found)
                if len(errors) == ERRORS_KEPT or found.code == "too_many_lines":
                    return errors
            elif found is not None and not errors:
                items.append(found)
                if len(items) == ITEMS_AT_ONCE:
                    await self._store.add_items(batch.id, items)
                    items = []
        if not errors:
            await self._store.add_items(batch.id, items)
        return errors if reader.count else [EMPTY]

    async def _lines(self, batch: Batch) -> AsyncIterator[RawLine]:
        """Yield the file's lines, resting now and then so that everything else goes on."""
        file = await self._store.file(batch.input_file_id, tenant=None)
        cutter = LineCutter(longest=self._limits.line_bytes)
        turn_ends = time.perf_counter() + TURN_S
        async for piece in self._files.stream(file.id, end=file.bytes):
            for line in cutter.feed(piece):
                yield line
                if time.perf_counter() > turn_ends:
                    await asyncio.sleep(TURN_S)
                    turn_ends = time.perf_counter() + TURN_S
        for line in cutter.finish():
            yield line

    async def _drop_items(self, batch: Batch) -> None:
        while await self._store.drop_items(batch.id, limit=ITEMS_AT_ONCE) == ITEMS_AT_ONCE:
            pass

    async def _finish(self, batch: Batch, change: Callable[[Batch], Batch]) -> Batch:
        while True:
            found = await self._store.batch(batch.id)
            if found.status is not BatchStatus.VALIDATING:
                return found
            try:
                return await self._store.update(change(found))
            except StaleVersion:
                continue

    def _failed(self, batch: Batch, errors: list[LineError]) -> Batch:
        return replace(move(batch, BatchStatus.FAILED, self._clock.now()), errors=tuple(errors))

    def _accepted(self, batch: Batch, pool: str, model: str | None) -> Batch:
        return replace(move(batch, BatchStatus.IN_PROGRESS, self._clock.now()), pool=pool, model=model)
