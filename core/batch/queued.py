"""Whether a tenant may create one more durable batch beside what it has queued."""

from collections.abc import Awaitable, Callable, Sequence

from core.batch.values import Batch
from core.errors import Rejected
from core.people.tenants import TenantDirectory

RETRY_S = 60


class QueuedLimits:
    """Refuses a batch of a tenant whose batches have as many items or prompt tokens left as its limits allow.

    What a batch holds is known once it has been validated, so one that is let in may go beyond.
    """

    def __init__(self, *, directory: TenantDirectory, active: Callable[[], Awaitable[Sequence[Batch]]]) -> None:
        self._directory = directory
        self._active = active

    async def check(self, tenant: str) -> None:
        """Raise Rejected 429 `tenant_limit` where the tenant is at a limit."""
        limits = self._directory.limits(tenant)
        if limits.queued_items is None and limits.queued_tokens is None:
            return
        own = [batch for batch in await self._active() if batch.tenant == tenant]
        _check(sum(batch.left for batch in own), limits.queued_items, "items", tenant)
        _check(sum(map(_tokens_left, own)), limits.queued_tokens, "prompt tokens", tenant)


def _tokens_left(batch: Batch) -> int:
    return batch.prompt_tokens_total * batch.left // batch.total if batch.total else 0


def _check(queued: int, most: int | None, what: str, tenant: str) -> None:
    if most is not None and queued >= most:
        message = f"Team {tenant} has {queued:,} {what} queued; its limit is {most:,}. Wait until batches have ended."
        raise Rejected(429, "tenant_limit", message, type="rate_limit_error", retry_after=RETRY_S)
