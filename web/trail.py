"""The audit trail and the call log as JSON and CSV, for scripts and spreadsheets."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from core import call_record
from core.call_record import CallQuery, CallRecord
from core.errors import InvalidValue, NotFound
from core.people import telling
from core.people.audit import AuditQuery, AuditRecord
from core.people.telling import csv_line
from core.runtime import Runtime
from web.api import endpoint, json_answer, page_limit, refusal, runtime
from web.schemas import instant_of

Row = TypeVar("Row")
Wanted = TypeVar("Wanted", AuditQuery, CallQuery)
Pages = AsyncIterator[list[Row]]

MOST_ROWS = 1000
HIGHEST_NUMBER = 2**53
EXPORT_PAGE = 500
LONGEST_FILTER = 200
_FORMATS = ("csv", "json")
_AUDIT_FILTERS = frozenset({"actor", "action", "target", "since", "until", "q", "automatic", "before"})
_CALL_NAMES = ("tenant", "key", "pool", "model", "lane", "outcome", "batch", "request")
_CALL_FILTERS = frozenset({*_CALL_NAMES, "since", "until", "before"})


def audit_query(query: QueryParams, *, limit: int) -> AuditQuery:
    """Return the entries that a query asks for. Raises InvalidValue."""
    return AuditQuery(
        actor=_text(query, "actor"),
        action=_text(query, "action"),
        target=_text(query, "target"),
        since=_instant(query, "since"),
        until=_instant(query, "until"),
        text=(_text(query, "q") or "").strip(),
        automatic=_flag(query, "automatic"),
        before=_number(query, "before"),
        limit=limit,
    )


def call_query(query: QueryParams, *, limit: int) -> CallQuery:
    """Return the calls that a query asks for. Raises InvalidValue."""
    names = {name: _text(query, name) for name in _CALL_NAMES}
    since, until = _instant(query, "since"), _instant(query, "until")
    return CallQuery(**names, since=since, until=until, before=_number(query, "before"), limit=limit)


@endpoint
async def audit(request: Request) -> Response:
    """Answer with entries of the audit trail, newest first; `next` is the `before` of the next page."""
    wanted = _asked(request, _AUDIT_FILTERS, audit_query)
    rows = await runtime(request).audit.audit(wanted)
    more = rows[-1].number if len(rows) == wanted.limit else None
    return json_answer({"data": [telling.as_json(row) for row in rows], "next": more})


@endpoint
async def audit_entry(request: Request) -> Response:
    """Answer with one entry of the audit trail."""
    number = request.path_params["number"]
    if number > HIGHEST_NUMBER:
        raise NotFound("audit entry", "so high")
    return json_answer(telling.as_json(await runtime(request).audit.audit_record(number)))


@endpoint
async def audit_export(request: Request) -> Response:
    """Answer with every entry that fits, newest first, as CSV or JSON."""
    wanted = _asked(request, _AUDIT_FILTERS | {"format"}, audit_query, exported=True)
    pages = _audit_pages(runtime(request), wanted)
    if _format(request) == "json":
        return _file("audit.json", "application/json", _json_array(pages, telling.as_json))
    return _file("audit.csv", "text/csv; charset=utf-8", _csv(telling.COLUMNS, pages, telling.as_csv))


@endpoint
async def calls(request: Request) -> Response:
    """Answer with calls, newest first; `next` is the `before` of the next page."""
    wanted = _asked(request, _CALL_FILTERS, call_query)
    rows = await runtime(request).calls.calls(wanted)
    more = rows[-1].id if len(rows) == wanted.limit else None
    return json_answer({"data": [call_record.as_json(row) for row in rows], "next": more})


@endpoint
async def calls_export(request: Request) -> Response:
    """Answer with every call that fits, newest first, as CSV or JSON."""
    wanted = _asked(request, _CALL_FILTERS | {"format"}, call_query, exported=True)
    pages = _call_pages(runtime(request), wanted)
    if _format(request) == "json":
        return _file("calls.json", "application/json", _json_array(pages, call_record.as_json))
    return _file("calls.csv", "text/csv; charset=utf-8", _csv(call_record.COLUMNS, pages, _call_lines))


def _asked(request: Request, known: frozenset[str], read: Callable[..., Wanted], *, exported: bool = False) -> Wanted:
    """Return the query that a request makes. Raises RequestError 422 that names the parameter."""
    try:
        unknown = sorted(set(request.query_params) - known - {"limit"})
        if unknown:
            raise InvalidValue(unknown[0][:40], f"is no filter; there are {', '.join(sorted(known))}")
        limit = EXPORT_PAGE if exported else page_limit(request, default=100, most=MOST_ROWS)
        return read(request.query_params, limit=limit)
    except InvalidValue as error:
        raise refusal(422, "invalid_value", f"{error.field}: {error.message}", error.field) from None


def _format(request: Request) -> str:
    given = request.query_params.get("format", "csv")
    if given not in _FORMATS:
        raise refusal(422, "invalid_value", f"format: must be csv or json, not {given!r:.40}", "format")
    return given


async def _pages(read: Callable[[int | None], Awaitable[list[Row]]], place: Callable[[Row], int]) -> Pages[Row]:
    """Yield page after page; `read` returns the one before a place, the newest for `None`."""
    before: int | None = None
    while True:
        rows = await read(before)
        yield rows
        if len(rows) < EXPORT_PAGE:
            return
        before = place(rows[-1])


def _audit_pages(running: Runtime, wanted: AuditQuery) -> Pages[AuditRecord]:
    def read(before: int | None) -> Awaitable[list[AuditRecord]]:
        return running.audit.audit(replace(wanted, before=before or wanted.before))

    return _pages(read, lambda row: row.number)


def _call_pages(running: Runtime, wanted: CallQuery) -> Pages[CallRecord]:
    def read(before: int | None) -> Awaitable[list[CallRecord]]:
        return running.calls.calls(replace(wanted, before=before or wanted.before))

    return _pages(read, lambda row: row.id)


async def _csv(
    columns: Iterable[str], pages: Pages[Row], lines: Callable[[list[Row]], Iterable[str]]
) -> AsyncIterator[str]:
    yield csv_line(columns)
    async for page in pages:
        yield "".join(lines(page))


async def _json_array(pages: Pages[Row], told: Callable[[Row], dict[str, Any]]) -> AsyncIterator[bytes]:
    mark = b"["
    async for page in pages:
        for row in page:
            yield mark + msgspec.json.encode(told(row))
            mark = b",\n"
    yield b"]" if mark != b"[" else b"[]"


def _call_lines(rows: Iterable[CallRecord]) -> Iterable[str]:
    for row in rows:
        told = call_record.as_json(row)
        yield csv_line(told[name] for name in call_record.COLUMNS)


def _file(name: str, media_type: str, content: AsyncIterator[str] | AsyncIterator[bytes]) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return StreamingResponse(content, headers=headers, media_type=media_type)


def _text(query: QueryParams, name: str) -> str | None:
    value = query.get(name)
    if value is not None and (len(value) > LONGEST_FILTER or "\0" in value):
        raise InvalidValue(name, f"must be a text of at most {LONGEST_FILTER} characters")
    return value or None


def _instant(query: QueryParams, name: str) -> datetime | None:
    text = query.get(name, "")
    # An unescaped "+" of an offset arrives as a blank.
    return instant_of(text.strip().replace(" ", "+"), name) if text else None


def _number(query: QueryParams, name: str) -> int | None:
    text = query.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidValue(name, f"must be a number, not {text!r:.40}")
    return int(text) if text else None


def _flag(query: QueryParams, name: str) -> bool:
    text = query.get(name, "")
    if text not in ("", "true", "false", "1", "0"):
        raise InvalidValue(name, f"must be true or false, not {text!r:.40}")
    return text in ("true", "1")


ROUTES: list[BaseRoute] = [
    Route("/api/audit", audit),
    Route("/api/audit/export", audit_export),
    Route("/api/audit/{number:int}", audit_entry),
    Route("/api/calls", calls),
    Route("/api/calls/export", calls_export),
]
