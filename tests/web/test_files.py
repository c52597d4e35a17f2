"""The Files API over real sockets, with the unmodified SDK and with raw requests."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
import pytest

from tests.servers import DEADLINE_S, Gate, gate, until

LIMIT = 2_000_000
GOOD = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}\n'
BOUNDARY = "tide"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("data"), batch_file_bytes=LIMIT) as running:
        yield running


@pytest.fixture(scope="module")
def api(house: Gate) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def form(data: bytes = GOOD, *, filename: str = "in.jsonl", **fields: str) -> bytes:
    """Return a multipart body; the file comes first, as some clients send it."""
    given = {"purpose": "batch"} | fields
    parts = [
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="{filename}"\r\n'
        f"content-type: application/jsonl\r\n\r\n".encode()
        + data
        + b"\r\n"
    ]
    for name, value in given.items():
        parts.append(f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode())
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def post(house: Gate, body: Any, *, content_type: str = f"multipart/form-data; boundary={BOUNDARY}") -> httpx2.Response:
    headers = {"content-type": content_type}
    return httpx2.post(f"{house.url}/v1/files", content=body, headers=headers, timeout=DEADLINE_S)


def stored(house: Gate) -> list[Path]:
    return list((house.runtime.settings.data / "files").glob("*/*"))


def test_the_sdk_uploads_reads_lists_downloads_and_deletes_a_file(api: openai.OpenAI) -> None:
    data = GOOD * 100
    file = api.files.create(
        file=("näme.jsonl", data), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (file.bytes, file.filename, file.purpose, file.status) == (len(data), "näme.jsonl", "batch", "processed")
    assert file.expires_at == file.created_at + 3600
    assert api.files.retrieve(file.id) == file
    assert api.files.wait_for_processing(file.id) == file
    assert api.files.content(file.id).read() == data
    assert file in list(api.files.list(purpose="batch"))
    deleted = api.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    with pytest.raises(openai.NotFoundError) as caught:
        api.files.retrieve(file.id)
    assert caught.value.code == "not_found"


def test_a_file_is_kept_for_thirty_days_by_default(api: openai.OpenAI) -> None:
    file = api.files.create(file=("a.jsonl", GOOD), purpose="batch")
    assert file.expires_at == file.created_at + 30 * 86_400


def test_a_time_to_live_may_come_as_json_in_one_field(house: Gate) -> None:
    told = post(house, form(expires_after='{"anchor": "created_at", "seconds": 3600}')).json()
    assert told["expires_at"] == told["created_at"] + 3600


def test_a_form_sent_in_chunks_without_a_length_is_taken(house: Gate) -> None:
    """As node's SDK sends it: transfer-encoding chunked, the file before or after its fields."""
    body = form(GOOD * 50)
    answer = post(house, iter([body[start : start + 777] for start in range(0, len(body), 777)]))
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["bytes"], told["object"], told["filename"]) == (len(GOOD) * 50, "file", "in.jsonl")
    assert answer.headers["x-request-id"]
    assert httpx2.get(f"{house.url}/v1/files/{told['id']}/content").content == GOOD * 50


