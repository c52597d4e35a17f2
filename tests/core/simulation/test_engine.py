"""The engine's arithmetic and its promises; figures are those of an independent simulation of the same model."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.simulation.arrivals import Batches
from core.simulation.engine import Condition, Engine, EngineSettings, OverLimit, Sequence, State, Stretch

SECONDS = 1200.0


def throughput(engine: Engine, concurrency: int) -> float:
    """Keep `concurrency` requests in the engine for twenty minutes; return output tokens per second."""
    random, batches = Random(104729 + 17), Batches()
    for _ in range(concurrency):
        engine.submit(*batches.draw(random, 0.0))
    now, tokens = 0.0, 0
    while now < SECONDS:
        seconds = engine.begin(1.0)
        assert seconds is not None
        now += seconds
        for sequence in engine.complete().finished:
            tokens += sequence.output
            engine.submit(*batches.draw(random, now))
    return tokens / now


@pytest.mark.parametrize(
    ("concurrency", "expected"), [(1, 47.5), (8, 291.6), (16, 461.7), (32, 646.5), (48, 745.6), (64, 761.4)]
)
def test_throughput_grows_with_concurrency_as_in_the_reference(concurrency: int, expected: float) -> None:
    assert throughput(Engine(), concurrency) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("condition", "settings", "expected"),
    [
        (Condition(slow=1 / 0.6), EngineSettings(), 420.8),
        (Condition(share=0.5), EngineSettings(), 345.3),
        (Condition(), EngineSettings(kv_tokens=30_000), 256.8),
    ],
)
def test_troubles_cost_what_they_cost_in_the_reference(
    condition: Condition, settings: EngineSettings, expected: float
) -> None:
    engine = Engine(settings)
    engine.become(condition)
    assert throughput(engine, 40) == pytest.approx(expected, rel=0.02)


def test_a_full_cache_takes_it_from_the_youngest_and_everyone_still_gets_all_tokens() -> None:
    engine = Engine(EngineSettings(kv_tokens=1000))
    sequences = [engine.submit(300, 200) for _ in range(3)]
    run_out(engine)
    assert engine.recomputed > 0
    assert all(engine.tokens(sequence) == 200 for sequence in sequences)
    assert (engine.cached, engine.running, engine.in_flight) == (0, 0, 0)


def test_a_prompt_larger_than_the_cache_runs_alone_instead_of_blocking_everyone() -> None:
    engine = Engine(EngineSettings(kv_tokens=100))
    sequences = [engine.submit(500, 3), engine.submit(10, 3)]
    run_out(engine)
    assert all(sequence.state is State.DONE for sequence in sequences)


def test_what_is_above_max_sequences_waits_in_order() -> None:
    engine = Engine(EngineSettings(max_sequences=1))
    sequences = [engine.submit(10, 2) for _ in range(3)]
    assert engine.begin() is not None
    assert (engine.running, engine.waiting) == (1, 2)
    engine.complete()
    assert run_out(engine) == sequences


def test_lower_priorities_go_first_only_where_the_server_honours_them() -> None:
    for honours, order in ((False, [0, 1]), (True, [1, 0])):
        engine = Engine(EngineSettings(max_sequences=1, honours_priority=honours))
        sequences = [engine.submit(10, 2, priority=5), engine.submit(10, 2, priority=0)]
        assert [sequences.index(sequence) for sequence in run_out(engine)] == order


def test_a_long_prompt_is_prefilled_in_chunks_beside_decoding() -> None:
    engine = Engine(EngineSettings(chunk=100))
    engine.submit(10, 100)
    engine.begin()
    engine.complete()
    engine.submit(250, 1)
    steps = 0
    while not any(sequence.prompt == 250 for sequence in step(engine)):
        steps += 1
    assert steps == 2


def test_the_hidden_limit_refuses_and_shrinks_with_its_share() -> None:
    engine = Engine(EngineSettings(hidden_limit=4))
    engine.become(Condition(limit_share=0.5))
    first = engine.submit(1, 1)
    engine.submit(1, 1)
    with pytest.raises(OverLimit):
        engine.submit(1, 1)
    engine.abort(first)
    engine.submit(1, 1)


def test_an_abort_frees_the_place_at_once_wherever_the_sequence_is() -> None:
    engine = Engine(EngineSettings(max_sequences=2, chunk=64))
    decoding, prefilling, waiting = engine.submit(10, 50), engine.submit(500, 5), engine.submit(10, 5)
    step(engine)
    assert [s.state for s in (decoding, prefilling, waiting)] == [State.DECODE, State.PREFILL, State.WAITING]
    for sequence in (decoding, prefilling, waiting):
        engine.abort(sequence)
        engine.abort(sequence)
    assert (engine.running, engine.decoding, engine.cached, engine.in_flight) == (0, 0, 0, 0)
    assert engine.begin() is None


def test_a_stretch_settled_in_the_middle_ends_at_the_same_moment() -> None:
    whole, parted = Engine(), Engine()
    for engine in (whole, parted):
        engine.submit(100, 40)
        step(engine)
    seconds = whole.begin(10.0)
    assert seconds == parted.begin(10.0)
    assert seconds is not None
    began = parted.settle(seconds / 2)
    assert parted.stretch is not None
    elapsed = began + parted.stretch.first
    parted.complete()
    while parted.decoding:
        rest = parted.begin(10.0)
        assert rest is not None
        elapsed += rest
        parted.complete()
    assert elapsed == pytest.approx(seconds)


@given(steps=st.integers(1, 500), growth=st.floats(0, 1e-4), share=st.floats(0, 1))
def test_whole_steps_are_those_that_are_over(steps: int, growth: float, share: float) -> None:
    stretch = Stretch(steps, 0.02, growth)
    elapsed = share * stretch.seconds(steps)
    done = stretch.whole_steps(elapsed)
    assert 0 <= done <= steps - 1
    assert stretch.seconds(done) <= elapsed + 1e-6
    assert done == steps - 1 or stretch.seconds(done + 1) >= elapsed - 1e-6


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.integers(1, 400), st.integers(1, 60)),
            st.tuples(st.just("abort"), st.integers(0, 50), st.just(0)),
            st.tuples(st.just("step"), st.integers(0, 3), st.just(0)),
        ),
        max_size=80,
    )
)
def test_whatever_comes_nothing_leaks_and_every_answer_is_whole(moves: list[tuple[str, int, int]]) -> None:
    engine = Engine(EngineSettings(max_sequences=4, kv_tokens=900, chunk=128))
    sequences: list[Sequence] = []
    for move, a, b in moves:
        if move == "submit":
            sequences.append(engine.submit(a, b))
        elif move == "abort" and sequences:
            engine.settle(0.0)
            engine.abort(sequences[a % len(sequences)])
        else:
            engine.begin(float(a))
            engine.complete()
        assert engine.in_flight == sum(sequence.live for sequence in sequences)
        assert 0 <= engine.decoding <= engine.running <= 4
        assert engine.cached >= 0
    run_out(engine)
    assert (engine.cached, engine.running, engine.in_flight) == (0, 0, 0)
    for sequence in sequences:
        assert sequence.state is State.ABORTED or engine.tokens(sequence) == sequence.output


def step(engine: Engine) -> list[Sequence]:
    """Do one step; return whose first token it brought."""
    engine.begin()
    return engine.complete().first


def run_out(engine: Engine) -> list[Sequence]:
    """Run until nothing is left; return the sequences in the order in which they finished."""
    finished: list[Sequence] = []
    while engine.begin(60.0) is not None:
        finished += engine.complete().finished
    return finished
