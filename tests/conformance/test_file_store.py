"""What every FileStore does."""

import os
import stat
import tracemalloc
from pathlib import Path

import pytest

from core.errors import NotFound
from core.ports import FileStore
from core.storage.encrypted import EncryptedFiles
from core.storage.files import DiskFiles

pytestmark = pytest.mark.anyio

BIG = 300_000


@pytest.fixture(params=["disk", "encrypted"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    disk = DiskFiles(folder=tmp_path / "files")
    return disk if request.param == "disk" else EncryptedFiles(inner=disk, secret="s" * 32)


async def whole(files: FileStore, file_id: str, end: int | None = None) -> bytes:
    return b"".join([piece async for piece in files.stream(file_id, end=end)])


@pytest.mark.parametrize("size", [1, BIG])
async def test_what_is_appended_stands_at_the_offset_told(files: FileStore, size: int) -> None:
    assert await files.append("file-1", b"a" * size) == 0
    assert await files.append("file-1", b"b" * size) == size
    await files.sync("file-1")
    assert await files.size("file-1") == 2 * size
    assert await files.read("file-1", size - 1, 2) == b"ab"
    assert await files.read("file-1", size, BIG) == b"b" * size
    assert await files.read("file-1", 2 * size, 5) == b""


async def test_a_file_is_streamed_whole_or_up_to_an_end(files: FileStore) -> None:
    data = os.urandom(3 * BIG)
    await files.append("file-1", data)
    assert await whole(files, "file-1") == data
    assert await whole(files, "file-1", end=BIG) == data[:BIG]
    assert await whole(files, "file-1", end=9 * BIG) == data
    assert await whole(files, "file-1", end=0) == b""


async def test_what_is_not_there_is_not_found_and_has_no_size(files: FileStore) -> None:
    with pytest.raises(NotFound):
        await files.read("file-1", 0, 1)
    with pytest.raises(NotFound):
        await whole(files, "file-1")
    assert await files.size("file-1") == 0
    await files.delete("file-1")
    await files.truncate("file-1", 0)
    await files.sync("file-1")


async def test_a_file_is_cut_but_never_made_longer(files: FileStore) -> None:
    await files.append("file-1", b"abcdef")
    await files.truncate("file-1", 10)
    assert await files.size("file-1") == 6
    await files.truncate("file-1", 2)
    assert await files.append("file-1", b"z") == 2
    assert await files.read("file-1", 0, 9) == b"abz"


async def test_a_deleted_file_is_gone_and_its_id_begins_anew(files: FileStore) -> None:
    await files.append("file-1", b"abc")
    await files.delete("file-1")
    with pytest.raises(NotFound):
        await files.read("file-1", 0, 1)
    assert await files.append("file-1", b"z") == 0


@pytest.mark.parametrize("bad", ["../x", "a/b", "", ".", "a" * 200, "a\0b", "a.b", "-rf"])
async def test_an_id_never_leads_out_of_the_folder(files: FileStore, bad: str) -> None:
    for attempt in (files.append(bad, b"x"), files.read(bad, 0, 1), files.delete(bad), files.size(bad)):
        with pytest.raises(NotFound):
            await attempt


async def test_files_that_nobody_wrote_for_long_are_named(files: FileStore) -> None:
    assert await files.untouched(since=2**40) == []
    await files.append("file-1", b"x")
    await files.append("file-2", b"x")
    assert sorted(await files.untouched(since=2**40)) == ["file-1", "file-2"]
    assert await files.untouched(since=0) == []


async def test_memory_stays_flat_while_a_large_file_is_streamed(files: FileStore) -> None:
    for _ in range(64):
        await files.append("file-1", b"x" * 500_000)
    tracemalloc.start()
    size = 0
    async for piece in files.stream("file-1"):
        size += len(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 32_000_000
    assert peak < 4_000_000


async def test_only_its_user_may_read_a_file_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    await DiskFiles(folder=folder).append("file-1", b"x")
    [path] = folder.glob("*/file-1")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, path.parent, path)] == [0o700, 0o700, 0o600]


async def test_a_full_disk_leaves_the_file_as_it_was(files: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await files.append("file-1", b"abc")
    real = os.write

    def half(handle: int, data: bytes) -> int:
        if len(data) < 4:
            raise OSError(28, "No space left on device")
        return real(handle, bytes(data)[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        await files.append("file-1", b"0123456789")
    monkeypatch.undo()
    assert await files.append("file-1", b"z") == 3
    assert await files.read("file-1", 0, 99) == b"abcz"
