"""What our OpenAPI document says beyond what the routes say themselves: parameters, bodies and answers."""

from typing import Any

Schema = dict[str, Any]


def text(**more: Any) -> Schema:
    """Return the schema of a text."""
    return {"type": "string", **more}


def number(**more: Any) -> Schema:
    """Return the schema of a number."""
    return {"type": "number", **more}


def whole(**more: Any) -> Schema:
    """Return the schema of a whole number."""
    return {"type": "integer", **more}


def maybe(schema: Schema) -> Schema:
    """Return the schema of what may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def some(**properties: Schema) -> Schema:
    """Return the schema of an object that has these properties, among others."""
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def given(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """Return the schema of an object that may be given these properties and must be given some."""
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def rows(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def named(name: str) -> Schema:
    """Return a reference to one of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


_INSTANT = text(format="date-time")
_PAIR = {"type": "array", "minItems": 2, "maxItems": 2}
_BUDGETS = some(first_token_s=number(), per_token_ms=number(), error_rate=number())
_LANE = some(
    in_flight=whole(minimum=0),
    queued=whole(minimum=0),
    oldest_wait_s=maybe(number()),
    wait_p50_s=maybe(number()),
    wait_p95_s=maybe(number()),
)

SCHEMAS: dict[str, Schema] = {
    "Error": some(
        error=some(message=text(), type=text(), param=maybe(text()), code=maybe(text())),
    ),
    "Object": {"type": "object"},
    "Data": some(data=rows({"type": "object"})),
    "Page": some(object=text(const="list"), data=rows({"type": "object"}), has_more={"type": "boolean"}),
    "Models": some(object=text(const="list"), data=rows(some(id=text()))),
    "Pool": some(
        name=text(),
        slots=whole(minimum=1),
        reserve=whole(minimum=0),
        headroom=whole(minimum=0),
        floor=whole(minimum=0),
        ceiling=whole(minimum=0),
        effective=some(floor=whole(), ceiling=whole(), budgets=_BUDGETS, source=text()),
        mode=text(enum=["auto", "hold"]),
        paused=maybe(some(by=text(), reason=text(), since=_INSTANT)),
        hold=maybe(some(quota=whole(minimum=0), until=maybe(_INSTANT), by=text(), reason=text())),
        limit=maybe(number()),
        quota=whole(minimum=0),
        shadow_quota=whole(minimum=0),
        settling=whole(minimum=0),
        window=maybe(text()),
        budgets=_BUDGETS,
        seen=some(
            first_token_p95_s=maybe(number()),
            per_token_p95_ms=maybe(number()),
            total_p95_s=maybe(number()),
            error_rate=maybe(number()),
            samples=whole(minimum=0),
        ),
        lanes=some(interactive=_LANE, batch=_LANE),
        version=whole(minimum=1),
    ),
    "Reachable": some(pool=text(), reachable={"type": "boolean"}, error=maybe(text()), ms=number()),
    "Decision": some(
        at=_INSTANT,
        pool=text(),
        actor=text(),
        action=text(),
        reason=text(),
        sentence=text(),
        limit=_PAIR,
        quota=_PAIR,
        triggers=rows(some(name=text(), value=maybe(number()), threshold=maybe(number()), n=whole())),
    ),
    "Schedule": some(
        zone=text(), windows=rows({"type": "object"}), one_offs=rows({"type": "object"}), version=whole(minimum=1)
    ),
    "AuditEntry": some(
        number=whole(minimum=1),
        at=_INSTANT,
        actor=text(),
        action=text(),
        target=text(),
        before={},
        after={},
        reason=text(),
        way=text(),
        previous=text(pattern="^[0-9a-f]{64}$"),
        hash=text(pattern="^[0-9a-f]{64}$"),
    ),
    "Call": some(
        id=whole(),
        at=_INSTANT,
        request=text(),
        tenant=text(),
        key=text(),
        pool=text(),
        model=text(),
        lane=text(enum=["interactive", "batch"]),
        batch=text(),
        outcome=text(),
        status=whole(),
        queue_ms=number(),
        first_token_ms=maybe(number()),
        total_ms=number(),
        input_tokens=whole(),
        output_tokens=whole(),
        estimated={"type": "boolean"},
    ),
}

