"""The batch stores in memory, for tests of what stands on them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from core.batch.values import Batch, BatchStatus, ClaimedItem, ItemEnd, ItemRow, ItemState, NewItem, StoredFile, Usage
from core.errors import NotFound, StaleVersion

NEVER_RUN = (ItemState.CANCELLED, ItemState.EXPIRED)


@dataclass
class Item:
    """One stored item."""

    new: NewItem
    state: ItemState = ItemState.PENDING
    attempts: int = 0
    owner: str | None = None
    lease_until: datetime | None = None
    due: datetime | None = None
    end: ItemEnd | None = None


class MemoryBatches:
    """A BatchStore (see `core.ports`), as far as running batches needs it. `fail` raises in the next calls."""

    def __init__(self) -> None:
        self.stored: dict[str, Batch] = {}
        self.queue: dict[str, list[Item]] = defaultdict(list)
        self.file_facts: dict[str, StoredFile] = {}
        self.finishes: list[int] = []
        self.claims: list[tuple[str, int]] = []
        self.fail = 0

    def _work(self) -> None:
        if self.fail > 0:
            self.fail -= 1
            raise OSError("the database is down")

    async def create(self, batch: Batch, *, again: bool = True) -> Batch:
        self.stored[batch.id] = batch
        return batch

    async def add_file(self, file: StoredFile) -> None:
        self.file_facts[file.id] = file

    async def batch(self, batch_id: str, *, tenant: str | None = None) -> Batch:
        self._work()
        if batch_id not in self.stored:
            raise NotFound("batch", batch_id)
        running = sum(item.state is ItemState.RUNNING for item in self.queue[batch_id])
        return replace(self.stored[batch_id], running=running)

    async def active(self) -> list[Batch]:
        self._work()
        return [await self.batch(name) for name, batch in self.stored.items() if not batch.ended]

    async def add_items(self, batch_id: str, items: Sequence[NewItem]) -> None:
        self.queue[batch_id] += [Item(item) for item in items]
        total = len(self.queue[batch_id])
        self.stored[batch_id] = replace(self.stored[batch_id], total=total)

    async def delete_file(self, file_id: str, *, tenant: str | None) -> None:
        if self.file_facts.pop(file_id, None) is None:
            raise NotFound("file", file_id)

    async def drop_items(self, batch_id: str, *, limit: int) -> int:
        return 0

    async def update(self, batch: Batch, *, audit: Sequence[object] = ()) -> Batch:
        self._work()
        present = self.stored[batch.id]
        if present.version != batch.version:
            raise StaleVersion(batch.version, present.version)
        kept = ("total", "completed", "failed", "usage", "output_size", "error_size")
        counts = {name: getattr(present, name) for name in kept}
        self.stored[batch.id] = replace(batch, version=batch.version + 1, **counts)
        return self.stored[batch.id]

    async def claim(
        self, batch_id: str, *, owner: str, now: datetime, lease: timedelta, limit: int
    ) -> list[ClaimedItem]:
        self._work()
        self.claims.append((batch_id, limit))
        if self.stored[batch_id].status is not BatchStatus.IN_PROGRESS:
            return []
        ready = [i for i in self.queue[batch_id] if i.state is ItemState.PENDING and (i.due is None or i.due <= now)]
        ready = sorted(ready, key=lambda item: (item.due is None, item.new.index))[:limit]
        for item in ready:
            item.state, item.owner, item.lease_until = ItemState.RUNNING, owner, now + lease
        return [_claimed(batch_id, item) for item in sorted(ready, key=lambda item: item.new.index)]

    async def renew(self, *, owner: str, until: datetime) -> int:
        self._work()
        mine = [i for items in self.queue.values() for i in items if i.owner == owner]
        for item in mine:
            item.lease_until = until
        return len(mine)

    async def finish(
        self, ends: Sequence[ItemEnd], *, owner: str, sizes: Mapping[str, tuple[int, int]]
    ) -> list[ItemEnd]:
        self._work()
        self.finishes.append(len(ends))
        kept = []
        for end in ends:
            item = self.queue[end.batch_id][end.index]
            if item.owner != owner or item.state is not ItemState.RUNNING:
                continue
            kept.append(end)
            item.state, item.owner, item.lease_until, item.due = end.state, None, None, end.not_before
            item.attempts += end.counted
            item.end = end
            self._count(end)
        for batch_id in {end.batch_id for end in kept}:
            batch, (output, error) = self.stored[batch_id], sizes[batch_id]
            grown = {"output_size": max(batch.output_size, output), "error_size": max(batch.error_size, error)}
            self.stored[batch_id] = replace(batch, **grown)
        return kept

    def _count(self, end: ItemEnd) -> None:
        batch = self.stored[end.batch_id]
        if end.state is ItemState.PENDING:
            return
        done = end.state is ItemState.SUCCEEDED
        usage = Usage(
            batch.usage.input_tokens + end.input_tokens,
            batch.usage.cached_tokens + end.cached_tokens,
            batch.usage.output_tokens + end.output_tokens,
            batch.usage.reasoning_tokens + end.reasoning_tokens,
        )
        counts = {"completed": batch.completed + done, "failed": batch.failed + (not done)}
        self.stored[end.batch_id] = replace(batch, usage=usage, **counts)

    async def give_back(self, *, owner: str | None, before: datetime | None) -> int:
        self._work()
        leased = [i for items in self.queue.values() for i in items if i.state is ItemState.RUNNING]
        leased = [i for i in leased if owner in (None, i.owner)]
        leased = [i for i in leased if before is None or (i.lease_until is not None and i.lease_until < before)]
        for item in leased:
            item.state, item.owner, item.lease_until = ItemState.PENDING, None, None
        return len(leased)

    async def end_rest(self, batch_id: str, state: ItemState, *, limit: int) -> list[ClaimedItem]:
        self._work()
        rest = [item for item in self.queue[batch_id] if item.state is ItemState.PENDING][:limit]
        for item in rest:
            item.state = state
        batch = self.stored[batch_id]
        self.stored[batch_id] = replace(batch, failed=batch.failed + len(rest))
        return [_claimed(batch_id, item) for item in rest]

    async def items(
        self, batch_id: str, *, states: Sequence[ItemState] = (), after: int = -1, limit: int = 100
    ) -> list[ItemRow]:
        chosen = [i for i in self.queue[batch_id] if i.new.index > after and (not states or i.state in states)]
        rows = []
        for item in chosen[:limit]:
            end = item.end or ItemEnd(batch_id, item.new.index, item.state)
            where = {"offset": end.offset, "length": end.length, "status_code": end.status_code}
            error, row = {"error_code": end.error_code}, (item.new.custom_id, item.state, item.attempts)
            rows.append(ItemRow(batch_id, item.new.index, *row, **where, **error))
        return rows


class MemoryFiles:
    """A FileStore (see `core.ports`). `crash` loses what was not synced; `fail` raises in the next writes."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.synced: dict[str, int] = {}
        self.syncs = 0
        self.fail = 0

    async def append(self, file_id: str, data: bytes) -> int:
        file = self.files.setdefault(file_id, bytearray())
        offset = len(file)
        if self.fail > 0:
            self.fail -= 1
            raise OSError("the disk is full")
        file += data
        return offset

    async def sync(self, file_id: str) -> None:
        if self.fail > 0:
            self.fail -= 1
            raise OSError("the disk is full")
        self.syncs += 1
        self.synced[file_id] = len(self.files.get(file_id, b""))

    async def size(self, file_id: str) -> int:
        return len(self.files.get(file_id, b""))

    async def truncate(self, file_id: str, size: int) -> None:
        if file_id in self.files:
            del self.files[file_id][size:]

    async def delete(self, file_id: str) -> None:
        self.files.pop(file_id, None)

    async def read(self, file_id: str, offset: int, length: int) -> bytes:
        if file_id not in self.files:
            raise NotFound("file", file_id)
        return bytes(self.files[file_id][offset : offset + length])


def _claimed(batch_id: str, item: Item) -> ClaimedItem:
    new = item.new
    return ClaimedItem(batch_id, new.index, new.custom_id, new.offset, new.length, new.model, item.attempts)
