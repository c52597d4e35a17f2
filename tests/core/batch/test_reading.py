from collections.abc import Sequence

import pytest

from core.batch.reading import SPAN, read_lines
from core.batch.values import ClaimedItem
from core.errors import NotFound
from tests.fakes_batch import MemoryFiles

pytestmark = pytest.mark.anyio


class Watched(MemoryFiles):
    """Notes how many bytes each read asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    async def read(self, file_id: str, offset: int, length: int) -> bytes:
        self.reads.append(length)
        return await super().read(file_id, offset, length)


async def stored(files: MemoryFiles, lengths: Sequence[int]) -> tuple[list[ClaimedItem], dict[int, bytes]]:
    """Store lines of these lengths; return them as items and as texts."""
    items, lines, offset = [], {}, 0
    for index, length in enumerate(lengths):
        lines[index] = bytes([65 + index % 26]) * length
        items.append(ClaimedItem("b", index, str(index), offset, length, "m", 0))
        offset = await files.append("in", lines[index] + b"\n") + length + 1
    return items, lines


async def test_lines_that_stand_close_together_come_with_one_read() -> None:
    files = Watched()
    items, lines = await stored(files, [10, 700, 1, 90, 5])
    assert await read_lines(files, "in", items) == lines
    assert files.reads == [10 + 700 + 1 + 90 + 5 + 4]
    scattered = [items[0], items[3]]
    assert await read_lines(files, "in", scattered) == {0: lines[0], 3: lines[3]}
    assert len(files.reads) == 2


async def test_no_read_but_that_of_a_single_line_is_larger_than_a_span() -> None:
    files = Watched()
    items, lines = await stored(files, [SPAN // 2, SPAN // 2, 3 * SPAN, 1, SPAN - 2, 1])
    assert await read_lines(files, "in", items) == lines
    assert files.reads == [SPAN // 2, SPAN // 2, 3 * SPAN, SPAN, 1]


async def test_nothing_is_read_for_no_item_and_a_file_that_is_gone_is_not_found() -> None:
    files = Watched()
    assert await read_lines(files, "in", []) == {}
    assert files.reads == []
    with pytest.raises(NotFound):
        await read_lines(files, "in", [ClaimedItem("b", 0, "0", 0, 1, "m", 0)])
