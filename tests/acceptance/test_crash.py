"""A real `tidegate serve` that is killed, or told to stop, at any instant, and started again on the same folder."""

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from tests.servers import running, until
from web import mock_server

SLOTS = 8
LINES = 200
KILLS = 5
PATIENCE_S = 60.0


class Process:
    """One run of `tidegate serve`."""

    def __init__(self, folder: Path, model: str, **settings: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        given = {"upstream": model, "data": str(folder), "slots": str(SLOTS), "floor": "4", "port": "0", **settings}
        environment |= {f"TIDEGATE_{name.upper()}": value for name, value in given.items()}
        environment["PYTHONUNBUFFERED"] = "1"
        self._log = folder.parent / "serve.log"
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "web.cli", "serve"]
            self._start = log.tell()
            self.popen = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.url = until(self._address, PATIENCE_S)

    def _address(self) -> str | None:
        assert self.popen.poll() is None, self.log()
        found = re.search(r"Dashboard +(http://\S+?)/\s", self.log())
        return found[1] if found else None

    def log(self) -> str:
        return self._log.read_bytes()[self._start :].decode()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait(PATIENCE_S)

    def get(self, path: str) -> Any:
        return httpx2.get(self.url + path, timeout=PATIENCE_S).json()

    def submit(self, count: int, **sim: Any) -> str:
        """Upload and start a batch of chat lines, tagged by their custom ids; return its id."""
        lines = [
            {
                "custom_id": f"r{n}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "messages": [], "sim": {"tag": f"r{n}", **sim}},
            }
            for n in range(count)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        upload = {"files": {"file": ("in.jsonl", text.encode())}, "data": {"purpose": "batch"}}
        file = httpx2.post(f"{self.url}/v1/files", timeout=PATIENCE_S, **upload).json()
        order = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = httpx2.post(f"{self.url}/v1/batches", json=order, timeout=PATIENCE_S).json()
        return str(batch["id"])

    def batch(self, batch_id: str) -> Any:
        return self.get(f"/v1/batches/{batch_id}")

    def ended(self, batch_id: str) -> Any:
        """Wait until the batch has a final status."""

        def look() -> Any:
            batch = self.batch(batch_id)
            return batch if batch["status"] in ("completed", "cancelled", "expired", "failed") else None

        return until(look, PATIENCE_S)

    def lines(self, file_id: str | None) -> list[Any]:
        if file_id is None:
            return []
        text = httpx2.get(f"{self.url}/v1/files/{file_id}/content", timeout=PATIENCE_S).text
        return [json.loads(line) for line in text.splitlines()]


@contextmanager
def model_server(speed: float) -> Iterator[str]:
    with running(mock_server.create_app(speed=speed), lifespan="off") as url:
        yield url


def sent(model: str) -> list[str]:
    """Return the tags of all requests that the model server saw, in order."""
    return [entry["tag"] for entry in httpx2.get(f"{model}/sim/log").json()["data"]]


def lane(process: Process) -> Any:
    """Return what the operator API tells of the interactive lane."""
    return process.get("/api/pools/default")["lanes"]["interactive"]


def reached(model: str, count: int) -> bool:
    return len(sent(model)) >= count


def states(folder: Path) -> dict[str, str]:
    """Return the items' states by custom id as the database has them, the process being dead."""
    with closing(sqlite3.connect(folder / "tidegate.db")) as database:
        return dict(database.execute("SELECT custom_id, state FROM batch_item").fetchall())


def test_killed_at_random_instants_nothing_is_lost_and_nothing_finished_is_done_again(tmp_path: Path) -> None:
    folder, chance = tmp_path / "data", random.Random(1)
    with model_server(speed=5.0) as model:
        process = Process(folder, model)
        batch_id = process.submit(LINES, output_tokens=30)
        for _ in range(KILLS):
            goal = min(LINES, len(sent(model)) + chance.randint(0, 40))
            until(partial(reached, model, goal), PATIENCE_S)
            time.sleep(chance.uniform(0.0, 0.1))
            process.kill()
            finished = {name for name, state in states(folder).items() if state == "succeeded"}
            before = len(sent(model))
            process = Process(folder, model)
            assert not finished & set(sent(model)[before:])
        assert 0 < len(finished) < LINES, "the kills came in the middle"
        batch = process.ended(batch_id)
        assert (batch["status"], batch["request_counts"]) == (
            "completed",
            {"total": LINES, "completed": LINES, "failed": 0},
        )
        assert not finished & set(sent(model)[before:])
        lines = process.lines(batch["output_file_id"])
        assert Counter(line["custom_id"] for line in lines) == Counter({f"r{n}": 1 for n in range(LINES)})
        assert all(line["response"]["body"]["usage"]["completion_tokens"] == 30 for line in lines)
        assert len(sent(model)) <= LINES + KILLS * SLOTS
        process.kill()


def test_a_batch_that_was_being_cancelled_when_the_process_died_is_cancelled(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with model_server(speed=1.0) as model:
        process = Process(folder, model)
        batch_id = process.submit(50, output_tokens=2000)
        until(lambda: len(sent(model)) >= 2, PATIENCE_S)
        httpx2.post(f"{process.url}/v1/batches/{batch_id}/cancel", timeout=PATIENCE_S).raise_for_status()
        process.kill()
        count = len(sent(model))
        process = Process(folder, model)
        batch = process.ended(batch_id)
        assert (batch["status"], batch["request_counts"]["total"]) == ("cancelled", 50)
        errors = process.lines(batch["error_file_id"])
        assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
        assert len(errors) == batch["request_counts"]["failed"] == 50
        assert len(sent(model)) == count
        process.kill()


def test_told_to_stop_it_ends_within_the_grace_and_running_lines_go_back_uncounted(tmp_path: Path) -> None:
    """R87 cubeplexai/cubeplex#606; sysid/sse-starlette#124."""
    folder = tmp_path / "data"
    with model_server(speed=1.0) as model:
        process = Process(folder, model, shutdown_grace="1")
        batch_id = process.submit(20, output_tokens=400)
        until(lambda: process.batch(batch_id)["status"] == "in_progress" and len(sent(model)) >= 2, PATIENCE_S)
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(PATIENCE_S) == 0, process.log()
        assert until(lambda: httpx2.get(f"{model}/sim").json()["in_flight"] == 0)
        assert set(states(folder).values()) == {"pending"}
        with closing(sqlite3.connect(folder / "tidegate.db")) as database:
            assert database.execute("SELECT max(attempts) FROM batch_item").fetchone() == (0,)
        httpx2.post(f"{model}/sim", json={"slow": 0.01}).raise_for_status()
        process = Process(folder, model)
        batch = process.ended(batch_id)
        assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
        process.kill()


def test_told_to_stop_waiting_calls_are_refused_at_once_and_running_ones_get_their_last_words(tmp_path: Path) -> None:
    """And nothing of it is a traceback."""
    call = {"model": "m", "messages": [{"role": "user", "content": "long"}], "max_tokens": 4000, "stream": True}
    with model_server(speed=1.0) as model, ThreadPoolExecutor(2) as threads:
        process = Process(tmp_path / "data", model, slots="1", floor="0", shutdown_grace="2")
        url = f"{process.url}/v1/chat/completions"
        running = threads.submit(httpx2.post, url, json=call, timeout=PATIENCE_S)
        until(lambda: lane(process)["in_flight"] == 1, PATIENCE_S)
        waiting = threads.submit(httpx2.post, url, json=call | {"stream": False}, timeout=PATIENCE_S)
        until(lambda: lane(process)["queued"] == 1, PATIENCE_S)
        process.popen.send_signal(signal.SIGTERM)
        refused = waiting.result(PATIENCE_S)
        assert not running.done()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "5"
        assert '"code":"shutting_down"' in running.result(PATIENCE_S).text
        assert process.popen.wait(PATIENCE_S) == 0
        assert "Traceback" not in process.log()
