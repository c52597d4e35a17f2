"""Arrival processes: the same for the same seed, with the shape they promise."""

from pathlib import Path
from random import Random

import pytest

from core.errors import InvalidValue
from core.simulation.arrivals import Batches, Change, Lengths, Traffic, arrivals, read_trace

TRACES = Path(__file__).parents[3].parent / "shared" / "traces"


def test_a_seed_gives_one_trace_and_another_seed_another() -> None:
    traffic = Traffic(seconds=600.0)
    assert arrivals(traffic, 1) == arrivals(traffic, 1)
    assert arrivals(traffic, 1) != arrivals(traffic, 2)


def test_the_first_arrivals_are_those_of_the_reference() -> None:
    first = arrivals(Traffic(seconds=1800.0), 5)[:3]
    assert [(a.prompt, a.output) for a in first] == [(490, 124), (2112, 103), (959, 168)]
    assert first[0].at == pytest.approx(4.504030562687536)


def test_more_arrive_at_the_height_of_the_day_than_at_night() -> None:
    at = [arrival.at for arrival in arrivals(Traffic(), 3)]
    night = sum(time < 1800 or time >= 9000 for time in at)
    day = sum(3600 <= time < 7200 for time in at)
    assert day > 3 * night
    assert at == sorted(at)


def test_nothing_arrives_in_a_quiet_span() -> None:
    traffic = Traffic(seconds=600.0, flat=True, quiet=((100.0, 300.0),))
    assert not [a for a in arrivals(traffic, 1) if 100.25 <= a.at < 300.0]


def test_longer_stretches_outputs_only_in_its_span() -> None:
    plain = arrivals(Traffic(seconds=600.0, flat=True), 1)
    longer = arrivals(Traffic(seconds=600.0, flat=True, longer=(Change(200.0, 400.0, 3.0),)), 1)
    for before, after in zip(plain, longer, strict=True):
        inside = 200.0 <= before.at - before.at % 0.25 < 400.0
        assert after.output == before.output * (3 if inside else 1)


def test_lengths_stay_within_their_ends() -> None:
    random = Random(1)
    drawn = [Lengths(100, 2.0, 50, 200).draw(random) for _ in range(500)]
    assert (min(drawn), max(drawn)) == (50, 200)


def test_waves_come_and_go() -> None:
    batches = Batches(waves=(600.0, 1200.0))
    assert [batches.available(time) for time in (0.0, 599.0, 600.0, 1799.0, 1800.0)] == [True, True, False, False, True]
    assert batches.next_start(700.0) == 1800.0


def test_a_trace_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("offset_s,input_tokens,output_tokens\n0.5,10,20\n2,30,40\n")
    assert [(a.at, a.prompt, a.output) for a in read_trace(path, faster=2.0)] == [(0.25, 10, 20), (1.0, 30, 40)]


@pytest.mark.parametrize(
    ("text", "named"), [("a,b\n1,2\n", "line 1"), ("input_tokens,output_tokens\n1,2\nx,2\n", "line 3")]
)
def test_a_faulty_trace_is_refused_by_its_line(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InvalidValue, match=named):
        read_trace(path)


def test_real_traces_are_read() -> None:
    if not TRACES.is_dir():
        pytest.skip("../shared/traces is not there")
    chat = read_trace(TRACES / "azure2023_conv_busiest_5min.csv")
    assert 300.0 >= chat[-1].at > 290.0
    lengths = read_trace(TRACES / "arxiv_summarization_lengths_4000.csv")
    assert len(lengths) == 4000
    assert lengths[0].at == 0.0
