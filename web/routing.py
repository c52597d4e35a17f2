"""Reads of a request's body what routing needs, and finds the pool that serves its model."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from core.errors import RequestError
from core.pools import Pool, serving
from web.errors import invalid_request

NEEDS_MODEL = frozenset(("/chat/completions", "/completions", "/embeddings", "/responses"))
WITHOUT_TOKENS = frozenset(("/embeddings", "/moderations", "/rerank", "/score", "/audio/transcriptions"))


class _Fields(msgspec.Struct):
    model: object = msgspec.UNSET
    stream: object = None
    max_tokens: object = None
    max_completion_tokens: object = None
    max_output_tokens: object = None
    service_tier: object = None


class Routing(NamedTuple):
    """What a body says that Tidegate acts on; everything else in it is between the client and the model server."""

    model: str | None
    stream: bool
    max_tokens: int | None
    service_tier: object


_decode = msgspec.json.Decoder(_Fields).decode


def read_routing(body: bytes, path: str) -> Routing:
    """Return the routing fields of a JSON body. Raises RequestError 400 that names the field."""
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_request(f"The body must be a JSON object: {error}.", "body") from None
    except RecursionError:
        raise invalid_request("The body is nested too deeply.", "body") from None
    model = fields.model
    if model is msgspec.UNSET and path not in NEEDS_MODEL:
        model = None
    elif not isinstance(model, str) or not model:
        given = "missing" if model is msgspec.UNSET else f"{_shown(model)}"
        raise invalid_request(f"`model` is {given}; it must be the name of a model, as a string.", "model")
    if not (fields.stream is None or isinstance(fields.stream, bool)):
        raise invalid_request(f"`stream` is {_shown(fields.stream)}; it must be true or false.", "stream")
    return Routing(model, bool(fields.stream), _most_tokens(fields), fields.service_tier)


class Router:
    """Finds the pool for a model: its own name or alias, matched against each pool's globs in their order."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = list(pools)
        self._found: dict[str, tuple[Pool, str]] = {}

    def find(self, model: str | None) -> tuple[Pool, str]:
        """Return the pool that serves `model` and the name by which its server knows the model.

        Raises RequestError: 404 `model_not_found`; 400 where no model is named and there are several pools.
        """
        if model is None:
            if len(self._pools) > 1:
                raise invalid_request("`model` is missing; with several pools every request must name one.", "model")
            return self._pools[0], ""
        found = self._found.get(model) or self._search(model)
        if found is None:
            raise RequestError(
                404,
                "model_not_found",
                f"No pool serves the model {model[:200]!r}. GET /v1/models lists what there is.",
                type="invalid_request_error",
                param="model",
            )
        return found

    def _search(self, model: str) -> tuple[Pool, str] | None:
        found = serving(self._pools, model)
        if found is not None and len(self._found) < 1000:
            self._found[model] = found
        return found


def with_model(body: bytes, model: str) -> bytes:
    """Return the JSON object `body` with its model replaced and everything else, and its order, kept."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**fields, "model": model})


def _most_tokens(fields: _Fields) -> int | None:
    given = (fields.max_completion_tokens, fields.max_output_tokens, fields.max_tokens)
    return next((value for value in given if isinstance(value, int) and not isinstance(value, bool)), None)


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
