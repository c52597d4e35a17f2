"""A model server that is not ours, which answers 503 the moment it holds more than it was promised."""

import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from tests.servers import Gate, gate, until

pytestmark = pytest.mark.clients
SLOTS = 3
GIVEN = {"slots": SLOTS, "upstream_key": "any", "interactive_max_wait": 60}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    folder = os.environ.get("TIDEGATE_CLIENTS")
    if not folder:
        if os.environ.get("CI"):
            pytest.fail("TIDEGATE_CLIENTS is not set, and in CI nothing is skipped")
        pytest.skip("the server is not installed; `make clients` installs and runs it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = tmp_path_factory.mktemp("katan")
    command = [str(Path(folder) / "llm-katan" / "bin" / "llm-katan"), "-m", "m", "--backend", "echo"]
    command += ["-h", "127.0.0.1", "-p", str(port), "--ttft-ms", "60", "--itl-ms", "3", "--max-inflight", str(SLOTS)]
    env = {**os.environ, "HOME": str(data)}
    server = subprocess.Popen(
        [*command, "--stats-file", str(data / "stats.json")],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"{url}/v1/models").status_code < 500
        return False

    try:
        until(up, 60)
        with gate(tmp_path_factory.mktemp("data"), upstream=url, **GIVEN) as running:
            yield running
    finally:
        server.terminate()
        server.wait(20)


def test_it_never_holds_more_than_the_slots_it_was_promised(house: Gate) -> None:
    def send(lane: str) -> int:
        headers = {"x-tidegate-lane": lane}
        return house.chat(headers=headers, stream=True, max_tokens=8).status_code

    lanes = ["batch", "batch", "interactive", "batch"] * 30
    with ThreadPoolExecutor(24) as threads:
        statuses = list(threads.map(send, lanes))
    assert statuses == [200] * len(lanes)
