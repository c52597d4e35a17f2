"""What becomes of an item after an attempt: final, or once more and when; and when a batch must back off. Pure.

Retries go through the queue: an item that is tried again gives its slot up and waits there.
"""

from dataclasses import dataclass
from enum import StrEnum

from core.lanes import Outcome

RETRIED_STATUSES = frozenset((408, 409, 429))
"""4xx that may pass; every other 4xx is the line's own fault."""

_FAULTS = frozenset((Outcome.TIMEOUT, Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_TRUNCATED))
_NOT_SENT = frozenset(("upstream_unreachable", "queue_timeout", "batch_queue_full", "batch_paused"))


class Fate(StrEnum):
    """What becomes of an item: it has its result, it failed for good, or it goes back to the queue."""

    DONE = "done"
    FAILED = "failed"
    AGAIN = "again"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `attempts` sends; the pause after the n-th is base_s x 2^(n-1), give or take `jitter` of it."""

    attempts: int = 4
    base_s: float = 2.0
    most_s: float = 60.0
    jitter: float = 0.25

    def pause(self, sends: int, chance: float) -> float:
        """Return the seconds to wait after the `sends`-th send; `chance` is a random number from 0 to 1."""
        plain = min(self.most_s, self.base_s * 2.0 ** max(0, sends - 1))
        return plain * (1 - self.jitter + 2 * self.jitter * chance)


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt ended: with an answer of `status`, or without one and the gateway's error `code`.

    `retry_after` is what the server asked for, in seconds.
    """

    outcome: Outcome
    status: int | None = None
    code: str | None = None
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """An item's fate. `counted` tells whether the attempt counts, `delay_s` when it may be sent again."""

    fate: Fate
    counted: bool = True
    delay_s: float = 0.0


def judge(attempt: Attempt, *, sends: int, policy: RetryPolicy, chance: float) -> Verdict:
    """Return what becomes of an item that had been sent `sends` times before this attempt.

    An attempt counts only if the server may have begun to work on it and was not broken off by us.
    """
    if attempt.outcome is Outcome.SUCCESS:
        return Verdict(Fate.DONE)
    if attempt.status is None and (attempt.code in _NOT_SENT or not is_fault(attempt)):
        return Verdict(Fate.AGAIN, counted=False, delay_s=policy.pause(1, chance))
    if not _may_pass(attempt) or sends + 1 >= policy.attempts:
        return Verdict(Fate.FAILED)
    return Verdict(Fate.AGAIN, delay_s=max(policy.pause(sends + 1, chance), attempt.retry_after or 0.0))


def is_fault(attempt: Attempt) -> bool:
    """Tell whether the server failed on this item: it says something about the server or about the batch's lines."""
    return attempt.outcome in _FAULTS


def _may_pass(attempt: Attempt) -> bool:
    status = attempt.status
    return status is None or status in RETRIED_STATUSES or status >= 500


class Breaker:
    """Lets a batch whose requests fail one after the other back off, alone, for longer each time.

    After `threshold` failures in a row it opens for `base_s` seconds; then one request at a time may try, and each
    failure opens it for twice as long, up to `most_s`. The first success closes it.
    """

    def __init__(self, *, threshold: int = 5, base_s: float = 5.0, most_s: float = 60.0) -> None:
        self.failures = 0
        self.since = 0.0
        self._threshold = threshold
        self._base_s = base_s
        self._most_s = most_s
        self._times = 0
        self._until = 0.0

    @property
    def probing(self) -> bool:
        """Tell whether the batch may have only one request in flight."""
        return self._times > 0

    def closed_for(self, now: float) -> float:
        """Return the seconds for which the batch must not start anything."""
        return max(0.0, self._until - now)

    def succeeded(self) -> None:
        """Note that a request of the batch was answered."""
        self.failures = self._times = 0
        self._until = 0.0

    def failed(self, now: float) -> float | None:
        """Note a failure; return for how long the batch backs off from now on, `None` where nothing changes.

        What was in flight when the breaker opened may still fail without a longer pause.
        """
        if not self.failures:
            self.since = now
        self.failures += 1
        if self.failures < self._threshold or now < self._until:
            return None
        pause = min(self._most_s, self._base_s * 2.0**self._times)
        self._times += 1
        self._until = now + pause
        return pause
