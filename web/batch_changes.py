"""What people do with batches: upload one, pause, resume, cancel, change priority, retry what failed.

Every change first asks: a page names the verb and the batches. All of it works as plain forms.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from core import wording
from core.batch.audit import Steering, steering_of
from core.batch.lines import ENDPOINTS
from core.batch.service import Batches, NewBatch, Upload
from core.batch.values import Batch, BatchStatus
from core.batch.window import window_of
from core.errors import InvalidValue, NotFound, RequestError
from core.people.identity import ASKING
from core.people.permissions import Action, scope
from web import batch_words as words
from web.api import REASON_HEADER
from web.auth import check_batch
from web.batch_contexts import ActionLink, ConfirmPage, Named, NewBatchPage
from web.contexts import Choice
from web.ui import Done, Ui, Undo, acting, form_of, html, see_other, ui_of, undo_for
from web.uploads import SLACK, UploadForm

LIST = "/batches"
FIRST_LINE = 64 * 1024
MOST_AT_ONCE = 100
LONGEST_REASON = 200
NO_PRIORITY = "The priority must be a whole number from -100 to 100."
WINDOWS = {"1h": "1 hour", "6h": "6 hours", "12h": "12 hours", "24h": "24 hours", "3d": "3 days", "7d": "7 days"}
FROM_FILE = ""
ENDPOINT_NAMES = {FROM_FILE: "as the file says", **{name: name for name in ENDPOINTS}}
_BACK = re.compile(r"/batches(/batch_[0-9a-f]{1,64})?")
_OPEN = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)

Typed = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing that can be done with batches; `fits` tells why it cannot with one ("" where it can).

    `needs` names the field that must be filled in: reason (others ask for one only where policy does), or priority.
    """

    name: str
    done: str
    consequence: str
    fits: Callable[[Batch, datetime], str]
    do: Callable[[Batches, str, str | None, Typed], Awaitable[Batch]]
    needs: str = ""
    danger: bool = False
    api: str = "/api/batches/{id}/{action}"


def _open(batch: Batch, now: datetime) -> str:
    return "" if batch.status in _OPEN else f"it is {words.state(batch)[0]}"


def _pausable(batch: Batch, now: datetime) -> str:
    return _open(batch, now) or ("it is paused already" if batch.pause else "")


def _resumable(batch: Batch, now: datetime) -> str:
    return _open(batch, now) or ("" if batch.pause else "it is not paused")


def _cancellable(batch: Batch, now: datetime) -> str:
    if batch.status in (*_OPEN, BatchStatus.FINALIZING):
        return ""
    return f"it is {words.state(batch)[0]}"


def _retryable(batch: Batch, now: datetime) -> str:
    if batch.status is not BatchStatus.COMPLETED or not batch.failed:
        return "only a completed batch with failed requests can retry them"
    return "" if now < batch.expires_at else "its window is over"


async def _pause(batches: Batches, batch_id: str, tenant: str | None, typed: Typed) -> Batch:
    return await batches.pause(batch_id, tenant=tenant, by=acting(), reason=typed["reason"])


async def _resume(batches: Batches, batch_id: str, tenant: str | None, typed: Typed) -> Batch:
    return await batches.resume(batch_id, tenant=tenant, reason=typed["reason"])


async def _prioritise(batches: Batches, batch_id: str, tenant: str | None, typed: Typed) -> Batch:
    return await batches.prioritise(batch_id, int(typed["priority"]), tenant=tenant, reason=typed["reason"])


async def _cancel(batches: Batches, batch_id: str, tenant: str | None, typed: Typed) -> Batch:
    return await batches.cancel(batch_id, tenant=tenant, reason=typed["reason"])


async def _retry(batches: Batches, batch_id: str, tenant: str | None, typed: Typed) -> Batch:
    return await batches.retry_failed(batch_id, tenant=tenant, reason=typed["reason"])


