"""The Audit pages: who changed what, one entry in full with its revert, and the call log."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from core import wording
from core.batch.audit import batch_entry, batch_of, steerings, undone
from core.batch.values import BatchPause
from core.call_record import CallQuery, CallRecord
from core.changes import apply_patch
from core.errors import InvalidValue, NotFound, StaleVersion
from core.lanes import Lane, Outcome
from core.people import entries, telling
from core.people.audit import AuditEntry, AuditQuery, AuditRecord
from core.people.identity import ASKING
from web.audit_contexts import AuditPage, AuditRow, CallLogRow, CallsPage, EntryPage, Revert
from web.contexts import Change, Choice
from web.ui import Done, Ui, form_values, html, see_other, ui_of

PAGE = 100
LONGEST_FILTER = 200
_KINDS = {
    "": "everything",
    "pool": "pools",
    "schedule": "the schedule",
    "batch": "batches",
    "file": "files",
    "webhook": "webhooks",
    "sign-in": "sign-ins",
    "key": "keys",
    "tenant": "tenants",
    "account": "accounts",
}
_CALL_FILTERS = ("tenant", "key", "pool", "model", "lane", "outcome", "batch", "request")


async def page(request: Request) -> Response:
    """GET /audit: what people changed, newest first; filters live in the address."""
    ui, query = ui_of(request), request.query_params
    values = _values(query, ("who", "what", "q", "from", "to", "controller"))
    try:
        wanted = _audit_query(ui, values, _place(query))
    except InvalidValue as error:
        return ui.error_page("No such day", f"{error.field}: {error.message}.", 422, "/audit")
    found = await ui.runtime.audit.audit(wanted)
    kinds = {**_KINDS, **({values["what"]: values["what"]} if values["what"] not in _KINDS else {})}
    return html(
        AuditPage(
            **ui.shell("Audit", "Audit", refresh=False),
            rows=tuple(_row(record, ui) for record in found),
            values=values,
            kinds=tuple(Choice(kind, label, kind == values["what"]) for kind, label in kinds.items()),
            export=f"/api/audit/export?{urlencode(_export(wanted))}",
            older=_older("/audit", values, found[-1].number) if len(found) == PAGE else "",
            zone=ui.runtime.schedule.zone,
            applied=ui.applied(query.get("done", "")),
        )
    )


async def entry(request: Request) -> Response:
    """GET /audit/{number}: one entry in full, and what reverting it would do now."""
    ui = ui_of(request)
    try:
        record = await _record(ui, request.path_params["number"])
    except NotFound as error:
        return ui.not_found(error)
    return await _entry_page(ui, record)


async def revert(request: Request) -> Response:
    """POST /ui/audit/revert: a new change with the old values; 409 on a newer version, 422 with what is wrong."""
    ui, values = ui_of(request), await form_values(request)
    try:
        record = await _record(ui, _whole(values.get("number", "")))
        reason, version = " ".join(values.get("reason", "").split()), _whole(values.get("version", ""))
        if not reason:
            raise InvalidValue("reason", "Give a reason: the next person will want to know.")
        await _put_back(ui, record, reason, version)
    except NotFound as error:
        return ui.not_found(error)
    except InvalidValue as error:
        return await _entry_page(ui, record, problem=error.message, status=422)
    except StaleVersion:
        problem = "Somebody changed this in the meantime. Nothing was put back; look at what it would do now."
        return await _entry_page(ui, record, problem=problem, status=409)
    await ui.runtime.reload()
    sentence = f"entry {record.number} put back ({telling.action_words(record.entry)})."
    return see_other("/audit", done=ui.done.put(Done(ui.parts.now, sentence, "/audit", None)))


async def _put_back(ui: Ui, record: AuditRecord, reason: str, version: int) -> None:
    """Make the new change. Raises NotFound, StaleVersion, InvalidValue."""
    by, batch_id = ASKING.get().name, batch_of(record.entry)
    if batch_id is None:
        await ui.runtime.operations.revert(record, by=by, reason=reason, based_on=version)
        return
    was, now = steerings(record.entry)
    why = entries.reason(record, reason)
    await ui.runtime.batches.put_back(batch_id, was, now, tenant=None, by=by, reason=why)


async def calls(request: Request) -> Response:
    """GET /audit/calls: one row per call, newest first; filters live in the address."""
    ui, query = ui_of(request), request.query_params
    values = _values(query, _CALL_FILTERS)
    names: dict[str, Any] = {name: value or None for name, value in values.items()}
    wanted = CallQuery(**names, before=_place(query), limit=PAGE)
    found = await ui.runtime.calls.calls(wanted)
    return html(
        CallsPage(
            **ui.shell("Audit", "Calls", refresh=False),
            rows=tuple(_call_row(record, ui) for record in found),
            values=values,
            pools=_choices(ui.runtime.pools, values["pool"]),
            lanes=_choices(Lane, values["lane"]),
            outcomes=_choices(Outcome, values["outcome"]),
            export=f"/api/calls/export?{urlencode({k: v for k, v in values.items() if v})}",
            older=_older("/audit/calls", values, found[-1].id) if len(found) == PAGE else "",
            kept=_kept(ui),
            zone=ui.runtime.schedule.zone,
        )
    )


# The trail


def _audit_query(ui: Ui, values: Mapping[str, str], before: int | None) -> AuditQuery:
    end = _day(ui, values["to"], "to")
    return AuditQuery(
        actor=values["who"] or None,
        action=values["what"] or None,
        since=_day(ui, values["from"], "from"),
        until=end + timedelta(days=1) if end else None,
        text=values["q"],
        automatic=bool(values["controller"]),
        before=before,
        limit=PAGE,
    )


def _export(wanted: AuditQuery) -> dict[str, str]:
    """Return the query of the API that exports what is shown, older pages included."""
    given = {
        "actor": wanted.actor,
        "action": wanted.action,
        "since": wanted.since.isoformat() if wanted.since else None,
        "until": wanted.until.isoformat() if wanted.until else None,
        "q": wanted.text,
        "automatic": "true" if wanted.automatic else None,
    }
    return {name: value for name, value in given.items() if value}


def _day(ui: Ui, text: str, name: str) -> datetime | None:
    """Return the first instant of a day in the schedule's zone. Raises InvalidValue."""
    if not text:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=ui.parts.zone)
    except ValueError:
        raise InvalidValue(name, "must be a day such as 2027-01-31") from None


