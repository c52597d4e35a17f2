import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.batch.retry import Attempt, Breaker, Fate, RetryPolicy, is_fault, judge
from core.lanes import Outcome

POLICY = RetryPolicy()
REFUSED = Attempt(Outcome.RATE_LIMITED, 429)
BROKEN = Attempt(Outcome.UPSTREAM_ERROR, 500)


def test_the_pauses_are_2_4_and_8_seconds_and_then_it_is_over() -> None:
    """R43 HKUDS/nanobot#2760: exactly the configured attempts."""
    verdicts = [judge(REFUSED, sends=sends, policy=POLICY, chance=0.5) for sends in range(4)]
    assert [v.fate for v in verdicts] == [Fate.AGAIN, Fate.AGAIN, Fate.AGAIN, Fate.FAILED]
    assert [v.delay_s for v in verdicts[:3]] == [2.0, 4.0, 8.0]
    assert all(v.counted for v in verdicts)


@given(st.floats(0, 1), st.integers(1, 12))
def test_jitter_stays_within_a_quarter_and_no_pause_is_longer_than_a_minute(chance: float, sends: int) -> None:
    plain = min(60.0, 2.0**sends)
    assert 0.75 * plain <= POLICY.pause(sends, chance) <= 1.25 * plain


def test_attempts_are_a_setting() -> None:
    assert judge(BROKEN, sends=0, policy=RetryPolicy(attempts=1), chance=0.5).fate is Fate.FAILED
    assert judge(BROKEN, sends=8, policy=RetryPolicy(attempts=10), chance=0.5).fate is Fate.AGAIN


def test_retry_after_is_obeyed_where_it_is_longer() -> None:
    """R46 HKUDS/nanobot#2763."""
    asked = Attempt(Outcome.RATE_LIMITED, 429, retry_after=300.0)
    assert judge(asked, sends=0, policy=POLICY, chance=0.5).delay_s == 300.0
    little = Attempt(Outcome.RATE_LIMITED, 429, retry_after=0.5)
    assert judge(little, sends=0, policy=POLICY, chance=0.5).delay_s == 2.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_a_fault_of_the_line_itself_is_final_at_once(status: int) -> None:
    """R45 awsl-project/maxx PR#833."""
    assert judge(Attempt(Outcome.CLIENT_ERROR, status), sends=0, policy=POLICY, chance=0.5).fate is Fate.FAILED


@pytest.mark.parametrize(
    "attempt",
    [
        Attempt(Outcome.TIMEOUT, 408),
        Attempt(Outcome.CLIENT_ERROR, 409),
        REFUSED,
        BROKEN,
        Attempt(Outcome.UPSTREAM_ERROR, 503),
        Attempt(Outcome.TIMEOUT, code="upstream_timeout"),
        Attempt(Outcome.UPSTREAM_TRUNCATED, code="upstream_truncated"),
    ],
)
def test_what_may_pass_is_tried_again_and_counts(attempt: Attempt) -> None:
    verdict = judge(attempt, sends=0, policy=POLICY, chance=0.5)
    assert (verdict.fate, verdict.counted) == (Fate.AGAIN, True)


@pytest.mark.parametrize(
    "attempt",
    [
        Attempt(Outcome.PREEMPTED),
        Attempt(Outcome.CANCELLED),
        Attempt(Outcome.TIMEOUT, code="queue_timeout"),
        Attempt(Outcome.CANCELLED, code="batch_queue_full"),
        Attempt(Outcome.UPSTREAM_ERROR, code="upstream_unreachable"),
    ],
)
def test_what_the_server_never_began_or_we_broke_off_does_not_count(attempt: Attempt) -> None:
    verdict = judge(attempt, sends=99, policy=POLICY, chance=0.5)
    assert (verdict.fate, verdict.counted) == (Fate.AGAIN, False)


def test_a_success_is_done_however_late_it_comes() -> None:
    assert judge(Attempt(Outcome.SUCCESS, 200), sends=99, policy=POLICY, chance=0.5).fate is Fate.DONE


def test_the_batch_backs_off_after_five_failures_in_a_row_and_for_longer_each_time() -> None:
    breaker = Breaker()
    assert [breaker.failed(float(n)) for n in range(5)] == [None] * 4 + [5.0]
    assert breaker.closed_for(5.0) == 4.0
    assert breaker.failed(6.0) is None, "what was in flight already may fail without a longer pause"
    assert breaker.probing
    pauses, now = [], 9.0
    for _ in range(5):
        pause = breaker.failed(now)
        assert pause is not None
        pauses.append(pause)
        now += pause
    assert pauses == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_one_success_closes_the_breaker() -> None:
    breaker = Breaker()
    for n in range(5):
        breaker.failed(float(n))
    breaker.succeeded()
    assert (breaker.closed_for(4.0), breaker.probing, breaker.failures) == (0.0, False, 0)
    assert breaker.failed(10.0) is None
    assert breaker.since == 10.0


def test_a_refusal_or_a_bad_line_is_no_fault_of_the_server() -> None:
    assert not is_fault(REFUSED)
    assert not is_fault(Attempt(Outcome.CLIENT_ERROR, 400))
    assert is_fault(BROKEN)
