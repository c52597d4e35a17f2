"""What endpoints, events and deliveries are. Values, no I/O. Instants are aware and in UTC."""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec

from core.batch.values import Batch, BatchStatus


class EventType(StrEnum):
    """What is told: that a batch reached a final status (the names are OpenAI's); or only that telling works."""

    COMPLETED = "batch.completed"
    FAILED = "batch.failed"
    EXPIRED = "batch.expired"
    CANCELLED = "batch.cancelled"
    TEST = "webhook.test"


EVENTS: Mapping[BatchStatus, EventType] = {
    BatchStatus.COMPLETED: EventType.COMPLETED,
    BatchStatus.FAILED: EventType.FAILED,
    BatchStatus.EXPIRED: EventType.EXPIRED,
    BatchStatus.CANCELLED: EventType.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a tenant wants to be told, and of what. Its signing secret is not kept (see `core.webhooks.signing`).

    `rotations` counts how often it got a new secret; until `old_until` messages are signed with the one before, too.
    While it is disabled nothing is sent to it, and of batches that end then it is not told.
    """

    id: str
    tenant: str
    url: str
    events: tuple[EventType, ...]
    created_at: datetime
    description: str = ""
    rotations: int = 0
    old_until: datetime | None = None
    disabled_at: datetime | None = None

    def overlaps(self, now: datetime) -> bool:
        """Tell whether messages are signed with the secret from before the last rotation, too."""
        return self.old_until is not None and now < self.old_until


@dataclass(frozen=True, slots=True)
class Event:
    """One end of a batch. All endpoints, and all attempts, get the same `id`, so that receivers can tell repeats.

    That of a test names the endpoint in the place of a batch.
    """

    id: str
    type: EventType
    batch: str
    created_at: datetime

    def body(self) -> bytes:
        """Return what is sent, in OpenAI's shape."""
        told = {
            "id": self.id,
            "object": "event",
            "type": self.type.value,
            "created_at": int(self.created_at.timestamp()),
            "data": {"id": self.batch},
        }
        return msgspec.json.encode(told)


def event_of(batch: Batch) -> Event:
    """Return the event of a batch that ended: the same whenever asked, another one if it ends anew after a retry."""
    ended = batch.ended_at
    if ended is None:
        raise ValueError(f"{batch.id} has not ended")
    kind = EVENTS[batch.status]
    name = hashlib.sha256(f"{batch.id} {kind.value} {ended.timestamp():.6f}".encode()).hexdigest()[:32]
    return Event(f"evt_{name}", kind, batch.id, ended)


def trial_of(endpoint: Endpoint, now: datetime) -> Event:
    """Return an event that tells nothing but that it arrives."""
    return Event(f"evt_{secrets.token_hex(16)}", EventType.TEST, endpoint.id, now)


class DeliveryState(StrEnum):
    """Pending deliveries are still tried; given up are those that failed too often."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one endpoint.

    `status` is the HTTP status of the last attempt, `error` why there was none; neither holds anything of an answer's
    body.
    """

    number: int
    endpoint: str
    event: Event
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    due: datetime | None = None
    last_at: datetime | None = None
    status: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """How an endpoint fares: events that failed so far and are tried on, that were given up, and the last attempt."""

    failing: int = 0
    given_up: int = 0
    last: Delivery | None = None


@dataclass(frozen=True, slots=True)
class Posting:
    """How one attempt went: the status that the endpoint answered, or in words why it did not."""

    status: int | None = None
    error: str | None = None

    @property
    def arrived(self) -> bool:
        """Tell whether the endpoint took the event."""
        return self.status is not None and 200 <= self.status < 300
