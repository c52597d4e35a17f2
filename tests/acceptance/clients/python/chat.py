"""Run by a client's own interpreter: an OpenAI SDK, whichever version, against the gateway at $BASE_URL."""

import os
import sys

import openai

client = openai.OpenAI(base_url=os.environ["BASE_URL"], api_key="any", max_retries=2, timeout=20)
messages = [{"role": "user", "content": "hello"}]

whole = client.chat.completions.create(model="m", messages=messages, max_tokens=5)
assert whole.choices[0].message.content
assert whole.choices[0].finish_reason == "length"

pieces = list(client.chat.completions.create(model="m", messages=messages, max_tokens=5, stream=True))
assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)

flex = client.chat.completions.with_raw_response.create(model="m", messages=messages, max_tokens=2, service_tier="flex")
assert flex.headers["x-tidegate-lane"] == "batch"

assert len(client.embeddings.create(model="m", input=["a", "b"]).data) == 2
assert client.models.list().data
assert client.completions.create(model="m", prompt="hi", max_tokens=3).choices[0].text
assert client.responses.create(model="m", input="hi", max_output_tokens=16).output_text

try:
    client.chat.completions.create(model="m", messages=messages, extra_headers={"x-tidegate-lane": "nonsense"})
except openai.BadRequestError as error:
    assert error.code == "invalid_request", error.code
else:
    sys.exit("an unknown lane was not refused")

broken = client.chat.completions.create(
    model="m", messages=messages, max_tokens=50, stream=True, extra_headers={"x-sim": '{"reset_after": 3}'}
)
try:
    for _ in broken:
        pass
except openai.APIError as error:
    assert error.code == "upstream_truncated", error.code
else:
    sys.exit("a broken stream ended cleanly")
print("ok", openai.__version__)
