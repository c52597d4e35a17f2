"""Deletes what was kept long enough: expired files, items of batches long ended, bytes that nobody knows."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from core.errors import InvalidValue, NotFound
from core.ports import BatchStore, FileStore

FILES_AT_ONCE = 100
ITEMS_AT_ONCE = 500
# Bytes arrive before their file is known: what is younger may be an upload on its way.
STRAY_AFTER = timedelta(days=1)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pruned:
    """How much one run deleted."""

    files: int = 0
    items: int = 0
    strays: int = 0


class Pruner:
    """Works in small transactions. A run that is broken off is completed by the next."""

    def __init__(self, *, store: BatchStore, files: FileStore, retention: timedelta) -> None:
        """Items are kept for `retention` after their batch ended; files tell themselves how long."""
        self._store = store
        self._files = files
        self._retention = retention

    async def run_once(self, now: datetime) -> Pruned:
        """Delete what is due at `now`."""
        pruned = Pruned(await self._expired_files(now), await self._old_items(now), await self._strays(now))
        if pruned != Pruned():
            log.info("pruned", files=pruned.files, items=pruned.items, strays=pruned.strays)
        return pruned

    async def _expired_files(self, now: datetime) -> int:
        gone = 0
        while True:
            found = await self._store.expired_files(now=now, limit=FILES_AT_ONCE)
            deleted = sum([await self._delete(file.id) for file in found])
            gone += deleted
            if len(found) < FILES_AT_ONCE or not deleted:
                return gone

    async def _delete(self, file_id: str) -> bool:
        try:
            await self._store.delete_file(file_id, tenant=None)
        except (NotFound, InvalidValue):  # somebody was faster, or needs it again
            return False
        await self._files.delete(file_id)
        return True

    async def _old_items(self, now: datetime) -> int:
        gone = 0
        while pruned := await self._store.prune_items(before=now - self._retention, limit=ITEMS_AT_ONCE):
            gone += pruned
        return gone

    async def _strays(self, now: datetime) -> int:
        candidates = await self._files.untouched(since=(now - STRAY_AFTER).timestamp())
        if not candidates:
            return 0
        # After the look at the disk: what became known since then is not among the candidates.
        wanted = {name for batch in await self._store.active() for name in (batch.output_file, batch.error_file)}
        gone = 0
        for file_id in candidates:
            if file_id not in wanted and not await self._known(file_id):
                await self._files.delete(file_id)
                gone += 1
        return gone

    async def _known(self, file_id: str) -> bool:
        try:
            await self._store.file(file_id, tenant=None)
        except NotFound:
            return False
        return True
