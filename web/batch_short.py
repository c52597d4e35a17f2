"""`POST /api/batch`: a durable batch for people with curl. It shows under /v1/batches like any other."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from core.batch.lines import LONGEST_ID
from core.batch.queries import instant
from core.batch.service import NewBatch
from core.batch.values import Batch, ItemRow, ItemState
from core.errors import InvalidValue, NotFound, RequestError
from core.runtime import Runtime
from web.api import (
    body_of,
    endpoint,
    identity,
    json_answer,
    object_of,
    page_limit,
    reason_of,
    refusal,
    runtime,
    text_of,
    whole,
)
from web.auth import check_batch
from web.front import Front, list_models
from web.orders import LONGEST_INTERVAL_MS, MOST_AT_ONCE, dedupe_of, metadata_of, priority_of, sent_again

ENDPOINT = "/v1/chat/completions"
DEFAULT_WINDOW = "24h"
ITEMS_DEFAULT = 100
ITEMS_MOST = 1000
STATUS = {
    ItemState.PENDING: "pending",
    ItemState.RUNNING: "running",
    ItemState.SUCCEEDED: "success",
    ItemState.FAILED: "failed",
    ItemState.CANCELLED: "failed",
    ItemState.EXPIRED: "failed",
}
_FIELDS = frozenset(
    ("task_name", "task", "inputs", "items", "model", "options", "priority", "completion_window", "metadata", "reason")
)
_OPTIONS = frozenset(("prompt", "max_tokens", "max_concurrency", "interval_ms"))


@endpoint
async def create(request: Request) -> Response:
    """Create a batch from a task's inputs."""
    house = runtime(request)
    body = await body_of(request, house.settings.body_limit)
    try:
        given = object_of(body)
        _check_names(given, _FIELDS, "")
        options = given.get("options") or {}
        if not isinstance(options, dict):
            raise InvalidValue("options", "must be an object")
        _check_names(options, _OPTIONS, "options.")
        order = _order(request, given, options)
        inputs = _inputs(given, house.settings.batch_lines)
        lines = _lines(inputs, await _model(request, given), options)
        batch = await house.batches.create_from(
            order,
            lines,
            filename=f"{order.name or 'task'}.jsonl",
            dedupe=dedupe_of(request, body),
            again=sent_again(request),
            reason=reason_of(request, given),
        )
    except InvalidValue as error:
        raise refusal(422, "invalid_value", f"{error.field}: {error.message}.", error.field) from None
    return json_answer(await _told(house, batch), 202)


@endpoint
async def task(request: Request) -> Response:
    """Answer with a batch's progress and one page of its items."""
    house, batch = runtime(request), await _batch(request)
    limit = page_limit(request, default=ITEMS_DEFAULT, most=ITEMS_MOST)
    after = _after(request)
    rows = await house.store.items(batch.id, after=after, limit=limit + 1) if batch.in_progress_at else []
    items = [{"doc_id": row.custom_id, "index": row.index, "status": STATUS[row.state]} for row in rows[:limit]]
    return json_answer({**await _told(house, batch), "items": items, "has_more": len(rows) > limit})


@endpoint
async def eta(request: Request) -> Response:
    """Answer with when the batch will be done."""
    told = (await runtime(request).batch_queries.json([await _batch(request)]))[0]["tidegate"]
    return json_answer({"id": request.path_params["batch_id"], **told["eta"], "deadline_risk": told["deadline_risk"]})


@endpoint
async def results(request: Request) -> Response:
    """Answer with all results that there are so far, item by item, while they are read."""
    house, batch = runtime(request), await _batch(request)
    pieces = _results(house, batch)
    return StreamingResponse(pieces, headers={"cache-control": "no-store"}, media_type="application/json")


async def _batch(request: Request) -> Batch:
    return await runtime(request).store.batch(request.path_params["batch_id"], tenant=identity(request).tenant)


