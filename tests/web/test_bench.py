"""`tidegate bench`: short runs at high speed; what is measured, never how fast."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from core.errors import ConfigError
from core.quotas import default_reserve
from tests.servers import running
from web import mock_server
from web.bench import Plan, Report, bench, total_seconds
from web.bench_view import ROWS, VERDICTS, as_builtins, command, show
from web.cli import main

SPEED = 20.0
CANARY = "sk-canary-4411"


def measure(plan: Plan) -> Report:
    return bench(plan, progress=lambda total: lambda name, seconds: None)


@pytest.fixture(scope="module")
def report() -> Report:
    return measure(Plan(slots=3, seconds=2.0, rate=0.4, speed=SPEED))


def test_three_arms_run_on_one_trace_and_every_fixed_quota_is_tried(report: Report) -> None:
    assert [arm.name for arm in report.arms] == ["alone", "flood straight", "flood through Tidegate"]
    assert len({arm.calls for arm in report.arms}) == 1
    assert report.arms[0].calls > 10
    assert [arm.quota for arm in report.scan] == [1, 2]


def test_batch_runs_in_the_flood_alone(report: Report) -> None:
    alone, straight, through = report.arms
    assert alone.batch_items_per_s == 0
    assert straight.batch_items_per_s > 0
    assert through.batch_items_per_s > 0


def test_every_call_is_answered_through_tidegate(report: Report) -> None:
    assert report.arms[2].errors == {}
    assert report.arms[2].batch_errors == 0


def test_the_flood_goes_straight_to_the_server_and_queues_there(report: Report) -> None:
    straight = report.arms[1].server
    assert straight is not None
    assert straight.max_in_flight > 3
    assert straight.over_slots > 0


def test_the_report_is_json_with_a_verdict_for_each_target(report: Report) -> None:
    told = json.loads(json.dumps(as_builtins(report)))
    assert set(told) == {"plan", "arms", "scan", "targets"}
    assert [target["name"] for target in told["targets"]] == ["first_token", "batch", "slots", "over_slots"]
    assert {target["verdict"] for target in told["targets"]} <= set(VERDICTS.values())
    assert "api_key" not in told["plan"]


def test_the_same_seed_is_the_same_trace_and_speed_shrinks_it() -> None:
    slow, fast = Plan(rate=2.0).arrivals(40.0), Plan(rate=2.0, speed=10.0).arrivals(4.0)
    assert slow == Plan(rate=2.0).arrivals(40.0)
    assert [(a.at / 10, a.prompt, a.output) for a in slow] == [(pytest.approx(a.at), a.prompt, a.output) for a in fast]


def test_a_trace_is_replayed_as_it_is_or_at_another_rate(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("offset_s,input_tokens,output_tokens\n0,10,5\n1,11,6\n2,12,7\n4,13,8\n")
    assert [a.at for a in Plan(trace=trace).arrivals(3.0)] == [0, 1, 2]
    assert [a.at for a in Plan(trace=trace, rate=0.5).arrivals(100.0)] == [0, 2, 4, 8]


def test_what_counts_begins_at_the_same_call_in_every_run() -> None:
    plan = Plan(rate=5.0, seconds=20.0)
    first = [next(a for a in plan.part(held=held) if a.at >= plan.lead(held=held)) for held in (False, True)]
    assert [(a.prompt, a.output) for a in first] == [(first[0].prompt, first[0].output)] * 2
    assert [a.at - plan.lead(held=held) for a, held in zip(first, (False, True), strict=True)] == [
        pytest.approx(first[0].at - 20.0)
    ] * 2
    assert plan.part(held=True)[-1].at < plan.lead(held=True) + 10.0


def test_the_gateway_gets_all_slots_but_the_reserve_as_its_ceiling(tmp_path: Path) -> None:
    pool = Plan(slots=8).settings("http://127.0.0.1:9/v1", tmp_path).pool_configs[0]
    assert (pool.slots, pool.reserve, pool.ceiling) == (8, 1, 7)
    assert default_reserve(8) == 1


def test_the_time_it_takes_counts_every_run() -> None:
    assert total_seconds(Plan(seconds=60.0, scan=False), 7) == 240.0
    assert total_seconds(Plan(seconds=60.0), 7) == 240.0 + 7 * 38.0


def test_a_real_server_is_measured_without_what_only_the_simulated_one_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERVER_KEY", CANARY)
    with running(mock_server.create_app(speed=SPEED), lifespan="off") as url:
        options = ["--upstream", url, "--api-key-env", "SERVER_KEY", "--no-scan", "--strict", "--json"]
        numbers = ["--slots", "2", "--seconds", "1", "--warm-up", "0.2", "--rate", "5"]
        monkeypatch.setattr(sys, "argv", ["tidegate", "bench", *options, *numbers])
        with pytest.raises(SystemExit) as left:
            main()
    assert left.value.code in (0, 1)
    out, _ = capsys.readouterr()
    told = json.loads(out)
    assert told["arms"][2]["server"] is None
    assert [target["verdict"] for target in told["targets"]][1:] == ["not judged"] * 3
    assert CANARY not in out


def test_the_tables_fit_a_terminal_of_80_columns(report: Report) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    show(report, console)
    told = console.export_text()
    assert "…" not in told
    for name in (*ROWS, "flood", "Tidegate"):
        assert name in told


def test_a_server_that_never_answers_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(upstream="http://127.0.0.1:9/v1", slots=2, seconds=1.0, warm_up=0.0, rate=3.0, scan=False)
    assert command(plan, as_json=False, strict=False) == 1
    fault = "nothing was measured (upstream_unreachable): see that http://127.0.0.1:9/v1 answers"
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize(("strict", "status"), [(False, 0), (True, 1)])
def test_a_missed_target_is_information_unless_strict(
    strict: bool, status: int, report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = replace(report, targets=[replace(report.targets[2], measured=99.0)])
    monkeypatch.setattr("web.bench_view.bench", lambda plan, progress: missed)
    assert command(report.plan, as_json=False, strict=strict) == status
    assert "MISS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "No such file"),
        ("a,b\n1,2\n", "line 1"),
        ("offset_s,input_tokens,output_tokens\n0,x,1\n", "line 2"),
    ],
)
def test_a_trace_that_cannot_be_read_is_named(text: str | None, fault: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    if text is not None:
        trace.write_text(text)
    with pytest.raises(ConfigError, match=rf"trace = .*trace\.csv.*{fault}"):
        command(Plan(trace=trace), as_json=False, strict=False)


def test_a_malformed_upstream_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tidegate", "bench", "--upstream", "ftp://x"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    err: Any = capsys.readouterr().err
    assert err.startswith("tidegate: upstream must begin with http")
