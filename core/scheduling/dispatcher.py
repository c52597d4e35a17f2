"""Decides which request of a pool starts next: interactive first, batch in what is left.

Runs on the event loop, never blocks and never awaits; every arrival, first token, release, timer and changed limit
calls `pump`, which starts all that may start.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from core.errors import Rejected
from core.lanes import Lane, Outcome, PullBack
from core.ports import Clock, SlotPool
from core.quotas import PoolLimits, batch_quota, by_limit
from core.scheduling.pull_backs import PullBacks
from core.scheduling.rates import Ewma, RecentPeak, RecentWaits, TokenBucket
from core.scheduling.tickets import LaneQueue, Ticket

PEAK_HORIZON_S = 300.0
UNKNOWN_FIRST_TOKEN_S = 0.05
# The server must have seen the abort before the slot is used again, or it would briefly hold one request too many.
ABORT_GRACE_S = 0.05
TIMER_ROUNDING_S = 0.002
_INTERACTIVE, _BATCH = Lane.INTERACTIVE, Lane.BATCH


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Requests in flight and waiting, per lane, and the longest present wait in seconds (`None`: nobody waits)."""

    interactive: int
    interactive_waiting: int
    batch: int
    backlog: int
    interactive_oldest_s: float | None
    batch_oldest_s: float | None


@dataclass(slots=True)
class DispatcherStats:
    """Counters since the start, read by the metrics."""

    pull_backs: Counter[PullBack]
    overdue_started: int = 0
    back_offs: int = 0
    back_off_seconds: float = 0.0
    rejected: Counter[tuple[Lane, str]] = field(default_factory=Counter)


