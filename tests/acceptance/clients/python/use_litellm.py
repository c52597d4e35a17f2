"""Run by litellm's own interpreter, against the gateway at $BASE_URL."""

import os

import litellm

where = {"api_base": os.environ["BASE_URL"], "api_key": "any"}
messages = [{"role": "user", "content": "hello"}]

whole = litellm.completion(model="openai/m", messages=messages, max_tokens=5, **where)
assert whole.choices[0].message.content
pieces = list(litellm.completion(model="openai/m", messages=messages, max_tokens=5, stream=True, **where))
assert "".join(piece.choices[0].delta.content or "" for piece in pieces)
assert len(litellm.embedding(model="openai/m", input=["a", "b"], **where).data) == 2
try:
    for _ in litellm.completion(
        model="openai/m",
        messages=messages,
        max_tokens=50,
        stream=True,
        extra_headers={"x-sim": '{"reset_after": 3}'},
        num_retries=0,
        **where,
    ):
        pass
except Exception as error:
    assert "upstream_truncated" in str(error) or "broke off" in str(error), error
else:
    raise SystemExit("a broken stream ended cleanly")
print("ok litellm")
