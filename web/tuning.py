"""The tuning form of the Overview: preview, apply with version check, pause and resume."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from core import wording
from core.errors import InvalidValue, NotFound, StaleVersion
from core.operations import BoundsPatch, PoolPatch
from core.overview import Reading, upcoming
from core.pools import Pool
from core.quotas import Hold, PoolSettings
from web import tuning_form
from web.charts import SPANS
from web.contexts import Applied, OverviewPage, Tuning
from web.live import DEFAULT_SPAN, Watched, overview_href
from web.tuning_form import Tuned
from web.ui import (
    Done,
    Ui,
    Undo,
    acting,
    form_values,
    html,
    see_other,
    ui_of,
    wants_fragment,
)

_FIELDS = {"hold": "quota", "budgets": "first_token_s", "error_rate": "error_percent", "until": "scope"}


def form(
    ui: Ui,
    pool: Pool,
    *,
    base_url: str,
    typed: Mapping[str, str] | None = None,
    errors: Mapping[str, str] | None = None,
    conflict: str = "",
    applied: Applied | None = None,
) -> Tuning:
    """Return the form with the values in force, or with what was typed, and what that would do."""
    reading = ui.runtime.reading(pool)
    now, zone = ui.parts.now, ui.parts.zone
    values = {**tuning_form.present(reading), **(typed or {})}
    tuned, found = tuning_form.parse(values, reading)
    bounds = reading.bounds
    pause = reading.settings.pause
    return Tuning(
        pool=pool.name,
        values=values,
        was=tuning_form.present(reading),
        errors={**(found if typed else {}), **(errors or {})},
        source=wording.sentence_case(wording.source(bounds.source)),
        source_id=bounds.source,
        scopes=tuning_form.scopes(bounds, wording.moment(bounds.until, now, zone), values.get("scope", "")),
        untils=tuning_form.untils(_held_until(reading.settings.hold, now, ui), values.get("for", "")),
        most=reading.settings.batch_max,
        version=reading.settings.version,
        schedule_version=ui.runtime.schedule.version,
        preview=tuning_form.preview(tuned, reading, base_url=base_url) if tuned else tuning_form.unreadable(found),
        paused=f"By {pause.by} since {wording.moment(pause.since, now, zone)}: {pause.reason}" if pause else "",
        upcoming=upcoming(ui.runtime.schedule, now, reading.settings, zone),
        zone=ui.runtime.schedule.zone,
        conflict=tuning_form.conflicts(typed, reading) if typed and conflict else (),
        conflict_by=conflict,
        applied=applied,
    )


def _held_until(hold: Hold | None, now: datetime, ui: Ui) -> str:
    if hold is None or not hold.active(now):
        return ""
    return f"as now: until {wording.moment(hold.until, now, ui.parts.zone)}" if hold.until else "as now: for ever"


async def preview(request: Request) -> Response:
    """GET /ui/tuning/preview: what the form as typed would do."""
    ui, query = ui_of(request), request.query_params
    try:
        pool = ui.parts.pool(query.get("pool", ""))
    except NotFound as error:
        return ui.not_found(error)
    return html(form(ui, pool, base_url=_base_url(request), typed=query).preview)


async def apply(request: Request) -> Response:
    """POST /ui/tuning: 303 (htmx: the form anew) when applied, 409 on a newer version, 422 with what is wrong."""
    ui, values = ui_of(request), await form_values(request)
    try:
        pool = ui.parts.pool(values.get("pool", ""))
    except NotFound as error:
        return ui.not_found(error)
    answer = partial(_answer, request, ui, pool, values)
    await ui.runtime.reload()
    reading = ui.runtime.reading(pool)
    conflict = _moved_since(values, reading)
    if conflict:
        return await answer(409, conflict=conflict)
    tuned, errors = tuning_form.parse(values, reading)
    if tuned is None:
        return await answer(422, errors=errors)
    if not tuned.reason:
        return await answer(422, errors={"reason": "Give a reason: the next person will want to know."})
    if tuning_form.unchanged(tuned, reading):
        return await answer(422, errors={"form": "Nothing here differs from what is in force."})
    try:
        done = await _change(ui, pool, tuned, reading)
    except StaleVersion:
        await ui.runtime.reload()
        return await answer(409, conflict=_moved_since(values, ui.runtime.reading(pool)) or "Changed just now.")
    except InvalidValue as error:
        name = error.field.rpartition(".")[2]
        field = _FIELDS.get(name, name)
        return await answer(422, errors={field if field in values else "form": error.message})
    return await _applied(request, ui, pool, done)


async def pause(request: Request) -> Response:
    """POST /ui/pause: stop or resume batch; a hold stays as it is."""
    ui, values = ui_of(request), await form_values(request)
    try:
        pool = ui.parts.pool(values.get("pool", ""))
    except NotFound as error:
        return ui.not_found(error)
    typed = {"pause_reason": values.get("reason", "")}
    if not values.get("reason", "").strip():
        return await _answer(request, ui, pool, typed, 422, errors={"pause_reason": "Give a reason."})
    wanted = values.get("action") == "pause"
    patch = PoolPatch(pause=wanted, reason=values["reason"].strip())
    try:
        saved = await ui.runtime.operations.change_pool(
            pool.name, patch, by=acting(), based_on=_version(values, "version")
        )
    except StaleVersion:
        await ui.runtime.reload()
        return await _answer(request, ui, pool, typed, 409, conflict=_changed_by(ui.runtime.reading(pool)))
    except InvalidValue as error:
        return await _answer(request, ui, pool, typed, 422, errors={"pause_reason": error.message})
    back = PoolPatch(pause=not wanted, reason=f"undo: {patch.reason}"[: tuning_form.MAX_REASON])
    sentence = f"batch {'paused' if wanted else 'resumed'}."
    return await _applied(request, ui, pool, _done(ui, pool, sentence, [_restore(ui, saved, back)]))


def _version(values: Mapping[str, str], name: str) -> int:
    """Return a version from the form; one that is missing or no number is none that ever was."""
    text = values.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _moved_since(values: Mapping[str, str], reading: Reading) -> str:
    """Return in words what a person, or a window, changed since the form was opened; "" for nothing.

    What others changed in fields that were left alone is no conflict, where the form tells what it showed.
    """
    version, present = _version(values, "version"), reading.settings.version
    if not 0 < version <= present or (version < present and not tuning_form.tells_what_it_showed(values)):
        return _changed_by(reading)
    if values.get("source", reading.bounds.source) != reading.bounds.source and _touches_bounds(values):
        source = wording.source(reading.bounds.source)
        return f"{wording.sentence_case(source)} came into force since you opened this form."
    return _changed_by(reading) if tuning_form.clashes(values, reading) else ""


def _touches_bounds(values: Mapping[str, str]) -> bool:
    return any(values.get(name) != values.get(f"was_{name}") for name in tuning_form.BOUND_FIELDS)


def _changed_by(reading: Reading) -> str:
    return f"{reading.settings.name} was changed while you were editing (now version {reading.settings.version})."


async def _change(ui: Ui, pool: Pool, tuned: Tuned, reading: Reading) -> Done:
    """Store what was asked for: bounds where they belong, then the hold. Raises StaleVersion, InvalidValue."""
    undo: list[Undo] = []
    told: list[str] = []
    source = reading.bounds.source
    in_schedule = source != "base" and tuning_form.bounds_move(tuned, reading)
    if in_schedule:
        undo.append(await _change_schedule(ui, pool, tuned, reading))
        told.append(_bounds_told(tuned, reading))
    patch = _pool_patch(tuned, reading, with_bounds=source == "base")
    if patch.given:
        saved = await ui.runtime.operations.change_pool(
            pool.name, patch, by=acting(), based_on=reading.settings.version
        )
        undo.append(_restore(ui, saved, _inverse(patch, reading)))
        told.append(_pool_told(saved, patch, ui))
    return _done(ui, pool, "; ".join(told) + ".", undo)


def _done(ui: Ui, pool: Pool, sentence: str, undo: list[Undo]) -> Done:
    async def all_back() -> None:
        for step in reversed(undo):
            await step()

    return Done(ui.parts.now, sentence, f"{overview_href(pool.name)}#tuning", all_back)


async def _change_schedule(ui: Ui, pool: Pool, tuned: Tuned, reading: Reading) -> Undo:
    """Change the window in force, or put a one-off over it until it ends; return how to take that back."""
    before, operations = ui.runtime.schedule, ui.runtime.operations
    based_on = before.version
    patch = _bounds_patch(tuned, reading)
    source = reading.bounds.source
    if tuned.scope == "source" or source.startswith("one_off:"):
        after = await operations.edit_source(source, patch, by=acting(), note=tuned.reason, based_on=based_on)
    else:
        after = await operations.add_one_off(patch, pool=pool.name, by=acting(), reason=tuned.reason, based_on=based_on)
    return partial(
        operations.change_schedule, before, by=acting(), note=f"undo: {tuned.reason}"[:200], based_on=after.version
    )


def _bounds_patch(tuned: Tuned, reading: Reading) -> BoundsPatch:
    """Return the bounds to store in a rule. A one-off takes all of what is seen in the form, a window what moved."""
    bounds = reading.bounds
    whole = tuned.scope != "source" and not bounds.source.startswith("one_off:")
    return BoundsPatch(
        floor=tuned.floor if whole or tuned.floor != bounds.floor else None,
        ceiling=tuned.ceiling if whole or tuned.ceiling != bounds.ceiling else None,
        budgets=tuned.budgets if whole or tuned.budgets != bounds.budgets else None,
    )


def _pool_patch(tuned: Tuned, reading: Reading, *, with_bounds: bool) -> PoolPatch:
    settings = reading.settings
    holds = tuning_form.hold_moves(tuned, reading)
    budgets = {
        name: getattr(tuned.budgets, name)
        for name in ("first_token_s", "per_token_ms", "error_rate")
        if getattr(tuned.budgets, name) != getattr(settings.budgets, name)
    }
    return PoolPatch(
        hold=tuned.hold if holds else None,
        hold_for=tuning_form.hold_for(tuned, reading) if holds and tuned.hold is not None else None,
        auto=True if holds and tuned.hold is None else None,
        floor=tuned.floor if with_bounds and tuned.floor != settings.floor else None,
        ceiling=tuned.ceiling if with_bounds and tuned.ceiling != settings.ceiling else None,
        budgets=budgets if with_bounds and budgets else None,
        reason=tuned.reason,
    )


def _inverse(patch: PoolPatch, reading: Reading) -> PoolPatch:
    """Return the change that brings back what `patch` changed."""
    before = reading.settings
    hold = before.hold if before.hold and before.hold.active(reading.at) else None
    holds = patch.hold is not None or patch.auto is not None
    return PoolPatch(
        hold=hold.quota if holds and hold else None,
        hold_for=tuning_form.left(hold, reading.at) if holds and hold else None,
        auto=True if holds and hold is None else None,
        floor=before.floor if patch.floor is not None else None,
        ceiling=before.ceiling if patch.ceiling is not None else None,
        budgets={name: getattr(before.budgets, name) for name in patch.budgets} if patch.budgets else None,
        reason=f"undo: {patch.reason}"[: tuning_form.MAX_REASON],
    )


def _restore(ui: Ui, saved: PoolSettings, back: PoolPatch) -> Undo:
    return partial(ui.runtime.operations.change_pool, saved.name, back, by=acting(), based_on=saved.version)


def _pool_told(saved: PoolSettings, patch: PoolPatch, ui: Ui) -> str:
    parts = []
    if saved.hold and patch.hold is not None:
        until = saved.hold.until
        when = f"until {wording.moment(until, ui.parts.now, ui.parts.zone)}" if until else "until somebody ends it"
        parts.append(f"batch held at {saved.hold.quota} {when}")
    if patch.auto:
        parts.append("the controller sets the quota")
    if patch.floor is not None or patch.ceiling is not None:
        parts.append(f"batch gets {saved.floor} to {saved.ceiling}")
    if patch.budgets:
        parts.append("budgets changed")
    return ", ".join(parts)


def _bounds_told(tuned: Tuned, reading: Reading) -> str:
    where = wording.source(reading.bounds.source)
    if tuned.scope == "source" or reading.bounds.source.startswith("one_off:"):
        return f"{where} changed, {tuned.floor} to {tuned.ceiling}"
    return f"one-off over {where}, {tuned.floor} to {tuned.ceiling}"


async def _applied(request: Request, ui: Ui, pool: Pool, done: Done) -> Response:
    await ui.runtime.reload()
    token = ui.done.put(done)
    if not wants_fragment(request):
        return see_other(f"{overview_href(pool.name)}#tuning", done=token)
    return html(form(ui, pool, base_url=_base_url(request), applied=ui.applied(token)))


async def _answer(
    request: Request,
    ui: Ui,
    pool: Pool,
    typed: Mapping[str, str],
    status: int,
    *,
    errors: Mapping[str, str] | None = None,
    conflict: str = "",
) -> Response:
    """Answer with the form as typed: htmx gets the form alone, a plain form post the whole page around it."""
    tuning = form(ui, pool, base_url=_base_url(request), typed=typed, errors=errors, conflict=conflict)
    if wants_fragment(request):
        return html(tuning, status)
    span = request.query_params.get("range", DEFAULT_SPAN)
    span = span if span in SPANS else DEFAULT_SPAN
    page = OverviewPage(
        **ui.shell("Overview", f"{pool.name}: Overview", refresh=False, watched=Watched("overview", pool.name, span)),
        live=ui.parts.overview(pool, span),
        panel=await ui.parts.panel(pool, span),
        tuning=tuning,
    )
    return html(page, status)


def _base_url(request: Request) -> str:
    return str(request.base_url).rstrip("/")


ROUTES: list[BaseRoute] = [
    Route("/ui/tuning/preview", preview),
    Route("/ui/tuning", apply, methods=["POST"]),
    Route("/ui/pause", pause, methods=["POST"]),
]