VERBS = {
    "pause": Verb(
        "Pause", "paused", "No more requests start until somebody resumes; those that run finish. The deadline stays.",
        _pausable, _pause, needs="reason",
    ),
    "resume": Verb("Resume", "resumed", "Requests start again as slots allow.", _resumable, _resume),
    "priority": Verb(
        "Change the priority of", "given another priority",
        "Among the batches of one team, those with a higher priority go first.",
        _open, _prioritise, needs="priority",
    ),
    "retry-failed": Verb(
        "Retry the failed requests of", "trying failed requests again",
        "Failed requests run once more within the batch's window. The error file goes; the output file grows.",
        _retryable, _retry,
    ),
    "cancel": Verb(
        "Cancel", "cancelled", "Running requests are ended, waiting ones never run. What is done is kept.",
        _cancellable, _cancel, danger=True, api="/v1/batches/{id}/cancel",
    ),
}  # fmt: skip


def links(batch: Batch, now: datetime) -> tuple[ActionLink, ...]:
    """Return what can be done with a batch now, each as a link to its question."""
    labels = {"priority": "Priority", "retry-failed": "Retry failed"}
    return tuple(
        ActionLink(
            labels.get(action, verb.name) + ("…" if verb.danger else ""),
            f"{LIST}/confirm?{urlencode({'action': action, 'id': batch.id, 'back': f'{LIST}/{batch.id}'})}",
            verb.danger,
        )
        for action, verb in VERBS.items()
        if not verb.fits(batch, now)
    )


async def confirm(request: Request) -> Response:
    """GET /batches/confirm: the question, with every batch named."""
    query = request.query_params
    return await _ask(request, query.get("action", ""), query.getlist("id"), _back(query.get("back", "")))


async def change(request: Request) -> Response:
    """POST /ui/batches/change: 303 when done, 422 with the question again where something is missing."""
    form = await form_of(request)
    action, ids = str(form.get("action", "")), [str(each).replace("\0", "") for each in form.getlist("id")]
    back = _back(str(form.get("back", "")))
    verb = VERBS.get(action)
    if verb is None:
        return ui_of(request).not_found(NotFound("action", action))
    typed = {name: " ".join(str(form.get(name, "")).split()) for name in ("reason", "priority")}
    errors = _problems(verb, typed, reason_required=_needs_reason(ui_of(request), verb))
    if errors or not ids:
        return await _ask(request, action, ids, back, typed=typed, errors=errors)
    return await _changed(ui_of(request), verb, ids[:MOST_AT_ONCE], back, typed)


def _needs_reason(ui: Ui, verb: Verb) -> bool:
    return verb.needs == "reason" or ui.runtime.settings.require_reason


def _problems(verb: Verb, typed: Typed, *, reason_required: bool) -> dict[str, str]:
    found = {}
    if reason_required and not typed["reason"]:
        found["reason"] = "Give a reason: the next person will want to know."
    if len(typed["reason"]) > LONGEST_REASON:
        found["reason"] = f"The reason may have {LONGEST_REASON} characters."
    if verb.needs == "priority" and not _is_priority(typed["priority"]):
        found["priority"] = NO_PRIORITY
    return found


def _is_priority(text: str) -> bool:
    return bool(re.fullmatch(r"-?[0-9]{1,3}", text)) and -100 <= int(text) <= 100


async def _changed(ui: Ui, verb: Verb, ids: Sequence[str], back: str, typed: Typed) -> Response:
    """Change them one by one, and tell which were changed and which were not."""
    tenant = scope(ASKING.get())
    done, refused = [], []
    for batch_id in dict.fromkeys(ids):
        try:
            was = steering_of(await ui.runtime.store.batch(batch_id, tenant=tenant))
            done.append((was, await verb.do(ui.runtime.batches, batch_id, tenant, typed)))
        except (InvalidValue, NotFound) as error:
            refused.append(f"{batch_id[:14]}… was not: {error}")
    told = _list([words.name_of(batch) for _, batch in done])
    sentence = "; ".join([*([f"{told} {verb.done}"] if done else []), *refused]) + "."
    undo = _undo(ui.runtime.batches, done, typed["reason"])
    token = ui.done.put(Done(ui.parts.now, sentence, back, undo, Action.BATCH_WRITE))
    return see_other(back, done=token)


