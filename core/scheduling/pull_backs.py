"""Pull-backs: which running batch requests make room for interactive ones. Pure: their owners do the aborting."""

from collections import Counter
from collections.abc import Callable

from core.lanes import Lane, PullBack
from core.scheduling.tickets import Ticket

HOLD_AFTER_PULL_BACK_S = 0.5
HOLD_AFTER_REFUSAL_S = 1.0


class PullBacks:
    """Knows the running batch requests of a pool and the interactive ones whose first token is awaited.

    `hold` stops batch for some seconds, so that the room goes to those for whom it was made. Where `enabled` is False
    nothing is ever pulled back.
    """

    def __init__(self, *, enabled: bool, hold: Callable[[float], object]) -> None:
        self.counts: Counter[PullBack] = Counter()
        self._enabled = enabled
        self._hold = hold
        self._running: dict[Ticket, None] = {}
        self._unanswered: dict[Ticket, None] = {}
        self._under_way = 0

    @property
    def possible(self) -> bool:
        """Tell whether batch is running."""
        return bool(self._running)

    def started(self, ticket: Ticket) -> None:
        """Take a request in that was sent."""
        if ticket.lane is Lane.BATCH:
            self._running[ticket] = None
        elif ticket.streamed:
            self._unanswered[ticket] = None

    def first_token(self, ticket: Ticket) -> None:
        """Note that an answer's first token came."""
        self._unanswered.pop(ticket, None)

    def ended(self, ticket: Ticket) -> None:
        """Forget a request that gave its slot back."""
        self._unanswered.pop(ticket, None)
        self._running.pop(ticket, None)
        self._under_way -= ticket.pulling
        ticket.pulling = False

    def for_waiting(self, waiting: int) -> None:
        """Make room for so many interactive requests that found no slot."""
        missing = waiting - self._under_way
        if missing > 0 and self._running:
            self._pull_back(self._victims()[:missing], PullBack.SLOTS_FULL)

    def for_refused(self, above_quota: int) -> bool:
        """Make room because the provider refused an interactive request; tell whether any was made.

        What runs above the quota goes, which would have drained, and one more, so that the next interactive request
        finds room; batch then starts nothing for a second. In simulation (scenario C) interactive requests are refused
        3.8 times as often as without batch; with the youngest and half a second alone, 5.6 times.
        """
        return self._pull_back(self._victims()[: above_quota + 1], PullBack.PROVIDER_429, HOLD_AFTER_REFUSAL_S)

    def for_overdue(self, ticket: Ticket, half_budget: float) -> None:
        """Make room for an interactive request that has no first token at half its budget, `half_budget` seconds.

        What goes is batch sent before it which has no first token either; or, where the server itself lets requests
        queue, the youngest. It queues if of another interactive request, sent half a budget earlier, not a byte came.
        """
        if ticket.lease is None or ticket.lease.released or ticket.first is not None:
            return
        sent, victims = ticket.lease.started, self._victims()
        ahead = [t for t in victims if t.first is None and t.lease is not None and t.lease.started <= sent]
        oldest = next((other for other in self._unanswered if not other.answered), ticket).lease
        queues = oldest is not None and oldest.started <= sent - half_budget
        self._pull_back(ahead or victims[:queues], PullBack.FIRST_TOKEN_OVERDUE, HOLD_AFTER_PULL_BACK_S)

    def _victims(self) -> list[Ticket]:
        """Return the batch requests that may be pulled back: those without a first token first, then the youngest."""
        eligible = [ticket for ticket in self._running if ticket.may_be_pulled_back]
        return sorted(eligible, key=lambda t: (t.first is not None, -t.lease.started if t.lease else 0.0))

    def _pull_back(self, victims: list[Ticket], cause: PullBack, hold_s: float = 0.0) -> bool:
        if not self._enabled or not victims:
            return False
        if hold_s:
            self._hold(hold_s)
        for ticket in victims:
            ticket.pulling = True
            self._under_way += 1
            self.counts[cause] += 1
            ticket.on_pull_back(cause)
        return True
