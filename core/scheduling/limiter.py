"""Counts who holds a pool's slots, in one process. Pure."""

from core.lanes import Lane, Outcome
from core.ports import Lease
from core.quotas import PoolLimits

_INTERACTIVE, _BATCH = Lane.INTERACTIVE, Lane.BATCH


class Limiter:
    """The embedded SlotPool: two counters and the leases that account for them (see `core.ports.SlotPool`)."""

    def __init__(self, *, limits: PoolLimits) -> None:
        self.in_flight: dict[Lane, int] = {_INTERACTIVE: 0, _BATCH: 0}
        self._limits = limits
        self._last_id = 0

    def acquire(self, lane: Lane, now: float) -> Lease | None:
        """Return a lease, or `None` where all slots, or all that batch may ever hold, are taken."""
        in_flight = self.in_flight
        batch = in_flight[_BATCH]
        if in_flight[_INTERACTIVE] + batch >= self._limits.slots:
            return None
        if lane is _BATCH and batch >= self._limits.batch_max:
            return None
        in_flight[lane] += 1
        self._last_id += 1
        return Lease(lane, now, id=self._last_id)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Give the slot back. Raises ValueError if it was given back before."""
        if lease.released:
            raise ValueError(f"lease {lease.id} was released before; now with {outcome}")
        lease.released = True
        self.in_flight[lease.lane] -= 1

    def apply(self, limits: PoolLimits) -> None:
        """Let `limits` be in force from the next acquire on."""
        self._limits = limits
