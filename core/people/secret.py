"""The installation's secret: given by `TIDEGATE_SECRET`, else made at the first start and kept in the data folder."""

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from core.errors import ConfigError

FILE_NAME = "secret"
LEAST_BYTES = 16


def load_secret(folder: Path, given: str | None = None) -> bytes:
    """Return the secret: `given`, else that of the file in `folder`, which is made (0600) where it is missing.

    Several processes may do so at once: all get the same. Raises ConfigError where the file cannot be used.
    """
    if given is not None:
        return given.encode()
    path = folder / FILE_NAME
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
        found = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"secret: {str(path)!r} cannot be used ({error.strerror}); mend it or set TIDEGATE_SECRET"
        ) from None
    if len(found) < LEAST_BYTES:
        raise ConfigError(f"secret: {str(path)!r} is damaged; bring it back from a backup or set TIDEGATE_SECRET")
    return found


def derived(secret: bytes, purpose: str) -> bytes:
    """Return the 32 bytes that stand for the secret in one use, which tell nothing about those of another."""
    return hmac.digest(secret, b"tidegate " + purpose.encode(), "sha256")


class KeyedHash:
    """HMAC-SHA256 under one key, with the work that depends on the key alone done beforehand: about 1 us a call."""

    def __init__(self, key: bytes) -> None:
        block = hashlib.sha256(key).digest() if len(key) > 64 else key
        block = block.ljust(64, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))

    def digest(self, message: bytes) -> bytes:
        """Return the hash of `message`, 32 bytes."""
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()

    def hexdigest(self, message: str) -> str:
        """Return the hash of a text as it is stored."""
        return self.digest(message.encode()).hex()


def _make(path: Path) -> None:
    """Make the file whole and at once: a link is refused where another process was first."""
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_urlsafe(32).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink()
