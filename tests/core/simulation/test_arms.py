"""The bench's arithmetic: what counts, and when a target is met."""

import pytest

from core.lanes import Lane
from core.simulation.arms import Arm, Run, Server, Span, Times, best_fixed, targets
from core.simulation.load import Shot

SPAN = Span(10.0, 20.0)


def chat(due: float, first: float | None, ended: float | None, error: str | None = None) -> Shot:
    return Shot(Lane.INTERACTIVE, due, first, ended, error)


def at(p95: float | None, tokens: float, *, quota: int | None = None) -> Arm:
    return Arm("run", quota, 10, Times(p95, p95, p95), Times(p95, p95, p95), {}, 1.0, tokens, 0, None)


def run(p95: float | None, tokens: int, *, quota: int | None = None, server: Server | None = None) -> Run:
    """A run of 10 s with one call and one item of so many tokens."""
    calls = [] if p95 is None else [chat(12, 12 + p95, 15)]
    return Run("run", calls, [Shot(Lane.BATCH, 0, None, 13, None, tokens)], SPAN, 30.0, quota, server)


def whole(chat: list[Shot], batch: list[Shot], ended: float = 30.0) -> Arm:
    return Run("x", chat, batch, SPAN, ended).arm()


def test_what_arrives_in_the_warm_up_does_not_count() -> None:
    told = whole([chat(9.9, 15, 16), chat(10, 10.5, 12), chat(20, 21, 22)], [])
    assert told.calls == 1
    assert told.first_token.p95 == pytest.approx(0.5)
    assert told.total.p95 == pytest.approx(2.0)


def test_a_call_without_an_answer_counts_with_the_time_it_waited() -> None:
    told = whole([chat(12, None, None), chat(13, 13.5, None)], [], ended=32.0)
    assert told.first_token.p99 == pytest.approx(20.0, rel=0.02)
    assert told.total.p50 == pytest.approx(19.5)
    assert told.errors == {"unanswered": 2}


def test_a_call_that_failed_is_an_error_and_no_time() -> None:
    told = whole([chat(12, None, 12.1, "http_429")], [])
    assert told.first_token == Times(None, None, None)
    assert told.errors == {"http_429": 1}


def test_batch_counts_by_when_it_ended() -> None:
    items = [Shot(Lane.BATCH, 0.0, None, at, error, 30) for at, error in [(9, None), (12, None), (19, None), (15, "x")]]
    told = whole([], items)
    assert told.batch_items_per_s == pytest.approx(0.2)
    assert told.batch_tokens_per_s == pytest.approx(6.0)
    assert told.batch_errors == 1


def test_the_best_fixed_quota_is_the_one_with_most_batch_that_keeps_the_p95() -> None:
    scan = [at(0.4, 50, quota=1), at(0.6, 90, quota=2), at(0.9, 200, quota=3), at(None, 300, quota=4)]
    best = best_fixed(scan, p95_at_most=0.6)
    assert best is not None
    assert best.quota == 2
    assert best_fixed(scan, p95_at_most=0.1) is None
    assert best_fixed(scan, p95_at_most=None) is None


@pytest.mark.parametrize(
    ("through", "met"),
    [
        (run(0.6, 80, server=Server(8, 0)), [True, True, True, True]),
        (run(0.61, 79, server=Server(9, 1)), [False, False, False, False]),
        (run(None, 80), [None, True, None, None]),
    ],
)
def test_targets_are_judged_or_said_not_to_be(through: Run, met: list[bool | None]) -> None:
    judged = targets(alone=run(0.4, 0), through=through, scan=[run(0.5, 100, quota=3)], slots=8)
    assert [target.met for target in judged] == met


def test_a_fixed_quota_is_compared_over_the_part_of_the_trace_that_it_ran_on() -> None:
    half = Span(10.0, 15.0)
    item = Shot(Lane.BATCH, 0, None, 13, None, 50)
    late = Shot(Lane.BATCH, 0, None, 18, None, 5000)
    scan = [Run("held", [chat(12, 12.5, 13)], [item, item], half, 30.0, quota=2)]
    through = Run("through", [chat(12, 12.5, 13)], [item, late], SPAN, 30.0)
    judged = targets(alone=run(0.4, 0), through=through, scan=scan, slots=8)
    assert judged[1].measured == pytest.approx(0.5)
    assert "(2)" in judged[1].text


def test_concurrency_counts_in_every_run_through_the_gateway() -> None:
    scan = [run(0.4, 100, quota=1, server=Server(9, 2))]
    judged = targets(alone=run(0.4, 0), through=run(0.4, 100, server=Server(8, 0)), scan=scan, slots=8)
    assert [(target.name, target.measured) for target in judged[2:]] == [("slots", 9), ("over_slots", 2)]
