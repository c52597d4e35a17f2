"""The one road for changes to batches and files, for API, pages and command line alike. Tenants see only their own."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from weakref import WeakValueDictionary

from core.batch.audit import Steering, batch_entry, file_entry, undone
from core.batch.states import move, still_open
from core.batch.values import Batch, BatchPause, BatchStatus, StoredFile
from core.batch.wake import Wake
from core.batch.window import window_of
from core.errors import InvalidValue, NotFound, StaleVersion
from core.people.audit import check_reason
from core.ports import BatchStore, Clock, FileStore

BATCH_PURPOSE = "batch"
WRITE_AT_ONCE = 256 * 1024
HIGHEST_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What a client asks for; the fields are those of `Batch`. Raises InvalidValue for a window that is none."""

    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    key: str | None = None
    name: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    output_expires_after: timedelta | None = None
    priority: int = 0
    max_concurrency: int | None = None
    interval_s: float = 0.0

    def __post_init__(self) -> None:
        window_of(self.completion_window)


class Upload:
    """A file on its way in. Write pieces, then `finish`; or `abort`, and only the audit trail tells of it."""

    def __init__(
        self,
        *,
        store: BatchStore,
        files: FileStore,
        clock: Clock,
        retention: timedelta,
        most: int,
        checked: Callable[[str | None], str],
    ) -> None:
        self.id = f"file-{secrets.token_hex(16)}"
        self.size = 0
        self._store = store
        self._files = files
        self._clock = clock
        self._retention = retention
        self._most = most
        self._checked = checked
        self._kept = bytearray()
        self._finished: StoredFile | None = None

    async def write(self, piece: bytes) -> None:
        """Take the next piece. Raises InvalidValue `file` beyond the most bytes that a file may have."""
        self.size += len(piece)
        if self.size > self._most:
            raise InvalidValue("file", f"is larger than {self._most:,} bytes (setting batch_file_bytes)")
        self._kept += piece
        if len(self._kept) >= WRITE_AT_ONCE:
            await self._flush()

    async def finish(
        self, *, tenant: str, filename: str, expires_after: timedelta | None, reason: str | None = ""
    ) -> StoredFile:
        """Make the file durable, then known, and return its facts. `reason` as `Batches` has it."""
        why = self._checked(reason)
        await self._flush()
        await self._files.sync(self.id)
        now = self._clock.now()
        file = StoredFile(
            id=self.id,
            tenant=tenant,
            filename=filename,
            purpose=BATCH_PURPOSE,
            bytes=self.size,
            created_at=now,
            expires_at=now + (expires_after or self._retention),
        )
        await self._store.add_file(file, audit=[file_entry(None, file, at=now, reason=why)])
        self._finished = file
        return file

    async def abort(self) -> None:
        """Forget what came."""
        self._kept.clear()
        if self._finished is not None:
            entry = file_entry(self._finished, None, at=self._clock.now(), reason="no batch came of it")
            with suppress(NotFound):
                await self._store.delete_file(self.id, tenant=None, audit=[entry])
        await self._files.delete(self.id)

    async def _flush(self) -> None:
        data, self._kept = bytes(self._kept), bytearray()
        await self._files.append(self.id, data)


