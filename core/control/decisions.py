"""A decision: one move, or deliberate hold, of a pool's limit or settings, with the figures behind it."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Trigger:
    """One signal beside its threshold: `value` and `threshold` in the signal's own unit, over `n` samples.

    `value` is `None` where there is no data.
    """

    name: str
    value: float | None
    threshold: float
    n: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """One row of the decision log (control law, section 5).

    `actor` is controller, operator, schedule or restart; `by` names the person. `action` is cut, grow, hold, set,
    pause, resume, window or start. `reason` is the controller's reason code, `note` what a person gave as reason.
    `limit` and `quota` are (before, after). Only requests that arrived from `epoch` on were judged; `None` where all
    were, or where a cut still drains and none are. `sentence` is for people.
    """

    at: datetime
    pool: str
    actor: str
    action: str
    reason: str
    sentence: str
    limit: tuple[float, float]
    quota: tuple[int, int]
    triggers: tuple[Trigger, ...] = ()
    by: str | None = None
    note: str | None = None
    interactive: int = 0
    interactive_waiting: int = 0
    batch: int = 0
    backlog: int = 0
    epoch: datetime | None = None
    next_move_at: datetime | None = None
    window: str | None = None
    bounds: tuple[int, int] = (0, 0)
    config_version: int = 0
    shadow: bool = False
    changes: dict[str, tuple[object, object]] = field(default_factory=dict)
