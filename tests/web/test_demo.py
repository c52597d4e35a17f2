"""`tidegate demo`: a short play at high speed, as a terminal and as a file see it."""

import io
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from tests.servers import until
from web.demo import CYCLE, LOSS_AFTER, LOSS_LASTS, Picture, Play, demo
from web.demo_view import BATCH, FREE, INTERACTIVE, Lines, line, slots_bar, table

SPEED = 20.0


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    seen: list[Picture] = []
    seconds = (LOSS_AFTER + LOSS_LASTS) / SPEED + 1.0
    demo(Play(port=0, slots=8, speed=SPEED, seconds=seconds), show=seen.append)
    return seen


def test_chat_and_batch_are_served_and_the_server_loses_capacity_and_has_it_back(pictures: list[Picture]) -> None:
    assert pictures[-1].chats > 0
    assert pictures[-1].items > 0
    capacities = [picture.capacity for picture in pictures]
    lost = capacities.index(0.5)
    assert 1.0 in capacities[:lost]
    assert 1.0 in capacities[lost:]


def test_no_picture_shows_more_in_flight_than_slots_nor_batch_on_the_reserve(pictures: list[Picture]) -> None:
    for picture in pictures:
        counts, settings = picture.reading.counts, picture.reading.settings
        assert counts.interactive + counts.batch <= settings.slots
        assert counts.batch <= settings.batch_max


def test_the_flood_always_waits(pictures: list[Picture]) -> None:
    assert all(picture.reading.counts.backlog > 0 for picture in pictures[2:])


def test_the_decisions_are_told(pictures: list[Picture]) -> None:
    assert any(picture.decision for picture in pictures)
    assert any(picture.why in line(picture) for picture in pictures if picture.why)
    assert len({picture.why for picture in pictures}) > 2


@pytest.mark.parametrize(
    ("passed", "share"),
    [(0, 1), (LOSS_AFTER - 1, 1), (LOSS_AFTER, 0.5), (LOSS_AFTER + LOSS_LASTS, 1), (CYCLE + LOSS_AFTER, 0.5)],
)
def test_the_loss_comes_after_a_minute_and_again(passed: float, share: float) -> None:
    assert Play().capacity(passed) == share
    assert Play(speed=4.0).capacity(passed / 4) == share


def test_a_line_holds_all_the_figures(pictures: list[Picture]) -> None:
    told = line(pictures[-1])
    for part in ("server", "quota", "limit", "in flight", "waiting", "p95 first token"):
        assert part in told
    assert "\n" not in told


def test_lines_begin_with_the_address_and_come_every_few_seconds(pictures: list[Picture]) -> None:
    console = Console(file=io.StringIO(), width=300)
    lines = Lines(console)
    for picture in pictures:
        lines(picture)
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue().splitlines()
    assert written[0].startswith(f"Dashboard {pictures[0].address}/")
    assert 2 <= len(written) - 1 <= pictures[-1].passed / 2 + 2


def test_the_table_shows_the_address_the_bar_and_the_decision(pictures: list[Picture]) -> None:
    picture = pictures[-1]
    console = Console(file=io.StringIO(), width=160)
    console.print(table(picture))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert picture.address in shown
    bar = slots_bar(picture).plain
    assert bar in shown
    assert (bar.count(INTERACTIVE), bar.count(BATCH)) == (
        picture.reading.counts.interactive,
        picture.reading.counts.batch,
    )
    assert len(bar) == picture.reading.settings.slots
    assert set(bar) <= {INTERACTIVE, BATCH, FREE}


def test_ctrl_c_ends_it_cleanly_and_the_dashboard_answers_meanwhile(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "web.cli", "demo", "--port", "0", "--speed", "10", "--data", str(tmp_path / "d")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        address = child.stdout.readline().split()[1]
        until(lambda: httpx2.get(f"{address}readyz").status_code == 200)
        assert httpx2.get(address).status_code == 200
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 0
    assert err == ""
    assert (tmp_path / "d" / "tidegate.db").exists()
