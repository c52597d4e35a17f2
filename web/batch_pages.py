"""The pages that show batches: the list, one batch, its files, and how past ETAs turned out."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from core import wording
from core.batch.queries import state_of
from core.batch.residuals import GivenEta, Score
from core.batch.values import Batch, BatchStatus, ItemState, Risk
from core.batch.views import BatchFilter, ItemFilter
from core.errors import NotFound
from core.people.identity import ASKING
from core.people.permissions import Action, may, scope
from web import batch_changes
from web import batch_words as words
from web.batch_contexts import BatchesPage, BatchPage, BatchRow, EtaPage, Fact, PastEta, ScoreRow
from web.batch_live import joined
from web.contexts import Choice
from web.live import Watched
from web.ui import Ui, html, ui_of

PAGE = 25
ITEMS_PAGE = 25
PAST = 50
MOST_TEXT = 200
OPEN_KINDS: dict[str, Callable[[Batch], bool]] = {
    "active": lambda batch: True,
    "running": lambda batch: state_of(batch) == "running",
    "waiting": lambda batch: state_of(batch) in ("queued", "validating"),
    "paused": lambda batch: state_of(batch) == "paused",
    "at_risk": lambda batch: True,
}
ENDED_KINDS: dict[str, tuple[BatchStatus, ...]] = {
    "": (),
    "done": (BatchStatus.COMPLETED,),
    "failed": (BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED),
}
KIND_NAMES = {
    "": "all",
    "active": "not ended",
    "running": "running",
    "waiting": "waiting",
    "paused": "paused",
    "at_risk": "at risk of being late",
    "done": "completed",
    "failed": "refused, expired, cancelled",
}
STATE_NAMES = {"": "all", **{state.value: state.value for state in ItemState}}
FILE_KINDS = ("input", "output", "errors")


async def batches(request: Request) -> Response:
    """GET /batches: newest first; filters live in the address."""
    ui, query = ui_of(request), request.query_params
    show = query.get("show", "") if query.get("show", "") in KIND_NAMES else ""
    team, text = query.get("team", ""), query.get("q", "").strip()[:100]
    mine = scope(ASKING.get())
    tenant = mine if mine is not None else team or None
    try:
        found = await _found(ui, show, BatchFilter(tenant, text=text), query.get("after") or None)
    except NotFound as error:
        return ui.not_found(error)
    shown = found[:PAGE]
    teams = await _teams(ui, team) if mine is None else ()
    return html(
        BatchesPage(
            **ui.shell(
                "Batches",
                "Batches",
                refresh=True,
                watched=Watched("batches", of=joined(shown), tenant=mine),
            ),
            strip=await ui.parts.batches.strip(mine),
            rows=await _rows(ui, shown, named=len(teams) > 2),
            kinds=_choices(KIND_NAMES, show),
            teams=teams,
            query=text,
            filtered=bool(show or team or text),
            older=_older(request, shown[-1].id) if len(found) > PAGE else "",
            may_write=_may_write(),
            zone=ui.runtime.schedule.zone,
            applied=ui.applied(query.get("done", "")),
        )
    )


async def _found(ui: Ui, show: str, wanted: BatchFilter, after: str | None) -> list[Batch]:
    """Return one page of batches, newest first, plus one more where there is more."""
    if show not in OPEN_KINDS:
        found = BatchFilter(wanted.tenant, ENDED_KINDS[show], wanted.text)
        return await ui.runtime.store.find_batches(found, after=after, limit=PAGE)
    active = [batch for batch in await ui.runtime.store.active() if OPEN_KINDS[show](batch) and _fits(batch, wanted)]
    if show == "at_risk":
        active = [batch for batch in active if await _at_risk(ui, batch)]
    if after is not None:
        limit = (await ui.runtime.store.batch(after)).created_at
        active = [batch for batch in active if batch.created_at < limit]
    return heapq.nlargest(PAGE + 1, active, key=lambda batch: batch.created_at)


def _fits(batch: Batch, wanted: BatchFilter) -> bool:
    text = wanted.text.casefold()
    return wanted.tenant in (None, batch.tenant) and (text in batch.name.casefold() or text in batch.id)


async def _at_risk(ui: Ui, batch: Batch) -> bool:
    eta = await ui.runtime.batch_queries.eta_of(batch)
    return eta.risk in (Risk.AT_RISK, Risk.WILL_MISS)


async def _rows(ui: Ui, shown: Sequence[Batch], *, named: bool) -> tuple[BatchRow, ...]:
    cells = await ui.parts.batches.cells(shown)
    return tuple(
        BatchRow(
            id=batch.id,
            name=words.name_of(batch),
            href=f"/batches/{batch.id}",
            team=batch.tenant if named else "",
            priority=batch.priority,
            open=not batch.ended,
            cells=own,
        )
        for batch, own in zip(shown, cells, strict=True)
    )


async def _teams(ui: Ui, chosen: str) -> tuple[Choice, ...]:
    names = await ui.runtime.store.batch_tenants()
    return _choices({"": "all", **{name: name for name in names}}, chosen)


def _choices(options: Mapping[str, str], chosen: str) -> tuple[Choice, ...]:
    return tuple(Choice(value, label, value == chosen) for value, label in options.items())


def _older(request: Request, last: str) -> str:
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in ("after", "done")]
    return f"/batches?{urlencode([*kept, ('after', last)])}"


def _may_write() -> bool:
    return may(ASKING.get(), Action.BATCH_WRITE)


async def batch(request: Request) -> Response:
    """GET /batches/{batch_id}: one batch, live, with its requests; the search lives in the address."""
    ui, query = ui_of(request), request.query_params
    mine = scope(ASKING.get())
    try:
        found = await ui.runtime.store.batch(request.path_params["batch_id"], tenant=mine)
    except NotFound as error:
        return ui.not_found(error)
    wanted = _wanted(query)
    after = int(query["after"]) if query.get("after", "").isascii() and query.get("after", "").isdigit() else -1
    items = await ui.runtime.store.find_items(found.id, wanted, after=min(after, 2**31 - 1), limit=ITEMS_PAGE)
    more = {"state": query.get("state", ""), "q": wanted.text, "code": wanted.code}
    shown = items[:ITEMS_PAGE] if found.in_progress_at else []
    path = f"/batches/{found.id}"
    return html(
        BatchPage(
            **ui.shell(
                "Batches",
                words.name_of(found),
                refresh=not found.ended and not query,
                watched=Watched("batch", of=found.id, tenant=mine),
            ),
            id=found.id,
            name=words.name_of(found),
            version=found.version,
            live=await ui.parts.batches.batch(found),
            errors=await ui.parts.batches.errors(found),
            actions=batch_changes.links(found, ui.parts.now) if _may_write() else (),
            started=found.in_progress_at is not None,
            items=tuple(words.item_line(item) for item in shown),
            states=_choices(STATE_NAMES, query.get("state", "")),
            query=wanted.text,
            code=wanted.code,
            more=_link(path, {**more, "after": str(shown[-1].index)}) if len(items) > ITEMS_PAGE and shown else "",
            facts=_facts(ui, found),
            curl=_curl(request, found),
            zone=ui.runtime.schedule.zone,
            applied=ui.applied(query.get("done", "")),
        )
    )


def _wanted(query: Mapping[str, str]) -> ItemFilter:
    state = query.get("state", "")
    states = (ItemState(state),) if state in tuple(ItemState) else ()
    return ItemFilter(states, query.get("q", "").strip()[:MOST_TEXT], query.get("code", "").strip()[:MOST_TEXT])


def _link(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode({name: value for name, value in query.items() if value})}#requests"


def _facts(ui: Ui, found: Batch) -> tuple[Fact, ...]:
    now, zone = ui.parts.now, ui.parts.zone
    told = {
        "Team": found.tenant,
        "Key": found.key or "",
        "Model": found.model or "",
        "Pool": found.pool,
        "Endpoint": found.endpoint,
        "Window": wording.seconds(found.window.total_seconds()),
        "Priority": str(found.priority),
        "At once, at most": str(found.max_concurrency or ""),
        "Created": wording.moment(found.created_at, now, zone),
        "Started": wording.moment(found.in_progress_at, now, zone) if found.in_progress_at else "",
        "Ended": wording.moment(found.ended_at, now, zone) if found.ended_at else "",
        **{f"Label {name}": value for name, value in found.metadata.items()},
    }
    return tuple(Fact(name, value) for name, value in told.items() if value)


def _curl(request: Request, found: Batch) -> str:
    base = str(request.base_url).rstrip("/")
    key = '-H "Authorization: Bearer $TIDEGATE_API_KEY"'
    lines = [f"curl {key} {base}/v1/batches/{found.id}"]
    lines += [f"curl {key} {base}/v1/files/{found.output_file_id}/content"] if found.output_file_id else []
    lines += [f"tidegate batch {'results ' + found.id + ' --to .' if found.ended else 'wait ' + found.id}"]
    return "\n".join(lines)


async def file(request: Request) -> Response:
    """GET /batches/{batch_id}/files/{kind}: the input, output or errors as they are."""
    ui, kind = ui_of(request), request.path_params["kind"]
    try:
        found = await ui.runtime.store.batch(request.path_params["batch_id"], tenant=scope(ASKING.get()))
        ids = dict(zip(FILE_KINDS, (found.input_file_id, found.output_file_id, found.error_file_id), strict=True))
        file_id = ids.get(kind)
        if not file_id or (kind != "input" and not found.ended):
            raise NotFound("file", kind)
        stored = await ui.runtime.store.file(file_id, tenant=None)
        if await ui.runtime.files.size(stored.id) < stored.bytes:
            raise NotFound("file", kind)
    except NotFound as error:
        return ui.not_found(error)
    name = quote(f"{words.name_of(found)}-{kind}.jsonl".replace("/", "-"), safe="")
    headers = {
        "content-length": str(stored.bytes),
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "cache-control": "no-store",
    }
    pieces = ui.runtime.files.stream(stored.id, end=stored.bytes)
    return StreamingResponse(pieces, 200, headers, "application/octet-stream")


async def eta(request: Request) -> Response:
    """GET /eta: how past ETAs turned out."""
    ui, mine = ui_of(request), scope(ASKING.get())
    found = ui.parts.batches.scores()
    rows = {"all batches": found.overall, "all batches, when they began": found.at_submission} if mine is None else {}
    teams = {f"team {name}": each for name, each in found.tenants.items() if mine in (None, name)}
    past = [each for each in list(ui.runtime.forecaster.learned.scored) if mine in (None, each.tenant)][-PAST:]
    named = await ui.runtime.store.named_batches({each.batch for each in past}, tenant=mine)
    names = {batch.id: words.name_of(batch) for batch in named}
    told = words.score_words(ui.parts.batches.score(mine))
    return html(
        EtaPage(
            **ui.shell("Batches", "How past ETAs turned out", refresh=False),
            headline=told or "No ETA was scored yet: that happens when the first batches with one are completed.",
            scores=tuple(_score(name, each) for name, each in {**rows, **teams}.items() if each.n),
            past=tuple(_past(ui, each, names.get(each.batch, each.batch)) for each in reversed(past)),
            zone=ui.runtime.schedule.zone,
        )
    )


def _score(name: str, found: Score) -> ScoreRow:
    held = f"{round((found.held or 0.0) * found.n)} of {found.n} ({wording.percent(found.held)})"
    return ScoreRow(name, found.n, held, wording.percent(found.median_error))


def _past(ui: Ui, given: GivenEta, name: str) -> PastEta:
    now, zone = ui.parts.now, ui.parts.zone
    return PastEta(
        batch=name,
        href=f"/batches/{given.batch}",
        team=given.tenant,
        at=wording.moment(given.at, now, zone),
        said=f"{wording.moment(given.low, now, zone)} to {wording.moment(given.high, now, zone)}",
        was=wording.moment(given.ended_at, now, zone),
        held=given.held,
    )


ROUTES: list[BaseRoute] = [
    Route("/batches", batches),
    *batch_changes.ROUTES,
    Route("/batches/{batch_id}", batch),
    Route("/batches/{batch_id}/files/{kind}", file),
    Route("/eta", eta),
]
