"""What the board makes of observed requests: the inputs of the law, and the figures for people."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.gauges import percentile
from core.lanes import Lane, Outcome
from core.quotas import Budgets
from core.samples import Observation, SampleBoard, Signals

BUDGETS = Budgets(first_token_s=1.0, per_token_ms=100.0, error_rate=0.02)


class Server:
    """Drives a board as the gateway does."""

    def __init__(self) -> None:
        self.board = SampleBoard()

    def arrive(self, now: float, lane: Lane = Lane.INTERACTIVE, **more: Any) -> Observation:
        obs = Observation(**({"lane": lane, "model": "m", "arrived": now, "streamed": True} | more))
        self.board.open(obs, now)
        return obs

    def emit(self, obs: Observation, now: float, pieces: int = 1) -> None:
        if obs.first is None:
            obs.first = now
        obs.last = now
        obs.tokens += pieces

    def stream(self, start: float, first: float, gap: float, out: int, lane: Lane = Lane.INTERACTIVE) -> None:
        """One streamed answer: first token after `first` seconds, then `out` - 1 tokens `gap` seconds apart."""
        obs = self.arrive(start, lane)
        self.emit(obs, start + first)
        end = start + first + gap * (out - 1)
        self.emit(obs, end, out - 1)
        self.board.close(obs, Outcome.SUCCESS, end, output_tokens=out)

    def signals(self, now: float, **more: Any) -> Signals:
        given: dict[str, Any] = {
            "epoch": -math.inf,
            "budgets": BUDGETS,
            "model_budgets": {},
            "interactive": 0,
            "interactive_waiting": 0,
            "batch": 0,
            "backlog": 0,
            "bound": False,
            "queued": 0,
        }
        return self.board.signals(now, **(given | more))


@pytest.fixture
def server() -> Server:
    return Server()


# Ratios


def test_a_streamed_answer_gives_a_first_token_and_a_per_token_ratio(server: Server) -> None:
    server.stream(0.0, first=0.5, gap=0.05, out=20)
    signals = server.signals(5.0)
    assert (signals.first, signals.first_n) == (pytest.approx(0.5), 1)
    assert (signals.token, signals.token_n) == (pytest.approx(0.5), 1)


def test_the_first_token_counts_while_the_answer_still_streams(server: Server) -> None:
    server.emit(server.arrive(0.0), 0.4)
    assert server.signals(5.0).first == pytest.approx(0.4)
    assert server.signals(10.0).first_n == 1


def test_the_wait_for_a_slot_counts_as_part_of_the_first_token(server: Server) -> None:
    obs = server.arrive(0.0)
    obs.started = 1.5
    server.emit(obs, 2.0)
    assert server.signals(5.0).first == pytest.approx(2.0)


@pytest.mark.parametrize(("out", "n"), [(8, 0), (9, 1)])
def test_answers_of_eight_tokens_or_fewer_tell_no_time_per_token(server: Server, out: int, n: int) -> None:
    server.stream(0.0, first=0.1, gap=0.05, out=out)
    assert server.signals(5.0).token_n == n


def test_an_answer_that_is_not_streamed_is_held_against_the_budget_of_its_length(server: Server) -> None:
    obs = server.arrive(0.0, streamed=False)
    server.board.close(obs, Outcome.SUCCESS, 3.0, output_tokens=50)
    signals = server.signals(5.0)
    assert signals.token == pytest.approx(3.0 / (1.0 + 50 * 0.1))
    assert (signals.first, signals.first_n) == (None, 0)


def test_an_answer_of_unknown_length_that_is_not_streamed_tells_nothing(server: Server) -> None:
    server.board.close(server.arrive(0.0, streamed=False), Outcome.SUCCESS, 3.0, output_tokens=None)
    signals = server.signals(5.0)
    assert (signals.token_n, signals.first_n, signals.samples) == (0, 0, 1)


def test_an_endpoint_without_tokens_has_one_phase(server: Server) -> None:
    obs = server.arrive(0.0, streamed=False, has_tokens=False)
    server.board.close(obs, Outcome.SUCCESS, 0.7, output_tokens=None)
    assert server.signals(5.0).token == pytest.approx(0.7)


def test_ratios_are_taken_with_the_budgets_of_the_call_and_of_the_model(server: Server) -> None:
    server.stream(0.0, first=0.5, gap=0.05, out=20)
    strict = Budgets(first_token_s=0.25, per_token_ms=25.0)
    assert server.signals(5.0, budgets=strict).first == pytest.approx(2.0)
    signals = server.signals(5.0, model_budgets={"m": strict})
    assert (signals.first, signals.token) == (pytest.approx(2.0), pytest.approx(2.0))
    assert server.signals(5.0, model_budgets={"other": strict}).first == pytest.approx(0.5)


def test_samples_above_the_target_are_counted_and_the_median_is_told(server: Server) -> None:
    for start, first in enumerate((0.2, 0.96, 2.0)):
        server.stream(float(start), first=first, gap=0.01, out=2)
    signals = server.signals(10.0)
    assert (signals.first, signals.first_mid) == (pytest.approx(2.0), pytest.approx(0.96))
    assert (signals.first_n, signals.first_over) == (3, 2)


def test_tokens_of_an_answer_without_usage_are_estimated_from_its_pieces(server: Server) -> None:
    for i in range(200):  # an engine that sends two tokens a piece
        obs = server.arrive(float(i))
        server.emit(obs, i + 0.1)
        server.emit(obs, i + 2.0, 19)
        server.board.close(obs, Outcome.SUCCESS, i + 2.0, output_tokens=40)
    obs = server.arrive(1000.0)
    server.emit(obs, 1000.1)
    server.emit(obs, 1002.05, 19)
    server.board.close(obs, Outcome.SUCCESS, 1002.1, output_tokens=None)
    assert server.signals(1003.0).token == pytest.approx(1.95 / 39 / 0.1, rel=0.01)


# Which samples


def test_the_last_minute_is_taken_where_it_holds_enough_samples(server: Server) -> None:
    for i in range(30):
        server.stream(float(i), first=5.0, gap=0.01, out=2)
    for i in range(20):
        server.stream(100.0 + i, first=0.1, gap=0.01, out=2)
    signals = server.signals(125.0)
    assert (signals.first, signals.first_n) == (pytest.approx(0.1), 20)


def test_else_the_last_twenty_of_five_minutes_are_taken(server: Server) -> None:
    for i in range(30):
        server.stream(i * 10.0, first=0.1 if i < 10 else 0.3, gap=0.01, out=2)
    signals = server.signals(299.0)
    assert (signals.first, signals.first_n) == (pytest.approx(0.3), 20)
    assert server.signals(900.0).first_n == 0


def test_requests_that_arrived_before_the_epoch_do_not_count(server: Server) -> None:
    server.stream(0.0, first=20.0, gap=0.01, out=20)
    failed = server.arrive(5.0)
    server.board.close(failed, Outcome.TIMEOUT, 25.0, output_tokens=None)
    server.arrive(8.0)
    signals = server.signals(30.0, epoch=10.0)
    assert (signals.first_n, signals.token_n, signals.samples, signals.errors) == (0, 0, 0, 0)
    assert server.signals(30.0, epoch=math.inf).first is None


def test_requests_still_without_a_first_token_past_their_budget_count_with_their_age(server: Server) -> None:
    server.arrive(0.0)
    assert server.signals(0.9).first_n == 0
    signals = server.signals(3.0)
    assert (signals.first, signals.first_n, signals.first_over) == (3.0, 1, 1)


def test_ages_of_requests_without_visible_first_token_do_not_count(server: Server) -> None:
    server.arrive(0.0, streamed=False)
    server.arrive(0.0, has_tokens=False)
    server.arrive(0.0, Lane.BATCH)
    assert server.signals(30.0).first_n == 0


# Ends


def test_a_client_that_left_is_neither_success_nor_failure(server: Server) -> None:
    obs = server.arrive(0.0)
    server.emit(obs, 0.2)
    server.board.close(obs, Outcome.CLIENT_DISCONNECT, 0.5, output_tokens=None)
    signals = server.signals(5.0)
    assert (signals.samples, signals.errors, signals.token_n) == (0, 0, 0)
    assert (signals.first, signals.first_n) == (pytest.approx(0.2), 1)


def test_a_client_that_left_late_without_a_first_token_is_a_violation(server: Server) -> None:
    server.board.close(server.arrive(0.0), Outcome.CLIENT_DISCONNECT, 0.9, output_tokens=None)
    server.board.close(server.arrive(0.0), Outcome.CLIENT_DISCONNECT, 4.0, output_tokens=None)
    signals = server.signals(5.0)
    assert (signals.first, signals.first_n, signals.samples) == (4.0, 1, 0)


def test_failures_are_errors_among_the_completions_of_the_last_minute(server: Server) -> None:
    server.stream(0.0, first=0.1, gap=0.01, out=20)
    for outcome in (Outcome.UPSTREAM_ERROR, Outcome.TIMEOUT, Outcome.UPSTREAM_TRUNCATED):
        server.board.close(server.arrive(1.0), outcome, 2.0, output_tokens=None)
    server.board.close(server.arrive(1.0), Outcome.RATE_LIMITED, 2.0, output_tokens=None)
    server.board.close(server.arrive(1.0), Outcome.SUCCESS, 1.1, output_tokens=None, counts=False)
    signals = server.signals(5.0)
    assert (signals.errors, signals.samples) == (3, 4)
    assert server.signals(63.0).samples == 0


def test_a_request_closed_twice_counts_once(server: Server) -> None:
    obs = server.arrive(0.0)
    for _ in range(2):
        server.board.close(obs, Outcome.TIMEOUT, 2.0, output_tokens=None)
    assert server.signals(5.0).errors == 1


def test_refusals_count_once_per_tick(server: Server) -> None:
    server.board.refused(1.0)
    server.board.refused(2.0)
    assert server.signals(5.0).refused == 2
    assert server.signals(10.0).refused == 0


def test_idle_is_the_time_since_the_last_interactive_arrival(server: Server) -> None:
    assert server.signals(0.0).idle_for == math.inf
    server.arrive(3.0)
    server.arrive(9.0, Lane.BATCH)
    assert server.signals(10.0).idle_for == 7.0


# Batch errors


def fail_batch(server: Server, source: str, times: int, *, connection: bool = False) -> None:
    for _ in range(times):
        obs = server.arrive(0.0, Lane.BATCH, source=source)
        server.board.close(obs, Outcome.UPSTREAM_ERROR, 1.0, output_tokens=None, connection_failed=connection)


def test_a_poisoned_batch_is_named_and_does_not_count(server: Server) -> None:
    fail_batch(server, "batch_1", 5)
    signals = server.signals(5.0)
    assert (signals.hard, signals.poisoned, signals.poisoned_n) == (0, "batch_1", 5)
    assert server.signals(10.0).poisoned is None


def test_batch_errors_count_from_two_sources_on(server: Server) -> None:
    fail_batch(server, "batch_1", 2)
    fail_batch(server, "batch_2", 1)
    signals = server.signals(5.0)
    assert (signals.hard, signals.poisoned) == (3, None)


def test_batch_errors_of_one_source_count_where_interactive_errs_too(server: Server) -> None:
    fail_batch(server, "batch_1", 3)
    server.board.close(server.arrive(0.0), Outcome.UPSTREAM_ERROR, 1.0, output_tokens=None)
    assert server.signals(5.0).hard == 3


def test_failed_connections_of_batch_always_count(server: Server) -> None:
    fail_batch(server, "batch_1", 3, connection=True)
    fail_batch(server, "batch_1", 1)
    signals = server.signals(5.0)
    assert (signals.hard, signals.poisoned, signals.poisoned_n) == (3, "batch_1", 1)


def test_a_pulled_back_batch_request_is_no_error(server: Server) -> None:
    server.board.close(server.arrive(0.0, Lane.BATCH), Outcome.PREEMPTED, 1.0, output_tokens=None)
    signals = server.signals(5.0)
    assert (signals.hard, signals.poisoned) == (0, None)


# The live gap


def test_the_live_gap_is_the_mean_over_all_streams_of_both_lanes(server: Server) -> None:
    one, other = server.arrive(0.0), server.arrive(0.0, Lane.BATCH)
    for obs, pieces in ((one, 20), (other, 60)):
        server.emit(obs, 1.0)
        server.emit(obs, 5.0, pieces)
    assert server.signals(5.0).live == pytest.approx((0.5 + 8.0 / 80 / 0.1) / 2)


def test_the_live_gap_is_smoothed_by_half_per_tick_from_half_on(server: Server) -> None:
    obs = server.arrive(0.0)
    server.emit(obs, 1.0)
    server.emit(obs, 5.0, 40)
    assert server.signals(5.0).live == pytest.approx((0.5 + 1.0) / 2)
    server.emit(obs, 10.0, 25)
    assert server.signals(10.0).live == pytest.approx((0.75 + 2.0) / 2)


def test_the_live_gap_counts_streams_that_ended_since_the_last_tick(server: Server) -> None:
    server.stream(0.0, first=0.5, gap=0.2, out=10, lane=Lane.BATCH)
    assert server.signals(5.0).live == pytest.approx((0.5 + 2.0) / 2)
    assert server.signals(10.0).live is None


def test_without_streams_there_is_no_live_gap(server: Server) -> None:
    obs = server.arrive(0.0, streamed=False)
    server.board.close(obs, Outcome.SUCCESS, 3.0, output_tokens=50)
    server.emit(server.arrive(4.0), 4.5)
    assert server.signals(5.0).live is None


def test_streams_that_all_stand_still_for_a_tick_give_the_silence_as_lower_bound(server: Server) -> None:
    for lane in Lane:
        obs = server.arrive(0.0, lane)
        server.emit(obs, 1.0)
        server.emit(obs, 4.0, 60)
    assert server.signals(5.0).live == pytest.approx(0.5)
    assert server.signals(10.0).live == pytest.approx((0.5 + 6.0 / 0.1) / 2)


def test_one_silent_stream_alone_may_be_a_slow_reader(server: Server) -> None:
    obs = server.arrive(0.0)
    server.emit(obs, 1.0)
    server.emit(obs, 4.0, 60)
    server.signals(5.0)
    assert server.signals(10.0).live is None


def test_the_live_gap_knows_of_engines_that_send_several_tokens_a_piece(server: Server) -> None:
    for i in range(200):
        obs = server.arrive(float(i), Lane.BATCH)
        server.emit(obs, i + 0.1)
        server.emit(obs, i + 2.0, 19)
        server.board.close(obs, Outcome.SUCCESS, i + 2.0, output_tokens=80)
    server.signals(300.0)
    obs = server.arrive(300.0)
    server.emit(obs, 301.0)
    server.emit(obs, 305.0, 10)
    assert server.signals(305.0).live == pytest.approx((0.375 + 1.0) / 2, rel=0.01)


def test_a_request_that_was_pulled_back_and_began_anew_is_read_from_its_beginning(server: Server) -> None:
    obs = server.arrive(0.0, Lane.BATCH)
    server.emit(obs, 1.0)
    server.emit(obs, 4.0, 60)
    server.signals(5.0)
    obs.first = obs.last = None
    obs.tokens = 0
    server.signals(10.0)
    server.emit(obs, 11.0)
    server.emit(obs, 13.0, 20)
    assert server.signals(15.0).live == pytest.approx((0.5 + 1.0) / 2)


# For people


def test_people_see_the_last_minute_of_interactive_in_plain_units(server: Server) -> None:
    server.stream(0.0, first=9.0, gap=0.9, out=20)
    for i in range(3):
        server.stream(100.0 + i, first=0.5, gap=0.05, out=21)
    server.stream(100.0, first=0.5, gap=2.0, out=21, lane=Lane.BATCH)
    server.board.close(server.arrive(100.0), Outcome.TIMEOUT, 110.0, output_tokens=None)
    seen = server.board.seen(120.0, BUDGETS, {})
    assert seen.first_token_p95_s == pytest.approx(10.0)
    assert seen.per_token_p95_ms == pytest.approx(50.0)
    assert seen.total_p95_s == pytest.approx(1.5)
    assert (seen.error_rate, seen.samples) == (0.25, 4)


def test_people_see_no_data_as_nothing(server: Server) -> None:
    seen = server.board.seen(0.0, BUDGETS, {})
    assert seen.first_token_p95_s is seen.per_token_p95_ms is seen.total_p95_s is seen.error_rate is None
    assert seen.samples == 0


def test_people_see_requests_that_wait_past_their_budget(server: Server) -> None:
    server.arrive(0.0)
    assert server.board.seen(7.0, BUDGETS, {}).first_token_p95_s == 7.0


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_happens_no_figure_is_nan_or_infinite(data: st.DataObject) -> None:
    server, now = Server(), 0.0
    for _ in range(data.draw(st.integers(1, 30))):
        now += data.draw(st.floats(-5, 120))
        obs = server.arrive(
            now,
            data.draw(st.sampled_from(Lane)),
            streamed=data.draw(st.booleans()),
            has_tokens=data.draw(st.booleans()),
        )
        for _ in range(data.draw(st.integers(0, 3))):
            now += data.draw(st.floats(0, 30))
            server.emit(obs, now, data.draw(st.integers(1, 50)))
        if data.draw(st.booleans()):
            outcome = data.draw(st.sampled_from(Outcome))
            tokens = data.draw(st.one_of(st.none(), st.integers(0, 1000)))
            server.board.close(obs, outcome, now, output_tokens=tokens)
        signals = server.signals(now, batch=1)
        seen = server.board.seen(now, BUDGETS, {})
        figures = [signals.first, signals.token, signals.live, seen.first_token_p95_s, seen.per_token_p95_ms]
        figures += [seen.total_p95_s, seen.error_rate]
        assert all(value is None or math.isfinite(value) for value in figures)


def test_the_board_forgets_what_is_old_and_never_holds_too_much(server: Server) -> None:
    for i in range(10_000):
        server.stream(i * 0.001, first=0.1, gap=0.01, out=20)
    signals = server.signals(11.0)
    assert 1000 < signals.first_n <= 4096
    server.signals(500.0)
    assert server.board.seen(500.0, BUDGETS, {}).samples == 0


def test_the_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([], 0.95) is None
    assert percentile(range(1, 20), 0.95) == 19
    assert percentile(range(1, 21), 0.95) == 19
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
