"""The simulated model server over HTTP: shapes, faults, counts, and clients that leave."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
import uvicorn

from core.simulation.engine import EngineSettings
from web.mock_server import create_app

SPEED = 50.0
DEADLINE = 10.0
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class RunningServer:
    """A real uvicorn in a thread on a free port."""

    def __init__(self, **options: Any) -> None:
        config = uvicorn.Config(create_app(**options), port=0, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self.url = ""

    def __enter__(self) -> "RunningServer":
        self._thread.start()
        until(lambda: self._server.started)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def told(self) -> dict[str, Any]:
        return httpx2.get(f"{self.url}/sim").json()

    def change(self, **fields: Any) -> httpx2.Response:
        return httpx2.post(f"{self.url}/sim", json=fields)

    def chat(self, headers: dict[str, str] | None = None, **fields: Any) -> httpx2.Response:
        return httpx2.post(f"{self.url}/v1/chat/completions", json=CHAT | fields, headers=headers, timeout=DEADLINE)

    def stream_into(self, received: list[bytes], **fields: Any) -> None:
        body = CHAT | {"stream": True} | fields
        with httpx2.stream("POST", f"{self.url}/v1/chat/completions", json=body) as answer:
            received.extend(answer.iter_raw())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)


def events(text: str) -> list[Any]:
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer(speed=SPEED) as running:
        yield running


@pytest.fixture
def sdk(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_sdk_reads_every_endpoint_whole(sdk: openai.OpenAI) -> None:
    chat = sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=3)
    assert chat.choices[0].message.content == "the tide comes "
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 3
    assert sdk.completions.create(model="m", prompt="hi", max_tokens=2).choices[0].text == "the tide "
    assert sdk.responses.create(model="m", input="hi", max_output_tokens=2).output_text == "the tide "
    embeddings = sdk.embeddings.create(model="m", input=["a", "b"])
    assert [len(vector.embedding) for vector in embeddings.data] == [8, 8]
    assert embeddings.data[0].embedding[1] == -0.25
    assert [model.id for model in sdk.models.list()] == ["simulated"]


def test_the_sdk_reads_every_endpoint_streamed(sdk: openai.OpenAI) -> None:
    chat = sdk.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(chat)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "the tide comes in "
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    completion = sdk.completions.create(model="m", prompt="hi", max_tokens=2, stream=True)
    assert "".join(chunk.choices[0].text for chunk in completion) == "the tide "
    events = list(sdk.responses.create(model="m", input="hi", max_output_tokens=2, stream=True))
    assert [event.delta for event in events if event.type == "response.output_text.delta"] == ["the ", "tide "]
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "the tide "


def test_usage_comes_only_where_it_was_asked_for_and_is_null_before(server: RunningServer) -> None:
    """R40 litellm PR#35290, R42 CLIProxyAPI PR#2762: what an upstream sends with and without `include_usage`."""
    plain = events(server.chat(stream=True, max_tokens=2).text)
    assert not any("usage" in event for event in plain)
    asked = events(server.chat(stream=True, max_tokens=2, stream_options={"include_usage": True}).text)
    assert [event["usage"] for event in asked[:-1]] == [None] * (len(asked) - 1)
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["completion_tokens"] == 2


def test_the_same_request_gets_the_same_text_and_length(server: RunningServer) -> None:
    first, second = server.chat().json(), server.chat().json()
    assert first["choices"] == second["choices"]
    assert first["usage"] == second["usage"]


def test_a_given_text_is_answered_unharmed_byte_by_byte(server: RunningServer) -> None:
    """R36 aisix#111, claude-code-cache-fix#365: UTF-8 cut at every byte."""
    text = "你好 👩‍👩‍👧‍👦 é"
    answer = server.chat(stream=True, sim={"text": text, "one_byte": True})
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events(answer.text)) == text


@pytest.mark.parametrize("stream", [False, True])
def test_gzip_answers_say_so_and_unpack(server: RunningServer, stream: bool) -> None:
    """R109 superlocalmemory PR#79, vinext PR#265: JSON and event stream."""
    answer = server.chat(stream=stream, max_tokens=3, sim={"gzip": True})
    assert answer.headers["content-encoding"] == "gzip"
    assert "tide" in answer.text


def test_a_reset_breaks_off_after_the_given_chunks(server: RunningServer) -> None:
    """R31 open-webui#29628: the upstream dies in the middle of a stream."""
    received: list[bytes] = []
    with pytest.raises(httpx2.RemoteProtocolError):
        server.stream_into(received, sim={"reset_after": 3})
    assert b"".join(received).count(b'"content":"') == 4  # the role, and three words
    assert server.told()["broken"] == 1


def test_an_unstreamed_answer_breaks_off_half_way(server: RunningServer) -> None:
    with pytest.raises(httpx2.RemoteProtocolError):
        server.chat(sim={"reset_after": 1})


