"""The simulated model server as an Upstream in this process: no sockets, so that it runs in virtual time too."""

from collections.abc import Callable, Sequence

from core.errors import InvalidValue, UpstreamFailed
from core.ports import Clock, UpstreamAnswer, UpstreamRequest
from core.simulation.answers import FORMATS, Format, error_body, models_body
from core.simulation.driver import EngineDriver, Generation, GenerationLost
from core.simulation.engine import OverLimit
from core.simulation.prompts import Prompt, read_prompt

JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream")
TOKEN = "tide "
"""The text of every token: in process nobody reads it, and equal events are cheap to write."""

SHORT_EVENTS = {"/chat/completions": b'data: {"choices":[{"index":0,"delta":{"content":"tide "}}]}\n\n'}
"""Token events without what repeats in each: short ones are cheap to scan, by the million."""

Observer = Callable[[Prompt, Generation | None], None]
"""Told of each request that reaches the server, with its generation, `None` where it was refused with 429."""


def _ignore(prompt: Prompt, generation: Generation | None) -> None:
    pass


class SimulatedUpstream:
    """An Upstream (see `core.ports`) over an engine.

    A stream's head comes at once, as vLLM's does, an unstreamed answer's with its body. `retry_after` is what the 429
    of a hidden limit says, `None` for no such header.
    """

    def __init__(
        self,
        *,
        driver: EngineDriver,
        clock: Clock,
        retry_after: int | None = None,
        observer: Observer = _ignore,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._retry_after = retry_after
        self._observer = observer
        self._answers = 0

    async def send(self, request: UpstreamRequest) -> UpstreamAnswer:
        """Send and wait for the head (see the port)."""
        if request.path == "/models":
            return WholeAnswer(200, models_body(("simulated",), self._created()))
        if request.path not in FORMATS:
            return WholeAnswer(404, error_body(f"no such endpoint: {request.path}", "invalid_request_error"))
        try:
            prompt = read_prompt(request.body, embeddings=request.path == "/embeddings")
        except InvalidValue as error:
            return WholeAnswer(400, error_body(error.message, "invalid_request_error"))
        return await self._answer(request.path, prompt)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def _created(self) -> int:
        return int(self._clock.now().timestamp())

    async def _answer(self, path: str, prompt: Prompt) -> UpstreamAnswer:
        try:
            generation = self._driver.submit(prompt.prompt_tokens, prompt.output_tokens, priority=prompt.priority)
        except OverLimit:
            self._observer(prompt, None)
            return self._refusal()
        self._observer(prompt, generation)
        self._answers += 1
        form = FORMATS[path](prompt, self._answers, self._created())
        if prompt.stream:
            return StreamAnswer(generation, form, SHORT_EVENTS.get(path) or form.delta(TOKEN))
        return await self._whole(generation, form)

    def _refusal(self) -> UpstreamAnswer:
        headers = [] if self._retry_after is None else [(b"retry-after", b"%d" % self._retry_after)]
        return WholeAnswer(429, error_body("too many requests", "rate_limit_error", "rate_limit_exceeded"), headers)

    async def _whole(self, generation: Generation, form: Format) -> UpstreamAnswer:
        try:
            await generation.complete()
        except GenerationLost:
            return WholeAnswer(503, error_body("the replica died", "server_error"))
        finally:
            generation.abort()
        return WholeAnswer(200, form.whole(generation.sequence.output))


class WholeAnswer:
    """An answer that is there as a whole."""

    def __init__(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self.status = status
        self.headers: Sequence[tuple[bytes, bytes]] = [JSON, (b"content-length", b"%d" % len(body)), *headers]
        self._body = body

    async def read(self) -> bytes:
        """Return the body, then b""."""
        body, self._body = self._body, b""
        return body

    def close(self) -> None:
        """Do nothing: the server has done its work."""


class StreamAnswer:
    """A stream of server-sent events, read from the engine as it generates; closing it early aborts the sequence."""

    def __init__(self, generation: Generation, form: Format, event: bytes) -> None:
        self.status = 200
        self.headers: Sequence[tuple[bytes, bytes]] = [EVENTS]
        self._generation = generation
        self._form = form
        self._event = event
        self._opened = False
        self._closed = False

    async def read(self) -> bytes:
        """Return the events of the tokens that came meanwhile (see the port)."""
        if self._closed:
            return b""
        try:
            tokens = await self._generation.more()
        except GenerationLost:
            raise UpstreamFailed(502, "upstream_truncated", "the model server broke off") from None
        events = self._event * tokens
        if not self._opened:
            self._opened, events = True, self._form.opening() + events
        if self._generation.finished:
            self._closed = True
            events += self._form.closing(self._generation.sequence.output)
        return events

    def close(self) -> None:
        """Abort the generation unless it has ended."""
        self._closed = True
        self._generation.abort()
