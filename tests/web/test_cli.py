"""The command line as a person meets it: real processes, their output and exit status."""

import json
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.processes import PATIENCE_S, Program
from tests.servers import CHAT, until

TIDEGATE = Program()
CANARY = "sk-canary-0123456789"
AWAY = "http://127.0.0.1:9/v1"


def children_of(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    told = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(row.split()[0]) for row in told.splitlines() if int(row.split()[1]) == pid]


def lives(pid: int) -> bool:
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(told.strip()) and not told.startswith("Z")


def test_the_help_names_every_command(tmp_path: Path) -> None:
    done = TIDEGATE.run(tmp_path, "--help")
    assert done.status == 0
    for name in ("serve", "config", "mock-server", "migrate", "simulate", "demo", "bench"):
        assert re.search(rf"\b{name}\b", done.out), name


def test_the_help_loads_no_server_and_no_database() -> None:
    heavy = ("uvicorn", "starlette", "sqlalchemy", "aiohttp", "httpx2", "alembic", "apscheduler", "rich.progress")
    code = f"import sys, web.cli; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=TIDEGATE.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "variables", "line"),
    [
        ([], {}, "upstream is not set: .*TIDEGATE_UPSTREAM"),
        ([], {"TIDEGATE_UPSTREAM": f"http://u:{CANARY}@h"}, "TIDEGATE_UPSTREAM: must not carry"),
        ([], {"TIDEGATE_UPSTREAM": "localhost:8000"}, "TIDEGATE_UPSTREAM: must begin with http://"),
        (["--upstream", AWAY, "--port", "http"], {}, "--port = 'http': must be a valid integer"),
        (["--upstream", AWAY, "--host", "0.0.0.0"], {}, "host = '0.0.0.0': .*--insecure"),
        (["--upstream", AWAY], {"TIDEGATE_SLOTS": "2", "TIDEGATE_RESERVE": "2"}, "reserve = 2 must be below slots = 2"),
        (["--upstream", AWAY, "--slots", "4"], {"TIDEGATE_LOG_LEVEL": "loud"}, "TIDEGATE_LOG_LEVEL = 'loud': must be"),
        (["--config", "absent.toml"], {}, "config = 'absent.toml': cannot be read"),
        (["--upstream", AWAY, "--data", "file/x"], {}, "data = 'file/x': .*--data"),
        (
            ["--upstream", AWAY],
            {"TIDEGATE_DATABASE": "sqlite:////nowhere/at/all.db"},
            "the database cannot be used: .*TIDEGATE_DATABASE",
        ),
    ],
)
def test_a_wrong_start_is_one_line_and_exit_status_2(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], line: str
) -> None:
    (tmp_path / "file").touch()
    done = TIDEGATE.run(tmp_path, "serve", *arguments, **variables)
    assert (done.status, done.out) == (2, "")
    assert re.fullmatch(f"tidegate: {line}.*\n", done.err)
    assert CANARY not in done.err


def test_config_tells_each_setting_with_its_origin_and_no_secret(tmp_path: Path) -> None:
    """R101 kalyan-1845/ai-code-reviewer#785: settings dumped at start-up."""
    (tmp_path / "tidegate.toml").write_text(
        f'port = 4000\n[[keys]]\nname = "k"\nkey = "{CANARY}"\n[budgets]\nfirst_token_s = 2\n'
    )
    (tmp_path / ".env").write_text("TIDEGATE_SLOTS=16\n")
    variables = {"TIDEGATE_UPSTREAM": AWAY, "TIDEGATE_UPSTREAM_KEY": CANARY, "TIDEGATE_RESERV": "1"}
    done = TIDEGATE.run(tmp_path, "config", "--json", **variables)
    told = json.loads(done.out)
    wanted = {
        "port": (4000, "file"),
        "slots": (16, ".env"),
        "upstream": (AWAY, "environment"),
        "upstream_key": ("********", "environment"),
        "budgets.first_token_s": (2, "file"),
        "host": ("127.0.0.1", "default"),
    }
    assert {name: (told["settings"][name]["value"], told["settings"][name]["origin"]) for name in wanted} == wanted
    assert told["pools"] == [{"name": "default", "slots": 16, "reserve": 1, "headroom": 1, "floor": 1, "ceiling": 15}]
    assert done.err == "tidegate: TIDEGATE_RESERV is not a setting and is ignored; did you mean TIDEGATE_RESERVE?\n"
    plain = TIDEGATE.run(tmp_path, "config", **variables)
    assert re.search(r"^port +file +4000$", plain.out, re.MULTILINE)
    assert "pool default: slots 16, reserve 1" in plain.out
    assert CANARY not in done.out + done.err + plain.out + plain.err