def test_a_truncated_stream_ends_cleanly_without_its_end(server: RunningServer) -> None:
    answer = server.chat(stream=True, sim={"truncate_after": 2})
    assert "[DONE]" not in answer.text
    assert [event["choices"][0]["finish_reason"] for event in events(answer.text)] == [None] * 3


def test_a_fault_may_be_asked_for_by_header(server: RunningServer) -> None:
    """R33 lemonade#2826, R35 jmunch-mcp PR#5: status, message and Retry-After of a refused stream."""
    wish = {"status": 429, "message": "come back", "retry_after": 7}
    answer = server.chat(stream=True, headers={"x-sim": json.dumps(wish)})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"]["message"] == "come back"
    assert server.told()["failed"] == 1


def test_faults_for_all_apply_until_they_are_taken_back(server: RunningServer) -> None:
    server.change(faults={"status": 500})
    assert server.chat().status_code == 500
    server.change(faults=None, fail_rate=1.0, fail_status=503)
    assert server.chat().status_code == 503
    server.change(fail_rate=0.0)
    assert server.chat(max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"slow": -1}, "slow"),
        ({"share": 0}, "share"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"faults": {"status": 200}}, "faults.status"),
        ({"wrong": 1}, "wrong"),
    ],
)
def test_a_wrong_change_is_refused_by_the_name_of_its_field(server: RunningServer, fields: Any, named: str) -> None:
    answer = server.change(**fields)
    assert answer.status_code == 422
    assert named in answer.text


def test_a_body_that_is_no_object_is_refused(server: RunningServer) -> None:
    assert httpx2.post(f"{server.url}/v1/chat/completions", content=b"[1").status_code == 400
    assert httpx2.post(f"{server.url}/sim", content=b"nonsense").status_code == 422


def test_the_hidden_limit_refuses_what_is_above_it(server: RunningServer) -> None:
    server.change(hidden_limit=1, retry_after=2, paused=True)
    with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=CHAT | {"stream": True}):
        answer = server.chat()
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        assert server.told()["refused"] == 1


def test_it_counts_what_is_in_flight_and_what_is_over_the_promised_slots(server: RunningServer) -> None:
    server.change(slots=1, paused=True)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            request = {"stream": True, "max_tokens": 2, "sim": {"tag": "open"}}
            stack.enter_context(httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=CHAT | request))
        told = server.told()
        assert (told["in_flight"], told["max_in_flight"], told["over_slots"]) == (3, 3, 2)
        assert (told["waiting"], told["running"]) == (3, 0)
    until(lambda: server.told()["in_flight"] == 0)
    assert server.told()["aborted"] == 3
    server.change(reset_counts=True)
    assert server.told()["requests"] == 0


def test_the_log_keeps_the_order_of_arrival(server: RunningServer) -> None:
    for tag in ("a", "b"):
        server.chat(max_tokens=1, sim={"tag": tag})
    log = httpx2.get(f"{server.url}/sim/log").json()["data"]
    assert [(entry["tag"], entry["outcome"]) for entry in log] == [("a", "completed"), ("b", "completed")]


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("paused", [False, True])
async def test_a_client_that_leaves_frees_its_place(server: RunningServer, stream: bool, paused: bool) -> None:
    """R18 litellm#27955, R22 llama.cpp#13262: nothing is generated for a client that is gone."""
    server.change(paused=paused, slow=50.0)
    body = CHAT | {"stream": stream, "max_tokens": 5000}
    async with httpx2.AsyncClient() as client:
        call = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=body))
        await asyncio.to_thread(until, lambda: server.told()["in_flight"] == 1)
        await asyncio.to_thread(until, lambda: server.told()["waiting" if paused else "running"] == 1)
        call.cancel()
        await asyncio.wait({call})
    await asyncio.to_thread(until, lambda: server.told()["in_flight"] == 0)
    told = server.told()
    assert (told["aborted"], told["waiting"], told["running"], told["cached_tokens"]) == (1, 0, 0, 0)


def test_a_dying_replica_takes_its_requests_along(server: RunningServer) -> None:
    server.change(slow=50.0)
    with httpx2.stream(
        "POST", f"{server.url}/v1/chat/completions", json=CHAT | {"stream": True, "max_tokens": 5000}
    ) as answer:
        until(lambda: server.told()["running"] == 1)
        server.change(kill=1.0, share=0.5)
        with pytest.raises(httpx2.RemoteProtocolError):
            answer.read()
    assert server.told()["lost"] == 1
    assert server.told()["share"] == 0.5


def test_what_does_not_fit_waits_its_turn() -> None:
    with RunningServer(engine=EngineSettings(max_sequences=1), speed=SPEED) as server:
        server.change(slow=20.0)
        url = f"{server.url}/v1/chat/completions"
        with httpx2.stream("POST", url, json=CHAT | {"stream": True, "max_tokens": 5000}):
            until(lambda: server.told()["running"] == 1)
            with httpx2.stream("POST", url, json=CHAT | {"stream": True, "max_tokens": 1}) as second:
                until(lambda: server.told()["waiting"] == 1)
                assert second.status_code == 200
