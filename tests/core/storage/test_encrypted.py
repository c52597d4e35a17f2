import asyncio
import os
import random
from pathlib import Path

import httpx2
import pytest

from core.config import Settings
from core.errors import ConfigError
from core.runtime import check_file_key
from core.storage import encrypted
from core.storage.encrypted import FRAME, KEY_CHECK, MARK, EncryptedFiles, refuses
from core.storage.files import DiskFiles
from tests.servers import gate

pytestmark = pytest.mark.anyio

SECRET = "a-secret-of-thirty-two-characters"
CANARY = b"what the patient said"


@pytest.fixture
def disk(tmp_path: Path) -> DiskFiles:
    return DiskFiles(folder=tmp_path / "files")


@pytest.fixture
def files(disk: DiskFiles) -> EncryptedFiles:
    return EncryptedFiles(inner=disk, secret=SECRET)


def again(disk: DiskFiles, secret: str = SECRET) -> EncryptedFiles:
    """As after a restart: nothing is remembered."""
    return EncryptedFiles(inner=disk, secret=secret)


async def stored(disk: DiskFiles, file_id: str = "f") -> bytes:
    return await disk.read(file_id, 0, 10**9)


async def test_nothing_of_the_text_lies_on_disk(files: EncryptedFiles, disk: DiskFiles) -> None:
    await files.append("f", CANARY * 3000)
    raw = await stored(disk)
    assert CANARY not in raw
    assert not any(CANARY[i : i + 8] in raw for i in range(len(CANARY) - 8))
    assert await files.read("f", 0, 10**6) == CANARY * 3000


async def test_the_same_text_is_never_the_same_on_disk(files: EncryptedFiles, disk: DiskFiles) -> None:
    for name in ("f", "g"):
        await files.append(name, CANARY)
        await files.append(name, CANARY)
    raw = [await stored(disk, name) for name in ("f", "g")]
    size = (len(raw[0]) - len(MARK)) // 2
    frames = {part[len(MARK) :][i * size : (i + 1) * size] for part in raw for i in (0, 1)}
    assert len(frames) == 4


async def test_what_is_appended_in_any_sizes_reads_as_one_text_before_and_after_a_restart(
    files: EncryptedFiles, disk: DiskFiles
) -> None:
    chance = random.Random(7)
    text = b""
    for _ in range(60):
        piece = chance.randbytes(chance.choice((1, 3, 500, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME)))
        assert await files.append("f", piece) == len(text)
        text += piece
    for store in (files, again(disk)):
        assert await store.size("f") == len(text)
        for _ in range(100):
            offset, length = chance.randrange(len(text) + 10), chance.randrange(4 * FRAME)
            assert await store.read("f", offset, length) == text[offset : offset + length]
        assert b"".join([piece async for piece in store.stream("f")]) == text


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, FRAME + 1000, FRAME + 1500])
async def test_a_cut_anywhere_leaves_the_text_before_it_and_goes_on(
    files: EncryptedFiles, disk: DiskFiles, size: int
) -> None:
    text = os.urandom(1000) + os.urandom(FRAME + 600)
    await files.append("f", text[:1000])
    await files.append("f", text[1000:])
    await files.truncate("f", size)
    assert await files.append("f", b"and on") == size
    for store in (files, again(disk)):
        assert await store.read("f", 0, 10**6) == text[:size] + b"and on"


@pytest.mark.parametrize("lost", [1, 15, 16, 17, 40])
async def test_a_frame_that_a_crash_tore_is_dropped_and_all_before_it_is_there(
    files: EncryptedFiles, disk: DiskFiles, lost: int
) -> None:
    await files.append("f", b"first")
    await files.append("f", b"0123456789")
    await disk.truncate("f", await disk.size("f") - lost)
    restarted = again(disk)
    left = 5 if lost < 42 else 0
    assert await restarted.size("f") == left
    assert await restarted.append("f", b"again") == 5
    assert await again(disk).read("f", 0, 99) == b"firstagain"


@pytest.mark.parametrize("left", [1, 5, len(MARK)])
async def test_a_crash_within_the_very_first_bytes_leaves_an_empty_file(disk: DiskFiles, left: int) -> None:
    await disk.append("f", MARK[:left])
    store = again(disk)
    assert await store.size("f") == 0
    assert await store.append("f", b"text") == 0
    assert await again(disk).read("f", 0, 9) == b"text"


