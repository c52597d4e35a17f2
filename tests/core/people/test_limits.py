import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Rejected
from core.lanes import Lane
from core.people.limits import MinuteWindow, TenantLimits
from core.people.tenants import Limits, Tenant, TenantDirectory


class Seconds:
    def __init__(self) -> None:
        self.now = 500.25

    def __call__(self) -> float:
        return self.now


def limits(*tenants: Tenant) -> tuple[TenantLimits, Seconds]:
    directory, clock = TenantDirectory(), Seconds()
    directory.put({tenant.name: tenant for tenant in tenants})
    return TenantLimits(directory=directory, monotonic=clock), clock


def test_no_more_requests_in_any_minute_than_the_limit_and_then_as_many_again() -> None:
    found, clock = limits(Tenant("a", limits=Limits(requests_per_minute=3)))
    for _ in range(3):
        found.enter("a", Lane.INTERACTIVE)
        clock.now += 10
    with pytest.raises(Rejected) as caught:
        found.enter("a", Lane.INTERACTIVE)
    assert (caught.value.status, caught.value.code) == (429, "tenant_limit")
    assert "3 requests per minute" in caught.value.message
    wait = caught.value.retry_after or 0
    assert 29 <= wait <= 31
    clock.now += wait
    found.enter("a", Lane.INTERACTIVE)
    with pytest.raises(Rejected):
        found.enter("a", Lane.INTERACTIVE)


def test_tokens_of_ended_answers_hold_back_until_they_are_a_minute_old() -> None:
    found, clock = limits(Tenant("a", limits=Limits(tokens_per_minute=1000)))
    found.enter("a", Lane.INTERACTIVE)
    found.leave("a", Lane.INTERACTIVE, 1500)
    with pytest.raises(Rejected, match="1,000 tokens per minute") as caught:
        found.enter("a", Lane.INTERACTIVE)
    clock.now += caught.value.retry_after or 0
    found.enter("a", Lane.INTERACTIVE)


def test_a_ceiling_of_batch_slots_bounds_direct_batch_calls_alone() -> None:
    found, _ = limits(Tenant("a", batch_slots=1), Tenant("b"))
    found.enter("a", Lane.BATCH)
    found.enter("a", Lane.INTERACTIVE)
    found.enter("b", Lane.BATCH)
    with pytest.raises(Rejected, match="1 batch requests at once"):
        found.enter("a", Lane.BATCH)
    assert found.usage("a") == (2, 0, 1)
    found.leave("a", Lane.BATCH, 10)
    found.enter("a", Lane.BATCH)
    assert found.usage("nobody") == (0, 0, 0)


def test_a_refused_call_counts_for_nothing_and_hinders_no_other_tenant() -> None:
    found, _ = limits(Tenant("a", limits=Limits(requests_per_minute=1)))
    found.enter("a", Lane.INTERACTIVE)
    for _ in range(5):
        with pytest.raises(Rejected):
            found.enter("a", Lane.INTERACTIVE)
    assert found.usage("a")[0] == 1
    found.enter("not stored", Lane.INTERACTIVE)


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 50)), max_size=60))
def test_the_window_never_forgets_what_is_less_than_a_minute_old(steps: list[tuple[float, int]]) -> None:
    window, now, told = MinuteWindow(), 1000.0, []
    for passed, amount in steps:
        now += passed
        window.add(amount, now)
        told.append((now, amount))
        assert window.total >= sum(each for at, each in told if now - at < 59)
        assert window.total <= sum(each for at, each in told if now - at < 61)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 9)), min_size=1, max_size=40), st.integers(1, 30))
def test_the_wait_told_is_enough_and_no_second_too_much(steps: list[tuple[float, int]], most: int) -> None:
    window, now = MinuteWindow(), 1000.0
    for passed, amount in steps:
        now += passed
        window.add(amount, now)
    wait = window.until_below(most, now)
    if wait > 1:
        assert copy.deepcopy(window).forget(now + wait - 1.01) >= most
    assert window.forget(now + wait + 0.001) < most
