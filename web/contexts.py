"""What each template is given: one frozen dataclass per template, checked against it by tests.

A page template gets the fields as its variables; a partial (`_name.html`) gets the dataclass under `variable`.
"""

from dataclasses import dataclass
from typing import ClassVar

from core.overview import Gauge, NextChange, PoolView
from core.quotas import Bounds
from web.charts import Chart
from web.week import Week


@dataclass(frozen=True, slots=True)
class Context:
    """The base: which template, and the name under which a partial finds its dataclass ("" for a page)."""

    template: ClassVar[str] = ""
    variable: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class NavLink:
    """One page in the navigation."""

    name: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks at the page; without a name: anybody on this machine. `signed_in`: there is a session to end."""

    name: str
    role: str
    signed_in: bool


@dataclass(frozen=True, slots=True)
class Shell(Context):
    """What every page needs.

    `stream` is where its live parts come from ("": it has none), `poll` whether they are asked for every 5 s instead of
    sent each second, `scripts` whether the browser files are there, `refresh` whether the page reloads itself where
    JavaScript is off. `nav` are the pages that the `visitor` may see.
    """

    title: str
    stream: str
    poll: bool
    scripts: bool
    refresh: bool
    nav: tuple[NavLink, ...]
    visitor: Visitor | None


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool among several: its gauge in small, and its verdict."""

    name: str
    href: str
    current: bool
    gauge: Gauge
    title: str
    state: str


@dataclass(frozen=True, slots=True)
class Live(Context):
    """The part of the Overview that changes each second. `away` tells why the model server cannot be reached ("")."""

    template: ClassVar[str] = "_live.html"
    variable: ClassVar[str] = "live"

    view: PoolView
    pools: tuple[PoolRow, ...]
    as_of: str
    away: str
    schedule_version: int
    source: str
    source_until: str
    hold_until: str


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision as a line: when, what moved, why, who."""

    id: str
    at: str
    day: str
    iso: str
    pool: str
    kind: str
    moved: str
    sentence: str
    who: str
    note: str
    figures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpanLink:
    """One choice of how far back the chart goes."""

    name: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class ChartPanel(Context):
    """The chart with the newest decisions; changes every five seconds."""

    template: ClassVar[str] = "_chart.html"
    variable: ClassVar[str] = "panel"

    chart: Chart | None
    span_words: str
    spans: tuple[SpanLink, ...]
    decisions: tuple[DecisionRow, ...]
    decisions_href: str


@dataclass(frozen=True, slots=True)
class Note:
    """One line of a preview; `level` is info, warn or bad."""

    text: str
    level: str = "info"


@dataclass(frozen=True, slots=True)
class Change:
    """One setting before and after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Preview(Context):
    """What the numbers in the tuning form would do now, and the same as a command."""

    template: ClassVar[str] = "_preview.html"
    variable: ClassVar[str] = "preview"

    changes: tuple[Change, ...] = ()
    notes: tuple[Note, ...] = ()
    curl: str = ""


@dataclass(frozen=True, slots=True)
class Conflict:
    """One setting in a conflict: what it was when the form was opened, what it is now, what was typed."""

    name: str
    was: str
    theirs: str
    yours: str


@dataclass(frozen=True, slots=True)
class Applied:
    """A change that was just made, with the token that undoes it ("" where who looks cannot), and where."""

    at: str
    sentence: str
    undo: str
    undo_at: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One option of a select or radio group."""

    value: str
    label: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Tuning(Context):
    """The tuning form and, beside it, pause and resume."""

    template: ClassVar[str] = "_tuning.html"
    variable: ClassVar[str] = "tuning"

    pool: str
    values: dict[str, str]
    was: dict[str, str]
    errors: dict[str, str]
    source: str
    source_id: str
    scopes: tuple[Choice, ...]
    untils: tuple[Choice, ...]
    most: int
    version: int
    schedule_version: int
    preview: Preview
    paused: str
    upcoming: NextChange | None
    zone: str
    conflict: tuple[Conflict, ...] = ()
    conflict_by: str = ""
    applied: Applied | None = None


@dataclass(frozen=True, slots=True)
class OverviewPage(Shell):
    """GET /."""

    template: ClassVar[str] = "overview.html"

    live: Live
    panel: ChartPanel
    tuning: Tuning


@dataclass(frozen=True, slots=True)
class DecisionsLive(Context):
    """The strip above the list of decisions: the newest one, each second."""

    template: ClassVar[str] = "_decisions_live.html"
    variable: ClassVar[str] = "strip"

    as_of: str
    newest: DecisionRow | None


@dataclass(frozen=True, slots=True)
class DecisionsPage(Shell):
    """GET /decisions."""

    template: ClassVar[str] = "decisions.html"

    strip: DecisionsLive
    rows: tuple[DecisionRow, ...]
    pools: tuple[Choice, ...]
    actors: tuple[Choice, ...]
    query: str
    older: str
    zone: str


@dataclass(frozen=True, slots=True)
class InForce:
    """Which bounds a pool runs with now."""

    pool: str
    source: str
    bounds: Bounds
    until: str
    next: NextChange | None


@dataclass(frozen=True, slots=True)
class ScheduleLive(Context):
    """The strip above the week: what is in force in each pool, each second."""

    template: ClassVar[str] = "_schedule_live.html"
    variable: ClassVar[str] = "strip"

    as_of: str
    zone: str
    offset: str
    version: int
    pools: tuple[InForce, ...]


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One weekly window in the list."""

    name: str
    when: str
    bounds: str
    priority: int
    pools: str
    edit: str