def _undo(batches: Batches, done: Sequence[tuple[Steering, Batch]], reason: str) -> Undo | None:
    """Return what puts pauses and priorities back, `None` where none moved: nothing else can be taken back."""
    moved = [(was, batch) for was, batch in done if was != steering_of(batch)]

    async def undo() -> None:
        told = f"undo: {reason}"[:LONGEST_REASON] if reason else "undo"
        tenant, problems = scope(ASKING.get()), []
        for was, batch in moved:
            try:
                await batches.put_back(batch.id, was, steering_of(batch), tenant=tenant, by=acting(), reason=told)
            except (InvalidValue, NotFound) as error:
                problems.append(f"{words.name_of(batch)}: {error}.")
        if problems:
            raise InvalidValue("undo", " ".join(problems))

    return undo if moved else None


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} batches"


async def _ask(
    request: Request,
    action: str,
    ids: Sequence[str],
    back: str,
    *,
    typed: Typed | None = None,
    errors: dict[str, str] | None = None,
) -> Response:
    ui, verb = ui_of(request), VERBS.get(action)
    if verb is None:
        return ui.not_found(NotFound("action", action))
    found = await ui.runtime.store.named_batches(list(ids)[:MOST_AT_ONCE], tenant=scope(ASKING.get()))
    faults = {batch.id: verb.fits(batch, ui.parts.now) for batch in found}
    chosen = [batch for batch in found if not faults[batch.id]]
    what = f"{verb.name} {_list([words.name_of(batch) for batch in chosen])}" if chosen else verb.name
    left = sum(batch.left for batch in chosen if batch.in_progress_at)
    page = ConfirmPage(
        **ui.shell("Batches", f"{what}?" if chosen else "Nothing to change", refresh=False),
        action=action,
        button=f"{what} ({wording.count(left)} left)" if verb.danger else what,
        danger=verb.danger,
        consequence=_consequence(verb, found, chosen),
        chosen=tuple(Named(batch.id, words.name_of(batch), _told(batch)) for batch in chosen),
        left_out=tuple(Named(each.id, words.name_of(each), faults[each.id]) for each in found if faults[each.id]),
        needs=verb.needs,
        values={"reason": "", "priority": str(chosen[0].priority) if chosen else "0", **(typed or {})},
        errors=errors or {},
        reason_required=_needs_reason(ui, verb),
        back_to=back,
        curl=_curl(request, verb, action, chosen),
    )
    return html(page, 200 if chosen and not errors else 422)


def _consequence(verb: Verb, found: Sequence[Batch], chosen: Sequence[Batch]) -> str:
    if chosen:
        return verb.consequence
    return "None of them can be changed so." if found else "No batch was chosen: tick some in the list first."


def _told(batch: Batch) -> str:
    where = words.state(batch)[0]
    return f"{batch.tenant}, {where}, {wording.count(batch.left)} requests left" if batch.in_progress_at else where


def _curl(request: Request, verb: Verb, action: str, chosen: Sequence[Batch]) -> str:
    base = str(request.base_url).rstrip("/")
    reason = _needs_reason(ui_of(request), verb)
    body = {**({"priority": 10} if verb.needs == "priority" else {}), **({"reason": "because"} if reason else {})}
    options = '-H "Authorization: Bearer $TIDEGATE_API_KEY"'
    if verb.api.startswith("/v1/"):
        options += f' -H "{REASON_HEADER}: because"' if reason else ""
    elif body:
        options += f" -d '{msgspec.json.encode(body).decode()}'"
    return "\n".join(f"curl -X POST {options} {base}{verb.api.format(id=batch.id, action=action)}" for batch in chosen)


def _back(given: str) -> str:
    return given if _BACK.fullmatch(given) else LIST


# Upload


async def new(request: Request) -> Response:
    """GET /batches/new: the form."""
    return _form(request, {}, {})


