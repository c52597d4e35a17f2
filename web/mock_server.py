"""The simulated model server over HTTP, in real time: `tidegate mock-server`, the demo, and the tests' upstream.

It serves `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings`, `/v1/responses` (streaming and not) and
`/v1/models` from one engine. `GET /sim` tells its counts and state, `GET /sim/log` the last requests in order of
arrival, `POST /sim` changes it while it runs (`core.simulation.faults.Change`). Single requests may ask for faults by
the body's field `sim` or the header `x-sim`, a JSON object (`core.simulation.prompts.Wishes`). Texts are always the
same. A client that leaves frees its place in the engine at once.
"""

import asyncio
import dataclasses
import random
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from core.clock import SystemClock
from core.errors import InvalidValue
from core.simulation.answers import FORMATS, Format, error_body, models_body, words
from core.simulation.driver import EngineDriver, Generation, GenerationLost
from core.simulation.engine import Engine, EngineSettings, OverLimit
from core.simulation.faults import Change, Counts, read_change
from core.simulation.prompts import NO_WISHES, Prompt, Wishes, read_prompt, read_wishes

GZIP = 31
"""zlib's window bits for the gzip format."""


class Broken(Exception):
    """The connection shall break off here."""


class MockServer:
    """One simulated model server: engine, counts, faults."""

    def __init__(self, *, engine: EngineSettings, speed: float, slots: int | None, models: tuple[str, ...]) -> None:
        self.clock = SystemClock()
        self.driver = EngineDriver(engine=Engine(engine), clock=self.clock, speed=speed)
        self.counts = Counts()
        self.models = models
        self.slots = slots
        self.faults = NO_WISHES
        self.fail_rate = 0.0
        self.fail_status = 503
        self.retry_after: str | int | None = None
        self.random = random.Random(1)

    def change(self, change: Change) -> None:
        """Do what `POST /sim` asks."""
        if change.reset_counts:
            self.counts = Counts(in_flight=self.counts.in_flight, max_in_flight=self.counts.in_flight)
        for name in ("slots", "fail_rate", "fail_status", "retry_after"):
            value = getattr(change, name)
            if value is not msgspec.UNSET:
                setattr(self, name, value)
        if change.faults is not msgspec.UNSET:
            self.faults = change.faults or NO_WISHES
        self._change_engine(change)

    def _change_engine(self, change: Change) -> None:
        driver = self.driver
        driver.become(dataclasses.replace(driver.engine.condition, **_given(change, slow="slow", share="share")))
        names = _given(change, max_num_seqs="max_sequences", hidden_limit="hidden_limit")
        driver.configure(dataclasses.replace(driver.engine.settings, **names))
        if change.kill:
            driver.kill(change.kill, self.random)
        if change.paused is not msgspec.UNSET:
            driver.pause() if change.paused else driver.resume()

    def told(self) -> dict[str, Any]:
        """Return counts and state, as `GET /sim` tells them."""
        driver, engine = self.driver, self.driver.engine
        return self.counts.told() | {
            "slots": self.slots,
            "waiting": engine.waiting,
            "running": engine.running,
            "cached_tokens": engine.cached,
            "recomputed": engine.recomputed,
            "lost": driver.lost,
            "generated_tokens": driver.generated_tokens,
            "wasted_tokens": driver.wasted_tokens,
            "paused": driver.paused,
            "speed": driver.speed,
            "slow": engine.condition.slow,
            "share": engine.condition.share,
            "max_num_seqs": engine.settings.max_sequences,
            "hidden_limit": engine.settings.hidden_limit,
            "retry_after": self.retry_after,
            "fail_rate": self.fail_rate,
            "faults": msgspec.to_builtins(self.faults),
        }


def _given(change: Change, **names: str) -> dict[str, Any]:
    """Return the fields of `change` that were given, under the names that they have elsewhere."""
    pairs = ((theirs, getattr(change, ours)) for ours, theirs in names.items())
    return {name: value for name, value in pairs if value is not msgspec.UNSET}


