"""`tidegate batch` as a person and a script meet it: a real command against a real server."""

import io
import json
import os
import pty
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.processes import PATIENCE_S, Outcome, Program
from tests.servers import Gate, gate, until
from web.cli_client import Client, CommandError, Unreachable, succeeded
from web.cli_view import lines, table

TIDEGATE = Program()
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("data"), speed=50) as running:
        yield running


def request_line(number: int, **body: Any) -> str:
    wanted = {"model": "m", "messages": [{"role": "user", "content": f"number {number}"}], "max_tokens": 2, **body}
    return json.dumps({"custom_id": f"r-{number}", "method": "POST", "url": "/v1/chat/completions", "body": wanted})


def file_of(folder: Path, count: int = 5, name: str = "nightly.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(request_line(number) for number in range(count)) + "\n")
    return path


def run(house: Gate | str, folder: Path, *arguments: str, **variables: str) -> Outcome:
    url = house if isinstance(house, str) else house.url
    return TIDEGATE.run(folder, "batch", *arguments, TIDEGATE_URL=url, **variables)


def submitted(house: Gate, folder: Path, count: int = 5) -> str:
    done = run(house, folder, "submit", str(file_of(folder, count)))
    assert done.status == 0, done.err
    return done.out.strip()


def ended(house: Gate, batch: str, status: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = httpx2.get(f"{house.url}/v1/batches/{batch}").json()
        return found if found["status"] == status else None

    found: dict[str, Any] = until(look, PATIENCE_S)
    return found


def test_submit_prints_the_id_alone_and_the_batch_is_as_asked_for(house: Gate, tmp_path: Path) -> None:
    path = file_of(tmp_path)
    done = run(
        house, tmp_path, "submit", str(path), "--window", "2d", "--metadata", "team=search", "--metadata", "x=a=b"
    )
    assert (done.status, done.err) == (0, "")
    assert re.fullmatch(r"batch_[0-9a-f]{32}\n", done.out)
    found = ended(house, done.out.strip(), "completed")
    assert found["completion_window"] == "2d"
    assert found["metadata"] == {"team": "search", "x": "a=b"}
    assert found["endpoint"] == "/v1/chat/completions"
    assert found["request_counts"] == {"total": 5, "completed": 5, "failed": 0}


def test_submit_and_wait_tells_plain_lines_and_ends_with_0(house: Gate, tmp_path: Path) -> None:
    done = run(house, tmp_path, "submit", str(file_of(tmp_path)), "--wait")
    assert done.status == 0, done.err
    told = done.out.splitlines()
    assert told[0].startswith("batch_")
    assert "completed: 5 of 5 done" in told
    assert "\x1b" not in done.out


def test_a_terminal_gets_a_bar(house: Gate, tmp_path: Path) -> None:
    path = file_of(tmp_path, 20)
    main, other = pty.openpty()
    process = subprocess.Popen(
        [*TIDEGATE.command, "batch", "submit", str(path), "--wait"],
        stdin=other,
        stdout=other,
        stderr=other,
        env=TIDEGATE.environment(TIDEGATE_URL=house.url, TERM="xterm-256color", COLUMNS="120"),
    )
    os.close(other)
    seen = bytearray()

    def read() -> None:
        try:
            while piece := os.read(main, 4096):
                seen.extend(piece)
        except OSError:
            return

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(PATIENCE_S) == 0
    reader.join(PATIENCE_S)
    os.close(main)
    assert b"\x1b[" in seen
    assert "━".encode() in seen
    assert b"20/20" in seen


def test_json_is_the_batch_as_the_api_tells_it(house: Gate, tmp_path: Path) -> None:
    done = run(house, tmp_path, "submit", str(file_of(tmp_path)), "--wait", "--json")
    batch = json.loads(done.out)
    assert batch["status"] == "completed"
    assert json.loads(run(house, tmp_path, "status", batch["id"], "--json").out)["id"] == batch["id"]
    assert json.loads(run(house, tmp_path, "list", "--json", "--limit", "1").out)[0]["object"] == "batch"


def test_status_and_list_tell_words_and_figures(house: Gate, tmp_path: Path) -> None:
    batch = submitted(house, tmp_path)
    ended(house, batch, "completed")
    told = run(house, tmp_path, "status", batch).out
    assert re.search(r"completed: 5 of 5 done\nCompleted|completed \d\d:\d\d", told)
    head, *rows = run(house, tmp_path, "list").out.splitlines()
    assert head.split() == ["ID", "STATE", "DONE", "ETA", "DEADLINE"]
    assert any(row.startswith(batch) for row in rows)


def test_results_go_into_dated_folders(house: Gate, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_text(request_line(1) + "\n" + request_line(2, messages="no list") + "\n")
    batch = run(house, tmp_path, "submit", str(path)).out.strip()
    found = ended(house, batch, "completed")
    done = run(house, tmp_path, "results", batch, "--to", "got")
    assert done.status == 0, done.err
    day = datetime.fromtimestamp(found["created_at"]).date().isoformat()
    kinds = [kind for kind in ("inputs", "outputs", "errors") if found[f"{kind[:-1]}_file_id"]]
    written = {kind: tmp_path / "got" / day / kind / f"{batch}.jsonl" for kind in kinds}
    assert done.out.split() == [str(file.relative_to(tmp_path)) for file in written.values()]
    assert written["inputs"].read_bytes() == path.read_bytes()
    assert "outputs" in written
    assert sum(len(file.read_text().splitlines()) for kind, file in written.items() if kind != "inputs") == 2
    assert list((tmp_path / "got").rglob("*.part")) == []


def test_results_of_a_running_batch_are_refused(house: Gate, tmp_path: Path) -> None:
    house.change(pause=True, reason="test")
    batch = submitted(house, tmp_path)
    done = run(house, tmp_path, "results", batch, "--to", "got")
    assert done.status == 2
    assert re.fullmatch(rf"tidegate: {batch} is still \w+; see `tidegate batch wait {batch}`\n", done.err)
    cancelled = run(house, tmp_path, "cancel", batch, "--reason", "zu spät")
    assert (cancelled.status, "cancel" in cancelled.out) == (0, True)
    entry = httpx2.get(f"{house.url}/api/audit", params={"target": f"batch:{batch}"}).json()["data"][0]
    assert (entry["action"], entry["reason"]) == ("batch.cancel", "zu spät")
    waited = run(house, tmp_path, "wait", batch)
    assert waited.status == 1
    assert "cancelled" in waited.out
    house.change(pause=False, reason="test")


def test_a_file_that_is_refused_ends_with_1_and_its_lines(house: Gate, tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text(request_line(1) + "\n" + request_line(1) + "\n")
    done = run(house, tmp_path, "submit", str(path), "--wait")
    assert done.status == 1
    assert "line 2: duplicate_custom_id" in done.out


def test_a_quote_uploads_nothing(house: Gate, tmp_path: Path) -> None:
    before = httpx2.get(f"{house.url}/v1/files").json()["data"]
    done = run(house, tmp_path, "quote", str(file_of(tmp_path, 12)))
    assert done.status == 0, done.err
    assert done.out.startswith("12 requests, about ")
    assert json.loads(run(house, tmp_path, "quote", str(file_of(tmp_path)), "--json").out)["lines"] == 5
    assert httpx2.get(f"{house.url}/v1/files").json()["data"] == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["status", "batch_nope"], "tidegate: no batch is named 'batch_nope'."),
        (["wait", "batch_nope"], "tidegate: no batch is named"),
        (["status", "../../etc"], "tidegate: '../../etc' is no id"),
        (["submit", "{file}", "--window", "99d"], "tidegate: completion_window: must be from"),
        (["submit", "{file}", "--metadata", "nothing"], "tidegate: --metadata must be NAME=VALUE"),
        (["submit", "{bad}"], "tidegate: .*bad.jsonl: line 1 is no request"),
        (["submit", "{empty}"], "tidegate: .*empty.jsonl: the first line names no url; give --endpoint"),
        (["quote", "{empty}"], "tidegate: .*empty.jsonl: holds no requests"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(house: Gate, tmp_path: Path, arguments: list[str], line: str) -> None:
    (tmp_path / "bad.jsonl").write_text("no json\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    named = {"{file}": str(file_of(tmp_path)), "{bad}": "bad.jsonl", "{empty}": "empty.jsonl"}
    done = run(house, tmp_path, *(named.get(each, each) for each in arguments))
    assert done.status == 2
    assert re.match(line, done.err)
    assert done.err.count("\n") == 1


def test_a_missing_file_is_a_wrong_call(house: Gate, tmp_path: Path) -> None:
    assert run(house, tmp_path, "submit", "absent.jsonl").status == 2


def test_a_server_that_is_away_is_one_line_and_status_2(tmp_path: Path) -> None:
    for arguments in (["list"], ["status", "batch_1"], ["submit", str(file_of(tmp_path))]):
        done = run(NOWHERE, tmp_path, *arguments)
        assert done.status == 2
        assert done.err == f"tidegate: {NOWHERE} cannot be reached; is Tidegate running there? (TIDEGATE_URL)\n"


def test_a_key_is_sent_and_never_told(tmp_path: Path) -> None:
    keys = [{"name": "ops", "key": "secret-key-0123456789", "tenant": "search", "lane": "batch"}]
    with gate(tmp_path / "data", keys=keys) as locked:
        refused = run(locked, tmp_path, "list", TIDEGATE_API_KEY="wrong-key-0123456789")
        assert refused.status == 2
        assert "TIDEGATE_API_KEY" in refused.err
        assert "wrong-key" not in refused.err
        assert run(locked, tmp_path, "list", TIDEGATE_API_KEY="secret-key-0123456789").out == "No batches yet.\n"


# Without a process


def batch_told(**changes: Any) -> dict[str, Any]:
    eta = {"state": "estimated", "low": "2026-12-09T12:00:00Z", "high": "2026-12-09T13:00:00Z", "basis": "Based."}
    return {
        "id": "batch_1",
        "status": "in_progress",
        "request_counts": {"total": 10, "completed": 4, "failed": 1},
        "expires_at": 1_796_990_400,
        "tidegate": {"state": "running", "eta": eta, "deadline_risk": "at_risk", "waiting_for": "2 batches before it"},
        **changes,
    }


def test_a_running_batch_is_told_with_range_deadline_and_why_it_waits() -> None:
    told = " ".join(lines(batch_told()))
    for words in ("running: 4 of 10 done, 1 failed", "Done ", "(9 in 10)", "at risk", "Based.", "2 batches before it"):
        assert words in told
    assert "at risk" in table([batch_told()])[1]


class Pieces(io.BytesIO):
    """A file that notes how much of it is asked for at once."""

    asked: list[int]

    def read(self, size: int | None = -1, /) -> bytes:
        self.asked.append(-1 if size is None else size)
        return super().read(size)


def test_an_upload_is_streamed() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.SyncByteStream)
        assert sum(len(piece) for piece in request.stream) > 4_000_000
        return httpx2.Response(200, json={"id": "file-1"})

    file = Pieces(b"x" * 4_000_000)
    file.asked = []
    with Client(url=NOWHERE, key=None, transport=Streams(answer)) as client:
        client.upload(file, "a.jsonl")
    assert file.asked
    assert all(0 < size <= 1_000_000 for size in file.asked)


class Streams(httpx2.BaseTransport):
    """A transport that leaves the request's body to be read piece by piece."""

    def __init__(self, answer: Callable[[httpx2.Request], httpx2.Response]) -> None:
        self.handle_request = answer  # type: ignore[method-assign]


def test_a_create_that_fails_on_its_way_is_sent_again_under_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.cli_client.CREATE_PAUSES_S", (0.0, 0.0))
    keys: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) < 3:
            raise httpx2.ReadTimeout("late")
        return httpx2.Response(200, json={"id": "batch_1"})

    with Client(url="http://127.0.0.1/v1/", key=None, transport=httpx2.MockTransport(answer)) as client:
        assert client.url == "http://127.0.0.1"
        assert client.create({"endpoint": "/v1/embeddings"}) == {"id": "batch_1"}
    assert len(keys) == 3
    assert len(set(keys)) == 1


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (httpx2.Response(503, json={"error": {"message": "Later."}}), Unreachable, "Later."),
        (httpx2.Response(400, json={"error": {"message": "Two\nlines"}}), CommandError, "Two lines"),
        (httpx2.Response(404, text="<html>"), CommandError, "status 404"),
        (httpx2.Response(200, text="<html>"), CommandError, "does not answer as a Tidegate"),
        (httpx2.Response(200, json=[]), CommandError, "does not answer as a Tidegate"),
    ],
)
def test_what_a_server_answers_becomes_one_line(answer: httpx2.Response, error: type[Exception], words: str) -> None:
    client = Client(url=NOWHERE, key=None, transport=httpx2.MockTransport(lambda _: answer))
    with client, pytest.raises(error, match=words) as caught:
        client.batch("batch_1")
    assert "\n" not in str(caught.value)


def test_a_batch_of_which_every_line_failed_is_no_success() -> None:
    """R58: completed with no output file looks like success."""
    counts = {"total": 3, "completed": 0, "failed": 3}
    assert not succeeded({"status": "completed", "request_counts": counts})
    assert succeeded({"status": "completed", "request_counts": counts | {"completed": 1}})
