import hmac
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.people.secret import FILE_NAME, KeyedHash, derived, load_secret


@pytest.mark.parametrize("key", [b"short", b"x" * 64, b"y" * 200])
def test_the_keyed_hash_is_hmac_sha256(key: bytes) -> None:
    assert KeyedHash(key).digest(b"message") == hmac.digest(key, b"message", "sha256")
    assert KeyedHash(key).hexdigest("message") == hmac.digest(key, b"message", "sha256").hex()


def test_the_secret_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first = load_secret(folder)
    assert len(first) > 40
    assert load_secret(folder) == first
    assert stat.S_IMODE((folder / FILE_NAME).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name for path in folder.iterdir()] == [FILE_NAME]


def test_a_given_secret_is_used_and_nothing_is_written(tmp_path: Path) -> None:
    assert load_secret(tmp_path, "given in the environment") == b"given in the environment"
    assert list(tmp_path.iterdir()) == []


def test_many_processes_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: load_secret(tmp_path), range(32)))
    assert len(found) == 1


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("short\n")
    with pytest.raises(ConfigError, match="damaged"):
        load_secret(tmp_path)
    with pytest.raises(ConfigError, match="secret: "):
        load_secret(tmp_path / FILE_NAME)


def test_what_is_derived_differs_by_purpose() -> None:
    assert derived(b"s", "one") != derived(b"s", "another")
    assert len(derived(b"s", "one")) == 32
