"""What endpoints, events and deliveries are. Values, no I/O. Instants are aware and in UTC."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec

from core.batch.values import Batch, BatchStatus


class EventType(StrEnum):
    """What is told: that a batch reached a final status. The names are OpenAI's."""

    COMPLETED = "batch.completed"
    FAILED = "batch.failed"
    EXPIRED = "batch.expired"
    CANCELLED = "batch.cancelled"


EVENTS: dict[BatchStatus, EventType] = {
    BatchStatus.COMPLETED: EventType.COMPLETED,
    BatchStatus.FAILED: EventType.FAILED,
    BatchStatus.EXPIRED: EventType.EXPIRED,
    BatchStatus.CANCELLED: EventType.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a tenant wants to be told, and of what. Its signing secret is not kept (see `core.webhooks.signing`)."""

    id: str
    tenant: str
    url: str
    events: tuple[EventType, ...]
    created_at: datetime
    description: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """One end of a batch. All endpoints, and all attempts, get the same `id`, so that receivers can tell repeats."""

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
class Posting:
    """How one attempt went: the status that the endpoint answered, or in words why it did not."""

    status: int | None = None
    error: str | None = None

    @property
    def arrived(self) -> bool:
        """Tell whether the endpoint took the event."""
        return self.status is not None and 200 <= self.status < 300
