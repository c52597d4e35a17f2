"""`POST /api/chat` in front of a model server that answers as the test wants it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.config import Settings
from core.people.identity import OPEN
from tests.servers import running
from web.app import create_app
from web.auth import IDENTITY
from web.simple import LEFT, chat

WHOLE = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "Hello, too"}}]}
OWN = ("x-request-id", "x-tidegate-lane", "x-tidegate-pool", "x-tidegate-queue-ms")


class Model:
    """A model server that gives `answer` to every call and keeps the last one's body."""

    def __init__(self) -> None:
        self.answer = Response(json.dumps(WHOLE), media_type="application/json")
        self.models: list[dict[str, str]] = [{"id": "m"}]
        self.asked: dict[str, Any] = {}

    async def chat(self, request: Request) -> Response:
        self.asked = await request.json()
        return self.answer

    async def listed(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": self.models})


@contextmanager
def in_front_of(model: Model, folder: Path, **settings: Any) -> Iterator[str]:
    routes = [Route("/v1/chat/completions", model.chat, methods=["POST"]), Route("/v1/models", model.listed)]
    with running(Starlette(routes=routes)) as upstream:
        app = create_app(Settings(upstream=upstream, data=folder, slots=2, **settings))
        with running(app) as url:
            yield url


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def url(model: Model, tmp_path: Path) -> Iterator[str]:
    with in_front_of(model, tmp_path) as url:
        yield url


def ask(url: str, *, headers: dict[str, str] | None = None, **fields: object) -> httpx2.Response:
    return httpx2.post(f"{url}/api/chat", json={"message": "Hello", **fields}, headers=headers)


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_message_gets_a_reply(url: str) -> None:
    answer = ask(url)
    assert (answer.status_code, answer.json()["reply"], answer.json()["lane"]) == (200, "Hello, too", "interactive")
    assert set(OWN) <= set(answer.headers)


@pytest.mark.parametrize("body", [b"not JSON", b"", b"[" * 100_000, b"[1]", b'"text"', b'{"choices": []}', b"\xff\xfe"])
def test_an_answer_that_is_no_chat_completion_is_the_model_servers_fault(url: str, model: Model, body: bytes) -> None:
    model.answer = Response(body, media_type="application/json")
    answer = ask(url)
    assert code(answer) == (502, "upstream_error")
    assert set(OWN) <= set(answer.headers)


def test_a_refusal_comes_with_its_own_words_and_time_to_wait(url: str, model: Model) -> None:
    model.answer = Response("<p>Come later", 429, {"retry-after": "7"}, media_type="text/html")
    answer = ask(url)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert (answer.text, answer.headers["content-type"]) == ("<p>Come later", "text/html; charset=utf-8")


def test_a_retry_after_of_zero_becomes_one_second(url: str, model: Model) -> None:
    model.answer = Response("{}", 503, {"retry-after": "0"})
    assert ask(url).headers["retry-after"] == "1"


def test_a_refusal_by_tidegate_tells_lane_wait_and_request_id(url: str) -> None:
    answer = ask(url, type="gold")
    assert code(answer) == (400, "invalid_request")
    assert {name: answer.headers.get(name) for name in OWN[1:]} == {
        "x-tidegate-lane": "interactive",
        "x-tidegate-pool": None,
        "x-tidegate-queue-ms": "0",
    }


@pytest.mark.parametrize(
    ("fields", "headers", "lane"),
    [
        ({}, {}, "interactive"),
        ({"type": "batch"}, {}, "batch"),
        ({}, {"x-tidegate-lane": "batch"}, "batch"),
        ({"type": "interactive"}, {"x-tidegate-lane": "batch"}, "batch"),
        ({"type": "batch"}, {"x-tidegate-lane": "interactive"}, "batch"),
    ],
)
def test_type_and_header_lower_a_call_and_neither_raises_it(
    url: str, fields: dict[str, str], headers: dict[str, str], lane: str
) -> None:
    assert ask(url, headers=headers, **fields).headers["x-tidegate-lane"] == lane


def test_without_a_model_the_first_one_that_the_pool_serves_is_asked(model: Model, tmp_path: Path) -> None:
    model.models = [{"id": "whisper"}, {"id": "llama-3"}]
    with in_front_of(model, tmp_path, models=("llama-*",)) as url:
        assert ask(url).status_code == 200
        assert model.asked["model"] == "llama-3"
        model.models = [{"id": "whisper"}]
        assert code(ask(url)) == (400, "invalid_request")


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"message":"\xff"}', b'{"messages":' + b"[" * 9000])
def test_a_body_that_cannot_be_read_is_the_clients_fault(url: str, body: bytes) -> None:
    assert code(httpx2.post(f"{url}/api/chat", content=body)) == (400, "invalid_request")


@pytest.mark.anyio
async def test_a_client_that_leaves_while_it_sends_is_no_fault_of_the_server() -> None:
    async def leave() -> dict[str, str]:
        return {"type": "http.disconnect"}

    app = Starlette()
    app.state.front = SimpleNamespace(body_limit=1000)
    scope = {"type": "http", "method": "POST", "path": "/api/chat", "headers": [], "app": app, IDENTITY: OPEN}
    assert (await chat(Request(scope, leave))).status_code == LEFT