def test_the_command_line_beats_all_else_in_config_too(tmp_path: Path) -> None:
    done = TIDEGATE.run(tmp_path, "config", "--data", "elsewhere", TIDEGATE_DATA="here")
    assert re.search(r"^data +command line +elsewhere$", done.out, re.MULTILINE)


def test_serve_lives_without_its_upstream_locks_its_folder_and_stops_with_an_open_page(tmp_path: Path) -> None:
    arguments = ("serve", "--port", "0", "--log-level", "debug", "--log-format", "json")
    variables = {"TIDEGATE_UPSTREAM": AWAY, "TIDEGATE_UPSTREAM_KEY": CANARY, "TIDEGATE_DATA": "state"}
    with TIDEGATE.serving(tmp_path, *arguments, **variables) as running:
        assert httpx2.get(f"{running.url}/healthz").status_code == 200
        assert httpx2.get(f"{running.url}/readyz").status_code == 503
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        refused = httpx2.post(f"{running.url}/v1/chat/completions", json=CHAT)
        assert refused.status_code == 502
        second = TIDEGATE.run(tmp_path, *arguments, **variables)
        assert (second.status, second.out) == (2, "")
        assert re.fullmatch(r"tidegate: data = '.*state': another Tidegate is running on it; .*\n", second.err)
        with httpx2.stream("GET", f"{running.url}/ui/stream", timeout=PATIENCE_S) as page:
            if page.status_code == 200:
                next(page.iter_text())
            stopped = running.stop()
    assert stopped.status == 0
    assert "Traceback" not in stopped.err
    assert all(json.loads(line)["event"] for line in stopped.err.splitlines())
    assert CANARY not in stopped.out + stopped.err + refused.text + second.err


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = TIDEGATE.run(tmp_path, "serve", "--upstream", AWAY, "--port", str(port))
    assert done.status == 2
    assert re.fullmatch(rf"tidegate: port = {port}: is in use on 127\.0\.0\.1; .*\n", done.err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_without_an_upstream_simulate_answers_and_is_gone_with_its_gateway(
    tmp_path: Path, number: signal.Signals
) -> None:
    with TIDEGATE.serving(tmp_path, "serve", "--simulate", "--port", "0") as running:
        (child,) = children_of(running.process.pid)
        answer = httpx2.post(f"{running.url}/v1/chat/completions", json=CHAT | {"max_tokens": 2}, timeout=PATIENCE_S)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"]
        stopped = running.stop(number)
        until(lambda: not lives(child))
    assert stopped.status == (0 if number == signal.SIGINT else -signal.SIGKILL)
    assert "simulated model server" in stopped.out
    assert stopped.err == ""


def test_with_an_upstream_simulate_starts_nothing(tmp_path: Path) -> None:
    with TIDEGATE.serving(tmp_path, "serve", "--simulate", "--port", "0", "--upstream", AWAY) as running:
        assert children_of(running.process.pid) == []
        assert "simulated" not in running.stop().out


def test_the_simulated_server_can_be_run_alone(tmp_path: Path) -> None:
    with TIDEGATE.serving(tmp_path, "mock-server", "--port", "0", "--slots", "3", "--speed", "50") as running:
        assert httpx2.post(f"{running.url}/v1/chat/completions", json=CHAT, timeout=PATIENCE_S).status_code == 200
        assert httpx2.get(f"{running.url}/sim").json()["slots"] == 3
        port = running.url.rpartition(":")[2]
        second = TIDEGATE.run(tmp_path, "mock-server", "--port", port)
        assert (second.status, second.err.count("\n")) == (2, 1)
        assert running.stop().status == 0


@pytest.mark.parametrize("command", ["mock-server", "demo", "serve"])
@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_is_none_is_refused(tmp_path: Path, command: str, port: str) -> None:
    done = TIDEGATE.run(tmp_path, command, f"--port={port}")
    assert done.status == 2
    assert "--port" in done.err
    assert "Traceback" not in done.err


def test_migrate_makes_the_database_and_can_be_repeated(tmp_path: Path) -> None:
    for _ in range(2):
        done = TIDEGATE.run(tmp_path, "migrate", "--data", "state")
        assert (done.status, done.out, done.err) == (0, "The database is up to date.\n", "")
    assert (tmp_path / "state" / "tidegate.db").stat().st_size > 0
