"""Files on this machine's disk."""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from core.errors import NotFound

PIECE = 256 * 1024
# Below this a system call on the page cache costs less than handing it to a thread.
INLINE = 64 * 1024
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class DiskFiles:
    """See `core.ports.FileStore`. One process writes; its files lie in folders by the hash of their id."""

    def __init__(self, *, folder: Path) -> None:
        """Keep files under `folder`, which is made, for this user alone, with the first of them."""
        self._folder = folder
        self._unsynced_names: set[Path] = set()

    async def append(self, file_id: str, data: bytes) -> int:
        """Append, or leave the file as it was where the disk is full."""
        path = self._path(file_id)
        if len(data) <= INLINE:
            return self._append(path, data)
        return await asyncio.to_thread(self._append, path, data)

    async def sync(self, file_id: str) -> None:
        """Flush data and, for a new file, its names; in a thread."""
        await asyncio.to_thread(self._sync, self._path(file_id))

    async def size(self, file_id: str) -> int:
        """Return the bytes that the file has."""
        try:
            return self._path(file_id).stat().st_size
        except FileNotFoundError:
            return 0

    async def truncate(self, file_id: str, size: int) -> None:
        """Cut the file if it is longer."""
        if await self.size(file_id) > size:
            await asyncio.to_thread(os.truncate, self._path(file_id), size)

    async def read(self, file_id: str, offset: int, length: int) -> bytes:
        """Return at most `length` bytes."""
        if length <= INLINE:
            return self._read(file_id, offset, length)
        return await asyncio.to_thread(self._read, file_id, offset, length)

    async def stream(self, file_id: str, *, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield pieces of at most 256 KB."""
        offset = 0
        while end is None or offset < end:
            wanted = PIECE if end is None else min(PIECE, end - offset)
            piece = await asyncio.to_thread(self._read, file_id, offset, wanted)
            if not piece:
                return
            yield piece
            offset += len(piece)

    async def delete(self, file_id: str) -> None:
        """Delete the file if it is there."""
        path = self._path(file_id)
        self._unsynced_names.discard(path)
        await asyncio.to_thread(path.unlink, missing_ok=True)

    async def untouched(self, *, since: float) -> list[str]:
        """Return the ids of files that nobody wrote after `since` (seconds since 1970)."""
        return await asyncio.to_thread(self._untouched, since)

    def _path(self, file_id: str) -> Path:
        if not _ID.fullmatch(file_id):
            raise NotFound("file", file_id[:80])
        shard = hashlib.sha256(file_id.encode()).hexdigest()[:2]
        return self._folder / shard / file_id

    def _append(self, path: Path, data: bytes) -> int:
        handle = self._open(path)
        try:
            offset = os.lseek(handle, 0, os.SEEK_END)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(handle, rest) :]
            except OSError:
                os.ftruncate(handle, offset)
                raise
            return offset
        finally:
            os.close(handle)

    def _open(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        with suppress(FileNotFoundError):
            return os.open(path, flags)
        for folder in (self._folder, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unsynced_names.add(path)
        return os.open(path, flags | os.O_CREAT, 0o600)

    def _sync(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            _flush(path)
            if path in self._unsynced_names:
                for folder in (path.parent, self._folder, self._folder.parent):
                    _flush(folder)
                self._unsynced_names.discard(path)

    def _read(self, file_id: str, offset: int, length: int) -> bytes:
        try:
            handle = os.open(self._path(file_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NotFound("file", file_id) from None
        try:
            return os.pread(handle, length, offset)
        finally:
            os.close(handle)

    def _untouched(self, since: float) -> list[str]:
        found: list[str] = []
        for path in self._folder.glob("*/*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < since:
                    found.append(path.name)
        return found


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
