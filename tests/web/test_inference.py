"""The inference API over real sockets: what passes, what is refused, what happens when somebody leaves."""

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.servers import CHAT, Gate, gate, log_lines, until

FAMILY = "你好 👩‍👩‍👧‍👦 é"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("data"), slots=4, body_limit=20_000) as running:
        yield running


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Gate]:
    """A gate of two slots in front of a slow server."""
    with gate(tmp_path, speed=1.0, slots=2, interactive_max_wait=1.0) as running:
        yield running


def client(house: Gate, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{house.url}/v1", api_key="any", max_retries=0, **options)


def sim(**wishes: Any) -> dict[str, str]:
    return {"x-sim": json.dumps(wishes)}


def open_stream(house: Gate, received: list[bytes], stop: threading.Event, **fields: Any) -> threading.Thread:
    """Read a stream in a thread until it ends or `stop` is set; leaving the block closes the connection."""

    def read() -> None:
        with (
            suppress(httpx2.HTTPError),
            httpx2.stream("POST", f"{house.url}/v1/chat/completions", json=CHAT | {"stream": True} | fields) as answer,
        ):
            for piece in answer.iter_raw():
                received.append(piece)
                if stop.is_set():
                    return

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def test_every_answer_tells_lane_pool_wait_and_request_id(house: Gate) -> None:
    answer = house.chat(headers={"x-request-id": "mine-1"}, max_tokens=3)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-tidegate-lane"] == "interactive"
    assert answer.headers["x-tidegate-pool"] == "default"
    assert int(answer.headers["x-tidegate-queue-ms"]) >= 0


@pytest.mark.parametrize(
    ("headers", "fields", "lane"),
    [
        ({}, {}, "interactive"),
        ({}, {"service_tier": "flex"}, "batch"),
        ({"x-tidegate-lane": "batch"}, {}, "batch"),
        ({"x-tidegate-lane": "BATCH"}, {}, "batch"),
        ({}, {"service_tier": "priority"}, "interactive"),
        ({}, {"service_tier": "auto"}, "interactive"),
    ],
)
def test_a_request_can_lower_its_lane(house: Gate, headers: dict[str, str], fields: dict[str, str], lane: str) -> None:
    answer = house.chat(headers=headers, max_tokens=2, **fields)
    assert (answer.status_code, answer.headers["x-tidegate-lane"]) == (200, lane)


def test_a_key_sets_the_lane_and_a_request_never_raises_itself(tmp_path: Path) -> None:
    """R6 BerriAI/litellm PR#36780: a default lane and no hint is 200 in that lane."""
    keys = [
        {"name": "nightly", "key": "tg_batch", "tenant": "search", "lane": "batch", "lanes": ["batch"]},
        {"name": "app", "key": "tg_app", "lanes": ["interactive"]},
    ]
    with gate(tmp_path, keys=keys) as house:
        nightly, app = {"authorization": "Bearer tg_batch"}, {"authorization": "Bearer tg_app"}
        answer = house.chat(headers=nightly, max_tokens=2)
        assert (answer.status_code, answer.headers["x-tidegate-lane"]) == (200, "batch")
        raised = house.chat(headers=nightly | {"x-tidegate-lane": "interactive"}, service_tier="priority", max_tokens=2)
        assert (raised.status_code, raised.headers["x-tidegate-lane"]) == (200, "batch")
        refused = house.chat(headers=app, service_tier="flex")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "lane_not_allowed")
        for bad in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic tg_app"}):
            unknown = house.chat(headers=bad)
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body"),
        (b"[1]", "body"),
        (b'"x"', "body"),
        (b"{", "body"),
        (b'{"model":"\xff"}', "body"),
        (b'{"messages":[]}', "model"),
        (b'{"model":5}', "model"),
        (b'{"model":null}', "model"),
        (b'{"model":""}', "model"),
        (b'{"model":"m","stream":"yes"}', "stream"),
        (b'{"model":"m","stream":1}', "stream"),
        (b"[" * 15_000, "body"),
    ],
)
def test_a_bad_body_is_refused_by_name(house: Gate, body: bytes, param: str) -> None:
    answer = httpx2.post(f"{house.url}/v1/chat/completions", content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_request", param)
    assert answer.headers["x-request-id"]


def test_an_unknown_lane_is_refused(house: Gate) -> None:
    answer = house.chat(headers={"x-tidegate-lane": "fast"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-tidegate-lane")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_early(house: Gate, chunked: bool) -> None:
    body = b'{"model":"m","x":"' + b"a" * 30_000 + b'"}'
    content: Any = iter([body[:15_000], body[15_000:]]) if chunked else body
    answer = httpx2.post(f"{house.url}/v1/chat/completions", content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", ["/v1/nonsense/../x", "/v1/a//b", "/v1/"])
def test_what_can_be_no_endpoint_is_not_found(house: Gate, path: str) -> None:
    answer = httpx2.post(f"{house.url}{path}", json={})
    assert answer.status_code in (404, 405)
    assert house.sim()["in_flight"] == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nonsense", 404),
        ("PUT", "/v1/nonsense", 404),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("POST", "/v1", 404),
        ("GET", "/v1", 404),
    ],
)
def test_what_no_endpoint_takes_is_told_as_all_else_is(house: Gate, method: str, path: str, status: int) -> None:
    answer = httpx2.request(method, f"{house.url}{path}", headers={"x-request-id": "mine-9"})
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"
    own = ("x-request-id", "x-tidegate-lane", "x-tidegate-queue-ms")
    assert [answer.headers[name] for name in own] == ["mine-9", "interactive", "0"]


def test_all_endpoints_pass(house: Gate) -> None:
    with client(house) as api:
        assert (
            api.chat.completions.create(model="m", messages=CHAT["messages"], max_tokens=4).choices[0].message.content
        )
        assert api.completions.create(model="m", prompt="hi", max_tokens=4).choices[0].text
        assert len(api.embeddings.create(model="m", input=["a", "b"]).data) == 2
        assert api.responses.create(model="m", input="hi", max_output_tokens=4).output_text
        assert [model.id for model in api.models.list()]
        with api.responses.stream(model="m", input="hi") as stream:
            assert any(event.type == "response.completed" for event in stream)


def test_unknown_fields_pass_untouched_and_the_body_is_forwarded_as_it_came(house: Gate) -> None:
    body = (
        b'{ "messages":[{"role":"user","content":"x"}],  "ignore_eos":true, "model":"m","max_tokens":2,"z":{"a":[1]}}'
    )
    answer = httpx2.post(f"{house.url}/v1/chat/completions", content=body)
    assert answer.status_code == 200
    logged = httpx2.get(f"{house.model}/sim/log").json()
    assert logged


def test_text_cut_into_single_bytes_arrives_identical(house: Gate) -> None:
    """R36 api7/aisix#111."""
    with client(house) as api:
        stream = api.chat.completions.create(
            model="m", messages=CHAT["messages"], stream=True, extra_headers=sim(text=FAMILY, one_byte=True)
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == FAMILY


@pytest.mark.parametrize("stream", [False, True])
def test_a_compressed_answer_is_readable_by_every_client(house: Gate, stream: bool) -> None:
    """R109 qualixar/superlocalmemory PR#79."""
    answer = house.chat(headers=sim(text="tide", gzip=True) | {"accept-encoding": "identity"}, stream=stream)
    assert answer.status_code == 200
    assert "content-encoding" not in answer.headers
    assert ("[DONE]" if stream else "tide") in answer.text
    if "content-length" in answer.headers:
        assert int(answer.headers["content-length"]) == len(answer.content)


def test_a_stream_is_not_buffered_on_the_way(house: Gate) -> None:
    """R38 LostRuins/koboldcpp PR#1168: the first piece arrives long before the last is made."""
    with httpx2.stream(
        "POST", f"{house.url}/v1/chat/completions", json=CHAT | {"stream": True, "max_tokens": 2000}
    ) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in answer.headers
        assert answer.headers["content-type"].startswith("text/event-stream")
        pieces = answer.iter_raw()
        assert next(pieces)
        assert house.sim()["in_flight"] == 1, "the server still works on it"
    until(lambda: house.sim()["in_flight"] == 0)


def test_no_usage_chunk_reaches_a_client_that_did_not_ask(house: Gate) -> None:
    """R40 BerriAI/litellm PR#35290."""
    before = _metric(house, "tidegate_tokens_total")
    answer = house.chat(stream=True, max_tokens=12)
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert all(chunk["choices"] for chunk in chunks)
    assert not any(chunk.get("usage") for chunk in chunks)
    until(lambda: _metric(house, "tidegate_tokens_total") >= before + 12)


@pytest.mark.parametrize(("status", "retry_after"), [(400, None), (429, "3"), (503, None), (500, None)])
def test_the_servers_own_refusal_reaches_a_stream_as_its_status(
    tmp_path: Path, status: int, retry_after: str | None
) -> None:
    """R33 lemonade-sdk/lemonade#2826; R35 jgravelle/jmunch-mcp PR#5."""
    with gate(tmp_path) as house:
        wishes = sim(status=status, message="the server says no", retry_after=retry_after)
        answer = house.chat(headers=wishes, stream=True)
        assert answer.status_code == status
        assert answer.json()["error"]["message"] == "the server says no"
        assert answer.headers.get("retry-after") == retry_after
        assert house.sim()["requests"] == 1


def test_a_retry_after_of_zero_becomes_one(house: Gate) -> None:
    assert house.chat(headers=sim(status=429, retry_after="0")).headers["retry-after"] == "1"


@pytest.mark.parametrize("wish", [{"reset_after": 3}, {"truncate_after": 3}])
def test_a_stream_that_breaks_off_is_an_error_for_the_sdk(house: Gate, wish: dict[str, int]) -> None:
    """R31 open-webui/open-webui#29628."""
    with client(house) as api:
        stream = api.chat.completions.create(
            model="m", messages=CHAT["messages"], stream=True, max_tokens=50, extra_headers=sim(**wish)
        )
        with pytest.raises(openai.APIError) as broken:
            for _ in stream:
                pass
    assert broken.value.code == "upstream_truncated"


def test_an_answer_cut_before_its_first_byte_is_a_502(house: Gate) -> None:
    answer = house.chat(headers=sim(reset_after=0), stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_truncated")


def test_a_whole_answer_that_breaks_off_never_looks_complete(house: Gate) -> None:
    with pytest.raises(httpx2.RemoteProtocolError):
        house.chat(headers=sim(truncate_after=1), max_tokens=50)


def test_an_upstream_that_is_away_is_a_502_that_names_itself(tmp_path: Path) -> None:
    with gate(tmp_path, upstream="http://127.0.0.1:9/v1") as house:
        answer = house.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unreachable")
        assert int(answer.headers["retry-after"]) >= 1
        assert httpx2.get(f"{house.url}/healthz").status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_aborts_its_request_at_the_server(small: Gate, stream: bool) -> None:
    """R24 1rgs/claude-code-proxy PR#114, before the first token or after, with every middleware of the product on."""
    body = CHAT | {"stream": stream, "max_tokens": 2000}
    with httpx2.Client() as http, suppress(httpx2.ReadTimeout):
        request = http.build_request("POST", f"{small.url}/v1/chat/completions", json=body, timeout=0.5)
        http.send(request, stream=True)
    until(lambda: small.sim()["requests"] == 1)
    until(lambda: small.sim()["in_flight"] == 0 and small.pool()["lanes"]["interactive"]["in_flight"] == 0)


def test_twenty_streams_left_open_and_dropped_leave_every_slot_free(small: Gate) -> None:
    """R18 BerriAI/litellm#27955."""
    for _ in range(20):
        with httpx2.stream(
            "POST", f"{small.url}/v1/chat/completions", json=CHAT | {"stream": True, "max_tokens": 500}
        ) as answer:
            assert answer.status_code == 200
            next(answer.iter_raw())
    until(lambda: small.pool()["lanes"]["interactive"]["in_flight"] == 0)
    assert small.chat(max_tokens=2).status_code == 200
    assert small.sim()["max_in_flight"] <= 2


def test_a_call_that_waits_too_long_is_told_by_status_and_its_place(small: Gate) -> None:
    stop = threading.Event()
    received: list[bytes] = []
    threads = [open_stream(small, received, stop, max_tokens=2000) for _ in range(2)]
    until(lambda: small.pool()["lanes"]["interactive"]["in_flight"] == 2)
    answer = small.chat(stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.headers["x-tidegate-queue-position"] == "1"
    assert float(answer.headers["x-tidegate-estimated-wait"]) >= 0
    assert int(answer.headers["x-tidegate-queue-ms"]) >= 0
    stop.set()
    for thread in threads:
        thread.join()


def test_calls_sent_without_waiting_for_the_answers_before_are_all_answered_in_order(house: Gate) -> None:
    host, port = house.url.removeprefix("http://").split(":")
    calls = [json.dumps(CHAT | {"max_tokens": 3, "stream": stream}).encode() for stream in (True, False, True, False)]
    heads = [
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nx-request-id: pipe-{number}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        for number, body in enumerate(calls)
    ]
    received = b""
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(b"".join(head.encode() + body for head, body in zip(heads, calls, strict=True)))
        while received.count(b"x-request-id: pipe-") < len(calls):
            piece = client.recv(65536)
            assert piece
            received += piece
    places = [received.find(b"x-request-id: pipe-%d" % number) for number in range(len(calls))]
    assert places == sorted(places)
    assert received.count(b"HTTP/1.1 200 OK") == len(calls)


def test_a_client_that_would_rather_speak_http_2_is_answered_in_http_1(house: Gate) -> None:
    """Java's own client asks for it with every call in the clear."""
    host, port = house.url.removeprefix("http://").split(":")
    body = json.dumps(CHAT | {"max_tokens": 3, "user": "\r\nupgrade: h2c\r\n"}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: {host}\r\n"
        f"Content-Length: {len(body)}\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
        "Content-Type: application/json\r\nUpgrade: h2c\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=20) as client:
        for _ in range(2):
            client.sendall(head.encode() + body)
            received = b""
            while b'"usage"' not in received:
                piece = client.recv(65536)
                assert piece, received
                received += piece
            assert received.startswith(b"HTTP/1.1 200 OK")


def test_at_debug_level_every_answer_is_logged_with_its_id_and_none_of_its_words(
    house: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "level", logging.DEBUG)
    with log_lines() as lines:
        house.chat(headers={"x-request-id": "mine-7"}, messages=[{"role": "user", "content": "canary"}], max_tokens=2)
        until(lambda: any(line.get("request_id") == "mine-7" for line in lines))
    told = next(line for line in lines if line.get("request_id") == "mine-7")
    assert (told["log_level"], told["outcome"], told["lane"], told["status"]) == (
        "debug",
        "success",
        "interactive",
        200,
    )
    assert "canary" not in str(lines)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("broken", ["find", "timeouts", "open"])
def test_a_fault_of_our_own_is_told_in_openais_shape_and_holds_no_slot(
    small: Gate, monkeypatch: pytest.MonkeyPatch, broken: str, stream: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    pool = small.runtime.pools["default"]
    owner = {"find": small.app.state.front.router, "timeouts": pool.gateway, "open": pool.gateway.board}[broken]
    with monkeypatch.context() as patched:
        patched.setattr(owner, broken, fail)
        answer = small.chat(stream=stream)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert answer.headers["x-request-id"].startswith("req_")
    assert small.chat(max_tokens=2).status_code == 200
    assert pool.counts.interactive == 0
    assert not pool.gateway.live


def test_junk_models_and_paths_make_no_series(tmp_path: Path) -> None:
    """R93 BerriAI/litellm PR#39136."""
    with gate(tmp_path, models=["m"]) as house, httpx2.Client() as http:
        house.chat(max_tokens=2)
        before = len(httpx2.get(f"{house.url}/metrics").text.splitlines())
        for n in range(300):
            assert http.post(f"{house.url}/v1/chat/completions", json=CHAT | {"model": f"junk-{n}"}).status_code == 404
            http.post(f"{house.url}/v1/junk/{n}", json={"model": "m"})
        assert len(httpx2.get(f"{house.url}/metrics").text.splitlines()) < before + 10


def test_an_unknown_model_is_not_found_and_an_alias_is_known(tmp_path: Path) -> None:
    with gate(tmp_path, models=["real-*"], aliases={"fast": "real-1"}) as house:
        unknown = house.chat(model="other")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        known = house.chat(model="fast", max_tokens=2)
        assert (known.status_code, known.json()["model"]) == (200, "real-1")


def test_several_pools_are_chosen_by_model(tmp_path: Path) -> None:
    with gate(tmp_path / "one", slots=2) as first, gate(tmp_path / "two", slots=2) as second:
        pools = [
            {"name": "small", "base_url": first.model, "models": ["s-*"], "slots": 2},
            {"name": "large", "base_url": second.model, "models": ["l-*"], "slots": 3},
        ]
        with gate(tmp_path / "both", pools=pools) as house:
            for model, pool in (("s-1", "small"), ("l-1", "large")):
                answer = house.chat(model=model, max_tokens=2)
                assert (answer.status_code, answer.headers["x-tidegate-pool"]) == (200, pool)
            assert {pool["name"] for pool in httpx2.get(f"{house.url}/api/pools").json()["data"]} == {"small", "large"}


def test_nobodys_credentials_or_cookies_reach_the_server() -> None:
    from web.inference import forwarded

    headers = [
        (b"authorization", b"Bearer tg_secret"),
        (b"cookie", b"a=b"),
        (b"host", b"gate"),
        (b"origin", b"http://x"),
        (b"x-forwarded-for", b"10.0.0.1"),
        (b"content-type", b"application/json"),
        (b"x-session-affinity", b"s"),
    ]
    assert forwarded(headers, "r1") == [
        (b"content-type", b"application/json"),
        (b"x-session-affinity", b"s"),
        (b"x-request-id", b"r1"),
    ]


def _metric(house: Gate, name: str) -> float:
    lines = httpx2.get(f"{house.url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))
