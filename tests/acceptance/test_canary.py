"""Secrets that must come out nowhere, whatever goes wrong: not in answers, logs, pages, metrics or the database."""

import asyncio
import io
import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from core import logs
from core.config import Settings
from core.sources import shown
from tests.servers import DEADLINE_S, Gate, gate, running, until

UPSTREAM_KEY = "sk-canary-of-the-upstream-7731"
CLIENT_KEY = "tg-canary-of-the-client-4412"
FILE_KEY = "canary-of-the-files-0123456789abcdef"
TEXT = "canary-of-what-was-said-9090"
SECRETS = [UPSTREAM_KEY, CLIENT_KEY, FILE_KEY]
AUTH = {"authorization": f"Bearer {CLIENT_KEY}"}
PAGES = ["/", "/decisions", "/schedule", "/audit?controller=1", "/audit/calls", "/batches", "/tenants", "/accounts"]
APIS = [
    "/metrics",
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/v1/models",
    "/v1/batches",
    "/v1/files",
    "/api/pools",
    "/api/decisions",
    "/api/schedule",
    "/api/audit?automatic=true",
    "/api/audit/export",
    "/api/calls",
    "/api/calls/export",
    "/api/keys",
    "/api/tenants",
    "/api/accounts",
]
MODELS = ["echo-401", "echo-429", "echo-500", "echo-header", "in-band", "redirect", "cut", "no-json", "slow"]


async def provider(scope: Scope, receive: Receive, send: Send) -> None:
    """A model server that echoes the key that it was sent, in every way in which providers do."""
    headers = dict(scope["headers"])
    key = headers.get(b"authorization", b"")
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    model = json.loads(body)["model"] if body else "models"
    told = b'{"error":{"message":"Incorrect key: %s","code":"x","debug":["%s"]}}' % (key, key.removeprefix(b"Bearer "))

    async def answer(status: int, body: bytes, *more: tuple[bytes, bytes], kind: bytes = b"application/json") -> None:
        head = [(b"content-type", kind), (b"x-debug", key), *more]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    if model.startswith("echo-4") or model == "echo-500":
        await answer(int(model.removeprefix("echo-")), told)
    elif model == "in-band":
        await answer(200, b"data: " + told + b"\n\n", kind=b"text/event-stream")
    elif model == "redirect":
        await answer(302, key, (b"location", b"/v1/?key=" + key.removeprefix(b"Bearer ")))
    elif model == "cut":
        await answer(200, b'data: {"choices":[{"delta":{"content":"' + key + b'"}}]}\n\n', kind=b"text/event-stream")
    elif model == "no-json":
        await answer(500, b"<html>" + key, kind=b"text/html")
    elif model == "slow":
        await asyncio.sleep(1.0)
        await answer(200, told)
    elif model == "models":
        await answer(200, b'{"data":[{"id":"x","key":"%s"}]}' % key)
    else:
        await answer(200, b'{"choices":[]}')


@pytest.fixture(scope="module")
def log_lines() -> Iterator[io.StringIO]:
    """Everything that is logged at debug level, as a run with these settings logs it."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    lines = io.StringIO()
    logs.configure(level="debug", style="json", secrets=SECRETS, stream=lines)
    yield lines
    root.handlers[:], root.level = before


def settings_for(model: str) -> dict[str, Any]:
    common = {"api_key": UPSTREAM_KEY, "slots": 4, "batch_attempts": 1, "reserve": 1}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    pools = [
        {"name": "echo", "base_url": model, "models": [*MODELS, "fine"], **common},
        {"name": "away", "base_url": f"http://127.0.0.1:{port}", "models": ["away"], **common},
        {"name": "tls", "base_url": model.replace("http://", "https://"), "models": ["tls"], **common},
    ]
    pools[0]["interactive_timeouts"] = {"first_byte": 0.3, "total": 0.4}
    return {
        "pools": pools,
        "keys": [{"name": "client", "key": CLIENT_KEY, "role": "admin"}],
        "file_key": FILE_KEY,
    }


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, log_lines: io.StringIO) -> Iterator[Gate]:
    folder = tmp_path_factory.mktemp("data")
    with running(provider, lifespan="off") as model, gate(folder, **settings_for(model)) as inside:
        yield inside


def ask(house: Gate, model: str, *, stream: bool, lane: str = "interactive") -> str:
    """Make one call; return all that came of it."""
    body = {"model": model, "messages": [{"role": "user", "content": TEXT}], "stream": stream}
    headers = {**AUTH, "x-tidegate-lane": lane}
    url = f"{house.url}/v1/chat/completions"
    try:
        answer = httpx2.post(url, json=body, headers=headers, timeout=DEADLINE_S)
    except httpx2.HTTPError as error:
        return f"{error!r}"
    return f"{answer.status_code} {answer.headers} {answer.text}"


def leaks(text: str | bytes, secrets: list[str]) -> list[str]:
    found = text.encode() if isinstance(text, str) else text
    return [secret for secret in secrets if secret.encode() in found]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("lane", ["interactive", "batch"])
@pytest.mark.parametrize("model", [*MODELS, "away", "tls", "unknown"])
def test_no_error_gives_a_key_away(house: Gate, model: str, lane: str, stream: bool) -> None:
    """R99 BerriAI/litellm#8075, #15799: refused, time-out, 401, 500, TLS."""
    assert leaks(ask(house, model, stream=stream, lane=lane), SECRETS) == []


