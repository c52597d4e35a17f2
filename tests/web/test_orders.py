"""Who may order batches at all."""

from pathlib import Path

import httpx2

from tests.batch_house import ENDPOINT, jsonl, line
from tests.servers import gate

KEYS = [
    {"name": "both", "key": "both-0123456789abcdef"},
    {"name": "chat", "key": "chat-0123456789abcdef", "lane": "interactive", "lanes": ["interactive"]},
]


def test_a_key_that_may_not_use_the_batch_lane_makes_no_batches(tmp_path: Path) -> None:
    with gate(tmp_path / "data", keys=KEYS) as house:

        def ask(who: str, path: str, **body: object) -> httpx2.Response:
            return httpx2.post(house.url + path, headers={"authorization": f"Bearer {who}-0123456789abcdef"}, **body)  # type: ignore[arg-type]

        files = {"file": ("in.jsonl", jsonl(line()))}
        stored = ask("chat", "/v1/files", data={"purpose": "batch"}, files=files).json()
        order = {"input_file_id": stored["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        short = {"task_name": "t", "model": "m", "inputs": ["a"]}
        for path, body in (("/v1/batches", order), ("/api/batch", short)):
            refused = ask("chat", path, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "lane_not_allowed")
            assert ask("both", path, json=body).status_code in (200, 202)
