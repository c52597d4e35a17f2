"""The bench's arithmetic: what counts, and when a target is met."""

import pytest

from core.lanes import Lane
from core.simulation.arms import Arm, Server, Span, Times, arm, best_fixed, targets
from core.simulation.load import Shot

SPAN = Span(10.0, 20.0)


def chat(due: float, first: float | None, ended: float | None, error: str | None = None) -> Shot:
    return Shot(Lane.INTERACTIVE, due, first, ended, error)


def run(p95: float | None, tokens: float, *, quota: int | None = None, server: Server | None = None) -> Arm:
    return Arm("run", quota, 10, Times(p95, p95, p95), Times(p95, p95, p95), {}, 1.0, tokens, 0, server)


def test_what_arrives_in_the_warm_up_does_not_count() -> None:
    told = arm("x", chat=[chat(9.9, 15, 16), chat(10, 10.5, 12), chat(20, 21, 22)], batch=[], span=SPAN, ended=30.0)
    assert told.calls == 1
    assert told.first_token.p95 == pytest.approx(0.5)
    assert told.total.p95 == pytest.approx(2.0)


def test_a_call_without_an_answer_counts_with_the_time_it_waited() -> None:
    told = arm("x", chat=[chat(12, None, None), chat(13, 13.5, None)], batch=[], span=SPAN, ended=32.0)
    assert told.first_token.p99 == pytest.approx(20.0, rel=0.02)
    assert told.total.p50 == pytest.approx(19.5)
    assert told.errors == {"unanswered": 2}


def test_a_call_that_failed_is_an_error_and_no_time() -> None:
    told = arm("x", chat=[chat(12, None, 12.1, "http_429")], batch=[], span=SPAN, ended=30.0)
    assert told.first_token == Times(None, None, None)
    assert told.errors == {"http_429": 1}


def test_batch_counts_by_when_it_ended() -> None:
    items = [Shot(Lane.BATCH, 0.0, None, at, error, 30) for at, error in [(9, None), (12, None), (19, None), (15, "x")]]
    told = arm("x", chat=[], batch=items, span=SPAN, ended=30.0)
    assert told.batch_items_per_s == pytest.approx(0.2)
    assert told.batch_tokens_per_s == pytest.approx(6.0)
    assert told.batch_errors == 1


def test_the_best_fixed_quota_is_the_one_with_most_batch_that_keeps_the_p95() -> None:
    scan = [run(0.4, 50, quota=1), run(0.6, 90, quota=2), run(0.9, 200, quota=3), run(None, 300, quota=4)]
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
def test_targets_are_judged_or_said_not_to_be(through: Arm, met: list[bool | None]) -> None:
    judged = targets(alone=run(0.4, 0), through=through, scan=[run(0.5, 100, quota=3)], slots=8)
    assert [target.met for target in judged] == met


def test_concurrency_counts_in_every_run_through_the_gateway() -> None:
    scan = [run(0.4, 100, quota=1, server=Server(9, 2))]
    judged = targets(alone=run(0.4, 0), through=run(0.4, 100, server=Server(8, 0)), scan=scan, slots=8)
    assert [(target.name, target.measured) for target in judged[2:]] == [("slots", 9), ("over_slots", 2)]