def _row(record: AuditRecord, ui: Ui) -> AuditRow:
    told, zone = record.entry, ui.parts.zone
    return AuditRow(
        number=record.number,
        at=wording.clock(told.at, zone),
        day=f"{told.at.astimezone(zone):%A %d %B %Y}",
        iso=told.at.isoformat(),
        who=told.actor or wording.NO_DATA,
        what=telling.action_words(told),
        moved=telling.moved(told, zone),
        reason=told.reason,
        way=told.way,
        automatic=told.automatic,
        revert=_may_revert(told),
    )


def _may_revert(told: AuditEntry) -> bool:
    return entries.may_revert(told) or batch_of(told) is not None


async def _record(ui: Ui, number: int) -> AuditRecord:
    if number >= 2**53:
        raise NotFound("audit entry", "so high")
    return await ui.runtime.audit.audit_record(number)


async def _entry_page(ui: Ui, record: AuditRecord, *, problem: str = "", status: int = 200) -> Response:
    context = EntryPage(
        **ui.shell("Audit", f"Entry {record.number}", refresh=False),
        row=_row(record, ui),
        changes=_changes(record.entry, ui),
        before=_pretty(record.entry.before),
        after=_pretty(record.entry.after),
        hash=record.hash,
        previous=record.previous,
        revert=await _revert(ui, record),
        problem=problem,
    )
    return html(context, status)


