"""What each template is given: one frozen dataclass per template, checked against it by tests.

A page template gets the fields as its variables; a partial (`_name.html`) gets the dataclass under `variable`.
"""

from dataclasses import dataclass
from typing import ClassVar

from core.overview import Gauge, NextChange, PoolView
from web.charts import Chart


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
    """The part of the Overview that changes each second.

    `away` tells why the model server cannot be reached (""), `why` what the controller found at its last look.
    """

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
    why: str


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
