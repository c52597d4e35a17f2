"""Endpoints of webhooks and their deliveries as the pages show them. Values alone, no requests."""

from collections.abc import Iterable, Mapping
from datetime import datetime, tzinfo

from core import wording
from core.webhooks.values import EVENTS, Delivery, DeliveryState, Endpoint, EventType, Health
from web.webhook_contexts import DeliveryLine, WebhookLine

_TONES = {DeliveryState.DELIVERED: "good", DeliveryState.PENDING: "warn", DeliveryState.GIVEN_UP: "bad"}


def lines(
    endpoints: Iterable[Endpoint], health: Mapping[str, Health], *, named: bool, now: datetime, zone: tzinfo
) -> tuple[WebhookLine, ...]:
    """Return endpoints as lines of the list; `named`: each with its team."""
    return tuple(_line(each, health.get(each.id, Health()), named, now, zone) for each in endpoints)


def _line(found: Endpoint, health: Health, named: bool, now: datetime, zone: tzinfo) -> WebhookLine:
    state, tone = _state(found, health)
    last = health.last
    return WebhookLine(
        href=f"/webhooks/{found.id}",
        address=found.url,
        description=found.description,
        team=found.tenant if named else "",
        events=_events(found),
        state=state,
        tone=tone,
        last=f"{wording.moment(last.last_at, now, zone)}, {answer(last)}" if last and last.last_at else "never",
        failures=_failures(health),
    )


def _state(found: Endpoint, health: Health) -> tuple[str, str]:
    if found.disabled_at is not None:
        return "disabled", "calm"
    if health.last is None:
        return "not used yet", "calm"
    return ("works", "good") if health.last.state is DeliveryState.DELIVERED else ("fails", "bad")


def _failures(health: Health) -> str:
    told = [f"{health.given_up} given up"] if health.given_up else []
    told += [f"{health.failing} being tried again"] if health.failing else []
    return ", ".join(told) or "none"


def _events(found: Endpoint) -> str:
    names = [event.value.removeprefix("batch.") for event in found.events]
    return "all" if len(names) == len(EVENTS) else ", ".join(names)


def facts(found: Endpoint, *, now: datetime, zone: tzinfo) -> tuple[tuple[str, str], ...]:
    """Return what is to be known of an endpoint, by name."""
    told = {
        "Address": found.url,
        "Team": found.tenant,
        "Description": found.description,
        "Told when a batch is": _events(found),
        "Made": wording.moment(found.created_at, now, zone),
        "Disabled": wording.moment(found.disabled_at, now, zone) if found.disabled_at else "",
        "Old secret signs until": wording.moment(found.old_until, now, zone) if found.overlaps(now) else "",
    }
    return tuple((name, value) for name, value in told.items() if value)


def delivery_lines(deliveries: Iterable[Delivery], *, now: datetime, zone: tzinfo) -> tuple[DeliveryLine, ...]:
    """Return deliveries as lines."""
    return tuple(_delivery_line(each, now, zone) for each in deliveries)


def _delivery_line(found: Delivery, now: datetime, zone: tzinfo) -> DeliveryLine:
    test = found.event.type is EventType.TEST
    return DeliveryLine(
        what="test" if test else found.event.type.value,
        about="" if test else found.event.batch,
        href="" if test else f"/batches/{found.event.batch}",
        at=wording.moment(found.event.created_at, now, zone),
        state=f"again at {wording.moment(found.due, now, zone)}" if found.due else found.state.replace("_", " "),
        tone=_TONES[found.state],
        attempts=found.attempts,
        last=wording.moment(found.last_at, now, zone) if found.last_at else "not yet",
        answer=answer(found),
    )


def answer(found: Delivery) -> str:
    """Return in words how the last attempt went; nothing of an answer but its status is known."""
    if found.status is not None:
        return f"status {found.status}"
    return found.error or "not sent yet"
