"""What the templates of the schedule are given; see `web.contexts`."""

from dataclasses import dataclass
from typing import ClassVar

from core.overview import NextChange
from core.quotas import Bounds
from web.contexts import Applied, Choice, Context, Note, Shell
from web.week import Week


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
