"""What all page endpoints share: the running system, the live hub, answers as page or fragment, and undo."""

import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict
from urllib.parse import urlencode

import structlog
from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core import wording
from core.errors import InvalidValue, NotFound, StaleVersion
from core.people.identity import ASKING, Identity, Role
from core.people.permissions import Action, may
from core.runtime import Runtime
from web.contexts import Applied, Context, ErrorPage, NavLink, Visitor
from web.live import BATCH_PAGES, LiveParts, Watched
from web.sse import Hub
from web.templating import has_bundle, render

Undo = Callable[[], Awaitable[object]]
UNDO_FOR = timedelta(minutes=10)
UNDO_AT = {Action.TUNE: "/ui/undo", Action.BATCH_WRITE: "/ui/batches/undo"}
_UNDO_MOST = 64
MOST_FIELDS = 500
LONGEST_FIELD = 16 * 1024
NAVIGATION = (
    ("Overview", "/", Action.SEE),
    ("Batches", "/batches", Action.BATCH_READ),
    ("Webhooks", "/webhooks", Action.BATCH_READ),
    ("Schedule", "/schedule", Action.SEE),
    ("Decisions", "/decisions", Action.SEE),
    ("Audit", "/audit", Action.AUDIT_READ),
    ("Tenants", "/tenants", Action.TENANTS),
    ("Accounts", "/accounts", Action.ACCOUNTS),
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """A change that was made from a page: what it was, where it is shown, how to take it back, and who may."""

    at: datetime
    sentence: str
    back_to: str
    undo: Undo | None
    needs: Action = Action.TUNE


class DoneBox:
    """The latest changes made from pages, by an unguessable token; bounded, kept for ten minutes."""

    def __init__(self) -> None:
        self._done: OrderedDict[str, Done] = OrderedDict()

    def put(self, done: Done) -> str:
        """Keep `done`; return its token."""
        token = secrets.token_urlsafe(12)
        self._done[token] = done
        while len(self._done) > _UNDO_MOST:
            self._done.popitem(last=False)
        return token

    def get(self, token: str, now: datetime) -> Done | None:
        """Return what was done under `token`, unless it is too long ago."""
        done = self._done.get(token)
        return done if done and now - done.at <= UNDO_FOR else None

    def take(self, token: str, now: datetime, *, needs: Action = Action.TUNE) -> Done | None:
        """Return it and forget it, if it is one that needs just this: a change is undone once."""
        done = self.get(token, now)
        if done is None or done.needs is not needs:
            return None
        return self._done.pop(token)


class ShellFields(TypedDict):
    """The fields that every page context has; see `web.contexts.Shell`."""

    title: str
    stream: str
    poll: bool
    scripts: bool
    refresh: bool
    nav: tuple[NavLink, ...]
    visitor: Visitor | None


class Ui:
    """The pages' view of a running system."""

    def __init__(self, *, runtime: Runtime) -> None:
        self.runtime = runtime
        self.parts = LiveParts(runtime=runtime)
        self.hub: Hub[Watched] = Hub(clock=runtime.clock, render=self.parts.fragment)
        self.done = DoneBox()

    def shell(self, page: str, title: str, *, refresh: bool, watched: Watched | None = None) -> ShellFields:
        """Return what every page context has; `page` is its name in the navigation, `watched` what is live on it."""
        poll = self.runtime.settings.live == "poll"
        query = urlencode(_watch_query(watched)) if watched else ""
        stream = f"/ui/{'live' if poll else 'stream'}?{query}" if watched else ""
        return {
            "title": title,
            "stream": stream,
            "poll": poll,
            "scripts": has_bundle(),
            "refresh": refresh,
            "nav": navigation(page, ASKING.get()),
            "visitor": self._visitor(),
        }

    def _visitor(self) -> Visitor | None:
        """Return who looks at the page, as its head shows it; `None` for who has not signed in yet."""
        asking = ASKING.get()
        if asking.account is not None:
            return Visitor(asking.account, asking.role.value, signed_in=asking.session is not None)
        if asking.role is not Role.ADMIN:
            return None
        return Visitor("", "", signed_in=False)

    def not_found(self, error: NotFound) -> Response:
        """Return the page for something that does not exist."""
        return self.error_page("Not found", f"There is no {error.kind} named {error.name[:80]!r}.", 404)

    def error_page(self, title: str, message: str, status: int, back_to: str = "/") -> Response:
        """Return a page that says what went wrong, with a way on."""
        shell = self.shell("", title, refresh=False)
        return html(ErrorPage(**shell, message=message, back_to=back_to), status)

    async def attempt(self, undo: Undo) -> str:
        """Run an undo; return why it could not be done, "" if it was."""
        try:
            await undo()
        except StaleVersion:
            return "Somebody changed this in the meantime, so it was left as it is."
        except (InvalidValue, NotFound) as error:
            return str(error)
        await self.runtime.reload()
        return ""

    def applied(self, token: str) -> Applied | None:
        """Return what was done under `token` as the page tells it."""
        done = self.done.get(token, self.parts.now)
        if done is None:
            return None
        undo = token if done.undo and may(ASKING.get(), done.needs) else ""
        return Applied(wording.clock(done.at, self.parts.zone), done.sentence, undo, UNDO_AT[done.needs])


def undo_for(action: Action) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that takes back a change that needs `action`, unless somebody changed the same since."""

    async def undo(request: Request) -> Response:
        ui, token = ui_of(request), (await form_values(request)).get("token", "")
        done = ui.done.take(token, ui.parts.now, needs=action)
        if done is None or done.undo is None:
            return ui.error_page("Too late to undo", "It was undone already, or made more than ten minutes ago.", 410)
        problem = await ui.attempt(done.undo)
        return ui.error_page("Not undone", problem, 409, done.back_to) if problem else see_other(done.back_to)

    return undo


@asynccontextmanager
async def running(app: Starlette, runtime: Runtime) -> AsyncIterator[Ui]:
    """Let the pages of `app` show `runtime` for as long as the context lasts."""
    ui = Ui(runtime=runtime)
    app.state.ui, app.state.hub = ui, ui.hub
    if not has_bundle():
        log.warning("the pages stand still: browser files are missing; run `python -m web.assets`")
    ui.hub.start()
    try:
        yield ui
    finally:
        ui.hub.close()
        await ui.hub.stop()


def navigation(page: str, asking: Identity) -> tuple[NavLink, ...]:
    """Return the pages that who asks may see, none before the sign-in; `page` is the one that is shown."""
    if asking.anonymous and asking.role is not Role.ADMIN:
        return ()
    return tuple(NavLink(name, href, name == page) for name, href, action in NAVIGATION if may(asking, action))


def acting() -> str:
    """Return the name under which what is changed by this request is recorded."""
    return ASKING.get().name


def ui_of(request: Request) -> Ui:
    """Return the pages' view of the running application."""
    ui: Ui = request.app.state.ui
    return ui


def _watch_query(watched: Watched) -> dict[str, str]:
    if watched.of or watched.page in BATCH_PAGES:
        return {"page": watched.page, "of": watched.of}
    return {"page": watched.page, "pool": watched.pool, "span": watched.span}


def wants_fragment(request: Request) -> bool:
    """Tell whether htmx asks, so that a part of the page answers instead of a redirect."""
    return request.headers.get("hx-request") == "true"


def html(context: Context, status: int = 200) -> Response:
    """Return `context` drawn."""
    return HTMLResponse(render(context), status)


def see_other(path: str, **query: str) -> Response:
    """Send the browser on to `path`, as a GET."""
    before, _, anchor = path.partition("#")
    joined = f"{before}{'&' if '?' in before else '?'}{urlencode(query)}" if query else before
    return RedirectResponse(joined + (f"#{anchor}" if anchor else ""), 303)


async def form_of(request: Request) -> FormData:
    """Return the posted form. Raises HTTPException 400 for one with files, or with more in it than is expected."""
    return await request.form(max_files=0, max_fields=MOST_FIELDS, max_part_size=LONGEST_FIELD)


async def form_values(request: Request) -> Mapping[str, str]:
    """Return the posted form, the last of each name; NULs, which not every database knows, are dropped."""
    form = await form_of(request)
    return {name: value.replace("\0", "") for name, value in form.items() if isinstance(value, str)}