class Dispatcher:
    """The lane queues of one pool, in front of its slots.

    Holds: in flight <= slots; batch in flight <= slots - reserve; no batch request starts while an interactive one
    waits, nor above the quota, but for one overdue batch request (see `_start_overdue`). Lowering a limit lets running
    work finish.

    `on_room`, if set, is called whenever there may be room for more batch (see `room`); it only notes the fact.
    """

    def __init__(
        self,
        *,
        limits: PoolLimits,
        slots: SlotPool,
        clock: Clock,
        interactive_queue: int = 256,
        batch_queue: int = 1000,
        batch_max_wait: float = 600.0,
        pull_backs: bool = True,
        batch_rps: float | None = None,
        batch_tpm: float | None = None,
    ) -> None:
        self.limits = limits
        self._pull_backs = PullBacks(enabled=pull_backs, hold=self.hold_batch)
        self.stats = DispatcherStats(self._pull_backs.counts)
        self.on_room: Callable[[], None] | None = None
        self._slots = slots
        self._clock = clock
        self._most = {_INTERACTIVE: interactive_queue, _BATCH: batch_queue}
        self._batch_max_wait = batch_max_wait
        self._starts = TokenBucket(rate=batch_rps, burst=max(1.0, batch_rps)) if batch_rps else None
        self._tokens = TokenBucket(rate=batch_tpm / 60, burst=batch_tpm) if batch_tpm else None
        self._interactive, self._batch = LaneQueue(), LaneQueue()
        self._queues = {_INTERACTIVE: self._interactive, _BATCH: self._batch}
        self._waits = {lane: RecentWaits() for lane in Lane}
        self._totals = {lane: Ewma(0.1) for lane in Lane}
        self._first_token = Ewma(0.1)
        self._peak = RecentPeak(horizon=PEAK_HORIZON_S)
        self._awaiting: dict[Ticket, None] = {}
        self._overdue_running = 0
        self._held_until = -math.inf
        self._rates_until = -math.inf
        self._backed_off_until = -math.inf
        self._bound = False

    # Coming and going

    def submit(self, ticket: Ticket) -> bool:
        """Let `ticket` start now (True) or wait (False; `on_grant` follows unless it is cancelled).

        Raises Rejected: `interactive_queue_full`, `batch_queue_full`, `batch_paused`.
        """
        if ticket.lane is _INTERACTIVE and not self._interactive and not self._batch:
            # Nothing waits that this could overtake, or that could start because of it.
            now = self._clock.monotonic()
            if self._start(ticket, now):
                self._note_demand(now)
                return True
        queue = self._queues[ticket.lane]
        if self.limits.paused and ticket.lane is _BATCH and not ticket.durable:
            raise self._rejected(ticket.lane, "batch_paused")
        most = self._most[ticket.lane]
        if len(queue) >= most > 0:
            raise self._rejected(ticket.lane, f"{ticket.lane}_queue_full")
        queue.push(ticket)
        self.pump()
        if ticket.lease is None and len(queue) > most:
            queue.discard(ticket)
            raise self._rejected(ticket.lane, f"{ticket.lane}_queue_full")
        return ticket.lease is not None

    def cancel(self, ticket: Ticket) -> None:
        """Forget a ticket that waits, or is being put back; its owner is gone."""
        ticket.cancelled = True
        self._queues[ticket.lane].discard(ticket)

    def first_token(self, ticket: Ticket) -> None:
        """Note that the first content of a streamed answer arrived."""
        now = self._clock.monotonic()
        ticket.first = now
        self._pull_backs.first_token(ticket)
        self._stop_timer(ticket)
        if ticket.lane is _BATCH and ticket.lease is not None:
            if ticket.streamed:
                self._first_token.add(now - ticket.lease.started)
            self._awaiting.pop(ticket, None)
            self.pump()

    def release(self, ticket: Ticket, outcome: Outcome, *, tokens: int = 0, aborted: bool = False) -> None:
        """Give the slot back, with the tokens spent; an aborted request's slot is free after `ABORT_GRACE_S`."""
        if aborted:
            self._clock.call_later(ABORT_GRACE_S, self._release, ticket, outcome, tokens)
        else:
            self._release(ticket, outcome, tokens)

    def put_back(self, ticket: Ticket) -> None:
        """Put a batch request that was pulled back at the head of its queue; it keeps its time of arrival.

        Its slot is given back after `ABORT_GRACE_S`, and only then can it start again.
        """
        self._clock.call_later(ABORT_GRACE_S, self._requeue, ticket)

    # Changes from outside

    def apply(self, limits: PoolLimits) -> None:
        """Let `limits` be in force from the next start on; what runs above them finishes."""
        self.limits = limits
        self._slots.apply(limits)
        self.pump()

    def hold_batch(self, seconds: float) -> None:
        """Start no batch for `seconds`."""
        self._held_until = max(self._held_until, self._clock.monotonic() + seconds)
        self._clock.call_later(seconds, self._hold_over)

    def back_off(self, seconds: float) -> None:
        """Start no batch for `seconds`, overdue or not, because the upstream asked for it."""
        until = self._clock.monotonic() + seconds
        if until <= self._backed_off_until:
            return
        self.stats.back_offs += 1
        self.stats.back_off_seconds += until - max(self._clock.monotonic(), self._backed_off_until)
        self._backed_off_until = until
        self._clock.call_later(seconds, self._hold_over)

    def pull_back_for_refusal(self) -> bool:
        """Pull batch back because the provider refused an interactive request; tell whether any was."""
        return self._pull_backs.for_refused(self.settling())

    # What others read

    def counts(self) -> PoolCounts:
        """Return the present counts."""
        now = self._clock.monotonic()
        in_flight = self._slots.in_flight
        return PoolCounts(
            interactive=in_flight[_INTERACTIVE],
            interactive_waiting=len(self._interactive),
            batch=in_flight[_BATCH],
            backlog=len(self._batch),
            interactive_oldest_s=self._interactive.oldest_wait(now),
            batch_oldest_s=self._batch.oldest_wait(now),
        )

    def waits(self, lane: Lane) -> tuple[float | None, float | None]:
        """Return p50 and p95 of the waits for a slot of the last minute, in seconds; `None`: nothing started."""
        return self._waits[lane].percentiles(self._clock.monotonic())

    def quota(self) -> int:
        """Return how many slots batch may hold now."""
        return batch_quota(self.limits, self.demand())

    def room(self) -> int:
        """Return how many more durable items a feeder should submit now: those that may run, and one standing by.

        The one standing by shows that batch has work, and so whether the limit is what stops it; behind other batch
        requests it keeps a place in their queue. 0 while batch is paused, held, backed off, or its ceiling is 0.
        """
        limits, now = self.limits, self._clock.monotonic()
        closed = limits.paused or (limits.ceiling if limits.hold is None else limits.hold) == 0
        if closed or now < self._held_until or now < self._backed_off_until:
            return 0
        queue = self._batch
        free, others = self.quota() - self._slots.in_flight[_BATCH], len(queue) - queue.durable
        if others:
            free = max(0, free - others)
        standing_by = 1 if len(queue) < self._most[_BATCH] else 0
        return max(0, free + standing_by - queue.durable)

    def demand(self) -> int:
        """Return the interactive demand that the quota leaves room for: in flight and waiting, or its recent peak."""
        present = self._slots.in_flight[_INTERACTIVE] + len(self._interactive)
        if not self.limits.room_for_peak:
            return present
        return max(present, self._peak.value(self._clock.monotonic()))

    def settling(self) -> int:
        """Return how many batch requests run above the quota and are left to finish."""
        return max(0, self._slots.in_flight[_BATCH] - self.quota())

    def take_bound(self) -> bool:
        """Tell whether since the last call batch had work and was stopped by the learned limit alone."""
        bound, self._bound = self._bound, False
        return bound

    def overdue_first_tokens(self, now: float) -> int:
        """Count streamed batch requests without a first token for longer than max(2 s, twice their average)."""
        if self._first_token.value is None:
            return 0
        limit = max(2.0, 2 * self._first_token.value)
        return sum(1 for t in self._awaiting if t.streamed and t.lease is not None and now - t.lease.started > limit)

    def backed_off_for(self) -> float:
        """Return the seconds for which the upstream still asked batch to stay away."""
        return max(0.0, self._backed_off_until - self._clock.monotonic())

    def estimated_wait(self, lane: Lane, position: int) -> float:
        """Return the seconds after which the ticket at `position` (1 is next) will probably start."""
        width = self.limits.slots if lane is _INTERACTIVE else max(1, self.quota())
        return position * (self._totals[lane].value or 1.0) / width

    # Starting

    def pump(self) -> None:
        """Start everything that may start now."""
        if self._interactive or self._batch:
            self._start_all()
        if self.on_room is not None and self.room():
            self.on_room()

    def _hold_over(self) -> None:
        """Go on after a hold; a timer of whole milliseconds may come a little before the time it was set for."""
        early = max(self._held_until, self._backed_off_until) - self._clock.monotonic()
        if 0 < early < TIMER_ROUNDING_S:
            self._clock.call_later(TIMER_ROUNDING_S, self._hold_over)
        self.pump()

    def _start_all(self) -> None:
        now = self._clock.monotonic()
        interactive, batch = self._interactive, self._batch
        if batch:
            self._start_overdue(now)
        if interactive:
            while interactive and self._start_head(interactive, now):
                pass
            self._note_demand(now)
            if interactive:
                self._pull_backs.for_waiting(len(interactive))
                return
        while batch and self._batch_may_start(now) and self._start_head(batch, now):
            pass

    def _start_head(self, queue: LaneQueue, now: float, *, overdue: bool = False) -> bool:
        ticket = queue.head()
        assert ticket is not None
        if not self._start(ticket, now, overdue=overdue):
            return False
        queue.discard(ticket)
        return True

    def _start(self, ticket: Ticket, now: float, *, overdue: bool = False) -> bool:
        """Give `ticket` a slot if one is free for its lane."""
        lease = self._slots.acquire(ticket.lane, now)
        if lease is None:
            return False
        ticket.lease, ticket.overdue = lease, overdue
        self._waits[ticket.lane].add(now - ticket.arrived, now)
        self._pull_backs.started(ticket)
        if ticket.lane is _BATCH:
            self._started_batch(ticket, now)
        elif ticket.streamed and self._pull_backs.possible:
            half = 0.5 * self.limits.first_token_budget(ticket.model)
            due = ticket.arrived + half - now
            ticket.timer = self._clock.call_later(max(0.0, due), self._interactive_overdue, ticket, half)
        ticket.on_grant()
        return True

    def _started_batch(self, ticket: Ticket, now: float) -> None:
        if ticket.overdue:
            self._overdue_running += 1
            self.stats.overdue_started += 1
        if self._starts:
            self._starts.take(1, now)
        if ticket.has_tokens:
            self._awaiting[ticket] = None
            if not ticket.streamed:
                ticket.timer = self._clock.call_later(self._unseen_first_token(), self._presume_first_token, ticket)

    def _start_overdue(self, now: float) -> None:
        """Let batch that waited too long move, even before interactive: at most max(1, floor) such at a time."""
        limits, queue = self.limits, self._batch
        if not self._batch_max_wait or limits.paused or limits.hold == 0 or now < self._backed_off_until:
            return
        while self._overdue_running < max(1, limits.floor):
            wait = queue.oldest_wait(now)
            if wait is None or wait < self._batch_max_wait or not self._rates_allow(now):
                return
            if not self._start_head(queue, now, overdue=True):
                return

    def _batch_may_start(self, now: float) -> bool:
        if self.limits.paused or now < self._held_until or now < self._backed_off_until:
            return False
        quota = self.quota()
        if self._slots.in_flight[_BATCH] >= quota:
            self._note_bound()
            return False
        return len(self._awaiting) < self._pace(quota) and self._rates_allow(now)

    def _note_bound(self) -> None:
        limits = self.limits
        ceiling = min(limits.ceiling, limits.batch_max)
        self._bound = self._bound or (limits.hold is None and by_limit(limits, self.demand()) <= ceiling)

    def _pace(self, quota: int) -> int:
        """Return how many batch requests may await their first token at once (contracts: first-token pacing)."""
        first, total = self._first_token.value, self._totals[_BATCH].value
        if first is None or not total:
            return 1
        return max(1, math.ceil(quota * first / total))

    def _unseen_first_token(self) -> float:
        """Return for how long a batch request that is not streamed counts as awaiting its first token."""
        total = self._totals[_BATCH].value
        if total is None:
            return UNKNOWN_FIRST_TOKEN_S
        return min(self.limits.first_token_s / 2, total / (2 * max(1, self.quota())))

    def _presume_first_token(self, ticket: Ticket) -> None:
        self._awaiting.pop(ticket, None)
        self.pump()

    def _rates_allow(self, now: float) -> bool:
        wait = max(bucket.wait(now) if bucket else 0.0 for bucket in (self._starts, self._tokens))
        if wait > 0 and now >= self._rates_until:  # else a timer is set already; every arrival asks here
            self._rates_until = now + wait
            self.hold_batch(wait)
        return wait <= 0

    def _note_demand(self, now: float) -> None:
        if self.limits.room_for_peak:
            present = self._slots.in_flight[_INTERACTIVE] + len(self._interactive)
            self._peak.add(present, now)

    def _interactive_overdue(self, ticket: Ticket, half_budget: float) -> None:
        ticket.timer = None
        self._pull_backs.for_overdue(ticket, half_budget)

    # Releasing

    def _release(self, ticket: Ticket, outcome: Outcome, tokens: int) -> None:
        self._give_back(ticket, outcome)
        if self._tokens and ticket.lane is _BATCH and tokens:
            self._tokens.take(tokens, self._clock.monotonic())
        self.pump()

    def _requeue(self, ticket: Ticket) -> None:
        self._give_back(ticket, Outcome.PREEMPTED)
        ticket.pull_backs += 1
        ticket.lease = ticket.first = None
        if not ticket.cancelled:
            self._batch.push_front(ticket)
        self.pump()

    def _give_back(self, ticket: Ticket, outcome: Outcome) -> None:
        lease = ticket.lease
        assert lease is not None
        self._stop_timer(ticket)
        self._slots.release(lease, outcome)
        self._pull_backs.ended(ticket)
        if outcome is Outcome.SUCCESS:
            self._totals[lease.lane].add(self._clock.monotonic() - lease.started)
        if lease.lane is _BATCH:
            self._awaiting.pop(ticket, None)
            self._overdue_running -= ticket.overdue
            ticket.overdue = False

    def _stop_timer(self, ticket: Ticket) -> None:
        if ticket.timer is not None:
            ticket.timer.cancel()
            ticket.timer = None

    # Refusals

    def _rejected(self, lane: Lane, code: str) -> Rejected:
        self.stats.rejected[lane, code] += 1
        if code == "batch_paused":
            return Rejected(503, code, "Batch is paused in this pool by an operator.", should_retry=False)
        position = len(self._queues[lane]) + 1
        wait = self.estimated_wait(lane, position)
        return Rejected(
            429,
            code,
            f"The {lane} queue is full ({self._most[lane]} waiting). Try again later.",
            type="rate_limit_error",
            retry_after=honest_retry_after(wait),
            position=position,
            estimated_wait=wait,
        )


def honest_retry_after(seconds: float) -> int:
    """Return `seconds` as a Retry-After that every client obeys: whole, from 1 to 60."""
    return max(1, min(60, math.ceil(seconds)))
