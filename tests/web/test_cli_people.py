"""`tidegate keys` and `tidegate accounts` as real processes, alone and beside a running server."""

import json
import re
import subprocess
import time
from pathlib import Path

import httpx2
import pytest

from core.people.ring import FRESH_S
from tests.processes import PATIENCE_S, Outcome, Program
from tests.servers import CHAT, until

TIDEGATE = Program()
PASSWORD = "correct horse"
SERVE = ("serve", "--simulate", "--port", "0")


def run(folder: Path, *arguments: str, typed: str = "", **variables: str) -> Outcome:
    """Run a command with something on its standard input."""
    done = subprocess.run(
        [*TIDEGATE.command, *arguments],
        cwd=folder,
        env=TIDEGATE.environment(**variables),
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def admin(folder: Path) -> Outcome:
    return run(folder, "accounts", "create", "ann", "--role", "admin", typed=f"{PASSWORD}\n")


def test_standard_output_is_the_key_alone_and_the_rest_is_said_beside_it(tmp_path: Path) -> None:
    done = run(tmp_path, "keys", "create", "--tenant", "research", "--name", "a", "--expires", "30d", "--lane", "batch")
    assert done.status == 0
    assert re.fullmatch(r"tg_[A-Za-z0-9_-]{43}\n", done.out)
    assert done.err == "made tenant research with defaults\nfrom now on every call needs a key\n"
    second = run(tmp_path, "keys", "create", "--tenant", "research", "--name", "b", "--cidr", "10.0.0.0/8")
    assert (second.status, second.err) == (0, "")
    listed = json.loads(run(tmp_path, "keys", "list", "--json").out)
    assert [(row["name"], row["tenant"], row["lane"]) for row in listed] == [
        ("a", "research", "batch"),
        ("b", "research", "interactive"),
    ]
    table = run(tmp_path, "keys", "list").out
    assert re.search(r"^a +research +tg_\S+ +active +member +batch", table, re.MULTILINE)
    assert done.out.strip() not in table


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["create", "--name", "a b"], "name: must be"),
        (["create", "--name", "a", "--lane", "fast"], "lane: must be interactive or batch"),
        (["create", "--name", "a", "--cidr", "10/99"], "cidrs: must be"),
        (["create", "--name", "a", "--role", "king"], "role: must be one of viewer"),
        (["rotate", "none"], "no key is named 'none'"),
        (["revoke", "none"], "revoke none: this cannot be taken back; add --yes"),
        (["revoke", "none", "--yes"], "no key is named 'none'"),
        (["reset-open"], "reset-open: this cannot be taken back; add --yes"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_status_2(tmp_path: Path, arguments: list[str], line: str) -> None:
    done = run(tmp_path, "keys", *arguments)
    assert (done.status, done.out) == (2, "")
    assert re.fullmatch(f"tidegate: {re.escape(line)}.*\n", done.err)


def test_what_commands_change_reaches_a_running_server_within_5_s(tmp_path: Path) -> None:
    with TIDEGATE.serving(tmp_path, *SERVE) as running:
        url, body = f"{running.url}/v1/chat/completions", CHAT | {"max_tokens": 1}

        def status(token: str = "") -> int:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            return httpx2.post(url, json=body, headers=headers, timeout=PATIENCE_S).status_code

        def soon(wanted: int, token: str = "") -> None:
            began = time.monotonic()
            until(lambda: status(token) == wanted)
            assert time.monotonic() - began < FRESH_S

        assert status() == 200
        token = run(tmp_path, "keys", "create", "--name", "k").out.strip()
        soon(401)
        soon(200, token)
        fresh = run(tmp_path, "keys", "rotate", "k")
        assert "is taken until" in fresh.err
        soon(200, fresh.out.strip())
        assert status(token) == 200
        assert run(tmp_path, "keys", "revoke", "k", "--yes").status == 0
        soon(401, fresh.out.strip())
        assert status(token) == 401
        assert run(tmp_path, "keys", "reset-open", "--yes").err == "1 keys are forgotten\n"
        soon(200)
        assert admin(tmp_path).status == 0
        until(lambda: httpx2.get(f"{running.url}/").status_code == 303)
        form, origin = {"name": "ann", "password": PASSWORD}, {"origin": running.url}
        assert httpx2.post(f"{running.url}/ui/sign-in", data=form, headers=origin).status_code == 303
        assert running.stop().status == 0


def test_accounts_are_made_listed_changed_and_disabled(tmp_path: Path) -> None:
    assert admin(tmp_path).err == "account ann is made; a running server knows it within 5 seconds\n"
    assert run(tmp_path, "accounts", "create", "Bob", "--role", "viewer", "--no-password").status == 0
    assert run(tmp_path, "accounts", "role", "bob", "--role", "operator").status == 0
    assert run(tmp_path, "accounts", "password", "bob", typed="another one\n").status == 0
    assert run(tmp_path, "accounts", "disable", "bob").status == 0
    listed = json.loads(run(tmp_path, "accounts", "list", "--json").out)
    assert [(row["name"], row["role"], row["disabled"], row["sign_in"]) for row in listed] == [
        ("ann", "admin", False, "password"),
        ("bob", "operator", True, "password"),
    ]
    assert run(tmp_path, "accounts", "enable", "bob").status == 0
    assert re.search(r"^bob +operator +default +password +no +-$", run(tmp_path, "accounts", "list").out, re.MULTILINE)
    for arguments, typed, line in (
        (("create", "eve", "--role", "admin"), "short\n", "password: must have at least 8 characters"),
        (("create", "eve", "--role", "king"), f"{PASSWORD}\n", "role: must be one of"),
        (("disable", "ann"), "", "role: ann is the last admin"),
        (("disable", "eve"), "", "no account is named 'eve'"),
    ):
        done = run(tmp_path, "accounts", *arguments, typed=typed)
        assert (done.status, done.err.startswith(f"tidegate: {line}")) == (2, True), done.err
    verified = run(tmp_path, "audit", "verify")
    assert (verified.status, verified.out.startswith("6 entries")) == (0, True)


def test_beyond_loopback_it_starts_with_an_admin_and_a_key_and_names_what_is_missing(tmp_path: Path) -> None:
    arguments = (*SERVE, "--host", "0.0.0.0")
    bare = run(tmp_path, *arguments)
    assert (bare.status, bare.out) == (2, "")
    assert re.fullmatch(
        r"tidegate: host = '0\.0\.0\.0': .*accounts create.* and .*keys create.*--insecure.*\n", bare.err
    )
    admin(tmp_path)
    half = run(tmp_path, *arguments)
    assert (half.status, "accounts create" in half.err, "keys create" in half.err) == (2, False, True)
    token = run(tmp_path, "keys", "create", "--name", "k").out.strip()
    with TIDEGATE.serving(tmp_path, *arguments) as running:
        local = running.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx2.get(f"{local}/").status_code == 303
        assert httpx2.get(f"{local}/api/pools").status_code == 401
        assert httpx2.get(f"{local}/v1/models", headers={"authorization": f"Bearer {token}"}).status_code == 200
        run(tmp_path, "keys", "reset-open", "--yes")
        shown = {"authorization": f"Bearer {token}"}
        until(lambda: httpx2.get(f"{local}/v1/models", headers=shown).status_code == 401)
        assert httpx2.get(f"{local}/v1/models").status_code == 401
        assert "INSECURE" not in running.stop().err


def test_insecure_says_loudly_what_it_means_and_offers_a_set_up_link(tmp_path: Path) -> None:
    with TIDEGATE.serving(tmp_path, *SERVE, "--host", "0.0.0.0", "--insecure") as running:
        said = until(lambda: re.search(r"/setup\?token=([\w-]+)", (running.folder / "out").read_text()))
        assert httpx2.get(f"{running.url.replace('0.0.0.0', '127.0.0.1')}{said[0]}").status_code == 200
        stopped = running.stop()
    assert "INSECURE: whoever reaches 0.0.0.0 may see and change everything here" in stopped.err


def test_a_set_up_link_is_printed_when_it_is_asked_for_and_there_is_nobody_yet(tmp_path: Path) -> None:
    with TIDEGATE.serving(tmp_path, *SERVE, "--setup") as running:
        said = until(lambda: re.search(r"Set-up +(\S+/setup\?token=\S+)", (running.folder / "out").read_text()))
        assert httpx2.get(said[1]).status_code == 200
        form = {"token": said[1].partition("token=")[2], "name": "ann", "password": PASSWORD, "again": PASSWORD}
        made = httpx2.post(f"{running.url}/ui/setup", data=form, headers={"origin": running.url})
        assert made.status_code == 303
        running.stop()
    with TIDEGATE.serving(tmp_path, *SERVE, "--setup") as running:
        assert "Set-up" not in running.stop().out


def test_a_database_of_another_secret_is_refused_in_one_line(tmp_path: Path) -> None:
    run(tmp_path, "keys", "create", "--name", "k", TIDEGATE_SECRET="one-secret-of-some-length")
    other = {"TIDEGATE_SECRET": "another-secret-of-some-length"}
    for arguments in (SERVE, ("keys", "create", "--name", "l")):
        done = run(tmp_path, *arguments, **other)
        assert (done.status, done.out) == (2, "")
        assert re.fullmatch(r"tidegate: secret: it is not the one .*TIDEGATE_SECRET.*\n", done.err), done.err
    short = run(tmp_path, "keys", "list", TIDEGATE_SECRET="short")
    assert (short.status, "TIDEGATE_SECRET: must have at least 16 characters" in short.err) == (2, True)


def test_the_first_start_alone_prints_the_link_that_makes_the_first_admin(tmp_path: Path) -> None:
    for told in (True, False):
        with TIDEGATE.serving(tmp_path, *SERVE) as running:
            assert ("/setup?token=" in running.stop().out) is told


def test_a_reason_given_to_a_command_stands_in_the_audit(tmp_path: Path) -> None:
    made = ("accounts", "create", "ann", "--role", "admin", "--reason", "our first")
    assert run(tmp_path, *made, typed=f"{PASSWORD}\n").status == 0
    assert run(tmp_path, "accounts", "role", "ann", "--role", "admin", "--reason", "x" * 201).status == 2
    [line] = run(tmp_path, "audit", "export", "--json").out.splitlines()[-1:]
    entry = json.loads(line)
    assert (entry["action"], entry["reason"], entry["way"]) == ("account.create", "our first", "command line")
