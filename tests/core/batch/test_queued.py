from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from core.batch.queued import QueuedLimits
from core.batch.values import Batch
from core.errors import Rejected
from core.people.tenants import Limits, Tenant, TenantDirectory

pytestmark = pytest.mark.anyio

START = datetime(2026, 11, 29, tzinfo=UTC)


def batch(tenant: str = "a", *, total: int = 100, done: int = 0, tokens: int = 0) -> Batch:
    made = Batch(
        id=f"batch_{tenant}{total}",
        tenant=tenant,
        key=None,
        pool="p",
        model="m",
        endpoint="/v1/chat/completions",
        input_file_id="f",
        window=timedelta(hours=24),
        created_at=START,
    )
    return replace(made, total=total, completed=done, prompt_tokens_total=tokens)


def limits(*batches: Batch, **given: int) -> QueuedLimits:
    directory = TenantDirectory()
    directory.put({"a": Tenant("a", limits=Limits(**given))})

    async def active() -> Sequence[Batch]:
        return batches

    return QueuedLimits(directory=directory, active=active)


async def test_items_that_are_left_count_over_all_batches_of_the_tenant_and_of_no_other() -> None:
    """R71 openai/openai-python#1643: limit faults seen only on retrieve, with no detail."""
    own = batch(total=100, done=90), batch(total=50, done=10)
    await limits(*own, batch("b", total=10**6), queued_items=51).check("a")
    with pytest.raises(Rejected) as caught:
        await limits(*own, queued_items=50).check("a")
    assert (caught.value.status, caught.value.code) == (429, "tenant_limit")
    assert "50 items queued; its limit is 50" in caught.value.message
    assert caught.value.retry_after == 60


async def test_prompt_tokens_count_by_the_share_of_items_that_is_left() -> None:
    half = batch(total=10, done=5, tokens=1000)
    await limits(half, batch(total=0), queued_tokens=501).check("a")
    with pytest.raises(Rejected, match="500 prompt tokens queued"):
        await limits(half, queued_tokens=500).check("a")


async def test_without_limits_nothing_is_counted_and_nobody_refused() -> None:
    await limits(batch(total=10**9)).check("a")
    await limits(batch("unknown", total=10**9), queued_items=1).check("unknown")