def test_a_list_comes_page_by_page_and_ends(tmp_path: Path) -> None:
    with gate(tmp_path) as house, openai.OpenAI(base_url=f"{house.url}/v1", api_key="any") as api:
        ids = [api.files.create(file=(f"{n}.jsonl", GOOD), purpose="batch").id for n in range(5)]
        assert [file.id for file in api.files.list(limit=2)] == ids[::-1]
        assert [file.id for file in api.files.list(limit=2, order="asc")] == ids
        page = httpx2.get(f"{house.url}/v1/files", params={"limit": 2, "after": ids[3]}).json()
        assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[2], ids[1], True)
        last = httpx2.get(f"{house.url}/v1/files", params={"after": ids[0]}).json()
        assert last == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
        assert list(api.files.list(purpose="vision")) == []


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=10001", "order=up", "limit=%C2%B2"])
def test_a_bad_list_query_is_refused(house: Gate, query: str) -> None:
    answer = httpx2.get(f"{house.url}/v1/files?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "vision"}, "purpose"),
        ({"purpose": ""}, "purpose"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "60"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "9" * 5000}, "expires_after.seconds"),
        ({"expires_after[seconds]": "3600"}, "expires_after.anchor"),
        ({"expires_after": "3600"}, "expires_after"),
        ({"expires_after": "{"}, "expires_after"),
        ({"expires_after": '{"anchor": "created_at", "seconds": 60}'}, "expires_after.seconds"),
        ({"purpose": "x" * 70_000}, "purpose"),
    ],
)
def test_a_bad_field_is_refused_by_name_and_leaves_no_bytes(house: Gate, fields: dict[str, str], param: str) -> None:
    before = len(stored(house))
    parts = [f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields.items()]
    body = form().removesuffix(f"--{BOUNDARY}--\r\n".encode()) + "".join(parts).encode() + f"--{BOUNDARY}--".encode()
    answer = post(house, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert len(stored(house)) == before


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", form()[:-20], form()[:60], form() + form(), form().replace(b'name="file"', b'name="data"')],
)
def test_a_broken_form_is_refused_and_leaves_no_bytes(house: Gate, body: bytes) -> None:
    before = len(stored(house))
    answer = post(house, body)
    if answer.status_code == 200:  # bytes behind the end of a form are nobody's
        assert answer.json()["bytes"] == len(GOOD)
        return
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert len(stored(house)) == before


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "", "multipart/form-data; boundary="])
def test_what_is_no_form_is_refused(house: Gate, kind: str) -> None:
    assert post(house, form(), content_type=kind).status_code == 400


def test_a_path_in_a_file_name_is_cut_off(house: Gate) -> None:
    assert post(house, form(filename="../../etc/pass\twd")).json()["filename"] == "passwd"


def test_a_file_of_the_limit_is_taken_and_one_byte_more_is_not(house: Gate, api: openai.OpenAI) -> None:
    assert api.files.create(file=("a", b"x" * LIMIT), purpose="batch").bytes == LIMIT
    before = len(stored(house))
    for body in (form(b"x" * (LIMIT + 1)), iter([form(b"x" * (LIMIT + 1))])):
        answer = post(house, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert len(stored(house)) == before


def test_a_file_told_to_be_too_long_is_refused_before_it_is_sent(house: Gate) -> None:
    address = urlsplit(house.url)
    head = (
        f"POST /v1/files HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: {LIMIT * 100}\r\n"
        f"content-type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=DEADLINE_S) as connection:
        connection.sendall(head.encode())
        assert b" 413 " in connection.recv(4096)


def test_an_upload_that_is_broken_off_leaves_no_bytes(house: Gate) -> None:
    before = len(stored(house))
    address = urlsplit(house.url)
    body = form(b"x" * 1_000_000)
    head = (
        f"POST /v1/files HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: {len(body)}\r\n"
        f"content-type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=DEADLINE_S) as connection:
        connection.sendall(head.encode() + body[:800_000])
        until(lambda: len(stored(house)) == before + 1)
    until(lambda: len(stored(house)) == before)


def test_tenants_see_only_their_own_files(tmp_path: Path) -> None:
    keys = [{"name": name, "key": f"tg_{name}", "tenant": name} for name in ("red", "blue")]
    with gate(tmp_path, keys=keys) as house:
        red, blue = (openai.OpenAI(base_url=f"{house.url}/v1", api_key=f"tg_{n}") for n in ("red", "blue"))
        file = red.files.create(file=("a", GOOD), purpose="batch")
        assert [each.id for each in red.files.list()] == [file.id]
        assert list(blue.files.list()) == []
        for call in (blue.files.retrieve, blue.files.content, blue.files.delete):
            with pytest.raises(openai.NotFoundError):
                call(file.id)
        with pytest.raises(openai.NotFoundError):
            blue.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        assert httpx2.get(f"{house.url}/v1/files").status_code == 401
        assert red.files.content(file.id).read() == GOOD


@pytest.mark.parametrize("file_id", ["file-0", "..%2f..%2ftidegate.db", "a" * 300])
def test_an_unknown_file_is_not_found(house: Gate, file_id: str) -> None:
    for path in ("", "/content"):
        answer = httpx2.get(f"{house.url}/v1/files/{file_id}{path}")
        assert answer.status_code == 404
        assert json.loads(answer.content)["error"]["code"] == "not_found"