def _order(request: Request, given: Mapping[str, Any], options: Mapping[str, Any]) -> NewBatch:
    who = identity(request)
    check_batch(who)
    name = text_of(given, "task_name", most=200) or text_of(given, "task", most=200)
    if not name:
        raise InvalidValue("task_name", "is missing: give the task a name")
    return NewBatch(
        tenant=who.tenant,
        key=who.key,
        endpoint=ENDPOINT,
        input_file_id="",
        completion_window=DEFAULT_WINDOW if (window := given.get("completion_window")) is None else window,
        name=name,
        metadata=metadata_of(given.get("metadata")),
        priority=priority_of(given),
        max_concurrency=whole(options, "max_concurrency", least=1, most=MOST_AT_ONCE),
        interval_s=(whole(options, "interval_ms", least=0, most=LONGEST_INTERVAL_MS) or 0) / 1000,
    )


def _check_names(given: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(given.keys() - known)
    if unknown:
        raise InvalidValue(f"{where}{unknown[0]:.60}", f"is not known here; there are {', '.join(sorted(known))}")


def _inputs(given: Mapping[str, Any], most: int) -> Sequence[tuple[str, object]]:
    """Return (custom_id, messages or text) of each input. Raises InvalidValue."""
    inputs = given.get("inputs", given.get("items"))
    if not isinstance(inputs, list) or not inputs:
        raise InvalidValue("inputs", "must be a list that is not empty")
    if len(inputs) > most:
        raise InvalidValue("inputs", f"has more than {most:,} entries (setting batch_lines)")
    found: dict[str, object] = {}
    for index, each in enumerate(inputs):
        doc_id, content = _input(each, index)
        if doc_id in found:
            raise InvalidValue(f"inputs[{index}].doc_id", f"{doc_id!r:.60} names an earlier input")
        found[doc_id] = content
    return list(found.items())


def _input(each: object, index: int) -> tuple[str, object]:
    if isinstance(each, str):
        return _input({"text": each}, index)
    if not isinstance(each, dict) or ("text" in each) == ("messages" in each):
        raise InvalidValue(f"inputs[{index}]", 'must be a text, {"doc_id", "text"} or {"messages"}')
    doc_id = each.get("doc_id", index)
    if isinstance(doc_id, bool) or not isinstance(doc_id, (str, int)) or doc_id == "":
        raise InvalidValue(f"inputs[{index}].doc_id", "must be a text or a number")
    if len(str(doc_id)) > LONGEST_ID or "\0" in str(doc_id):
        raise InvalidValue(f"inputs[{index}].doc_id", f"may have {LONGEST_ID} characters and no NUL")
    content = each.get("text", each.get("messages"))
    kind = str if "text" in each else list
    if not isinstance(content, kind) or not content:
        name = "text" if kind is str else "messages"
        raise InvalidValue(f"inputs[{index}].{name}", f"must be a {'text' if kind is str else 'list'}, not empty")
    return str(doc_id), content


def _lines(inputs: Sequence[tuple[str, object]], model: str, options: Mapping[str, Any]) -> Iterator[bytes]:
    """Return the lines of the batch's input file. Raises InvalidValue."""
    prompt = text_of(options, "prompt", most=1_000_000)
    limit = whole(options, "max_tokens", least=1, most=2**31 - 1)
    system = [{"role": "system", "content": prompt}] if prompt else []
    more = {"max_tokens": limit} if limit is not None else {}

    def line(doc_id: str, content: object) -> bytes:
        own = [{"role": "user", "content": content}] if isinstance(content, str) else content
        body = {"model": model, "messages": [*system, *_as_list(own)], **more}
        return msgspec.json.encode({"custom_id": doc_id, "method": "POST", "url": ENDPOINT, "body": body}) + b"\n"

    return (line(doc_id, content) for doc_id, content in inputs)


def _as_list(found: object) -> list[object]:
    return found if isinstance(found, list) else [found]


async def _model(request: Request, given: Mapping[str, Any]) -> str:
    """Return the model asked for, else the only one that there is. Raises InvalidValue."""
    named = text_of(given, "model", most=256)
    front: Front = request.app.state.front
    if named:
        try:
            front.router.find(named)
        except RequestError as error:
            raise InvalidValue("model", error.message.rstrip(".")) from None
        return named
    pools = list(runtime(request).pools.values())
    if len(pools) > 1:
        raise InvalidValue("model", "is missing; with several pools a batch must name one")
    fixed = [glob for glob in pools[0].config.models if not set("*?[") & set(glob)]
    names = fixed if len(fixed) == len(pools[0].config.models) else [str(m["id"]) for m in await list_models(pools[0])]
    if len(names) != 1:
        raise InvalidValue("model", f"is missing, and there are {len(names)} models: {', '.join(names[:5])}")
    return names[0]


def _after(request: Request) -> int:
    text = request.query_params.get("after")
    if text is None:
        return -1
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidValue("after", "must be the index of an item")
    return int(text)


async def _told(house: Runtime, batch: Batch) -> dict[str, Any]:
    told = (await house.batch_queries.json([batch]))[0]
    own = told["tidegate"]
    counts = told["request_counts"]
    return {
        "id": batch.id,
        "task_name": batch.name,
        "status": batch.status.value,
        "state": own["state"],
        "counts": {
            "total": counts["total"],
            "pending": max(0, counts["total"] - counts["completed"] - counts["failed"] - batch.running),
            "running": batch.running,
            "success": counts["completed"],
            "failed": counts["failed"],
        },
        "model": batch.model,
        "created_at": instant(batch.created_at),
        "expires_at": instant(batch.expires_at),
        "ended_at": instant(batch.ended_at),
        "errors": told["errors"]["data"] if told["errors"] else [],
        "eta": own["eta"],
        "deadline_risk": own["deadline_risk"],
        "waiting_for": own["waiting_for"],
    }


async def _results(house: Runtime, batch: Batch) -> AsyncIterator[bytes]:
    yield b'{"id":' + msgspec.json.encode(batch.id) + b',"results":['
    after, between = -1, b""
    ended = tuple(state for state in ItemState if state not in (ItemState.PENDING, ItemState.RUNNING))
    while rows := await house.store.items(batch.id, states=ended, after=after, limit=ITEMS_DEFAULT):
        for row in rows:
            yield between + msgspec.json.encode(await _result(house, batch, row))
            between = b","
        after = rows[-1].index
    yield b"]}"


async def _result(house: Runtime, batch: Batch, row: ItemRow) -> dict[str, Any]:
    told = {"doc_id": row.custom_id, "index": row.index, "status": STATUS[row.state], "text": None, "error": None}
    file_id = batch.output_file if row.state is ItemState.SUCCEEDED else batch.error_file
    try:
        line = msgspec.json.decode(await house.files.read(file_id, row.offset, row.length)) if row.length else {}
    except (NotFound, msgspec.DecodeError):
        line = {"error": {"code": "result_gone", "message": "The result was deleted."}}
    answer = line.get("response") or {}
    if row.state is ItemState.SUCCEEDED:
        return told | {"text": _text(answer.get("body")), "error": line.get("error")}
    return told | {"error": line.get("error") or _failure(row, answer.get("body"))}


def _text(body: object) -> str | None:
    try:
        text: str | None = body["choices"][0]["message"]["content"]  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        return None
    return text


def _failure(row: ItemRow, body: object) -> dict[str, object]:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    code = row.error_code or (error.get("code") if isinstance(error, dict) else None) or row.state.value
    return {"code": code, "message": message or f"The request ended as {row.state}.", "status": row.status_code}


ROUTES = [
    Route("/api/batch", create, methods=["POST"]),
    Route("/api/batch/{batch_id}", task, methods=["GET"]),
    Route("/api/batch/{batch_id}/eta", eta, methods=["GET"]),
    Route("/api/batch/{batch_id}/results", results, methods=["GET"]),
]
