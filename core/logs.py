"""One way to write logs, for Tidegate's own lines and for those of its libraries: levelled, structured, no secrets."""

import json
import logging
import re
import sys
from collections.abc import Iterable
from typing import Literal, TextIO
from urllib.parse import quote

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "********"
SHORTEST_SECRET = 6
SECRET_FIELDS = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "api_key", "password"}
)
CONTENT_FIELDS = frozenset({"messages", "prompt", "input", "content", "body", "completion"})
LIBRARIES = ("uvicorn", "uvicorn.error", "alembic", "apscheduler", "httpx2", "aiohttp", "asyncio")
NEVER_CHATTY = ("sqlalchemy", "aiosqlite", "filelock", "httpcore2")
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;)\]}]+")


def configure(
    *,
    level: str = "info",
    style: Literal["console", "json"] = "console",
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Let every log line of the process go to `stream` (default: standard error) at `level` or above.

    `secrets` are values that must never be written; they are masked wherever they turn up, tracebacks included.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    out = stream or sys.stderr
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        without_content,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(style, colours=out.isatty()),
                Redactor(secrets),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)
    _quiet_libraries(number)


def _renderers(style: str, *, colours: bool) -> list[Processor]:
    if style == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]


def _quiet_libraries(level: int) -> None:
    """Let libraries say what they warn of alone; at debug level more, but neither SQL nor headers."""
    for name in (*LIBRARIES, *NEVER_CHATTY):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        chatty = level <= logging.DEBUG and name in LIBRARIES
        logger.setLevel(logging.NOTSET if chatty else logging.WARNING)
    logging.getLogger("uvicorn.access").disabled = True


def without_content(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Replace fields that hold what people wrote, or credentials, at any depth of the line."""
    return {name: _clean(name, value) for name, value in event.items()}


def _clean(name: str, value: object) -> object:
    if name.lower() in SECRET_FIELDS:
        return MASK
    if name.lower() in CONTENT_FIELDS:
        return "(not logged)"
    if isinstance(value, dict):
        return {inner: _clean(str(inner), held) for inner, held in value.items()}
    return value


class Redactor:
    """The last processor: masks known secrets, and what follows Bearer or Basic, in the finished line."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Mask these values, as they are, as JSON writes them and as URLs do; very short ones would maim the line."""
        needles = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _spellings(secret)}
        longest_first = sorted(needles, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if needles else None

    def __call__(self, logger: WrappedLogger, method: str, line: str | EventDict) -> str:
        """Return the finished line without secrets."""
        return self.clean(str(line))

    def clean(self, text: str) -> str:
        """Return `text` without secrets."""
        known = self._known.sub(MASK, text) if self._known else text
        return BEARER.sub(rf"\1 {MASK}", known)


def _spellings(secret: str) -> tuple[str, ...]:
    return secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote(secret)
