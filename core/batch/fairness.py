"""Whose batch starts next: weighted deficit round robin over tenants, then that tenant's batches by rank. Pure.

A tenant's turn lasts while it has credit, so that tokens, not lines, are shared by weight. What a line costs is known
only when it is read: a pick is charged by its batch's mean and settled later. Credit may fall below zero, so a line of
any size starts in its turn, and its tenant then waits longer; nobody else does.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_OVERTAKEN = 8
"""Picks of a tenant after which its longest unserved batch gets one, whatever its rank."""
MOST_ROUNDS_OF_DEBT = 1000.0

_LEARNING = 1 / 16
_UNKNOWN_COST = 500.0

Rank = tuple[float, ...]
"""Sorts a tenant's batches, the least first: (-priority, deadline, ...)."""


@dataclass(slots=True, eq=False)
class _Batch:
    id: str
    tenant: "_Tenant"
    rank: Rank
    mean: float
    ready: bool = False
    served: int = 0

    @property
    def place(self) -> tuple[Rank, str]:
        return self.rank, self.id


@dataclass(slots=True, eq=False)
class _Tenant:
    name: str
    credit: float = 0.0
    in_ring: bool = False
    batches: int = 0
    since_fair: int = 0
    ready: list[tuple[Rank, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pick:
    """The batch that may start one line, and what its tenant was charged for it, in tokens."""

    batch: str
    charged: float


class FairOrder:
    """The batches of one pool that want to start lines. O(1) a pick, on average over the picks.

    `weights` gives a tenant's share by name, above 0, 1 where it is not named; it may change at any time. A batch that
    must not start now is blocked, and hinders nobody.
    """

    def __init__(self, *, weights: Mapping[str, float] | None = None) -> None:
        self.weights: Mapping[str, float] = weights or {}
        self._tenants: dict[str, _Tenant] = {}
        self._batches: dict[str, _Batch] = {}
        self._ring: deque[_Tenant] = deque()
        self._mean = _UNKNOWN_COST
        self._quantum = _UNKNOWN_COST
        self._left_in_round = 0
        self._picks = 0
        self._ready = 0

    def __bool__(self) -> bool:
        """Tell whether any batch may start a line."""
        return self._ready > 0

    def put(self, batch: str, *, tenant: str, rank: Rank, cost: float | None = None) -> None:
        """Add a batch, ready to start, or give one that is there another rank. `cost` is its mean line's, if known."""
        known = self._batches.get(batch)
        if known is None:
            owner = self._tenants.setdefault(tenant, _Tenant(tenant))
            owner.batches += 1
            self._batches[batch] = _Batch(batch, owner, rank, cost or self._mean, served=self._picks)
            self.unblock(batch)
        elif known.rank != rank:
            ready = known.ready
            self.block(batch)
            known.rank = rank
            if ready:
                self.unblock(batch)

    def drop(self, batch: str) -> None:
        """Forget a batch; legal where it is not there."""
        self.block(batch)
        known = self._batches.pop(batch, None)
        if known is None:
            return
        known.tenant.batches -= 1
        if not known.tenant.batches:
            del self._tenants[known.tenant.name]

    def block(self, batch: str) -> None:
        """Let a batch start nothing until it is unblocked; legal where it is not there."""
        known = self._batches.get(batch)
        if known is not None and known.ready:
            known.ready = False
            self._ready -= 1
            ready = known.tenant.ready
            del ready[bisect_left(ready, known.place)]

    def unblock(self, batch: str) -> None:
        """Let a batch start lines in its turn; legal where it is not there, and twice."""
        known = self._batches.get(batch)
        if known is None or known.ready:
            return
        known.ready = True
        self._ready += 1
        tenant = known.tenant
        insort(tenant.ready, known.place)
        if not tenant.in_ring:
            tenant.in_ring = True
            tenant.credit += self._share(tenant)
            self._ring.append(tenant)

    def pick(self) -> Pick | None:
        """Return the batch that may start one line now, charging its tenant; `None` where none may."""
        ring = self._ring
        while ring:
            tenant = ring[0]
            if not tenant.ready:
                ring.popleft()
                tenant.in_ring = False
                tenant.credit = min(tenant.credit, 0.0)
            elif tenant.credit > 0:
                return self._serve(tenant)
            else:
                self._next_turn(tenant)
        return None

    def settle(self, pick: Pick, cost: float) -> None:
        """Charge what the picked line really costs, in tokens; 0 where no line started."""
        known = self._batches.get(pick.batch)
        if known is None:
            return
        tenant = known.tenant
        tenant.credit -= cost - pick.charged
        tenant.credit = max(tenant.credit, -MOST_ROUNDS_OF_DEBT * self._share(tenant))
        if cost > 0:
            known.mean += _LEARNING * (cost - known.mean)
            self._mean += _LEARNING * (cost - self._mean)

    def _serve(self, tenant: _Tenant) -> Pick:
        batch = self._batches[tenant.ready[0][1]]
        if len(tenant.ready) > 1:
            tenant.since_fair += 1
            if tenant.since_fair >= MOST_OVERTAKEN:
                tenant.since_fair = 0
                batch = min((self._batches[name] for _, name in tenant.ready), key=lambda each: each.served)
        self._picks += 1
        batch.served = self._picks
        tenant.credit -= batch.mean
        return Pick(batch.id, batch.mean)

    def _next_turn(self, tenant: _Tenant) -> None:
        """End a tenant's turn, with credit for its next; the credit of a turn is fixed for one round of all tenants."""
        if self._left_in_round <= 0:
            self._left_in_round = len(self._ring)
            self._quantum = max(1.0, self._mean)
        self._left_in_round -= 1
        tenant.credit += self._share(tenant)
        self._ring.rotate(-1)

    def _share(self, tenant: _Tenant) -> float:
        return self._quantum * self.weights.get(tenant.name, 1.0)
