"""The Schedule page: what is in force, the week, windows and one-offs, their editor with preview, and deleting."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial

from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from core import wording
from core.control.windows import OneOff, Rule, Schedule, Transition, Window, overlaps, transitions, validate
from core.errors import InvalidValue, NotFound, StaleVersion
from core.pools import Pool
from web import schedule_form, week
from web.contexts import Choice, Note
from web.live import Watched
from web.schedule_contexts import ComingRow, DeletePage, Editor, OneOffRow, SchedulePage, SchedulePreview, WindowRow
from web.schedule_form import KINDS, Typed
from web.ui import Done, Ui, acting, form_of, form_values, html, see_other, ui_of

_COMING = 10
_DAYS = 8.0
_CLOCK_DAYS = 370.0
_CONFLICT = (
    "The schedule was changed while you were editing (now version {}). Nothing of yours was saved. "
    "Look at the week below, then save again."
)


async def page(request: Request) -> Response:
    """GET /schedule: `?edit=window|one_off|zone` opens the editor, `&name=` on a stored rule."""
    ui, query = ui_of(request), request.query_params
    try:
        pool = ui.parts.pool(query.get("pool", ""))
        kind = query.get("edit", "") if query.get("edit", "") in KINDS else ""
        typed = _typed(query) if "preview" in query and query.get("kind") in KINDS else None
        editor = None
        if typed:
            editor = _editor(ui, typed.kind, typed=typed)
        elif kind:
            editor = _editor(ui, kind, name=query.get("name", ""))
    except NotFound as error:
        return ui.not_found(error)
    shown = _preview(ui, pool, typed) if typed else _shown(ui, ui.runtime.schedule, pool)
    return html(_page(ui, pool, editor, shown, done=query.get("done", "")))


async def preview(request: Request) -> Response:
    """GET /ui/schedule/preview: the week as it would be with what is typed."""
    ui, query = ui_of(request), request.query_params
    try:
        pools = query.getlist("pools")
        return html(_preview(ui, ui.parts.pool(pools[0] if pools else ""), _typed(query)))
    except NotFound as error:
        return ui.not_found(error)


async def save(request: Request) -> Response:
    """POST /ui/schedule/save: 303 when saved, 409 on a newer version, 422 with what is wrong."""
    ui, typed = ui_of(request), _typed(await form_of(request))
    if typed.kind not in KINDS:
        return ui.not_found(NotFound("kind of rule", typed.kind))
    reason = " ".join(typed.values.get("reason", "").split())
    before = ui.runtime.schedule
    try:
        if not reason:
            raise InvalidValue("reason", "Give a reason: the next person will want to know.")
        after = schedule_form.changed(before, typed)
        saved = await ui.runtime.operations.change_schedule(
            after, by=acting(), note=reason, based_on=_version(typed.values)
        )
    except InvalidValue as error:
        return _again(ui, typed, 422, errors={schedule_form.field_of(error): error.message})
    except StaleVersion as error:
        await ui.runtime.reload()
        return _again(ui, typed, 409, conflict=_CONFLICT.format(error.present))
    except NotFound as error:
        return ui.not_found(error)
    what = "zone" if typed.kind == "zone" else typed.values.get("name", "").strip()
    return await _saved(ui, before, saved, f"{what} saved.", reason)


async def ask_delete(request: Request) -> Response:
    """GET /schedule/delete: the question."""
    ui, query = ui_of(request), request.query_params
    return _ask(ui, query.get("kind", ""), query.get("name", ""))


async def delete(request: Request) -> Response:
    """POST /ui/schedule/delete: only with `confirm` equal to the name, which the question's page sends."""
    ui, values = ui_of(request), await form_values(request)
    kind, name, before = values.get("kind", ""), values.get("name", ""), ui.runtime.schedule
    reason = " ".join(values.get("reason", "").split())
    if values.get("confirm") != name or not reason:
        return _ask(ui, kind, name, error="Give a reason.", status=422)
    try:
        saved = await ui.runtime.operations.change_schedule(
            schedule_form.without(before, kind, name), by=acting(), note=reason, based_on=_version(values)
        )
    except StaleVersion:
        await ui.runtime.reload()
        return _ask(ui, kind, name, error="The schedule was changed in the meantime. Look again.", status=409)
    except InvalidValue as error:
        return _ask(ui, kind, name, error=error.message, status=422)
    except NotFound as error:
        return ui.not_found(error)
    return await _saved(ui, before, saved, f"{name} deleted.", reason)


