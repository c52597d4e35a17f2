"""Run by litellm's own interpreter: its batch calls, against the gateway at $BASE_URL."""

import json
import os
import tempfile
import time
from pathlib import Path

import litellm

where = {"custom_llm_provider": "openai", "api_base": os.environ["BASE_URL"], "api_key": "any"}
lines = [
    {
        "custom_id": f"line-{n}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
    }
    for n in range(5)
]
with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    file.write("\n".join(json.dumps(line) for line in lines))
    file.flush()
    with Path(file.name).open("rb") as stored:
        upload = litellm.create_file(file=stored, purpose="batch", **where)
batch = litellm.create_batch(completion_window="24h", endpoint="/v1/chat/completions", input_file_id=upload.id, **where)
deadline = time.monotonic() + 60
while (batch := litellm.retrieve_batch(batch_id=batch.id, **where)).status != "completed":
    assert time.monotonic() < deadline, batch
    time.sleep(0.1)
content = litellm.file_content(file_id=batch.output_file_id, **where)
assert len(content.text.splitlines()) == 5
print("ok litellm batch")