@dataclass(frozen=True, slots=True)
class OneOffRow:
    """One one-off in the list."""

    name: str
    when: str
    bounds: str
    reason: str
    state: str
    edit: str


@dataclass(frozen=True, slots=True)
class ComingRow:
    """One coming change of the bounds in force."""

    at: str
    pool: str
    text: str
    note: str


@dataclass(frozen=True, slots=True)
class Day:
    """One weekday of the editor."""

    number: int
    name: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class SchedulePreview(Context):
    """The week as it would be with what is typed in the editor."""

    template: ClassVar[str] = "_schedule_preview.html"
    variable: ClassVar[str] = "preview"

    week: Week | None
    overlaps: tuple[str, ...] = ()
    coming: tuple[ComingRow, ...] = ()
    notes: tuple[Note, ...] = ()
    heading: str = "This week"


@dataclass(frozen=True, slots=True)
class Editor(Context):
    """The form for one window or one-off; `kind` is window, one_off or zone."""

    template: ClassVar[str] = "_editor.html"
    variable: ClassVar[str] = "editor"

    kind: str
    original: str
    heading: str
    values: dict[str, str]
    days: tuple[Day, ...]
    pools: tuple[Choice, ...]
    zones: tuple[str, ...]
    errors: dict[str, str]
    version: int
    conflict: str = ""


@dataclass(frozen=True, slots=True)
class DeletePage(Shell):
    """The question before a window or one-off is deleted."""

    template: ClassVar[str] = "delete.html"

    kind: str
    name: str
    when: str
    version: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class SchedulePage(Shell):
    """GET /schedule."""

    template: ClassVar[str] = "schedule.html"

    strip: ScheduleLive
    preview: SchedulePreview
    pools: tuple[Choice, ...]
    windows: tuple[WindowRow, ...]
    one_offs: tuple[OneOffRow, ...]
    editor: Editor | None
    zone: str
    version: int
    applied: Applied | None = None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One entry of the audit trail as a line; `revert` tells whether what it changed can be put back."""

    number: int
    at: str
    day: str
    iso: str
    who: str
    what: str
    moved: str
    reason: str
    way: str
    automatic: bool
    revert: bool


@dataclass(frozen=True, slots=True)
class AuditPage(Shell):
    """GET /audit."""

    template: ClassVar[str] = "audit.html"

    rows: tuple[AuditRow, ...]
    values: dict[str, str]
    kinds: tuple[Choice, ...]
    export: str
    older: str
    zone: str
    applied: Applied | None = None


@dataclass(frozen=True, slots=True)
class Revert:
    """What putting an entry back would do now, on which version; `refused` tells why it cannot be done ("")."""

    changes: tuple[Change, ...]
    version: int
    refused: str


@dataclass(frozen=True, slots=True)
class EntryPage(Shell):
    """GET /audit/{number}: one entry in full."""

    template: ClassVar[str] = "entry.html"

    row: AuditRow
    changes: tuple[Change, ...]
    before: str
    after: str
    hash: str
    previous: str
    revert: Revert | None
    problem: str


@dataclass(frozen=True, slots=True)
class CallLogRow:
    """One call of the call log as a line."""

    at: str
    day: str
    iso: str
    request: str
    who: str
    where: str
    lane: str
    batch: str
    outcome: str
    good: bool
    waited: str
    first: str
    total: str
    tokens: str


@dataclass(frozen=True, slots=True)
class CallsPage(Shell):
    """GET /audit/calls."""

    template: ClassVar[str] = "calls.html"

    rows: tuple[CallLogRow, ...]
    values: dict[str, str]
    pools: tuple[Choice, ...]
    lanes: tuple[Choice, ...]
    outcomes: tuple[Choice, ...]
    export: str
    older: str
    kept: str
    zone: str


@dataclass(frozen=True, slots=True)
class SecretPage(Shell):
    """The answer to a new or rotated key or signing secret: shown this once; `code` says how to use it."""

    template: ClassVar[str] = "secret.html"

    heading: str
    label: str
    token: str
    notes: tuple[str, ...]
    code_name: str
    code: str
    back_to: str


@dataclass(frozen=True, slots=True)
class ErrorPage(Shell):
    """A page that says what went wrong and where to go on."""

    template: ClassVar[str] = "error.html"

    message: str
    back_to: str
