"""What `POST /sim` may change of the simulated server, and what `GET /sim` tells of it. Values and checks, no I/O."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from core.errors import InvalidValue
from core.simulation.prompts import Count, Status, Wishes

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1000)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


class Change(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One change of the server; what is left out stays as it is.

    `slow` makes every step that many times longer, `share` leaves that share of the replicas alive, `kill` loses each
    running request with that probability, now. `max_num_seqs` and `hidden_limit` (0: none) bound what runs and what is
    taken; `retry_after` is what a 429 says, as the header will say it, null for no such header. `fail_rate` of all
    requests get `fail_status`. `slots` is the concurrency that the caller promised to keep: arrivals above it count as
    `over_slots`. `paused` stops the engine. `faults` apply to every request that wishes nothing else, null for none.
    `reset_counts` sets all counts to 0.
    """

    slow: Positive | msgspec.UnsetType = msgspec.UNSET
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] | msgspec.UnsetType = msgspec.UNSET
    kill: Share = 0.0
    max_num_seqs: AtLeastOne | msgspec.UnsetType = msgspec.UNSET
    hidden_limit: Count | msgspec.UnsetType = msgspec.UNSET
    retry_after: str | int | msgspec.UnsetType | None = msgspec.UNSET
    fail_rate: Share | msgspec.UnsetType = msgspec.UNSET
    fail_status: Status | msgspec.UnsetType = msgspec.UNSET
    slots: AtLeastOne | msgspec.UnsetType | None = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    faults: Wishes | msgspec.UnsetType | None = msgspec.UNSET
    reset_counts: bool = False


_changes = msgspec.json.Decoder(Change)


def read_change(body: bytes) -> Change:
    """Parse the body of `POST /sim`. Raises InvalidValue, whose message names the field and what it may be."""
    try:
        return _changes.decode(body)
    except msgspec.ValidationError as error:
        message = str(error)
        where = message.rpartition("`$.")[2].rstrip("`") if "`$." in message else "body"
        raise InvalidValue(where, message) from None
    except msgspec.DecodeError as error:
        raise InvalidValue("body", f"not a JSON object: {error}") from None


@dataclass(slots=True)
class Counts:
    """What the server saw of its clients; `in_flight` counts requests that are being answered, waiting ones too."""

    in_flight: int = 0
    max_in_flight: int = 0
    over_slots: int = 0
    requests: int = 0
    completed: int = 0
    refused: int = 0
    failed: int = 0
    aborted: int = 0
    broken: int = 0
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=1000))
    by_path: Counter[str] = field(default_factory=Counter)

    def enter(self, path: str, slots: int | None) -> None:
        """Note that a request arrived."""
        self.requests += 1
        self.by_path[path] += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if slots is not None and self.in_flight > slots:
            self.over_slots += 1

    def told(self) -> dict[str, Any]:
        """Return the counts as they go into JSON."""
        names = ("in_flight", "max_in_flight", "over_slots", "requests", "completed")
        more = ("refused", "failed", "aborted", "broken")
        return {name: getattr(self, name) for name in names + more} | {"by_path": dict(self.by_path)}
