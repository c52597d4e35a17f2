"""What a tenant may ask for per minute, and how many slots its direct batch calls may hold. Pure: time is given."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from core.errors import Rejected
from core.lanes import Lane
from core.people.tenants import TenantDirectory

SPAN_S = 60
"""Whole seconds looked back on, the present one, which has just begun, included."""
BATCH_RETRY_S = 5


class MinuteWindow:
    """A sum over the last minute, kept by whole seconds; O(1) a step, 60 numbers in all.

    What is counted is forgotten 59 to 60 s later, so that nobody need ever wait for longer than a minute.
    """

    __slots__ = ("_counts", "_second", "total")

    def __init__(self) -> None:
        self._counts = [0] * SPAN_S
        self._second = 0
        self.total = 0

    def add(self, amount: int, now: float) -> None:
        """Count `amount` at the monotonic second `now`."""
        if int(now) != self._second:
            self.forget(now)
        self._counts[self._second % SPAN_S] += amount
        self.total += amount

    def forget(self, now: float) -> int:
        """Drop what is over a minute old; return the sum that is left."""
        second = int(now)
        steps = second - self._second
        if steps <= 0:
            return self.total
        for old in range(self._second + 1, self._second + 1 + min(steps, SPAN_S)):
            self.total -= self._counts[old % SPAN_S]
            self._counts[old % SPAN_S] = 0
        self._second = second
        return self.total

    def until_below(self, most: int, now: float) -> float:
        """Return the seconds until the sum is below `most` if nothing is added."""
        left = self.forget(now)
        for age in range(SPAN_S - 1, -1, -1):
            if left < most:
                break
            left -= self._counts[(self._second - age) % SPAN_S]
            if left < most:
                return max(0.0, self._second - age + SPAN_S - now)
        return 0.0


@dataclass(slots=True)
class Usage:
    """What one tenant's direct calls use: requests and tokens of the last minute, batch calls now at work."""

    requests: MinuteWindow = field(default_factory=MinuteWindow)
    tokens: MinuteWindow = field(default_factory=MinuteWindow)
    batch: int = 0


class TenantLimits:
    """Lets direct calls in as far as their tenant's limits allow. Each `enter` that returns is followed by a `leave`.

    Tokens are known when an answer has ended: who is at the limit is refused until enough of them are a minute old.
    """

    def __init__(self, *, directory: TenantDirectory, monotonic: Callable[[], float]) -> None:
        self._directory = directory
        self._monotonic = monotonic
        self._usage: dict[str, Usage] = {}

    def usage(self, tenant: str) -> tuple[int, int, int]:
        """Return requests and tokens of the last minute, and batch calls now at work."""
        found = self._usage.get(tenant)
        if found is None:
            return 0, 0, 0
        now = self._monotonic()
        return found.requests.forget(now), found.tokens.forget(now), found.batch

    def enter(self, tenant: str, lane: Lane) -> None:
        """Let a call in. Raises Rejected 429 `tenant_limit`, with the time after which it has a chance."""
        usage = self._usage.get(tenant)
        if usage is None:
            usage = self._usage[tenant] = Usage()
        now = self._monotonic()
        known = self._directory.get(tenant)
        if known is not None:
            limits = known.limits
            _check(usage.requests, limits.requests_per_minute, "requests", tenant, now)
            _check(usage.tokens, limits.tokens_per_minute, "tokens", tenant, now)
            if lane is Lane.BATCH and known.batch_slots is not None and usage.batch >= known.batch_slots:
                raise _refusal(f"{known.batch_slots} batch requests at once", tenant, BATCH_RETRY_S)
        usage.requests.add(1, now)
        if lane is Lane.BATCH:
            usage.batch += 1

    def leave(self, tenant: str, lane: Lane, tokens: int) -> None:
        """Note that a call ended, having used `tokens`."""
        usage = self._usage[tenant]
        if tokens:
            usage.tokens.add(tokens, self._monotonic())
        if lane is Lane.BATCH:
            usage.batch -= 1


def _check(window: MinuteWindow, most: int | None, what: str, tenant: str, now: float) -> None:
    if most is not None and window.forget(now) >= most:
        raise _refusal(f"{most:,} {what} per minute", tenant, window.until_below(most, now))


def _refusal(limit: str, tenant: str, seconds: float) -> Rejected:
    wait = min(60, max(1, ceil(seconds)))
    message = f"Team {tenant} has reached its limit of {limit}. Try again in {wait} s."
    return Rejected(429, "tenant_limit", message, type="rate_limit_error", retry_after=wait)
