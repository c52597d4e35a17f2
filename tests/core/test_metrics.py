from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from core.lanes import Lane, Outcome
from core.metrics import WAIT_S, PoolMeters, Tally
from core.samples import Observation


@given(st.lists(st.one_of(st.sampled_from(WAIT_S), st.floats(0, 700)), max_size=50))
def test_a_tally_counts_as_the_librarys_own_histogram_does(values: list[float]) -> None:
    registry, tally = CollectorRegistry(), Tally(WAIT_S)
    known = Histogram("wait", "Wait.", buckets=WAIT_S, registry=registry)
    for value in values:
        tally.observe(value)
        known.observe(value)
    samples = next(iter(known.collect())).samples
    assert dict(tally.buckets()) == {each.labels["le"]: each.value for each in samples if "le" in each.labels}
    assert tally.total == sum(values, 0.0)


def test_a_call_that_never_got_a_slot_counts_by_its_outcome_alone() -> None:
    meters = PoolMeters()
    never = Observation(Lane.BATCH, "m", arrived=1.0, streamed=True)
    meters.finished(never, Outcome.TIMEOUT, queued_s=9.0, input_tokens=0, output_tokens=0, estimated=False)
    lane = meters.lanes[Lane.BATCH]
    assert lane.outcomes[Outcome.TIMEOUT] == 1
    assert lane.wait.total == 0


def test_a_stream_counts_its_wait_its_first_token_and_its_time_per_token() -> None:
    meters = PoolMeters()
    seen = Observation(Lane.INTERACTIVE, "m", 1.0, True, started=1.5, first=2.0, last=4.0, tokens=3)
    meters.finished(seen, Outcome.SUCCESS, queued_s=0.5, input_tokens=7, output_tokens=11, estimated=True)
    lane = meters.lanes[Lane.INTERACTIVE]
    assert (lane.wait.total, lane.first_token.total, lane.per_token.total) == (0.5, 1.0, 0.2)
    assert (lane.input_tokens, lane.output_tokens) == (7, {False: 0, True: 11})