_LIMIT = {"limit": whole(minimum=1, maximum=1000)}
_SPAN = {"since": _INSTANT, "until": _INSTANT}
_AUDIT = {"actor": text(), "action": text(), "target": text(), **_SPAN, "q": text(), "automatic": {"type": "boolean"}}
_CALLS = {
    **{name: text() for name in ("tenant", "key", "pool", "model", "lane", "outcome", "batch", "request")},
    **_SPAN,
}
_FORMAT = {"format": text(enum=["csv", "json"])}
_BEFORE = {"before": whole(minimum=1)}
_PAGE = {"after": text(), "limit": whole(minimum=1, maximum=100)}

QUERIES: dict[str, dict[str, Schema]] = {
    "GET /v1/files": {"after": text(), "limit": whole(minimum=1, maximum=10_000), "purpose": text()},
    "GET /v1/batches": _PAGE,
    "GET /api/decisions": {"pool": text(), "since": _INSTANT, **_LIMIT},
    "GET /api/schedule/preview": {"pool": text(), "days": whole(minimum=1, maximum=62)},
    "GET /api/audit": {**_AUDIT, **_BEFORE, **_LIMIT},
    "GET /api/audit/export": {**_AUDIT, **_BEFORE, **_FORMAT},
    "GET /api/calls": {**_CALLS, **_BEFORE, **_LIMIT},
    "GET /api/calls/export": {**_CALLS, **_BEFORE, **_FORMAT},
}

_CHAT = given(("model", "messages"), model=text(), messages=rows({"type": "object"}), stream={"type": "boolean"})
_ANY = {"type": "object"}

BODIES: dict[str, Schema] = {
    "POST /v1/chat/completions": _CHAT,
    "POST /v1/{path}": _ANY,
    "POST /v1/batches": given(
        ("input_file_id", "endpoint", "completion_window"),
        input_file_id=text(),
        endpoint=text(),
        completion_window=text(),
        metadata={"type": "object", "additionalProperties": text()},
    ),
    "POST /api/chat": given(type=text(enum=["interactive", "batch"]), message=text(), model=text()),
    "PATCH /api/pools/{name}": given(
        hold=whole(minimum=0),
        auto={"type": "boolean", "const": True},
        pause={"type": "boolean"},
        slots=whole(minimum=1),
        reserve=whole(minimum=0),
        headroom=whole(minimum=0),
        floor=whole(minimum=0),
        ceiling=whole(minimum=0),
        budgets=given(first_token_s=number(), per_token_ms=number(), error_rate=number()),
        reason=text(),
    ),
    "POST /api/batches/{batch_id}/pause": given(reason=text()),
    "POST /api/batches/{batch_id}/resume": given(reason=text()),
    "POST /api/batches/{batch_id}/priority": given(("priority",), priority=whole(), reason=text()),
    "POST /api/batches/{batch_id}/retry-failed": given(reason=text()),
    "POST /api/webhooks": given(
        ("url",), url=text(), events=rows(text()), description=text(), tenant=text(), reason=text()
    ),
    "PATCH /api/webhooks/{webhook_id}": given(("disabled",), disabled={"type": "boolean"}, reason=text()),
    "POST /api/webhooks/{webhook_id}/rotate": given(overlap=text(), reason=text()),
    "PUT /api/schedule": given(
        ("zone",), zone=text(), windows=rows({"type": "object"}), one_offs=rows({"type": "object"}), reason=text()
    ),
}
BODIES["PATCH /api/pools/{name}"]["properties"]["for"] = text()
"""Bodies that are known field by field; other unsafe calls of the API take a JSON object, or nothing at all."""