class Batches:
    """Creates and changes batches; each change wakes whoever runs them and has its entry in the audit trail.

    Raises NotFound for what another tenant owns, InvalidValue for what the batch's status does not allow. `tenant` None
    is an operator, who sees all. `retention` is how long files are kept where nobody says otherwise. `admit` may raise
    RequestError where a tenant has too much queued to create one more.

    With `require_reason` a change without a `reason` is an InvalidValue, whoever asks for it; but `None` says that none
    can be asked of him, for he speaks OpenAI's protocol, which has no place for one.
    """

    def __init__(
        self,
        *,
        store: BatchStore,
        files: FileStore,
        clock: Clock,
        wake: Wake,
        retention: timedelta,
        file_bytes: int,
        admit: Callable[[str], Awaitable[None]] | None = None,
        require_reason: bool = False,
    ) -> None:
        self._admit = admit
        self.file_bytes = file_bytes
        self._store = store
        self._files = files
        self._clock = clock
        self._wake = wake
        self._retention = retention
        self._require_reason = require_reason
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def upload(self) -> Upload:
        """Begin to take a file."""
        return Upload(
            store=self._store,
            files=self._files,
            clock=self._clock,
            retention=self._retention,
            most=self.file_bytes,
            checked=self._checked,
        )

    async def delete_file(self, file_id: str, *, tenant: str | None, reason: str | None = "") -> None:
        """Delete a file that no running batch needs."""
        why = self._checked(reason)
        entry = file_entry(await self._store.file(file_id, tenant=tenant), None, at=self._clock.now(), reason=why)
        await self._store.delete_file(file_id, tenant=tenant, audit=[entry])
        await self._files.delete(file_id)

    async def create(self, order: NewBatch, *, dedupe: str, again: bool, reason: str | None = "") -> Batch:
        """Create a batch from an uploaded file, to be validated soon.

        `dedupe` is the hash of what was sent. With `again`, that is when this may be a create sent anew, the batch that
        an equal one made within 10 minutes is returned. One that is still at work is waited for.
        """
        why = self._checked(reason)
        async with self._turn(dedupe):
            file = await self._store.file(order.input_file_id, tenant=order.tenant)
            if file.purpose != BATCH_PURPOSE:
                raise InvalidValue("input_file_id", f"{file.id} was not uploaded with purpose 'batch'")
            return await self._create(order, dedupe, again=again, reason=why)

    async def create_from(
        self,
        order: NewBatch,
        lines: Iterable[bytes],
        *,
        filename: str,
        dedupe: str,
        again: bool,
        reason: str | None = "",
    ) -> Batch:
        """Create a batch, as `create` does, from lines, which are stored as its file first."""
        why = self._checked(reason)
        async with self._turn(dedupe):
            upload = self.upload()
            try:
                for line in lines:
                    await upload.write(line)
                file = await upload.finish(tenant=order.tenant, filename=filename, expires_after=None, reason=reason)
            except BaseException:
                await upload.abort()
                raise
            batch = await self._create(replace(order, input_file_id=file.id), dedupe, again=again, reason=why)
            if batch.input_file_id != file.id:
                await self.delete_file(file.id, tenant=order.tenant, reason=f"the same as {batch.id}, sent again")
            return batch

    async def cancel(self, batch_id: str, *, tenant: str | None, reason: str | None = "") -> Batch:
        """Begin to cancel a batch; what is cancelled or about to be is returned as it is."""
        stopped = (BatchStatus.CANCELLING, BatchStatus.CANCELLED)
        return await self._change(
            "cancel",
            batch_id,
            tenant,
            lambda batch: batch if batch.status in stopped else move(batch, BatchStatus.CANCELLING, self._clock.now()),
            reason=reason,
        )

    async def pause(self, batch_id: str, *, tenant: str | None, by: str, reason: str = "") -> Batch:
        """Start no more items of a batch until it is resumed; those that run go on."""
        return await self._change(
            "pause",
            batch_id,
            tenant,
            lambda batch: replace(still_open(batch), pause=batch.pause or BatchPause(by, reason, self._clock.now())),
            reason=reason,
        )

    async def resume(self, batch_id: str, *, tenant: str | None, reason: str = "") -> Batch:
        """Let a paused batch go on."""
        return await self._change(
            "resume", batch_id, tenant, lambda batch: replace(still_open(batch), pause=None), reason=reason
        )

    async def prioritise(self, batch_id: str, priority: int, *, tenant: str | None, reason: str = "") -> Batch:
        """Let a batch go before those of its tenant that have a lower priority."""
        check_priority(priority)
        return await self._change(
            "priority", batch_id, tenant, lambda batch: replace(still_open(batch), priority=priority), reason=reason
        )

    async def put_back(
        self, batch_id: str, was: Steering, now: Steering, *, tenant: str | None, by: str, reason: str = ""
    ) -> Batch:
        """Let pause and priority, as far as a change from `was` to `now` moved them, be again as they were.

        A pause comes back as one of `by`. Raises InvalidValue `entry` where somebody changed the same since.
        """

        def change(batch: Batch) -> Batch:
            return undone(batch, was, now, pause=BatchPause(by, reason, self._clock.now()))

        kind = "priority" if was.pause == now.pause else "pause" if was.pause else "resume"
        return await self._change(kind, batch_id, tenant, change, reason=reason)

    async def retry_failed(self, batch_id: str, *, tenant: str | None, reason: str = "") -> Batch:
        """Run the failed items of a completed batch once more, within its window.

        Their lines are taken out of the error file; the output file stays, and grows.
        """
        why = self._checked(reason)
        while True:
            batch = await self._store.batch(batch_id, tenant=tenant)
            await self._check_retry(batch)
            try:
                # First the old error file goes, and only then may an item write to the new one.
                batch = await self._store.update(replace(batch, error_file_id=None))
                with suppress(NotFound):
                    await self._store.delete_file(batch.error_file, tenant=None)
                await self._files.delete(batch.error_file)
                now = self._clock.now()
                moved = move(batch, BatchStatus.IN_PROGRESS, now)
                entry = batch_entry(batch, moved, kind="retry", at=now, reason=why)
                again = await self._store.retry_failed(moved, audit=[entry])
            except StaleVersion:
                continue
            self._wake.notify()
            return again

    async def _check_retry(self, batch: Batch) -> None:
        if batch.status is not BatchStatus.COMPLETED or not batch.failed:
            raise InvalidValue("status", f"only a completed batch with failed requests can retry them: {batch.status}")
        if self._clock.now() >= batch.expires_at:
            raise InvalidValue("completion_window", "the batch's completion window is over")
        try:
            await self._store.file(batch.input_file_id, tenant=None)
            if batch.output_size:
                await self._store.file(batch.output_file, tenant=None)
        except NotFound as gone:
            raise InvalidValue("file", f"{gone.name} was deleted, so that nothing can be retried") from None

    async def _create(self, order: NewBatch, dedupe: str, *, again: bool, reason: str) -> Batch:
        if self._admit is not None:
            await self._admit(order.tenant)
        batch = Batch(
            id=f"batch_{secrets.token_hex(16)}",
            tenant=order.tenant,
            key=order.key,
            pool="",
            model=None,
            endpoint=order.endpoint,
            input_file_id=order.input_file_id,
            window=window_of(order.completion_window),
            completion_window=order.completion_window,
            created_at=self._clock.now(),
            name=order.name,
            metadata=order.metadata,
            output_expires_after=order.output_expires_after,
            priority=order.priority,
            max_concurrency=order.max_concurrency,
            interval_s=order.interval_s,
            dedupe=dedupe,
        )
        entry = batch_entry(None, batch, kind="create", at=batch.created_at, reason=reason)
        created = await self._store.create(batch, again=again, audit=[entry])
        self._wake.notify()
        return created

    async def _change(
        self, kind: str, batch_id: str, tenant: str | None, change: Callable[[Batch], Batch], *, reason: str | None
    ) -> Batch:
        why = self._checked(reason)
        while True:
            batch = await self._store.batch(batch_id, tenant=tenant)
            changed = change(batch)
            if changed == batch:
                return batch
            try:
                entry = batch_entry(batch, changed, kind=kind, at=self._clock.now(), reason=why)
                saved = await self._store.update(changed, audit=[entry])
            except StaleVersion:
                continue
            self._wake.notify()
            return saved

    def _checked(self, reason: str | None) -> str:
        check_reason(reason or "", required=self._require_reason and reason is not None)
        return reason or ""

    def _turn(self, dedupe: str) -> asyncio.Lock:
        return self._turns.setdefault(dedupe, asyncio.Lock())


def check_priority(priority: int) -> None:
    """Raise InvalidValue for a priority beyond -100 to 100."""
    if not -HIGHEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        raise InvalidValue("priority", f"must be from -{HIGHEST_PRIORITY} to {HIGHEST_PRIORITY}")
