"""Run by a client's own interpreter: files and batches with an OpenAI SDK, whichever version, at $BASE_URL."""

import io
import json
import os
import time

import openai

LINES = 12
client = openai.OpenAI(base_url=os.environ["BASE_URL"], api_key="any", timeout=20)
lines = [
    {
        "custom_id": f"line-{n}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": f"number {n}"}], "max_tokens": 4},
    }
    for n in range(LINES)
]
text = "\n".join(json.dumps(line) for line in lines).encode()
upload = client.files.create(file=("in.jsonl", io.BytesIO(text)), purpose="batch")
assert client.files.retrieve(upload.id).bytes == len(text)
assert upload.id in [file.id for file in client.files.list()]

batch = client.batches.create(
    input_file_id=upload.id,
    endpoint="/v1/chat/completions",
    completion_window="24h",
    metadata={"team": "search"},
)
assert batch.completion_window == "24h"
deadline = time.monotonic() + 60
while (batch := client.batches.retrieve(batch.id)).status not in ("completed", "failed", "expired", "cancelled"):
    assert time.monotonic() < deadline, batch
    time.sleep(0.1)
assert batch.status == "completed", batch
assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (LINES, LINES, 0)
assert batch.metadata == {"team": "search"}
answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
assert sorted(answer["custom_id"] for answer in answers) == sorted(line["custom_id"] for line in lines)
assert all(answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers)
assert batch.id in [one.id for one in client.batches.list(limit=1)]
second = client.batches.create(input_file_id=upload.id, endpoint="/v1/chat/completions", completion_window="24h")
assert second.id != batch.id
assert client.batches.cancel(second.id).status in ("cancelling", "cancelled")
print("ok", openai.__version__)
