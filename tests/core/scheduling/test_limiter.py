import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core.lanes import Lane, Outcome
from core.ports import Lease
from core.quotas import PoolLimits, automatic_quota, batch_quota
from core.scheduling.limiter import Limiter


def limits(slots: int, reserve: int) -> PoolLimits:
    return PoolLimits(slots, reserve, 0, 0, slots - reserve, limit=float(slots))


@st.composite
def any_limits(draw: st.DrawFn) -> PoolLimits:
    slots = draw(st.integers(1, 64))
    reserve = draw(st.integers(0, slots - 1)) if slots > 1 else 0
    ceiling = draw(st.integers(0, slots - reserve))
    hold = draw(st.none() | st.integers(-5, 100))
    return PoolLimits(
        slots,
        reserve,
        draw(st.integers(0, 8)),
        draw(st.integers(0, ceiling)),
        ceiling,
        limit=draw(st.floats(0, slots)),
        hold=hold,
    )


class LimiterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limits = limits(8, 1)
        self.limiter = Limiter(limits=self.limits)
        self.leases: list[Lease] = []

    @rule(lane=st.sampled_from(list(Lane)))
    def acquire(self, lane: Lane) -> None:
        before = dict(self.limiter.in_flight)
        lease = self.limiter.acquire(lane, 0.0)
        if lease is None:
            full = sum(before.values()) >= self.limits.slots
            assert full or (lane is Lane.BATCH and before[lane] >= self.limits.batch_max)
            return
        assert sum(before.values()) < self.limits.slots
        assert lane is Lane.INTERACTIVE or before[lane] < self.limits.batch_max
        self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.limiter.release(lease, Outcome.SUCCESS)
        with pytest.raises(ValueError, match="released before"):
            self.limiter.release(lease, Outcome.SUCCESS)

    @rule(new=any_limits())
    def change(self, new: PoolLimits) -> None:
        self.limits = new
        self.limiter.apply(new)

    @invariant()
    def counts_are_the_leases_out(self) -> None:
        for lane in Lane:
            assert self.limiter.in_flight[lane] == sum(lease.lane is lane for lease in self.leases) >= 0


TestLimiterMachine = LimiterMachine.TestCase


@given(any_limits(), st.integers(0, 200))
def test_the_quota_keeps_the_reserve_whatever_holds(given_limits: PoolLimits, demand: int) -> None:
    assert 0 <= batch_quota(given_limits, demand) <= given_limits.slots - given_limits.reserve
    shadow = automatic_quota(given_limits, demand)
    assert given_limits.floor <= shadow <= given_limits.ceiling


def test_the_limit_leaves_room_for_interactive_and_headroom() -> None:
    given_limits = PoolLimits(16, 1, 2, 1, 15, limit=12.9)
    assert batch_quota(given_limits, 4) == 12 - 4 - 2
    assert batch_quota(given_limits, 40) == 1


def test_lowering_the_slots_admits_nobody_until_enough_have_left_and_raising_admits_again() -> None:
    """R27 resilience4j/resilience4j#2489."""
    limiter = Limiter(limits=limits(8, 0))
    leases = [limiter.acquire(Lane.INTERACTIVE, 0.0) for _ in range(8)]
    limiter.apply(limits(2, 0))
    for lease in leases[:6]:
        assert limiter.acquire(Lane.INTERACTIVE, 0.0) is None
        assert lease is not None
        limiter.release(lease, Outcome.SUCCESS)
    assert limiter.acquire(Lane.INTERACTIVE, 0.0) is None
    limiter.apply(limits(8, 0))
    assert limiter.acquire(Lane.INTERACTIVE, 0.0) is not None
