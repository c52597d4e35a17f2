"""The pages that show: Overview and Decisions, the live stream, the static files; and the table of all page routes."""

from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from core.control.decisions import Decision
from core.errors import NotFound
from core.paths import STATIC
from core.people.identity import ASKING
from core.people.permissions import Action, scope
from web import audit, batch_pages, schedule, tuning
from web.charts import SPANS
from web.contexts import Choice, DecisionsPage, OverviewPage
from web.live import BATCH_PAGES, DEFAULT_SPAN, Watched, decision_rows
from web.sse import Full
from web.ui import html, ui_of, undo_for

_ACTORS = {
    "": "all",
    "operator": "people",
    "controller": "the controller",
    "schedule": "the schedule",
    "restart": "restarts",
}
_PAGE = 100
MOST_WATCHED = 4000
_MOST = 1000


async def overview(request: Request) -> Response:
    """GET /: one pool, live, with the tuning form; a form in the query is shown as typed, with its preview."""
    ui, query = ui_of(request), request.query_params
    span = query.get("range", DEFAULT_SPAN)
    if span not in SPANS:
        span = DEFAULT_SPAN
    try:
        pool = ui.parts.pool(query.get("pool", ""))
    except NotFound as error:
        return ui.not_found(error)
    return html(
        OverviewPage(
            **ui.shell(
                "Overview",
                f"{pool.name}: Overview",
                watched=Watched("overview", pool.name, span),
                refresh="mode" not in query and query.get("refresh") != "off",
            ),
            live=ui.parts.overview(pool, span),
            panel=await ui.parts.panel(pool, span),
            tuning=tuning.form(
                ui,
                pool,
                base_url=str(request.base_url),
                typed=query if "mode" in query else None,
                applied=ui.applied(query.get("done", "")),
            ),
        )
    )


async def decisions(request: Request) -> Response:
    """GET /decisions: what moved and why, newest first; filters live in the address."""
    ui, query = ui_of(request), request.query_params
    pool, actor, text = query.get("pool", ""), query.get("actor", ""), query.get("q", "").strip()[:100]
    if pool and pool not in ui.runtime.pools:
        return ui.not_found(NotFound("pool", pool))
    shown = _shown(query.get("limit", ""))
    found = [d for d in await ui.runtime.decisions.recent(pool=pool or None, limit=_MOST) if _fits(d, actor, text)]
    return html(
        DecisionsPage(
            **ui.shell("Decisions", "Decisions", refresh=True, watched=Watched("decisions", pool)),
            strip=await ui.parts.decisions_strip(pool),
            rows=decision_rows(found[:shown], ui.parts.now, ui.parts.zone),
            pools=_choices({"": "all", **{name: name for name in ui.runtime.pools}}, pool),
            actors=_choices(_ACTORS, actor),
            query=text,
            older=_older(query.multi_items(), shown) if len(found) > shown else "",
            zone=ui.runtime.schedule.zone,
        )
    )


def _shown(text: str) -> int:
    """Return how many rows the query's `limit` asks for; what is no such number asks for one page."""
    asked = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return min(_MOST, asked) or _PAGE


def _fits(decision: Decision, actor: str, text: str) -> bool:
    if actor and decision.actor != actor:
        return False
    words = (decision.sentence, decision.note, decision.by, decision.reason, decision.window, decision.pool)
    return not text or any(text.casefold() in word.casefold() for word in words if word)


def _choices(options: dict[str, str], chosen: str) -> tuple[Choice, ...]:
    return tuple(Choice(value, label, value == chosen) for value, label in options.items())


def _older(query: list[tuple[str, str]], shown: int) -> str:
    kept = [(name, value) for name, value in query if name != "limit"]
    return f"/decisions?{urlencode([*kept, ('limit', str(shown * 3))])}"


def _watched(request: Request) -> Watched:
    """Return what the query asks to watch. Raises NotFound."""
    query = request.query_params
    page = query.get("page", "overview")
    watched = Watched(
        page=page,
        pool=query.get("pool", ""),
        span=query.get("span", DEFAULT_SPAN),
        of=query.get("of", "")[:MOST_WATCHED],
        tenant=scope(ASKING.get()) if page in BATCH_PAGES else None,
    )
    ui_of(request).parts.check(watched)
    return watched


async def live(request: Request) -> Response:
    """GET /ui/live: the live parts of one page, once; for proxies that hold streams back."""
    try:
        return HTMLResponse(await ui_of(request).parts.fragment(_watched(request), True))
    except NotFound as error:
        return PlainTextResponse(str(error), 404)


async def stream(request: Request) -> Response:
    """GET /ui/stream: the live parts of one page, as server-sent events."""
    try:
        return ui_of(request).hub.stream(_watched(request))
    except NotFound as error:
        return PlainTextResponse(str(error), 404)
    except Full:
        return PlainTextResponse("Too many open pages.", 503, {"retry-after": "10"})


class Static(StaticFiles):
    """Static files; one asked for by its digest never changes."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file, to be kept for ever if its digest was asked for."""
        response = await super().get_response(path, scope)
        if b"v=" in scope["query_string"] and response.status_code == 200:
            response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


ROUTES: list[BaseRoute] = [
    Route("/", overview),
    Route("/decisions", decisions),
    Route("/ui/live", live),
    Route("/ui/stream", stream),
    Route("/ui/undo", undo_for(Action.TUNE), methods=["POST"]),
    *tuning.ROUTES,
    *schedule.ROUTES,
    *batch_pages.ROUTES,
    *audit.ROUTES,
    Mount("/static", Static(directory=STATIC)),
]