def test_the_provider_really_echoes(house: Gate) -> None:
    assert "********" in ask(house, "echo-401", stream=False)
    assert "********" in ask(house, "in-band", stream=True)


def test_a_wrong_key_is_not_repeated(house: Gate) -> None:
    wrong = "tg-canary-of-a-stranger-5151"
    answer = httpx2.get(f"{house.url}/v1/models", headers={"authorization": f"Bearer {wrong}"})
    assert answer.status_code == 401
    assert wrong not in f"{answer.headers} {answer.text}"


def test_a_batch_that_fails_in_every_way_keeps_the_keys(house: Gate) -> None:
    lines = [
        {
            "custom_id": model,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": model, "messages": [{"role": "user", "content": TEXT}]},
        }
        for model in MODELS
    ]
    file = "\n".join(json.dumps(line) for line in lines)
    with httpx2.Client(base_url=house.url, headers=AUTH, timeout=DEADLINE_S) as client:
        made = client.post("/v1/files", files={"file": ("in.jsonl", file)}, data={"purpose": "batch"}).json()
        body = {"input_file_id": made["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = client.post("/v1/batches", json=body).json()
        done = until(
            lambda: (
                (found := client.get(f"/v1/batches/{batch['id']}").json())["status"] in ("completed", "failed")
                and found
            ),
            60,
        )
        told = json.dumps(done)
        for name in ("output_file_id", "error_file_id"):
            if done.get(name):
                told += client.get(f"/v1/files/{done[name]}/content").text
    assert leaks(told, SECRETS) == []
    assert "Incorrect key" in told


def test_no_page_interface_or_metric_shows_a_key(house: Gate) -> None:
    for path in [*PAGES, *APIS]:
        answer = httpx2.get(house.url + path, headers=AUTH, timeout=DEADLINE_S)
        assert answer.status_code != 500, path
        assert leaks(f"{answer.headers} {answer.text}", SECRETS) == [], path


def test_neither_settings_nor_their_listing_show_a_key(house: Gate) -> None:
    """R101 kalyan-1845/ai-code-reviewer#785."""
    settings: Settings = house.runtime.settings
    assert leaks(f"{settings!r} {settings} {settings.model_dump()} {shown(settings)}", SECRETS) == []


def test_neither_database_nor_files_hold_a_key_or_a_word_of_what_was_said(house: Gate) -> None:
    until(lambda: not house.runtime.call_log._waiting)
    seen = 0
    for path in house.runtime.settings.data.rglob("*"):
        if path.is_file():
            seen += 1
            assert leaks(path.read_bytes(), [*SECRETS, TEXT]) == [], path
    assert seen >= 3


def test_no_line_of_the_log_holds_a_key_or_a_word_of_what_was_said(house: Gate, log_lines: io.StringIO) -> None:
    lines = log_lines.getvalue()
    assert "upstream is away" in lines
    assert leaks(lines, [*SECRETS, TEXT]) == []
