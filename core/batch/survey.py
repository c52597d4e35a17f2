"""What a file would cost as a batch, without checking it: its lines and prompt tokens."""

import asyncio
from dataclasses import dataclass

import msgspec

from core.batch.lines import BYTES_PER_TOKEN
from core.batch.values import StoredFile
from core.ports import FileStore

LOOKED_INTO = 20
"""Lines from the first on that are read to tell a line's wrapping from its body, and the model."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Lines that are not blank, their prompt tokens as estimated at a submission, and the model if all that were read
    name the same one."""

    lines: int
    prompt_tokens: int
    model: str | None


class _Line(msgspec.Struct):
    body: msgspec.Raw = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    model: object = None


class _Count:
    """Counts the lines of a file that comes in pieces, in constant memory."""

    def __init__(self) -> None:
        self.lines = 0
        self.bytes = 0
        self.heads: list[bytes] = []
        self._open = 0
        self._head = b""

    def feed(self, piece: bytes) -> None:
        first, *more = piece.split(b"\n")
        self._extend(first)
        for part in more:
            self._end()
            self._extend(part)

    def finish(self) -> None:
        self._end()

    def _extend(self, part: bytes) -> None:
        self._open += len(part)
        if len(self.heads) < LOOKED_INTO:
            self._head += part

    def _end(self) -> None:
        if self._open > 1:  # a line of one byte is a carriage return at most
            self.lines += 1
            self.bytes += self._open
            if len(self.heads) < LOOKED_INTO:
                self.heads.append(self._head)
        self._open, self._head = 0, b""


async def survey(file: StoredFile, files: FileStore) -> Survey:
    """Read a stored file through. Raises NotFound where its bytes are gone."""
    count = _Count()
    async for piece in files.stream(file.id, end=file.bytes):
        count.feed(piece)
        await asyncio.sleep(0)
    count.finish()
    bodies = [body for body in map(_body, count.heads) if body is not None]
    wrapping = sum(map(len, count.heads)) - sum(map(len, bodies))
    per_line = wrapping / len(count.heads) if bodies else 0.0
    tokens = max(count.lines, round((count.bytes - per_line * count.lines) / BYTES_PER_TOKEN))
    models = {_model(body) for body in bodies}
    return Survey(count.lines, tokens, models.pop() if len(models) == 1 else None)


def _body(line: bytes) -> bytes | None:
    try:
        return bytes(msgspec.json.decode(line, type=_Line).body) or None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _model(body: bytes) -> str | None:
    try:
        model = msgspec.json.decode(body, type=_Body).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return model if isinstance(model, str) else None
