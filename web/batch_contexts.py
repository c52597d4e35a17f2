"""What the templates of the Batches pages are given; see `web.contexts`.

`tone` is good, warn, bad or calm: warn is amber, for what is partly wrong or may become so.
"""

from dataclasses import dataclass
from typing import ClassVar

from web.contexts import Applied, Choice, Context, Shell


@dataclass(frozen=True, slots=True)
class Meter:
    """How far a batch is, in percent of its requests: those with a result, those that failed after them, in words.

    `bar` tells whether a picture of that says more than the words.
    """

    done: float
    failed: float
    words: str
    bar: bool = True


@dataclass(frozen=True, slots=True)
class BatchCells(Context):
    """The part of one batch's row that changes by itself. `dom` is its element's id; `eta` of one that ended: when."""

    template: ClassVar[str] = "_batch_cells.html"
    variable: ClassVar[str] = "cells"

    dom: str
    ended: bool
    state: str
    tone: str
    meter: Meter
    eta: str
    deadline: str
    risk: str
    risk_tone: str


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch in the list; `open` tells whether it can still be changed."""

    id: str
    name: str
    href: str
    team: str
    priority: int
    open: bool
    cells: BatchCells


@dataclass(frozen=True, slots=True)
class BatchesLive(Context):
    """The strip above the list: how much there is to do, each second."""

    template: ClassVar[str] = "_batches_live.html"
    variable: ClassVar[str] = "strip"

    as_of: str
    summary: str
    slots: str
    score: str


@dataclass(frozen=True, slots=True)
class BatchesPage(Shell):
    """GET /batches."""

    template: ClassVar[str] = "batches.html"

    strip: BatchesLive
    rows: tuple[BatchRow, ...]
    kinds: tuple[Choice, ...]
    teams: tuple[Choice, ...]
    query: str
    filtered: bool
    older: str
    may_write: bool
    zone: str
    applied: Applied | None = None


@dataclass(frozen=True, slots=True)
class NewBatchPage(Shell):
    """GET /batches/new, and again with what was wrong."""

    template: ClassVar[str] = "batch_new.html"

    values: dict[str, str]
    errors: dict[str, str]
    windows: tuple[Choice, ...]
    endpoints: tuple[Choice, ...]
    limits: str
    reason_required: bool
    curl: str


@dataclass(frozen=True, slots=True)
class Named:
    """One batch in a question: its name, and what is to be known of it."""

    id: str
    name: str
    told: str


@dataclass(frozen=True, slots=True)
class ConfirmPage(Shell):
    """The question before batches are changed; `needs` is the field to fill in: reason, priority or "" for none."""

    template: ClassVar[str] = "batch_confirm.html"

    action: str
    button: str
    danger: bool
    consequence: str
    chosen: tuple[Named, ...]
    left_out: tuple[Named, ...]
    needs: str
    values: dict[str, str]
    errors: dict[str, str]
    reason_required: bool
    back_to: str
    curl: str


@dataclass(frozen=True, slots=True)
class Phase:
    """One step of a batch's life; `state` is done, now or todo."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class FileLink:
    """A file of a batch: "" as `href` where it is not there (yet), and why."""

    name: str
    href: str
    told: str


@dataclass(frozen=True, slots=True)
class BatchLive(Context):
    """The part of a batch's page that changes each second."""

    template: ClassVar[str] = "_batch_live.html"
    variable: ClassVar[str] = "live"

    as_of: str
    version: int
    title: str
    tone: str
    deadline: str
    tuning: str
    basis: str
    why: str
    waits: str
    phases: tuple[Phase, ...]
    meter: Meter
    counts: str
    now: str
    tokens: str
    files: tuple[FileLink, ...]
    score: str


@dataclass(frozen=True, slots=True)
class KindRow:
    """Errors of one kind: how many, what one of them says, and where to see them."""

    name: str
    count: str
    example: str
    href: str


@dataclass(frozen=True, slots=True)
class BatchKinds(Context):
    """Errors by kind, the commonest first; `mistakes` are those of a file that was refused."""

    template: ClassVar[str] = "_batch_kinds.html"
    variable: ClassVar[str] = "errors"

    headline: str
    kinds: tuple[KindRow, ...]
    mistakes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ItemLine:
    """One request of a batch."""

    custom_id: str
    state: str
    tone: str
    status: str
    tries: int
    took: str
    error: str


@dataclass(frozen=True, slots=True)
class ActionLink:
    """What can be done with a batch: a link to the question."""

    label: str
    href: str
    danger: bool


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing to know of a batch."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class BatchPage(Shell):
    """GET /batches/{id}."""

    template: ClassVar[str] = "batch.html"

    id: str
    name: str
    version: int
    live: BatchLive
    errors: BatchKinds
    actions: tuple[ActionLink, ...]
    started: bool
    items: tuple[ItemLine, ...]
    states: tuple[Choice, ...]
    query: str
    code: str
    more: str
    facts: tuple[Fact, ...]
    curl: str
    zone: str
    applied: Applied | None = None


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """How good the ETAs of one team, or of all, were."""

    name: str
    count: int
    held: str
    error: str


@dataclass(frozen=True, slots=True)
class PastEta:
    """One ETA and how it turned out."""

    batch: str
    href: str
    team: str
    at: str
    said: str
    was: str
    held: bool


@dataclass(frozen=True, slots=True)
class EtaPage(Shell):
    """GET /eta: how past ETAs turned out."""

    template: ClassVar[str] = "eta.html"

    headline: str
    scores: tuple[ScoreRow, ...]
    past: tuple[PastEta, ...]
    zone: str
