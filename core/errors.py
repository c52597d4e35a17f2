"""Every way in which Tidegate says no.

TidegateError
├── ConfigError            a setting is wrong; the message names it and the mend (exit 2)
├── InvalidValue           a value from outside is wrong; names the field (400 or 422)
├── StaleVersion           somebody else changed it first; carries the present version
├── NotFound               no such pool, window, ...
└── RequestError           one LLM request failed; carries status, code and OpenAI type
    ├── Rejected           before the queue: full, paused, not allowed, unknown model
    ├── Evicted            after: deadline, client gone, shut-down
    └── UpstreamFailed     the model server: unreachable, too slow, broken off
"""

from dataclasses import dataclass


class TidegateError(Exception):
    """The base of all errors that Tidegate raises on purpose."""


class ConfigError(TidegateError):
    """A setting is missing or wrong. The message is one line that names the setting, its value and the mend."""


class InvalidValue(TidegateError):
    """A value given by a caller is wrong; `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


class StaleVersion(TidegateError):
    """The version that a change was based on is no longer the present one."""

    def __init__(self, given: int, present: int) -> None:
        super().__init__(f"based on version {given}, but the present version is {present}")
        self.given = given
        self.present = present


class NotFound(TidegateError):
    """The named thing does not exist."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"no {kind} is named {name!r}")
        self.kind = kind
        self.name = name


@dataclass(eq=False)
class RequestError(TidegateError):
    """One LLM request cannot be answered.

    `status` is the HTTP status, `code` the stable code of the error body, `type` OpenAI's error type, `param` the
    offending field. `retry_after` is in whole seconds, 1 to 60; `None` where the client should not wait for a time.
    `should_retry` False tells SDKs not to retry at all. `position` (1 is next) and `estimated_wait` (seconds) tell
    where in the queue the request stood.
    """

    status: int
    code: str
    message: str
    type: str = "server_error"
    param: str | None = None
    retry_after: int | None = None
    should_retry: bool | None = None
    position: int | None = None
    estimated_wait: float | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def body(self) -> dict[str, object]:
        """Return the error in OpenAI's shape."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class Rejected(RequestError):
    """Refused before it could wait."""


class Evicted(RequestError):
    """Taken out of the queue before it got a slot."""


class UpstreamFailed(RequestError):
    """The model server did not answer, or broke off."""