async def submit(request: Request) -> Response:
    """POST /ui/batches: the file while it comes, then the batch; 303 to its page, else the form with what is wrong."""
    ui = ui_of(request)
    batches, most = ui.runtime.batches, ui.runtime.batches.file_bytes
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > most + SLACK:
        return _form(request, {}, {"file": _too_large(most)}, 413)
    upload, values = batches.upload(), dict[str, str]()
    try:
        form = UploadForm(content_type=request.headers.get("content-type", ""), take=upload.write)
        await form.read(request.stream())
        values = form.fields
        batch = await _created(ui, upload, form)
    except BaseException as error:
        await upload.abort()
        if isinstance(error, ClientDisconnect):
            return Response(status_code=499)
        if isinstance(error, InvalidValue):
            return _form(request, values, _errors(error), 413 if upload.size > most else 422)
        if isinstance(error, RequestError):
            return _form(request, values, {"form": error.message}, error.status)
        raise
    return see_other(f"{LIST}/{batch.id}")


async def _created(ui: Ui, upload: Upload, form: UploadForm) -> Batch:
    """Make the batch that the form asks for. Raises InvalidValue."""
    values, who = form.fields, ASKING.get()
    check_batch(who)
    if not upload.size:
        raise InvalidValue("file", "Choose a file that is not empty.")
    window = values.get("window", "24h")
    window_of(window)
    priority = values.get("priority", "0").strip() or "0"
    if not _is_priority(priority):
        raise InvalidValue("priority", NO_PRIORITY)
    reason = " ".join(values.get("reason", "").split())[:LONGEST_REASON]
    stored = await upload.finish(tenant=who.tenant, filename=form.filename or "", expires_after=None, reason=reason)
    endpoint = values.get("endpoint") or await _endpoint(ui, stored.id)
    if endpoint not in ENDPOINTS:
        raise InvalidValue("endpoint", "The file's first line names no url that can be a batch; choose one.")
    order = NewBatch(
        tenant=who.tenant,
        key=who.key,
        endpoint=endpoint,
        input_file_id=stored.id,
        completion_window=window,
        name=values.get("name", "").strip()[:200] or stored.filename.rpartition(".")[0] or stored.filename,
        priority=int(priority),
    )
    return await ui.runtime.batches.create(order, dedupe=stored.id, again=False, reason=reason)


async def _endpoint(ui: Ui, file_id: str) -> str:
    """Return the url in the file's first line, "" where it cannot be read."""
    head = (await ui.runtime.files.read(file_id, 0, FIRST_LINE)).removeprefix(b"\xef\xbb\xbf").lstrip()
    found = re.search(rb'"url"\s*:\s*("[^"\\]{1,100}")', head.partition(b"\n")[0])
    return str(msgspec.json.decode(found[1])) if found else ""


def _errors(error: InvalidValue) -> dict[str, str]:
    names: Mapping[str, str] = {"completion_window": "window", "input_file_id": "file"}
    field = names.get(error.field, error.field)
    known = ("name", "endpoint", "window", "priority", "file", "reason")
    return {field if field in known else "form": wording.sentence_case(error.message)}


def _too_large(most: int) -> str:
    return f"The file is larger than {most:,} bytes (setting batch_file_bytes)."


def _form(request: Request, values: Mapping[str, str], errors: dict[str, str], status: int = 200) -> Response:
    ui = ui_of(request)
    shown: dict[str, Any] = {"name": "", "priority": "0", "window": "24h", "endpoint": FROM_FILE, **values}
    most = wording.count(ui.runtime.settings.batch_lines)
    page = NewBatchPage(
        **ui.shell("Batches", "New batch", refresh=False),
        values=shown,
        errors=errors,
        windows=tuple(Choice(value, label, value == shown["window"]) for value, label in WINDOWS.items()),
        endpoints=tuple(Choice(value, label, value == shown["endpoint"]) for value, label in ENDPOINT_NAMES.items()),
        limits=f"Up to {most} lines and {ui.runtime.batches.file_bytes / 2**20:,.0f} MB.",
        reason_required=ui.runtime.settings.require_reason,
        curl=f"TIDEGATE_URL={str(request.base_url).rstrip('/')} tidegate batch submit FILE --wait",
    )
    return html(page, status)


ROUTES: list[BaseRoute] = [
    Route("/batches/new", new),
    Route("/batches/confirm", confirm),
    Route("/ui/batches", submit, methods=["POST"]),
    Route("/ui/batches/change", change, methods=["POST"]),
    Route("/ui/batches/undo", undo_for(Action.BATCH_WRITE), methods=["POST"]),
]
