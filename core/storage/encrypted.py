"""Files encrypted at rest, over any other FileStore.

A file is a mark, then frames: the length of the text (4 bytes, big end first), a random nonce (12), the text encrypted
with AES-256-GCM, and its tag (16). A frame holds at most 16 KiB of text; each append begins a new one, so that nothing
that was written is ever written again and a crash costs no more than it would without encryption. What a frame is bound
to is the file's id and its place in the text: none can be moved, swapped or taken from another file. Where frames begin
is read once per file and kept in memory, 16 bytes a frame.

Each file has a key of its own, derived from the one secret by its id (HKDF-SHA256), so that random nonces stay safe
however much is written. Files from before encryption was switched on have no mark and are read, and go on, as they are.
"""

import asyncio
import bisect
import errno
import os
import struct
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from core.ports import FileStore

if TYPE_CHECKING:
    # Imported where it is used: who encrypts nothing keeps its seven megabytes of memory.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MARK = b"TIDEGATE\x00\x00\x00\x01"
FRAME = 16 * 1024
PIECE = 16
"""Frames read at once."""
KEY_CHECK = "tidegate-key-check"
"""The file that only the right secret opens."""
KEPT = 256
"""Files whose frames are kept in memory."""
_LENGTH = struct.Struct(">I")
_PLACE = struct.Struct(">Q")
_NONCE = 12
_TAG = 16
_AROUND = _LENGTH.size + _NONCE + _TAG
_SCAN = 1024 * 1024


class _Frames:
    """Where a file's frames begin: `texts` in the text, `places` on disk, each with the end as its last."""

    def __init__(self, cipher: "AESGCM") -> None:
        self.cipher = cipher
        self.plain = False
        self.texts = array("Q", [0])
        self.places = array("Q", [0])
        self.lock = asyncio.Lock()

    @property
    def size(self) -> int:
        return self.texts[-1]

    @property
    def end(self) -> int:
        return self.places[-1]

    def begin(self) -> None:
        self.places[-1] = len(MARK)

    def add(self, length: int) -> None:
        self.texts.append(self.size + length)
        self.places.append(self.end + _AROUND + length)

    def holding(self, offset: int) -> int:
        """Return which frame holds the byte at `offset`, which must be within the text."""
        return bisect.bisect_right(self.texts, offset) - 1

    def cut(self, frames: int) -> None:
        del self.texts[frames + 1 :]
        del self.places[frames + 1 :]