async def test_damage_and_another_secret_are_errors_not_text(files: EncryptedFiles, disk: DiskFiles) -> None:
    await files.append("f", CANARY)
    with pytest.raises(OSError, match="cannot be decrypted"):
        await again(disk, "another-secret-of-the-same-length").read("f", 0, 5)
    raw = bytearray(await stored(disk))
    raw[-1] ^= 1
    await disk.truncate("f", 0)
    await disk.append("f", bytes(raw))
    with pytest.raises(OSError, match="cannot be decrypted"):
        await again(disk).read("f", 0, 5)


async def test_a_file_put_in_the_place_of_another_is_found_out(files: EncryptedFiles, disk: DiskFiles) -> None:
    await files.append("f", CANARY)
    await disk.append("g", await stored(disk))
    with pytest.raises(OSError, match="cannot be decrypted"):
        await again(disk).read("g", 0, 5)


async def test_frames_that_changed_places_are_found_out(files: EncryptedFiles, disk: DiskFiles) -> None:
    await files.append("f", b"one ")
    await files.append("f", b"two ")
    raw = await stored(disk)
    size = (len(raw) - len(MARK)) // 2
    await disk.truncate("f", 0)
    await disk.append("f", MARK + raw[len(MARK) + size :] + raw[len(MARK) : len(MARK) + size])
    with pytest.raises(OSError, match="cannot be decrypted"):
        await again(disk).read("f", 0, 8)


async def test_files_from_before_encryption_are_read_and_go_on_as_they_are(disk: DiskFiles) -> None:
    await disk.append("f", b"old text, ")
    store = again(disk)
    assert await store.append("f", b"more") == 10
    assert await store.read("f", 4, 8) == b"text, mo"
    assert await store.size("f") == 14
    await store.truncate("f", 3)
    assert b"".join([piece async for piece in store.stream("f")]) == b"old"


async def test_appends_at_once_do_not_mix(files: EncryptedFiles, disk: DiskFiles) -> None:
    parts = [bytes([65 + n]) * (FRAME * n + 7) for n in range(6)]
    offsets = await asyncio.gather(*(files.append("f", part) for part in parts))
    for offset, part in zip(offsets, parts, strict=True):
        assert await again(disk).read("f", offset, len(part)) == part


async def test_what_is_remembered_of_files_is_bounded(files: EncryptedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted, "KEPT", 4)
    for n in range(20):
        await files.append(f"f{n}", b"%d" % n)
    assert len(files._known) <= 5
    assert [await files.read(f"f{n}", 0, 9) for n in range(20)] == [b"%d" % n for n in range(20)]


async def test_the_secret_is_checked_before_anything_is_taken_for_text(disk: DiskFiles) -> None:
    assert await refuses(disk, None) is None
    assert await refuses(disk, SECRET) is None
    assert await refuses(disk, SECRET) is None
    assert "another TIDEGATE_FILE_KEY" in str(await refuses(disk, "another-secret-of-the-same-length"))
    assert "give the TIDEGATE_FILE_KEY" in str(await refuses(disk, None))
    assert KEY_CHECK not in await again(disk).untouched(since=2**40)


async def test_a_start_with_the_wrong_secret_is_refused_in_one_line(tmp_path: Path) -> None:
    def settings(key: str | None) -> Settings:
        return Settings(upstream="http://127.0.0.1:9", data=tmp_path, file_key=key)

    await check_file_key(settings(SECRET))
    for key in (None, "another-secret-of-the-same-length"):
        with pytest.raises(ConfigError, match="file_key: ") as refused:
            await check_file_key(settings(key))
        assert SECRET not in str(refused.value)


async def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 32 characters"):
        Settings(upstream="http://127.0.0.1:9", file_key="short")


def test_a_batchs_input_lies_encrypted_and_comes_back_whole(tmp_path: Path) -> None:
    line = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}\n'
    with gate(tmp_path / "data", file_key=SECRET) as running:
        url = f"{running.url}/v1/files"
        made = httpx2.post(url, files={"file": ("in.jsonl", line * 500)}, data={"purpose": "batch"}).json()
        assert httpx2.get(f"{url}/{made['id']}/content").content == line * 500
    for path in (tmp_path / "data" / "files").glob("*/*"):
        assert b"custom_id" not in path.read_bytes()
