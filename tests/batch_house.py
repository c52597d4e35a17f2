"""All that a durable batch needs but the worker, on a real SQLite database and real files, with a clock set by hand."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from core.batch.closer import Closer
from core.batch.intake import Intake, IntakeLimits
from core.batch.lines import Route
from core.batch.output import answer_line
from core.batch.service import Batches, NewBatch
from core.batch.values import Batch, ItemEnd, ItemState, StoredFile
from core.batch.wake import Wake
from core.clock import SystemClock
from core.storage.files import DiskFiles
from core.storage.migrate import migrate
from core.storage.store import SqlStore

START = datetime(2026, 12, 9, 12, 0, 0, tzinfo=UTC)
LEASE = timedelta(seconds=60)
ENDPOINT = "/v1/chat/completions"


class SetClock(SystemClock):
    """A clock whose wall time moves only by hand."""

    def __init__(self) -> None:
        self.time = START

    def now(self) -> datetime:
        return self.time


def line(custom_id: str = "a", **changes: Any) -> dict[str, Any]:
    """Return a good line; `changes` replace its fields, `None` takes one out."""
    good = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": {"model": "m", "messages": []}}
    return {name: value for name, value in (good | changes).items() if value is not None}


def jsonl(*lines: object) -> bytes:
    """Return the lines as a file."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def one_pool(model: str) -> tuple[str, str] | None:
    """Serve every model under its own name."""
    return "default", model


@dataclass
class House:
    """The parts, and short ways to use them."""

    store: SqlStore
    files: DiskFiles
    clock: SetClock
    wake: Wake
    batches: Batches
    closer: Closer
    ended: list[Batch] = field(default_factory=list)

    def intake(self, *, route: Route = one_pool, lines: int = 50_000, line_bytes: int = 1_000_000) -> Intake:
        limits = IntakeLimits(lines, line_bytes)
        return Intake(store=self.store, files=self.files, clock=self.clock, route=route, limits=limits)

    async def file(self, data: bytes, *, tenant: str = "t") -> StoredFile:
        upload = self.batches.upload()
        await upload.write(data)
        return await upload.finish(tenant=tenant, filename="in.jsonl", expires_after=None)

    async def create(self, data: bytes, *, dedupe: str = "d", again: bool = False, **order: Any) -> Batch:
        file = await self.file(data)
        given = {"tenant": "t", "endpoint": ENDPOINT, "completion_window": "24h"} | order
        return await self.batches.create(NewBatch(input_file_id=file.id, **given), dedupe=dedupe, again=again)

    async def started(self, count: int, **order: Any) -> Batch:
        """Return a batch in progress with `count` items."""
        batch = await self.create(jsonl(*(line(f"id-{n}") for n in range(count))), **order)
        return await self.intake().run(batch)

    async def run(self, batch: Batch, *states: ItemState) -> None:
        """Run the next items as a worker would, each to the state given for it."""
        items = await self.store.claim(batch.id, owner="w", now=self.clock.now(), lease=LEASE, limit=len(states))
        sizes = {True: await self.files.size(batch.output_file), False: await self.files.size(batch.error_file)}
        ends = []
        for item, state in zip(items, states, strict=True):
            good = state is ItemState.SUCCEEDED
            body = b'{"choices":[{"message":{"content":"hi"}}]}' if good else b'{"error":{"message":"no","code":"bad"}}'
            text = answer_line(batch.id, item.index, item.custom_id, status=200 if good else 400, body=body)
            offset = await self.files.append(batch.output_file if good else batch.error_file, text)
            sizes[good] = offset + len(text)
            status = 200 if good else 400
            ends.append(ItemEnd(batch.id, item.index, state, offset, len(text), status, 3, 0, 4))
        await self.store.finish(ends, owner="w", sizes={batch.id: (sizes[True], sizes[False])})

    async def lines_of(self, file_id: str | None) -> list[dict[str, Any]]:
        """Return the lines of a known file."""
        assert file_id is not None
        file = await self.store.file(file_id, tenant="t")
        data = b"".join([piece async for piece in self.files.stream(file_id, end=file.bytes)])
        return [json.loads(each) for each in data.splitlines()]


@asynccontextmanager
async def house(folder: Path, url: str = "") -> AsyncIterator[House]:
    """Build the parts in `folder`, with a SQLite there unless another database is named."""
    url = url or f"sqlite:///{folder / 'tidegate.db'}"
    await migrate(url)
    store, files, clock, wake = SqlStore(url), DiskFiles(folder=folder / "files"), SetClock(), Wake()
    kept = timedelta(days=30)
    batches = Batches(store=store, files=files, clock=clock, wake=wake, retention=kept, file_bytes=10_000_000)
    ended: list[Batch] = []
    note: Callable[[Batch], object] = ended.append
    closer = Closer(store=store, files=files, clock=clock, retention=kept, ended=note)
    try:
        yield House(store, files, clock, wake, batches, closer, ended)
    finally:
        await store.close()