async def _saved(ui: Ui, before: Schedule, saved: Schedule, sentence: str, reason: str) -> Response:
    await ui.runtime.reload()
    back = partial(
        ui.runtime.operations.change_schedule,
        before,
        by=acting(),
        note=f"undo: {reason}"[:200],
        based_on=saved.version,
    )
    return see_other("/schedule", done=ui.done.put(Done(ui.parts.now, sentence, "/schedule", back)))


def _ask(ui: Ui, kind: str, name: str, *, error: str = "", status: int = 200) -> Response:
    try:
        rule = schedule_form.rule_named(ui.runtime.schedule, kind, name)
    except NotFound as missing:
        return ui.not_found(missing)
    context = DeletePage(
        **ui.shell("Schedule", f"Delete {name}", refresh=False),
        kind="window" if isinstance(rule, Window) else "one_off",
        name=name,
        when=_when(rule, ui),
        version=ui.runtime.schedule.version,
        error=error,
    )
    return html(context, status)


def _again(
    ui: Ui, typed: Typed, status: int, *, errors: Mapping[str, str] | None = None, conflict: str = ""
) -> Response:
    pool = ui.parts.pool()
    editor = _editor(ui, typed.kind, typed=typed, errors=errors, conflict=conflict)
    return html(_page(ui, pool, editor, _preview(ui, pool, typed)), status)


def _editor(
    ui: Ui,
    kind: str,
    *,
    name: str = "",
    typed: Typed | None = None,
    errors: Mapping[str, str] | None = None,
    conflict: str = "",
) -> Editor:
    return schedule_form.editor(
        kind,
        ui.runtime.schedule,
        pools=list(ui.runtime.pools),
        now=ui.parts.now,
        name=name,
        typed=typed,
        errors=errors,
        conflict=conflict,
    )


def _page(ui: Ui, pool: Pool, editor: Editor | None, shown: SchedulePreview, *, done: str = "") -> SchedulePage:
    schedule, now = ui.runtime.schedule, ui.parts.now
    return SchedulePage(
        **ui.shell("Schedule", "Schedule", refresh=editor is None, watched=Watched("schedule")),
        strip=ui.parts.schedule_strip(),
        preview=shown,
        pools=tuple(Choice(name, name, name == pool.name) for name in ui.runtime.pools),
        windows=tuple(_window_row(window, ui) for window in schedule.windows),
        one_offs=tuple(_one_off_row(one_off, ui, now) for one_off in schedule.one_offs),
        editor=editor,
        zone=schedule.zone,
        version=schedule.version,
        applied=ui.applied(done),
    )


def _preview(ui: Ui, pool: Pool, typed: Typed) -> SchedulePreview:
    try:
        schedule = schedule_form.changed(ui.runtime.schedule, typed)
        validate(schedule)
    except InvalidValue as error:
        return SchedulePreview(week=None, notes=(Note(f"{schedule_form.field_of(error)}: {error.message}", "bad"),))
    except NotFound as error:
        return SchedulePreview(week=None, notes=(Note(f"{error}.", "bad"),))
    return _shown(ui, schedule, pool, heading="This week as it would be")


