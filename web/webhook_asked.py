"""What people ask for about webhooks, in JSON or forms, as values: whose, which events, which endpoint."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from core.errors import InvalidValue
from core.people import asked
from core.people.identity import ASKING, Role
from core.people.permissions import scope
from core.webhooks.values import EVENTS, EventType
from web.people import people_of

LONGEST_TEXT = 4096


def mine() -> str | None:
    """Return the tenant whose endpoints who asks may see and change, `None` for all: admins manage every team's."""
    return scope(ASKING.get(), all_from=Role.ADMIN)


async def tenants(request: Request) -> list[str]:
    """Return the tenants for which who asks may make endpoints."""
    own = mine()
    return [each.name for each in (await people_of(request).store.everyone()).tenants if own in (None, each.name)]


async def tenant_of(request: Request, given: Mapping[str, Any]) -> str:
    """Return for whom an endpoint is made, by default for who asks. Raises InvalidValue."""
    own = ASKING.get().tenant
    wanted = asked.text("tenant", given) or own
    if wanted != own and wanted not in await tenants(request):
        raise InvalidValue("tenant", "must be your own team, or for an admin one that there is")
    return wanted


def events_of(names: object) -> tuple[EventType, ...]:
    """Return the events that a list of names means. Raises InvalidValue."""
    known = [event.value for event in EVENTS.values()]
    if not isinstance(names, list) or not names or not all(name in known for name in names):
        raise InvalidValue("events", f"must be a list of some of {', '.join(known)}")
    return tuple(EventType(name) for name in names)
