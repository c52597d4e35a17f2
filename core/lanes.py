"""The two lanes and the outcomes in which a request may leave one."""

from enum import StrEnum


class Lane(StrEnum):
    """Who waits for whom: interactive never waits for batch."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Outcome(StrEnum):
    """How a lease ended; also the value of the `outcome` metric label.

    `CLIENT_ERROR` is a 4xx (but 408 and 429) from the model server: neither a success nor a failure of the pool.
    """

    SUCCESS = "success"
    CLIENT_DISCONNECT = "client_disconnect"
    TIMEOUT = "timeout"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TRUNCATED = "upstream_truncated"
    CLIENT_ERROR = "client_error"
    RATE_LIMITED = "rate_limited"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"


class PullBack(StrEnum):
    """Why a running batch request was aborted and put back at the head of its queue (control law, actuator)."""

    SLOTS_FULL = "slots_full"
    FIRST_TOKEN_OVERDUE = "first_token_overdue"
    PROVIDER_429 = "provider_429"