def _shown(ui: Ui, schedule: Schedule, pool: Pool, *, heading: str = "This week") -> SchedulePreview:
    now, zone, base = ui.parts.now, ui.parts.zone, pool.settings.base_bounds()
    coming = transitions(schedule, now, _DAYS, pool.name, base=base)[:_COMING]
    clock_changes = [
        each
        for each in transitions(schedule, now + timedelta(days=_DAYS), _CLOCK_DAYS, pool.name, base=base)
        if each.note
    ]
    return SchedulePreview(
        week=week.week(schedule, now=now, zone=zone, pool=pool.name, base=base),
        overlaps=tuple(overlap.sentence for overlap in overlaps(schedule, now)),
        coming=tuple(_coming(each, now, ui, pool) for each in (*coming, *clock_changes[:4])),
        heading=heading,
    )


def _coming(edge: Transition, now: datetime, ui: Ui, pool: Pool) -> ComingRow:
    verb = {"start": "starts", "end": "ends", "skipped": "is left out"}[edge.kind]
    before, after = edge.before, edge.after
    moved = f"batch {before.floor} to {before.ceiling} → {after.floor} to {after.ceiling}"
    same = (before.floor, before.ceiling) == (after.floor, after.ceiling)
    effect = f"{wording.source(after.source)} stays in force" if before.source == after.source else moved
    if same and before.source != after.source:
        effect = f"{wording.source(after.source)}, same bounds"
    return ComingRow(
        wording.moment(edge.at, now, ui.parts.zone), pool.name, f"{edge.name} {verb}: {effect}.", edge.note
    )


def _window_row(window: Window, ui: Ui) -> WindowRow:
    return WindowRow(
        name=window.name,
        when=_when(window, ui),
        bounds=_bounds(window),
        priority=window.priority,
        pools=", ".join(window.pools) or "all",
        edit=_edit("window", window.name),
    )


def _one_off_row(one_off: OneOff, ui: Ui, now: datetime) -> OneOffRow:
    state = "over" if one_off.end <= now else "in force" if one_off.start <= now else ""
    pools = f" ({', '.join(one_off.pools)})" if one_off.pools else ""
    return OneOffRow(
        name=one_off.name + pools,
        when=_when(one_off, ui),
        bounds=_bounds(one_off),
        reason=one_off.reason + (f" ({one_off.by})" if one_off.by else ""),
        state=state,
        edit=_edit("one_off", one_off.name),
    )


def _edit(kind: str, name: str) -> str:
    return f"/schedule?{QueryParams({'edit': kind, 'name': name})}#editor"


def _when(rule: Rule, ui: Ui) -> str:
    if isinstance(rule, OneOff):
        now, zone = ui.parts.now, ui.parts.zone
        return f"{wording.moment(rule.start, now, zone)} to {wording.moment(rule.end, now, zone)}"
    overnight = " the next day" if rule.end <= rule.start else ""
    elsewhere = f" ({rule.zone})" if rule.zone else ""
    return f"{week.days_text(rule.days)} {rule.start:%H:%M} to {rule.end:%H:%M}{overnight}{elsewhere}"


def _bounds(rule: Rule) -> str:
    parts = [
        f"{name} {value}" for name, value in (("floor", rule.floor), ("ceiling", rule.ceiling)) if value is not None
    ]
    budgets = rule.budgets
    if budgets:
        parts.append(week.budgets_text(budgets.first_token_s, budgets.per_token_ms, budgets.error_rate))
    return ", ".join(parts) or "as in the base settings"


def _typed(form: FormData | QueryParams) -> Typed:
    values = {name: value for name, value in form.items() if isinstance(value, str)}
    return Typed(
        values,
        tuple(day for day in form.getlist("days") if isinstance(day, str)),
        tuple(pool for pool in form.getlist("pools") if isinstance(pool, str)),
    )


def _version(values: Mapping[str, str]) -> int:
    text = values.get("schedule_version", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


ROUTES: list[BaseRoute] = [
    Route("/schedule", page),
    Route("/schedule/delete", ask_delete),
    Route("/ui/schedule/preview", preview),
    Route("/ui/schedule/save", save, methods=["POST"]),
    Route("/ui/schedule/delete", delete, methods=["POST"]),
]
