"""Bounds, budgets, holds, and the one formula that turns them into batch's quota. Values and rules, no I/O."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Budgets:
    """What 95 % of interactive requests are promised: seconds to the first token, ms per further token; error share."""

    first_token_s: float = 1.0
    per_token_ms: float = 75.0
    error_rate: float = 0.02


@dataclass(frozen=True, slots=True)
class Hold:
    """An operator's fixed quota, in slots, until an instant (`None`: for ever)."""

    quota: int
    until: datetime | None
    by: str
    reason: str
    since: datetime

    def active(self, now: datetime) -> bool:
        """Tell whether the hold still stands at `now`."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class Pause:
    """Batch stopped by a person; a thing apart from a hold."""

    by: str
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Bounds:
    """The floor and ceiling of the quota now in force, in slots, with the budgets, and where they come from.

    `source` is `base`, `window:NAME` or `one_off:NAME`; `until` is when that source stops being in force, if it does.
    """

    floor: int
    ceiling: int
    budgets: Budgets = Budgets()
    source: str = "base"
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What operators may change of a pool while it runs; stored, with a version that each change raises by one.

    Holds: 1 <= slots; 0 <= reserve < slots or reserve = 0; 0 <= floor <= ceiling <= slots - reserve; headroom >= 0.
    """

    name: str
    slots: int
    reserve: int
    headroom: int
    floor: int
    ceiling: int
    budgets: Budgets = Budgets()
    model_budgets: dict[str, Budgets] = field(default_factory=dict)
    hold: Hold | None = None
    pause: Pause | None = None
    version: int = 1

    @property
    def batch_max(self) -> int:
        """The slots that batch may ever hold: slots - reserve."""
        return self.slots - self.reserve

    def base_bounds(self) -> Bounds:
        """Return the bounds that hold where no window does."""
        return Bounds(self.floor, self.ceiling, self.budgets)


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """All that the dispatcher needs to know to let a request start; published as one value so that no mix is ever seen.

    `limit` is C, the learned limit on the total in flight. `hold` is an operator's quota, `None` where the controller
    decides. `paused` stops batch. `room_for_peak` keeps room for the highest interactive demand of the last minutes
    instead of the present one (used where pull-backs are off). `first_token_s` is the budget for the first token, in
    seconds, `model_first_token_s` the same for models that have their own.
    """

    slots: int
    reserve: int
    headroom: int
    floor: int
    ceiling: int
    limit: float
    hold: int | None = None
    paused: bool = False
    room_for_peak: bool = False
    first_token_s: float = 1.0
    model_first_token_s: Mapping[str, float] = field(default_factory=dict)

    def first_token_budget(self, model: str) -> float:
        """Return the seconds within which an interactive request of `model` shall see its first token."""
        return self.model_first_token_s.get(model, self.first_token_s)

    @property
    def batch_max(self) -> int:
        """The slots that batch may ever hold: slots - reserve."""
        return self.slots - self.reserve


def by_limit(limits: PoolLimits, interactive: int) -> int:
    """Return what the learned limit alone would leave for batch, in slots, beside `interactive` (in flight + waiting).

    May be negative, or above the ceiling.
    """
    return math.floor(limits.limit) - interactive - limits.headroom


def automatic_quota(limits: PoolLimits, interactive: int) -> int:
    """Return the quota that the controller would give, holds aside (shown as the shadow value while one stands)."""
    within = max(limits.floor, min(limits.ceiling, by_limit(limits, interactive)))
    return max(0, min(limits.batch_max, within))


def batch_quota(limits: PoolLimits, interactive: int) -> int:
    """Return how many slots batch may hold now: hold ?? min(slots - reserve, clamp(by_limit, floor, ceiling)).

    `interactive` counts interactive requests in flight and waiting. A pause does not change the quota.
    """
    if limits.hold is not None:
        return max(0, min(limits.batch_max, limits.hold))
    return automatic_quota(limits, interactive)


def clamp_bounds(bounds: Bounds, batch_max: int) -> Bounds:
    """Return `bounds` cut to what the pool can give: 0 <= floor <= ceiling <= batch_max."""
    ceiling = max(0, min(bounds.ceiling, batch_max))
    return replace(bounds, ceiling=ceiling, floor=max(0, min(bounds.floor, ceiling)))


def default_reserve(slots: int) -> int:
    """Return the slots that batch may never take by default: 1, or 0 in a pool of one slot."""
    return 1 if slots > 1 else 0


def default_headroom(slots: int) -> int:
    """Return the slots kept free beside interactive by default: 1 from 4 slots on, else 0."""
    return 1 if slots >= 4 else 0


def default_ceiling(slots: int, reserve: int, *, pull_backs: bool) -> int:
    """Return the default ceiling: slots - reserve, or half the slots where running batch cannot be pulled back."""
    return slots - reserve if pull_backs else min(slots - reserve, max(1, slots // 2))
