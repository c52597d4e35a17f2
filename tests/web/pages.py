"""Helpers for tests of the pages: a running system behind them, and what a browser reads from them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
from starlette.applications import Starlette
from starlette.middleware import Middleware

from core.config import Settings
from core.runtime import Runtime
from web.app import routes
from web.gate import Gate
from web.headers import KnownHosts, SecurityHeaders
from web.permissions import guarded
from web.ui import Ui, running

NOBODY = "http://127.0.0.1:9/v1"
HOME = "http://127.0.0.1"
VOID = frozenset({"input", "meta", "link", "br", "option", "img", "hr", "rect", "line", "path", "circle"})


class Site:
    """The pages of one running system, as a browser without JavaScript uses them."""

    def __init__(self, ui: Ui, client: httpx2.AsyncClient) -> None:
        self.ui = ui
        self.runtime: Runtime = ui.runtime
        self.client = client

    async def get(self, path: str, status: int = 200) -> str:
        """Return a page's HTML."""
        answer = await self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    async def form(self, path: str, id: str) -> dict[str, Any]:
        """Return the form `id` of a page as a browser would send it untouched."""
        return fields(await self.get(path), id)

    async def post(self, path: str, data: dict[str, Any], *, htmx: bool = False) -> httpx2.Response:
        """Send a form as a browser does."""
        headers = {"origin": HOME} | ({"hx-request": "true"} if htmx else {})
        return await self.client.post(path, data=data, headers=headers)

    async def tune(self, status: int = 303, **typed: Any) -> str:
        """Change the tuning form, send it, and return the page that follows (or the answer, if it is none)."""
        form = await self.form("/", "tuning-form") | {"reason": "because"} | typed
        answer = await self.post("/ui/tuning", form)
        assert answer.status_code == status, answer.text
        return await self.get(answer.headers["location"]) if status == 303 else answer.text

    def settings(self, pool: str = "default") -> Any:
        """Return the pool's settings in force."""
        return self.runtime.pools[pool].settings


@asynccontextmanager
async def site(folder: Path, **settings: Any) -> AsyncIterator[Site]:
    """Run a system and its pages; its model server does not exist."""
    given = {"data": folder, "slots": 8, "upstream": NOBODY} if "pools" not in settings else {"data": folder}
    runtime = Runtime(settings=Settings(**(given | settings)))
    await runtime.start()
    app = Starlette(routes=guarded(routes()), middleware=[Middleware(SecurityHeaders, hosts=KnownHosts())])
    app.state.runtime, app.state.gate = runtime, Gate(runtime=runtime)
    transport = httpx2.ASGITransport(app=app)
    try:
        async with running(app, runtime) as ui, httpx2.AsyncClient(transport=transport, base_url=HOME) as client:
            yield Site(ui, client)
    finally:
        await runtime.stop()


class _Forms(HTMLParser):
    def __init__(self, id: str) -> None:
        super().__init__()
        self.wanted = id
        self.inside = False
        self.select = ""
        self.found: dict[str, Any] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.inside = given.get("id") == self.wanted or given.get("action") == self.wanted
        elif not self.inside:
            return
        elif tag == "select":
            self.select = given["name"]
        elif tag == "option" and self.select and ("selected" in given or self.select not in self.found):
            self.found[self.select] = given["value"]
        elif tag == "input" and "name" in given:
            self._input(given)

    def _input(self, given: dict[str, str]) -> None:
        kind, name = given.get("type", "text"), given["name"]
        if kind == "checkbox":
            self.found.setdefault(name, [])
            self.found[name] += [given["value"]] if "checked" in given else []
        elif kind != "radio" or "checked" in given:
            self.found[name] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.inside = False
        elif tag == "select":
            self.select = ""


def fields(html: str, id: str) -> dict[str, Any]:
    """Return the fields of the form with that id, or that action."""
    parser = _Forms(id)
    parser.feed(html)
    assert parser.found, f"no form {id}"
    return parser.found


class Tags(HTMLParser):
    """Collects the tags below the element with an id ("" for the whole page), with their attributes and all text."""

    def __init__(self, html: str, id: str = "") -> None:
        super().__init__()
        self.id = id
        self.depth = 0 if id else 1
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if self.depth:
            self.tags.append((tag, given))
        if (self.depth or given.get("id") == self.id) and tag not in VOID:
            self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        if self.depth and tag not in VOID:
            self.depth -= 1

    def handle_data(self, data: str) -> None:
        if self.depth:
            self.text += f" {data}"


def text(html: str, id: str = "") -> str:
    """Return the text of a page, or of one element of it, with single blanks."""
    return " ".join(Tags(html, id).text.split())


def links(html: str) -> set[str]:
    """Return the addresses of all links of a page."""
    return {given["href"] for tag, given in Tags(html).tags if tag == "a" and "href" in given}


def query(url: str) -> dict[str, list[str]]:
    """Return the query of an address."""
    return parse_qs(urlsplit(url).query)
