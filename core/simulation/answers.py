"""Answers in OpenAI's shapes: whole and as server-sent events, for each endpoint that the simulated server has."""

import base64
import struct
from typing import Protocol

import msgspec

from core.simulation.prompts import Prompt

WORDS = ("the ", "tide ", "comes ", "in ", "and ", "the ", "boats ", "rise; ", "it ", "goes ", "out ", "and ", "they ")
DONE = b"data: [DONE]\n\n"
EMBEDDING = (0.125, -0.25, 0.5, 0.75, -0.625, 0.375, -0.875, 1.0)

_encode = msgspec.json.encode


def words(prompt: Prompt, start: int, count: int) -> list[str]:
    """Return the tokens `start` to `start + count` of the answer: always the same ones for the same request."""
    text = prompt.wishes.text
    if text is not None:
        return list(text[start : start + count])
    return [WORDS[place % len(WORDS)] for place in range(start, start + count)]


def error_body(message: str, kind: str, code: str | None = None) -> bytes:
    """Return an error in OpenAI's shape."""
    return _encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def models_body(models: tuple[str, ...], created: int) -> bytes:
    """Return the list of models."""
    data = [{"id": name, "object": "model", "created": created, "owned_by": "simulation"} for name in models]
    return _encode({"object": "list", "data": data})


class Format(Protocol):
    """How one endpoint writes the answer to one request."""

    def opening(self) -> bytes:
        """Return the events before the first token."""

    def delta(self, text: str) -> bytes:
        """Return the event of one token."""

    def closing(self, tokens: int) -> bytes:
        """Return the events after the last of `tokens` tokens, [DONE] included where the endpoint sends it."""

    def whole(self, tokens: int) -> bytes:
        """Return the whole answer as one JSON document."""


class _Base:
    def __init__(self, prompt: Prompt, number: int, created: int) -> None:
        self.prompt = prompt
        self.number = number
        self.created = created

    def text(self, tokens: int) -> str:
        return "".join(words(self.prompt, 0, tokens))

    def usage(self, tokens: int) -> dict[str, int]:
        given = self.prompt.prompt_tokens
        return {"prompt_tokens": given, "completion_tokens": tokens, "total_tokens": given + tokens}


class ChatFormat(_Base):
    """`/chat/completions`."""

    def __init__(self, prompt: Prompt, number: int, created: int) -> None:
        super().__init__(prompt, number, created)
        self._head = self._event_head("chatcmpl", "chat.completion.chunk")

    def _event_head(self, prefix: str, kind: str) -> bytes:
        head = {"id": f"{prefix}-{self.number}", "object": kind, "created": self.created, "model": self.prompt.model}
        if self.prompt.include_usage:
            head["usage"] = None
        return b"data: " + _encode(head)[:-1] + b',"choices":[{"index":0,'

    def opening(self) -> bytes:
        """See Format."""
        return self._head + b'"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'

    def delta(self, text: str) -> bytes:
        """See Format."""
        return self._head + b'"delta":{"content":' + _encode(text) + b'},"finish_reason":null}]}\n\n'

    def closing(self, tokens: int) -> bytes:
        """See Format."""
        return self._head + b'"delta":{},"finish_reason":"length"}]}\n\n' + self._usage_event(tokens) + DONE

    def _usage_event(self, tokens: int) -> bytes:
        if not self.prompt.include_usage:
            return b""
        head = self._head.replace(b'"usage":null,', b"").removesuffix(b'[{"index":0,')
        return head + b'[],"usage":' + _encode(self.usage(tokens)) + b"}\n\n"

    def whole(self, tokens: int) -> bytes:
        """See Format."""
        message = {"role": "assistant", "content": self.text(tokens)}
        return self._document("chatcmpl", "chat.completion", {"message": message}, tokens)

    def _document(self, prefix: str, kind: str, content: dict[str, object], tokens: int) -> bytes:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": "length"}
        head = {"id": f"{prefix}-{self.number}", "object": kind, "created": self.created, "model": self.prompt.model}
        return _encode({**head, "choices": [choice], "usage": self.usage(tokens)})


