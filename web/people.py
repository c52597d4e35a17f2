"""What the pages and API of people, teams and keys share: who does it, and what is known."""

from collections.abc import Mapping
from datetime import datetime, tzinfo

from starlette.requests import Request
from starlette.responses import Response

from core.entrance import People
from core.people.acting import By
from core.people.audit import way_of
from core.people.identity import ASKING
from core.people.sign_in import Browser, SignedIn
from core.runtime import Runtime
from web.gate import Gate
from web.session_cookie import let_in, way_on
from web.ui import Ui, see_other, ui_of


def people_of(request: Request) -> People:
    """Return what knows people in the running application."""
    return runtime_of(request).people


def runtime_of(request: Request) -> Runtime:
    """Return what runs behind the routes."""
    runtime: Runtime = request.app.state.runtime
    return runtime


def gate_of(request: Request) -> Gate:
    """Return the gate of the running application."""
    gate: Gate = request.app.state.gate
    return gate


def by_of(values: Mapping[str, str]) -> By:
    """Return who asks, with the reason given. Raises InvalidValue."""
    asking = ASKING.get()
    return By(asking.name, way_of(asking), " ".join(values.get("reason", "").split()))


def browser_of(request: Request) -> Browser:
    """Return from where a browser asks."""
    return Browser(gate_of(request).peers.address(request.scope), request.headers.get("user-agent", ""))


def is_https(request: Request) -> bool:
    """Tell whether the browser reaches Tidegate by https."""
    public = runtime_of(request).settings.public_url or ""
    return public.startswith("https://") or gate_of(request).peers.is_https(request.scope)


async def admit(request: Request, signed_in: SignedIn, target: str) -> Response:
    """Send the browser on to `target`, with its session."""
    await people_of(request).ring.refresh()
    answer = see_other(way_on(target))
    let_in(answer, signed_in, https=is_https(request))
    return answer


def time_of(request: Request) -> tuple[datetime, tzinfo]:
    """Return the present instant, and the zone in which pages tell times."""
    ui: Ui = ui_of(request)
    return ui.parts.now, ui.parts.zone


def reason_required(request: Request) -> bool:
    """Tell whether policy asks for a reason."""
    return runtime_of(request).settings.require_reason