class ModelEndpoint:
    """The ASGI app of one model endpoint. `path` is below the base URL."""

    def __init__(self, server: MockServer, path: str) -> None:
        self._server = server
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever happens, it is counted out again."""
        server = self._server
        exchange = _Exchange(server, self._path, Request(scope, receive), send)
        server.counts.enter(self._path, server.slots)
        counts = server.counts
        try:
            await exchange.run(receive)
        finally:
            exchange.count_out()
            setattr(counts, exchange.outcome, getattr(counts, exchange.outcome) + 1)
            exchange.entry["outcome"] = exchange.outcome


class _Exchange:
    """One request and its answer."""

    def __init__(self, server: MockServer, path: str, request: Request, send: Send) -> None:
        self._server = server
        self._path = path
        self._request = request
        self._send = send
        self._generation: Generation | None = None
        self._packer: Any = None
        self._in_flight = True
        self.outcome = "aborted"
        self.entry: dict[str, Any] = {"path": path, "at": server.clock.monotonic()}

    def count_out(self) -> None:
        """Count the request as in flight no longer. With its last byte its client may already send the next one."""
        if self._in_flight:
            self._in_flight = False
            self._server.counts.in_flight -= 1

    async def run(self, receive: Receive) -> None:
        try:
            body = await self._request.body()
        except ClientDisconnect:
            return
        work = asyncio.ensure_future(self._answer(body))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            await _stop(gone)
            await _stop(work)
            if self._generation is not None:
                self._generation.abort()

    async def _answer(self, body: bytes) -> None:
        server = self._server
        try:
            header = self._request.headers.get("x-sim")
            wishes = read_wishes(header).over(server.faults) if header else server.faults
            prompt = read_prompt(body, embeddings=self._path == "/embeddings", wishes=wishes)
        except InvalidValue as error:
            await self._fail(400, error.message, "invalid_request_error")
            return
        self._note(prompt)
        if prompt.wishes.delay:
            await server.clock.sleep(prompt.wishes.delay)
        if not await self._refuse(prompt.wishes):
            await self._generate(prompt)

    def _note(self, prompt: Prompt) -> None:
        self.entry |= {"tag": prompt.wishes.tag, "model": prompt.model, "stream": prompt.stream, "outcome": None}
        self._server.counts.recent.append(self.entry)

    async def _refuse(self, wishes: Wishes) -> bool:
        server = self._server
        if wishes.status is not None:
            await self._fail(wishes.status, wishes.message, "simulated_error", wishes.retry_after)
            return True
        if server.fail_rate and server.random.random() < server.fail_rate:
            await self._fail(server.fail_status, "simulated failure", "server_error")
            return True
        return False

    async def _generate(self, prompt: Prompt) -> None:
        server = self._server
        try:
            generation = server.driver.submit(prompt.prompt_tokens, prompt.output_tokens, priority=prompt.priority)
        except OverLimit:
            self.outcome = "refused"
            await self._fail(429, "too many requests in flight", "rate_limit_error", server.retry_after)
            return
        self._generation = generation
        form = FORMATS[self._path](prompt, server.counts.requests, int(server.clock.now().timestamp()))
        try:
            await (self._stream(prompt, form) if prompt.stream else self._whole(prompt, form))
            self.outcome = "completed"
        except Broken:
            self.outcome = "broken"

    async def _fail(self, status: int, message: str, kind: str, retry_after: str | int | None = None) -> None:
        if self.outcome != "refused":
            self.outcome = "failed"
        headers = [] if retry_after is None else [(b"retry-after", str(retry_after).encode())]
        body = error_body(message, kind, "rate_limit_exceeded" if status == 429 else None)
        await self._head(status, [(b"content-type", b"application/json"), *headers], len(body))
        await self._send({"type": "http.response.body", "body": body})

    async def _head(self, status: int, headers: list[tuple[bytes, bytes]], length: int | None = None) -> None:
        if length is not None:
            headers = [*headers, (b"content-length", b"%d" % length)]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _whole(self, prompt: Prompt, form: Format) -> None:
        generation, wishes = self._generation, prompt.wishes
        assert generation is not None
        try:
            await generation.complete()
        except GenerationLost:
            await self._fail(503, "the replica died", "server_error")
            raise Broken from None
        body = form.whole(generation.sequence.output)
        headers = [(b"content-type", b"application/json")]
        if wishes.gzip:
            body = zlib.compress(body, wbits=GZIP)
            headers.append((b"content-encoding", b"gzip"))
        await self._head(200, headers, len(body))
        if wishes.reset_after is not None or wishes.truncate_after is not None:
            await self._piece(body[: len(body) // 2], wishes)
            raise Broken
        self.count_out()
        await self._piece(body, wishes)
        await self._send({"type": "http.response.body", "body": b""})

    async def _stream(self, prompt: Prompt, form: Format) -> None:
        wishes = prompt.wishes
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        if wishes.gzip:
            self._packer = zlib.compressobj(wbits=GZIP)
            headers.append((b"content-encoding", b"gzip"))
        await self._head(200, headers)
        sent = 0
        async with aclosing(self._chunks(prompt, form)) as chunks:
            async for chunk in chunks:
                if sent == wishes.reset_after:
                    raise Broken
                if sent == wishes.truncate_after:
                    break
                await self._piece(chunk, wishes)
                sent += 1
        rest = self._packer.flush() if self._packer else b""
        self.count_out()
        await self._send({"type": "http.response.body", "body": rest})

    async def _chunks(self, prompt: Prompt, form: Format) -> AsyncGenerator[bytes, None]:
        """Yield the first event(s), one chunk for each token, and the end."""
        generation, place = self._generation, 0
        assert generation is not None
        while new := await self._more(generation):
            for word in words(prompt, place, new):
                event = form.delta(word) if place else form.opening() + form.delta(word)
                place += 1
                yield event
        yield form.closing(generation.sequence.output)

    async def _more(self, generation: Generation) -> int:
        try:
            return await generation.more()
        except GenerationLost:
            raise Broken from None

    async def _piece(self, chunk: bytes, wishes: Wishes) -> None:
        if self._packer is not None:
            chunk = self._packer.compress(chunk) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        pieces = [chunk[place : place + 1] for place in range(len(chunk))] if wishes.one_byte else [chunk]
        for piece in pieces:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(task: "asyncio.Future[None]") -> None:
    task.cancel()
    await asyncio.wait({task})


def _models(server: MockServer) -> Response:
    return Response(models_body(server.models, int(server.clock.now().timestamp())), media_type="application/json")


async def _change(server: MockServer, request: Request) -> Response:
    try:
        change = read_change(await request.body())
    except InvalidValue as error:
        return JSONResponse({"error": {"field": error.field, "message": error.message}}, status_code=422)
    server.change(change)
    return JSONResponse(server.told())


def create_app(
    *,
    engine: EngineSettings | None = None,
    speed: float = 1.0,
    slots: int | None = None,
    models: tuple[str, ...] = ("simulated",),
) -> Starlette:
    """Return the app. `speed` makes the engine that many times faster; `slots` is what clients promised to keep.

    The server is `app.state.server`.
    """
    server = MockServer(engine=engine or EngineSettings(), speed=speed, slots=slots, models=models)

    async def models_list(request: Request) -> Response:
        return _models(server)

    async def told(request: Request) -> Response:
        return JSONResponse(server.told())

    async def change(request: Request) -> Response:
        return await _change(server, request)

    async def log(request: Request) -> Response:
        return JSONResponse({"data": list(server.counts.recent)})

    routes = [Route(f"/v1{path}", ModelEndpoint(server, path), methods=["POST"]) for path in FORMATS]
    routes += [
        Route("/v1/models", models_list),
        Route("/sim", told, methods=["GET"]),
        Route("/sim", change, methods=["POST"]),
        Route("/sim/log", log),
    ]
    app = Starlette(routes=routes)
    app.state.server = server
    return app


def run(*, host: str = "127.0.0.1", port: int = 8000, slots: int = 8, speed: float = 1.0) -> None:
    """Serve on `host`:`port` until interrupted: an engine that runs `slots` sequences at once, `speed` times real."""
    app = create_app(engine=EngineSettings(max_sequences=slots), speed=speed, slots=slots)
    uvicorn.run(app, host=host, port=port, log_level="critical", access_log=False)