async def _revert(ui: Ui, record: AuditRecord) -> Revert | None:
    """Return what reverting the entry would do now, `None` where it is of a kind that cannot be reverted."""
    if not _may_revert(record.entry):
        return None
    try:
        would = await _would_be(ui, record)
    except (InvalidValue, NotFound) as error:
        return Revert((), 0, f"This cannot be put back now: {error}.")
    return Revert(_changes(would, ui), would.before.get("version", 0), "")


async def _would_be(ui: Ui, record: AuditRecord) -> AuditEntry:
    """Return the entry that a revert would make now. Raises InvalidValue, NotFound."""
    store, now = ui.runtime.settings_store, ui.parts.now
    batch_id = batch_of(record.entry)
    if batch_id is not None:
        batch = await ui.runtime.store.batch(batch_id)
        pause = BatchPause(ASKING.get().name, "", now)
        return batch_entry(batch, undone(batch, *steerings(record.entry), pause=pause), kind="revert", at=now)
    name = entries.pool_of(record.entry)
    told: dict[str, Any] = {"at": now, "by": "", "reason": "", "way": ""}
    if name is None:
        schedule = await store.schedule()
        return entries.schedule_entry(schedule, entries.schedule(record, schedule), **told)
    present = await store.pool(name)
    patch = entries.pool_patch(record, present, now=now, given="")
    after = apply_patch(present, patch, by=ASKING.get().name, now=now, window_end=lambda: None)
    return entries.pool_entry(present, after, kind="settings", **told)


def _changes(told: AuditEntry, ui: Ui) -> tuple[Change, ...]:
    return tuple(Change(each.name, each.before, each.after) for each in telling.differences(told, ui.parts.zone))


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


# The call log


def _call_row(record: CallRecord, ui: Ui) -> CallLogRow:
    at = datetime.fromtimestamp(record.at, ui.parts.zone)
    tokens = f"{wording.count(record.input_tokens)} / {wording.count(record.output_tokens)}"
    return CallLogRow(
        at=wording.clock(at, ui.parts.zone),
        day=f"{at:%A %d %B %Y}",
        iso=at.isoformat(),
        request=record.request,
        who=f"{record.tenant}, {record.key}" if record.key else record.tenant,
        where=f"{record.pool}, {record.model}" if record.model else record.pool,
        lane=record.lane,
        batch=record.batch,
        outcome=f"{record.outcome.replace('_', ' ')} {record.status or ''}".strip(),
        good=record.outcome == Outcome.SUCCESS,
        waited=_time(record.queue_ms),
        first=_time(record.first_token_ms),
        total=_time(record.total_ms),
        tokens=tokens + (" about" if record.estimated else ""),
    )


def _time(ms: float | None) -> str:
    return wording.milliseconds(ms) if ms is None or ms < 1000 else wording.seconds(ms / 1000)


def _kept(ui: Ui) -> str:
    settings = ui.runtime.settings
    if not settings.call_log_rows:
        return "The call log is switched off (setting call_log_rows)."
    return f"The newest {settings.call_log_rows:,} calls of the last {settings.call_log_days:g} days are kept."


# What both have


def _values(query: QueryParams, names: tuple[str, ...]) -> dict[str, str]:
    return {name: query.get(name, "").strip().replace("\0", "")[:LONGEST_FILTER] for name in names}


def _choices(options: Any, chosen: str) -> tuple[Choice, ...]:
    return (Choice("", "all", not chosen), *(Choice(str(each), str(each), each == chosen) for each in options))


def _older(path: str, values: Mapping[str, str], before: int) -> str:
    kept = {name: value for name, value in values.items() if value}
    return f"{path}?{urlencode({**kept, 'before': before})}"


def _place(query: QueryParams) -> int | None:
    return _whole(query.get("before", "")) or None


def _whole(text: str) -> int:
    """Return a number from an address or form; one that is missing or no number is none that ever was."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


ROUTES: list[BaseRoute] = [
    Route("/audit", page),
    Route("/audit/calls", calls),
    Route("/audit/{number:int}", entry),
    Route("/ui/audit/revert", revert, methods=["POST"]),
]
