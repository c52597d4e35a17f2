"""Builds the parts of the pages that change by themselves, for the first answer and for each tick after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from urllib.parse import urlencode

from core import wording
from core.control.decisions import Decision, Trigger
from core.control.wallclock import zone as zone_named
from core.errors import NotFound
from core.overview import pool_view, upcoming
from core.pools import Pool
from core.runtime import Runtime
from core.schedule_words import tells_no_figures
from web import charts
from web.batch_live import BatchParts
from web.contexts import ChartPanel, Context, DecisionRow, DecisionsLive, Live, PoolRow, SpanLink
from web.schedule_contexts import InForce, ScheduleLive
from web.templating import render

DEFAULT_SPAN = "15m"
BATCH_PAGES = frozenset({"batches", "batch"})
_ROWS = 6
_MARKS = 300


@dataclass(frozen=True, slots=True)
class Watched:
    """What one browser watches: a page, the pool it shows ("" for all), how far back its chart goes.

    `of` is the batch of the page `batch`, and those shown in `batches`; `tenant` is the only one whose batches may be
    seen (None: all).
    """

    page: str
    pool: str = ""
    span: str = DEFAULT_SPAN
    of: str = ""
    tenant: str | None = None


class LiveParts:
    """The live parts of every page, read from a running `Runtime`."""

    def __init__(self, *, runtime: Runtime) -> None:
        self.runtime = runtime
        self.batches = BatchParts(runtime=runtime)

    @property
    def zone(self) -> tzinfo:
        """The schedule's zone: every clock time on the pages is told in it."""
        return zone_named(self.runtime.schedule.zone)

    @property
    def now(self) -> datetime:
        """The present instant."""
        return self.runtime.clock.now()

    def pool(self, name: str = "") -> Pool:
        """Return the named pool, the first one where none is named. Raises NotFound."""
        pools = self.runtime.pools
        if not name and pools:
            return next(iter(pools.values()))
        if name not in pools:
            raise NotFound("pool", name)
        return pools[name]

    def check(self, watched: Watched) -> None:
        """Raise NotFound unless there is such a page, pool and span."""
        if watched.page not in {"overview", "schedule", "decisions", *BATCH_PAGES}:
            raise NotFound("page", watched.page)
        if watched.span not in charts.SPANS:
            raise NotFound("span", watched.span)
        if watched.pool:
            self.pool(watched.pool)

    async def fragment(self, watched: Watched, whole: bool) -> str:
        """Return what is sent at one tick: the fast parts, and the slow ones too where `whole`."""
        parts = await self._parts(watched, whole)
        return "\n".join(_partial(target, context) for target, context in parts)

    async def _parts(self, watched: Watched, whole: bool) -> list[tuple[str, Context]]:
        if watched.page == "schedule":
            return [("#live", self.schedule_strip())]
        if watched.page == "decisions":
            return [("#live", await self.decisions_strip(watched.pool))]
        if watched.page in BATCH_PAGES:
            return await self.batches.parts(watched.page, watched.of, watched.tenant, whole)
        pool = self.pool(watched.pool)
        live: list[tuple[str, Context]] = [("#live", self.overview(pool, watched.span))]
        return [*live, ("#chart", await self.panel(pool, watched.span))] if whole else live

    def overview(self, pool: Pool, span: str) -> Live:
        """Return the Overview's fast part."""
        view, zone = pool_view(self.runtime.reading(pool), self.zone), self.zone
        hold = view.settings.hold
        held = hold is not None and hold.active(view.at)
        until = wording.moment(hold.until, view.at, zone) if hold and hold.until else "somebody ends it"
        return Live(
            view=view,
            pools=self._rows(pool, span),
            as_of=wording.clock(view.at, zone),
            away=self._away(pool),
            schedule_version=self.runtime.schedule.version,
            source=wording.source(view.bounds.source),
            source_until=wording.moment(view.bounds.until, view.at, zone) if view.bounds.until else "",
            hold_until=f"until {until}" if held else "",
            why=pool.controller.why.replace("->", "→"),
        )

    def _away(self, pool: Pool) -> str:
        """Return why the pool's model server cannot be reached, "" where it can or nobody knows yet."""
        probe = self.runtime.probes.get(pool.name)
        return (probe.error or "no answer") if probe and probe.reachable is False else ""

    def _rows(self, shown: Pool, span: str) -> tuple[PoolRow, ...]:
        if len(self.runtime.pools) < 2:
            return ()
        views = [pool_view(self.runtime.reading(pool), self.zone) for pool in self.runtime.pools.values()]
        return tuple(
            PoolRow(
                name=view.name,
                href=overview_href(view.name, span),
                current=view.name == shown.name,
                gauge=view.gauge,
                title=view.verdict.title + (", batch paused" if view.settings.pause else ""),
                state=view.verdict.state.value,
            )
            for view in views
        )

    async def panel(self, pool: Pool, span: str) -> ChartPanel:
        """Return the chart of `pool` with its newest decisions."""
        now, zone = self.now, self.zone
        start = now - charts.SPANS[span]
        decisions = await self.runtime.decisions.recent(pool=pool.name, since=start, limit=_MARKS)
        newest = decisions[:_ROWS]
        if len(newest) < _ROWS:
            newest = await self.runtime.decisions.recent(pool=pool.name, limit=_ROWS)
        return ChartPanel(
            chart=charts.chart(self.runtime.history.since(pool.name, start), decisions, span=span, now=now, zone=zone),
            span_words=charts.SPAN_WORDS[span],
            spans=tuple(SpanLink(name, overview_href(pool.name, name), name == span) for name in charts.SPANS),
            decisions=decision_rows(newest, now, zone),
            decisions_href=f"/decisions?{urlencode({'pool': pool.name})}",
        )

    async def decisions_strip(self, pool: str) -> DecisionsLive:
        """Return the newest decision of `pool`, or of all pools for ""."""
        newest = await self.runtime.decisions.recent(pool=pool or None, limit=1)
        rows = decision_rows(newest, self.now, self.zone)
        return DecisionsLive(as_of=wording.clock(self.now, self.zone), newest=rows[0] if rows else None)

    def schedule_strip(self) -> ScheduleLive:
        """Return what is in force in each pool."""
        now, zone = self.now, self.zone
        offset = now.astimezone(zone).utcoffset() or timedelta()
        return ScheduleLive(
            as_of=wording.clock(now, zone),
            zone=self.runtime.schedule.zone,
            offset=_offset(offset),
            version=self.runtime.schedule.version,
            pools=tuple(self._in_force(pool, now) for pool in self.runtime.pools.values()),
        )

    def _in_force(self, pool: Pool, now: datetime) -> InForce:
        bounds = pool.controller.bounds
        return InForce(
            pool=pool.name,
            source=wording.source(bounds.source),
            bounds=bounds,
            until=wording.moment(bounds.until, now, self.zone) if bounds.until else "",
            next=upcoming(self.runtime.schedule, now, pool.settings, self.zone),
        )


