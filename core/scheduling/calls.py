"""One LLM request as the gateway sees it, and the face to which its answer goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from core.errors import RequestError
from core.lanes import Lane

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(slots=True, eq=False)
class Call:
    """One LLM request: `path` is below the base URL ("/chat/completions"), `body` goes out byte for byte as it is.

    `has_tokens` is False where the answer has no generated tokens (embeddings). `durable` marks an item that can be
    sent again at any time without anyone noticing. `source` names the batch, or the tenant of a synchronous call.
    `max_wait` bounds the wait for a slot, in seconds, below the lane's own bound. `key` is the name of the API key.

    The gateway fills in `queued_s`, the seconds that the call waited for its slot(s), and the token counts of the
    answer; `estimated` tells that the server sent no usage and content pieces were counted instead.
    """

    id: str
    tenant: str
    lane: Lane
    model: str
    path: str
    body: bytes
    headers: Headers = ()
    stream: bool = False
    max_tokens: int | None = None
    has_tokens: bool = True
    durable: bool = False
    source: str = ""
    max_wait: float | None = None
    key: str = ""
    queued_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False


class Reply(Protocol):
    """Takes an answer as it comes. The gateway calls `start`, `send` any number of times, then `finish`; or `fail`.

    The answer to a durable call that was pulled back begins anew with another `start`: what came before is void.

    `heartbeat` may come before `start`: it sends the head of an event stream with status 200 if need be, so that
    whatever fails later is told inside the stream. Each call may wait for a slow client.
    """

    @property
    def started(self) -> bool:
        """Tell whether a byte of the upstream's answer went out."""

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of the answer."""

    async def send(self, piece: bytes) -> None:
        """Send a piece of the body."""

    async def finish(self) -> None:
        """End the answer cleanly."""

    async def heartbeat(self) -> None:
        """Send a comment line that keeps a waiting stream open."""

    async def fail(self, error: RequestError) -> None:
        """End with an error: as status and body if nothing was sent, inside the stream or by breaking off if it was."""
