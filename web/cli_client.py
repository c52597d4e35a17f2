"""What `tidegate batch` needs of a Tidegate server, over HTTP. Every failure is one line (CommandError)."""

import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import httpx2

from core.errors import TidegateError

DEFAULT_URL = "http://127.0.0.1:3456"
TIMEOUTS = httpx2.Timeout(30.0, connect=5.0)
LONG = httpx2.Timeout(600.0, connect=5.0)
CREATE_PAUSES_S = (1.0, 3.0)
_ENDED = frozenset(("completed", "failed", "expired", "cancelled"))

Json = dict[str, Any]


class CommandError(TidegateError):
    """A command cannot be carried out; the message is one line for its user."""


class Unreachable(CommandError):
    """The server cannot be reached, or cannot answer now."""


class Client:
    """One server, at `url`, asked in the name of `key` (None: of nobody). A context manager."""

    def __init__(self, *, url: str, key: str | None, transport: httpx2.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx2.Client(base_url=self.url, headers=headers, timeout=TIMEOUTS, transport=transport)
        except (httpx2.InvalidURL, ValueError):
            raise CommandError("TIDEGATE_URL is no address; write it as http://127.0.0.1:3456") from None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def batch(self, batch_id: str) -> Json:
        """Return a batch as the API tells it."""
        return self._json("GET", f"/v1/batches/{_name(batch_id)}")

    def batches(self, *, limit: int) -> list[Json]:
        """Return the newest batches, newest first."""
        found: list[Json] = []
        after: dict[str, str] = {}
        while len(found) < limit:
            page = self._json("GET", "/v1/batches", params={"limit": min(100, limit - len(found)), **after})
            found += page["data"]
            if not page["has_more"] or not page["data"]:
                break
            after = {"after": page["last_id"]}
        return found

    def upload(self, file: IO[bytes], filename: str) -> Json:
        """Upload an input file while it is read."""
        return self._json(
            "POST", "/v1/files", data={"purpose": "batch"}, files={"file": (filename, file)}, timeout=LONG
        )

    def create(self, order: Mapping[str, object]) -> Json:
        """Create a batch; what goes wrong on the way is tried again, and never makes a second one."""
        headers = {"idempotency-key": uuid.uuid4().hex}
        for pause in CREATE_PAUSES_S:
            try:
                return self._json("POST", "/v1/batches", json=dict(order), headers=headers)
            except Unreachable:
                time.sleep(pause)
        return self._json("POST", "/v1/batches", json=dict(order), headers=headers)

    def cancel(self, batch_id: str, reason: str = "") -> Json:
        """Begin to cancel a batch."""
        headers = {"x-tidegate-reason": " ".join(reason.split()).encode()} if reason.strip() else {}
        return self._json("POST", f"/v1/batches/{_name(batch_id)}/cancel", headers=headers)

    def quote(self, size: Mapping[str, object]) -> Json:
        """Return when a batch of that size would be done."""
        return self._json("POST", "/api/batch/quote", json=dict(size))

    def download(self, file_id: str, to: Path, *, came: Callable[[int], object] = lambda size: None) -> int:
        """Write a file's bytes to `to`, whole or not at all, and return how many; `came` is told of each piece."""
        part = to.with_name(f"{to.name}.part")
        size = 0
        try:
            with self._http.stream("GET", f"/v1/files/{_name(file_id)}/content", timeout=LONG) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _refused(answer)
                to.parent.mkdir(parents=True, exist_ok=True)
                with part.open("wb") as out:
                    for piece in answer.iter_bytes():
                        out.write(piece)
                        size += len(piece)
                        came(len(piece))
            part.replace(to)
        except httpx2.TransportError as error:
            raise self._away(error) from None
        except OSError as error:
            raise CommandError(f"{to}: {error.strerror or 'cannot be written'}") from None
        finally:
            part.unlink(missing_ok=True)
        return size

    def _json(self, method: str, path: str, **request: Any) -> Json:
        try:
            answer = self._http.request(method, path, **request)
        except httpx2.TransportError as error:
            raise self._away(error) from None
        except httpx2.InvalidURL:
            raise CommandError("TIDEGATE_URL is no address; write it as http://127.0.0.1:3456") from None
        if answer.status_code >= 400:
            raise _refused(answer)
        try:
            found = answer.json()
        except ValueError:
            raise CommandError(f"{self.url} does not answer as a Tidegate does; check TIDEGATE_URL") from None
        if not isinstance(found, dict):
            raise CommandError(f"{self.url} does not answer as a Tidegate does; check TIDEGATE_URL")
        return found

    def _away(self, error: httpx2.TransportError) -> Unreachable:
        what = "does not answer in time" if isinstance(error, httpx2.TimeoutException) else "cannot be reached"
        return Unreachable(f"{self.url} {what}; is Tidegate running there? (TIDEGATE_URL)")


def client_of(environ: Mapping[str, str] = os.environ) -> Client:
    """Return the client that the environment names."""
    return Client(url=environ.get("TIDEGATE_URL") or DEFAULT_URL, key=environ.get("TIDEGATE_API_KEY") or None)


def ended(batch: Json) -> bool:
    """Tell whether a batch has reached a final status."""
    return batch["status"] in _ENDED


def succeeded(batch: Json) -> bool:
    """Tell whether a batch is done and has results: one whose lines all failed is completed, but of no use."""
    counts = batch["request_counts"]
    return batch["status"] == "completed" and (counts["completed"] > 0 or not counts["total"])


def _name(text: str) -> str:
    """Return an id as part of a path."""
    if not text or not all(character.isascii() and (character.isalnum() or character in "_-") for character in text):
        raise CommandError(f"{text!r:.80} is no id")
    return text


def _refused(answer: httpx2.Response) -> CommandError:
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answers with status {answer.status_code}"
    text = " ".join(str(message).split())[:500]
    if answer.status_code == 401:
        return CommandError(f"{text} (TIDEGATE_API_KEY)")
    return Unreachable(text) if answer.status_code >= 500 else CommandError(text)