def overview_href(pool: str, span: str = DEFAULT_SPAN) -> str:
    """Return the address of the Overview of one pool."""
    query = {"pool": pool} if span == DEFAULT_SPAN else {"pool": pool, "range": span}
    return f"/?{urlencode(query)}"


def decision_rows(decisions: Sequence[Decision], now: datetime, zone: tzinfo) -> tuple[DecisionRow, ...]:
    """Return decisions as lines, in the order given."""
    return tuple(_row(decision, now, zone) for decision in decisions)


def _row(decision: Decision, now: datetime, zone: tzinfo) -> DecisionRow:
    local = decision.at.astimezone(zone)
    today = local.date() == now.astimezone(zone).date()
    return DecisionRow(
        id=charts.anchor(decision),
        at=f"{local:%H:%M:%S}",
        day="Today" if today else f"{local:%A} {local.day} {local:%B %Y}",
        iso=decision.at.astimezone(UTC).isoformat(timespec="seconds"),
        pool=decision.pool,
        kind=charts.kind_of(decision) if decision.action != "hold" else "hold",
        moved=_moved(decision),
        sentence=decision.sentence.replace("->", "→"),
        who=decision.by or decision.actor,
        note=decision.note if decision.note and decision.note not in decision.sentence else "",
        figures=_figures(decision),
    )


def _moved(decision: Decision) -> str:
    before, after = decision.quota
    if before != after:
        return f"{before} → {after}"
    if round(decision.limit[0]) != round(decision.limit[1]):
        return f"limit {decision.limit[0]:.0f} → {decision.limit[1]:.0f}"
    return "stays" if decision.action == "hold" else decision.action


def _figures(decision: Decision) -> tuple[str, ...]:
    if tells_no_figures(decision):
        return ()
    in_flight = (
        f"in flight: {decision.interactive} interactive, {decision.batch} batch; "
        f"waiting: {decision.interactive_waiting} interactive, {decision.backlog} batch"
    )
    limits = f"limit {decision.limit[0]:.1f} → {decision.limit[1]:.1f}, bounds {decision.bounds[0]} to "
    return (f"{limits}{decision.bounds[1]}", in_flight, *(_trigger(trigger) for trigger in decision.triggers))


def _trigger(trigger: Trigger) -> str:
    value = wording.NO_DATA if trigger.value is None else f"{trigger.value:.3g}"
    return f"{trigger.name.replace('_', ' ')}: {value}, threshold {trigger.threshold:.3g}, {trigger.n} samples"


def _offset(offset: timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'-' if minutes < 0 else '+'}{hours}" + (f":{rest:02}" if rest else "")


def _partial(target: str, context: Context) -> str:
    return f'<hx-partial hx-target="{target}" hx-swap="outerMorph">\n{render(context)}\n</hx-partial>'
