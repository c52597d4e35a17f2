"""A ticket: one request's claim on a slot, and the queue in which tickets of a lane wait. Pure."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from core.lanes import Lane, PullBack
from core.ports import Lease, TimerHandle

MOST_PULL_BACKS = 2


@dataclass(slots=True, eq=False)
class Ticket:
    """What the dispatcher knows of a request.

    `on_grant` is called when a waiting ticket gets its lease, `on_pull_back` when a running batch request shall be
    aborted and put back; both only note the fact and return. `durable` items may be pulled back at any time, others
    only until a byte of the upstream's answer went to the client (`answered`). `arrived` is monotonic seconds.
    """

    lane: Lane
    arrived: float
    on_grant: Callable[[], None]
    on_pull_back: Callable[[PullBack], None]
    model: str = ""
    durable: bool = False
    streamed: bool = True
    has_tokens: bool = True
    answered: bool = False
    lease: Lease | None = None
    first: float | None = None
    overdue: bool = False
    pull_backs: int = 0
    pulling: bool = False
    cancelled: bool = False
    timer: TimerHandle | None = None

    @property
    def may_be_pulled_back(self) -> bool:
        """Tell whether this running batch request can be aborted and sent again without its owner noticing."""
        exempt = self.overdue or self.pulling or self.pull_backs >= MOST_PULL_BACKS
        return not exempt and (self.durable or not self.answered)

    def let_go(self) -> None:
        """Call the owner no more: its request has ended.

        Owner and ticket refer to each other; parted, both are freed at once instead of by the garbage collector.
        """
        self.on_grant = self.on_pull_back = _nobody


def _nobody(*_: object) -> None:
    """Take the call for an owner that is gone."""


class LaneQueue(OrderedDict[Ticket, None]):
    """Tickets in the order in which they will start; every operation is O(1). `durable` counts the durable ones."""

    def __init__(self) -> None:
        super().__init__()
        self.durable = 0

    def push(self, ticket: Ticket) -> None:
        """Add at the end."""
        self[ticket] = None
        self.durable += ticket.durable

    def push_front(self, ticket: Ticket) -> None:
        """Add so that it starts next."""
        self.push(ticket)
        self.move_to_end(ticket, last=False)

    def head(self) -> Ticket | None:
        """Return the ticket that starts next."""
        return next(iter(self), None)

    def discard(self, ticket: Ticket) -> None:
        """Take a ticket out, wherever it stands; legal when it is not there."""
        if ticket in self:
            del self[ticket]
            self.durable -= ticket.durable

    def oldest_wait(self, now: float) -> float | None:
        """Return the seconds the head has waited, `None` when empty."""
        head = self.head()
        return None if head is None else max(0.0, now - head.arrived)
