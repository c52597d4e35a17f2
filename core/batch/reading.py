"""Reads the lines of items from their input file: those that stand close together with one read."""

from collections.abc import Iterator, Sequence

from core.batch.values import ClaimedItem
from core.ports import FileStore

SPAN = 64 * 1024
"""Bytes that one read takes at most, unless a single line has more."""


async def read_lines(files: FileStore, file_id: str, items: Sequence[ClaimedItem]) -> dict[int, bytes]:
    """Return the lines of items, which come in the order of the file, by their index. Raises NotFound."""
    lines: dict[int, bytes] = {}
    for span in _spans(items):
        start, last = span[0].offset, span[-1]
        text = await files.read(file_id, start, last.offset + last.length - start)
        lines |= {item.index: text[item.offset - start :][: item.length] for item in span}
    return lines


def _spans(items: Sequence[ClaimedItem]) -> Iterator[list[ClaimedItem]]:
    span: list[ClaimedItem] = []
    for item in items:
        if span and item.offset + item.length - span[0].offset > SPAN:
            yield span
            span = []
        span.append(item)
    if span:
        yield span
