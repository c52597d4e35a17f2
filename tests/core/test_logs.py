"""What log lines look like, and what they never hold."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from sqlalchemy import create_engine, text

from core import logs

CANARY = 'sk-canary-"0123'

Configure = Callable[..., io.StringIO]


@pytest.fixture
def configure() -> Iterator[Configure]:
    """Configure logging to a buffer, and put everything back afterwards."""
    root = logging.getLogger()
    before = (
        root.handlers[:],
        root.level,
        {name: logging.getLogger(name).level for name in (*logs.LIBRARIES, *logs.NEVER_CHATTY)},
    )

    def configured(**options: Any) -> io.StringIO:
        stream = io.StringIO()
        logs.configure(stream=stream, **options)
        return stream

    yield configured
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()
    root.handlers[:], level, levels = before[0], before[1], before[2]
    root.setLevel(level)
    for name, number in levels.items():
        logging.getLogger(name).setLevel(number)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_lines_carry_level_time_and_fields(configure: Configure) -> None:
    stream = configure(style="json")
    structlog.get_logger("x").info("moved", pool="default", quota=3)
    (line,) = lines(stream)
    assert line["timestamp"].endswith("Z")
    assert {"event": "moved", "level": "info", "pool": "default", "quota": 3}.items() <= line.items()


def test_console_lines_are_plain_where_nobody_looks(configure: Configure) -> None:
    stream = configure(style="console")
    structlog.get_logger("x").warning("away", pool="default")
    assert "away" in stream.getvalue()
    assert "\x1b[" not in stream.getvalue()


def test_lines_below_the_level_are_not_written(configure: Configure) -> None:
    stream = configure(level="warning", style="json")
    structlog.get_logger("x").info("quiet")
    structlog.get_logger("x").error("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_lines_of_libraries_go_the_same_way(configure: Configure) -> None:
    stream = configure(style="json")
    logging.getLogger("uvicorn.error").error("broke %s", "off")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.access").error("GET /")
    assert [(line["event"], line["level"]) for line in lines(stream)] == [("broke off", "error")]


def test_sql_is_not_logged_even_at_debug_level(configure: Configure) -> None:
    stream = configure(level="debug", style="json")
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        connection.execute(text("select :value"), {"value": "what a person wrote"})
    engine.dispose()
    assert "what a person wrote" not in stream.getvalue()


@pytest.mark.parametrize("style", ["json", "console"])
def test_known_secrets_are_masked_wherever_they_turn_up(configure: Configure, style: str) -> None:
    """R99 BerriAI/litellm#8075: a key shows in tracebacks and logs."""
    stream = configure(style=style, secrets=[CANARY, "abc"])
    log = structlog.get_logger("x")
    log.info(f"sent with {CANARY}", url=f"http://h/?k={CANARY}", nested={"deep": [CANARY]}, quoted="sk-canary-%220123")
    logging.getLogger("library").error("failed with %s", CANARY)
    try:
        raise RuntimeError(f"refused {CANARY}")
    except RuntimeError:
        log.exception("broken")
        logging.getLogger("library").exception("broken too")
    written = stream.getvalue()
    assert "RuntimeError: refused ********" in written
    assert "sk-canary" not in written


@pytest.mark.parametrize("style", ["json", "console"])
def test_credentials_and_contents_are_never_written(configure: Configure, style: str) -> None:
    stream = configure(level="debug", style=style)
    headers = {"Authorization": "Bearer sk-other-1", "cookie": "session=2", "accept": "*/*"}
    structlog.get_logger("x").debug("request", headers=headers, messages=[{"content": "dear diary"}], model="m")
    logging.getLogger("library").warning("sent authorization: Bearer sk-other-1, ok")
    written = stream.getvalue()
    assert not any(secret in written for secret in ("sk-other-1", "session=2", "dear diary"))
    assert "Bearer ********, ok" in written


def test_tracebacks_show_no_values_of_variables(configure: Configure) -> None:
    stream = configure(style="console")
    prompt = "dear " + "diary"
    try:
        raise ValueError(len(prompt))
    except ValueError:
        structlog.get_logger("x").exception("broken")
    assert "ValueError: 10" in stream.getvalue()
    assert "dear diary" not in stream.getvalue()