class CompletionFormat(ChatFormat):
    """`/completions`."""

    def __init__(self, prompt: Prompt, number: int, created: int) -> None:
        super().__init__(prompt, number, created)
        self._head = self._event_head("cmpl", "text_completion")

    def opening(self) -> bytes:
        """See Format."""
        return b""

    def delta(self, text: str) -> bytes:
        """See Format."""
        return self._head + b'"text":' + _encode(text) + b',"logprobs":null,"finish_reason":null}]}\n\n'

    def closing(self, tokens: int) -> bytes:
        """See Format."""
        end = self._head + b'"text":"","logprobs":null,"finish_reason":"length"}]}\n\n'
        return end + self._usage_event(tokens) + DONE

    def whole(self, tokens: int) -> bytes:
        """See Format."""
        return self._document("cmpl", "text_completion", {"text": self.text(tokens)}, tokens)


class EmbeddingFormat(_Base):
    """`/embeddings`: one phase, no stream."""

    def opening(self) -> bytes:
        """See Format."""
        return b""

    def delta(self, text: str) -> bytes:
        """See Format."""
        return b""

    def closing(self, tokens: int) -> bytes:
        """See Format."""
        return b""

    def whole(self, tokens: int) -> bytes:
        """See Format."""
        packed = base64.b64encode(struct.pack(f"<{len(EMBEDDING)}f", *EMBEDDING)).decode()
        vector: object = packed if self.prompt.base64 else EMBEDDING
        data = [{"object": "embedding", "index": place, "embedding": vector} for place in range(self.prompt.inputs)]
        usage = {"prompt_tokens": self.prompt.prompt_tokens, "total_tokens": self.prompt.prompt_tokens}
        return _encode({"object": "list", "data": data, "model": self.prompt.model, "usage": usage})


class ResponseFormat(_Base):
    """`/responses`."""

    def __init__(self, prompt: Prompt, number: int, created: int) -> None:
        super().__init__(prompt, number, created)
        self._item = f"msg-{number}"
        self._events = 0

    def opening(self) -> bytes:
        """See Format."""
        item = self._message("in_progress", [])
        part = self._part("")
        return (
            self._event("response.created", response=self._response("in_progress", []))
            + self._event("response.output_item.added", output_index=0, item=item)
            + self._event("response.content_part.added", **self._place(), part=part)
        )

    def delta(self, text: str) -> bytes:
        """See Format."""
        return self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def closing(self, tokens: int) -> bytes:
        """See Format."""
        text = self.text(tokens)
        item = self._message("completed", [self._part(text)])
        return (
            self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            + self._event("response.content_part.done", **self._place(), part=self._part(text))
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._event("response.completed", response=self._response("completed", [item], tokens))
        )

    def whole(self, tokens: int) -> bytes:
        """See Format."""
        item = self._message("completed", [self._part(self.text(tokens))])
        return _encode(self._response("completed", [item], tokens))

    def _event(self, kind: str, **fields: object) -> bytes:
        data = _encode({"type": kind, "sequence_number": self._events, **fields})
        self._events += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _place(self) -> dict[str, object]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _part(self, text: str) -> dict[str, object]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _message(self, status: str, content: list[dict[str, object]]) -> dict[str, object]:
        return {"id": self._item, "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, status: str, output: list[dict[str, object]], tokens: int | None = None) -> dict[str, object]:
        return {
            "id": f"resp-{self.number}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.prompt.model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None if tokens is None else self._response_usage(tokens),
        }

    def _response_usage(self, tokens: int) -> dict[str, object]:
        given = self.prompt.prompt_tokens
        return {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + tokens,
        }


FORMATS: dict[str, type[ChatFormat] | type[EmbeddingFormat] | type[ResponseFormat]] = {
    "/chat/completions": ChatFormat,
    "/completions": CompletionFormat,
    "/embeddings": EmbeddingFormat,
    "/responses": ResponseFormat,
}
"""The endpoints, by path below the base URL."""