class EncryptedFiles:
    """See `core.ports.FileStore`. Encrypts what goes into `inner` with keys derived from `secret`.

    Raises OSError where what is stored cannot be decrypted: it was damaged, or written with another secret.
    """

    def __init__(self, *, inner: FileStore, secret: str) -> None:
        self._inner = inner
        self._secret = secret.encode()
        self._known: OrderedDict[str, _Frames] = OrderedDict()

    async def append(self, file_id: str, data: bytes) -> int:
        """Append as new frames, all in one append of the inner store."""
        frames = await self._frames(file_id)
        async with frames.lock:
            if frames.plain:
                return await self._inner.append(file_id, data)
            await self._drop_torn(file_id, frames)
            offset = frames.size
            head = b"" if frames.end else MARK
            pieces = [data[start : start + FRAME] for start in range(0, len(data), FRAME)]
            places = range(offset, offset + len(data), FRAME)
            sealed = [_sealed(frames.cipher, file_id, *pair) for pair in zip(places, pieces, strict=True)]
            await self._inner.append(file_id, head + b"".join(sealed))
            if head:
                frames.begin()
            for piece in pieces:
                frames.add(len(piece))
            return offset

    async def sync(self, file_id: str) -> None:
        """Flush the inner file."""
        await self._inner.sync(file_id)

    async def size(self, file_id: str) -> int:
        """Return the bytes of the text."""
        frames = await self._frames(file_id)
        return await self._inner.size(file_id) if frames.plain else frames.size

    async def truncate(self, file_id: str, size: int) -> None:
        """Cut the text; a frame in the middle of which the cut falls is written anew."""
        frames = await self._frames(file_id)
        async with frames.lock:
            if frames.plain:
                await self._inner.truncate(file_id, size)
                return
            if size >= frames.size:
                return
            number = frames.holding(size)
            rest = size - frames.texts[number]
            kept = (await self._opened(file_id, frames, number, number + 1))[:rest] if rest else b""
            await self._inner.truncate(file_id, frames.places[number])
            frames.cut(number)
            if kept:
                await self._inner.append(file_id, _sealed(frames.cipher, file_id, frames.size, kept))
                frames.add(len(kept))

    async def read(self, file_id: str, offset: int, length: int) -> bytes:
        """Return at most `length` bytes of the text."""
        frames = await self._frames(file_id)
        if frames.plain or not frames.end:
            return await self._inner.read(file_id, offset, length)
        end = min(offset + length, frames.size)
        if offset >= end:
            return b""
        first, last = frames.holding(offset), frames.holding(end - 1)
        text = await self._opened(file_id, frames, first, last + 1)
        begin = offset - frames.texts[first]
        return text[begin : begin + end - offset]

    async def stream(self, file_id: str, *, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield the text in pieces of at most 256 KiB."""
        frames = await self._frames(file_id)
        if frames.plain or not frames.end:
            async for piece in self._inner.stream(file_id, end=end):
                yield piece
            return
        stop = frames.size if end is None else min(end, frames.size)
        offset = 0
        while offset < stop:
            piece = await self.read(file_id, offset, min(PIECE * FRAME, stop - offset))
            if not piece:
                return
            yield piece
            offset += len(piece)

    async def delete(self, file_id: str) -> None:
        """Delete the file."""
        await self._inner.delete(file_id)
        self._known.pop(file_id, None)

    async def untouched(self, *, since: float) -> list[str]:
        """Return the ids of files that nobody wrote after `since`."""
        return [file_id for file_id in await self._inner.untouched(since=since) if file_id != KEY_CHECK]

    # Frames

    async def _frames(self, file_id: str) -> _Frames:
        """Return where the file's frames begin, read from the file the first time."""
        frames = self._known.get(file_id)
        if frames is None:
            frames = self._known.setdefault(file_id, await self._scanned(file_id))
            self._forget_oldest()
        self._known.move_to_end(file_id)
        return frames

    def _forget_oldest(self) -> None:
        """Bound what is kept; a file that is being written right now must not be known twice."""
        surplus = len(self._known) - KEPT
        for name in [name for name, frames in self._known.items() if not frames.lock.locked()][: max(0, surplus)]:
            del self._known[name]

    async def _scanned(self, file_id: str) -> _Frames:
        size = await self._inner.size(file_id)
        frames = _Frames(self._cipher(file_id))
        if not size:
            return frames
        block, at = await self._inner.read(file_id, 0, _SCAN), 0
        if not block.startswith(MARK):
            frames.plain = not MARK.startswith(block)
            return frames
        frames.begin()
        while frames.end + _AROUND < size:
            place = frames.end
            if not at <= place <= at + len(block) - _LENGTH.size:
                block, at = await self._inner.read(file_id, place, _SCAN), place
            [length] = _LENGTH.unpack_from(block, place - at)
            if not 0 < length <= FRAME or place + _AROUND + length > size:
                break
            frames.add(length)
        return frames

    async def _drop_torn(self, file_id: str, frames: _Frames) -> None:
        """Drop what a crash left behind the last whole frame."""
        if await self._inner.size(file_id) > frames.end:
            await self._inner.truncate(file_id, frames.end)

    async def _opened(self, file_id: str, frames: _Frames, first: int, last: int) -> bytes:
        """Return the text of the frames from `first` up to `last`, which is not among them."""
        begin = frames.places[first]
        sealed = memoryview(await self._inner.read(file_id, begin, frames.places[last] - begin))
        texts = []
        for number in range(first, last):
            frame = sealed[frames.places[number] - begin : frames.places[number + 1] - begin]
            texts.append(_opened(frames.cipher, file_id, frames.texts[number], frame))
        return texts[0] if len(texts) == 1 else b"".join(texts)

    def _cipher(self, file_id: str) -> "AESGCM":
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"tidegate file " + file_id.encode())
        return AESGCM(key.derive(self._secret))


def _sealed(cipher: "AESGCM", file_id: str, place: int, text: bytes) -> bytes:
    nonce = os.urandom(_NONCE)
    return _LENGTH.pack(len(text)) + nonce + cipher.encrypt(nonce, text, _bound_to(file_id, place))


def _opened(cipher: "AESGCM", file_id: str, place: int, frame: memoryview) -> bytes:
    nonce, sealed = frame[_LENGTH.size : _LENGTH.size + _NONCE], frame[_LENGTH.size + _NONCE :]
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(nonce, sealed, _bound_to(file_id, place))
    except (InvalidTag, ValueError):
        message = "cannot be decrypted: it was damaged, or written with another TIDEGATE_FILE_KEY"
        raise OSError(errno.EIO, f"file {file_id} {message}") from None


def _bound_to(file_id: str, place: int) -> bytes:
    return _PLACE.pack(place) + file_id.encode()


async def refuses(inner: FileStore, secret: str | None) -> str | None:
    """Return why files here cannot be used with this secret, `None` if they can.

    The first start with a secret leaves a file behind that only the same secret opens. Without one, no start is let
    pass that would take what is encrypted for text.
    """
    there = await inner.size(KEY_CHECK) > 0
    if secret is None:
        return "files here are encrypted; give the TIDEGATE_FILE_KEY that they were written with" if there else None
    files = EncryptedFiles(inner=inner, secret=secret)
    if not there:
        await files.append(KEY_CHECK, b"ok")
        await files.sync(KEY_CHECK)
        return None
    try:
        sound = await files.read(KEY_CHECK, 0, 2) == b"ok"
    except OSError:
        sound = False
    return None if sound else "files here were encrypted with another TIDEGATE_FILE_KEY"