WITHOUT_BODY = frozenset(
    {
        "POST /v1/batches/{batch_id}/cancel",
        "POST /api/pools/{name}/test",
        "POST /api/webhooks/{webhook_id}/test",
    }
)

JSON, PLAIN, CSV, EVENTS, BYTES = (
    "application/json",
    "text/plain",
    "text/csv",
    "text/event-stream",
    "application/octet-stream",
)
_AUDIT_PAGE = some(data=rows(named("AuditEntry")), next=maybe(whole()))
_CALL_PAGE = some(data=rows(named("Call")), next=maybe(whole()))

ANSWERS: dict[str, dict[str, Schema]] = {
    "POST /v1/chat/completions": {JSON: named("Object"), EVENTS: {}},
    "POST /v1/{path}": {JSON: {}, EVENTS: {}, PLAIN: text(), BYTES: {}},
    "GET /v1/models": {JSON: named("Models")},
    "GET /v1/models/{model}": {JSON: some(id=text())},
    "GET /v1/files": {JSON: named("Page")},
    "GET /v1/files/{file_id}/content": {BYTES: {}, JSON: {}, "application/jsonl": {}},
    "GET /v1/batches": {JSON: named("Page")},
    "GET /metrics": {PLAIN: text()},
    "GET /api/pools": {JSON: some(data=rows(named("Pool")))},
    "GET /api/pools/{name}": {JSON: named("Pool")},
    "PATCH /api/pools/{name}": {JSON: named("Pool")},
    "POST /api/pools/{name}/test": {JSON: named("Reachable")},
    "GET /api/decisions": {JSON: some(data=rows(named("Decision")))},
    "GET /api/schedule": {JSON: named("Schedule")},
    "PUT /api/schedule": {JSON: named("Schedule")},
    "GET /api/schedule/preview": {JSON: named("Data")},
    "GET /api/audit": {JSON: _AUDIT_PAGE},
    "GET /api/audit/{number}": {JSON: named("AuditEntry")},
    "GET /api/audit/export": {CSV: text(), JSON: rows(named("AuditEntry"))},
    "GET /api/calls": {JSON: _CALL_PAGE},
    "GET /api/calls/export": {CSV: text(), JSON: rows(named("Call"))},
}
"""What 2xx answers are; others are JSON objects."""

SUMMARIES: dict[str, str] = {
    "POST /v1/chat/completions": "Chat, as OpenAI's API has it; streamed where the body says so.",
    "POST /v1/{path}": "Any other endpoint of the model servers, by the `model` in the body.",
    "GET /v1/models": "Answer with the models that can be asked for.",
    "GET /v1/models/{model}": "Answer with one model.",
    "POST /v1/batches/{batch_id}/cancel": "Cancel a batch; what is done stays.",
    "POST /api/batches/{batch_id}/pause": "Stop a batch until it is resumed.",
    "POST /api/batches/{batch_id}/resume": "Let a paused batch go on.",
    "POST /api/batches/{batch_id}/priority": "Change a batch's priority.",
    "POST /api/batches/{batch_id}/retry-failed": "Send the failed requests of an ended batch again.",
}

PASSED_ON = frozenset({"POST /v1/chat/completions", "POST /v1/{path}"})
"""Calls whose refusals may be the model server's own, in a form of its own."""

WITH_REASON = frozenset(
    {
        "POST /v1/files",
        "DELETE /v1/files/{file_id}",
        "POST /v1/batches",
        "POST /v1/batches/{batch_id}/cancel",
    }
)
"""OpenAI's calls, whose reason stands in a header."""

WITH_VERSION = frozenset({"PATCH /api/pools/{name}", "PUT /api/schedule", "PATCH /api/tenants/{name}"})
"""Changes that name, in If-Match, the version they are based on."""
