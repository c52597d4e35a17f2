"""Every change that an operator makes: checked, stored in one transaction with the decision that records it, told."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from core import wording
from core.changes import FOREVER, UNTIL_WINDOW_ENDS, PoolPatch, apply_patch, changes, duration, sentence, signed
from core.control import wallclock
from core.control.decisions import Decision
from core.control.rules import MAX_NAME, OneOff, Schedule, Window, check_text, validate
from core.control.windows import bounds_at, next_change
from core.errors import InvalidValue, NotFound, StaleVersion
from core.people import entries
from core.people.audit import AuditRecord, check_reason, way_of
from core.people.identity import ASKING
from core.ports import Clock, Notifier, SettingsStore
from core.quotas import Bounds, Budgets, PoolLimits, PoolSettings, batch_quota, clamp_bounds
from core.schedule_words import moved_rules, rule_told

__all__ = ["EVERY_POOL", "BoundsPatch", "Figures", "Operations", "PoolPatch"]

EVERY_POOL = "*"
AnyRule = TypeVar("AnyRule", Window, OneOff)
_TOLD = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """What a pool's controller and dispatcher say at the moment of a change; goes into its decision."""

    limit: float
    interactive: int = 0
    interactive_waiting: int = 0
    batch: int = 0
    backlog: int = 0


@dataclass(frozen=True, slots=True)
class BoundsPatch:
    """New bounds or budgets for a rule of the schedule; `None`: not given."""

    floor: int | None = None
    ceiling: int | None = None
    budgets: Budgets | None = None

    def apply(self, rule: AnyRule) -> AnyRule:
        """Return the rule with what is given replaced. Raises InvalidValue where nothing is."""
        given = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        if not given:
            raise InvalidValue("ceiling", "changes nothing: give at least one of floor, ceiling, budgets")
        return replace(rule, **given)


class Operations:
    """The one place where settings and schedule are changed, for pages, API and command line alike.

    `based_on` is the version that the operator saw: StaleVersion is raised where it is no longer the present one, and
    `None` overrides whatever is there. What is wrong in itself is InvalidValue, naming the field. `by` is who does it,
    `way` by which way (core.people.audit) where that is not the way by which this task's request came. `figures`, if
    given, tells what a running pool does, `None` where it does not run here. With `require_reason` a change without a
    reason is an InvalidValue, whoever asks for it.
    """

    def __init__(
        self,
        *,
        settings_store: SettingsStore,
        notifier: Notifier,
        clock: Clock,
        figures: Callable[[str], Figures | None] | None = None,
        require_reason: bool = False,
    ) -> None:
        self.require_reason = require_reason
        self._store = settings_store
        self._notifier = notifier
        self._clock = clock
        self._figures = figures or (lambda pool: None)

    async def change_pool(
        self, pool: str, patch: PoolPatch, *, by: str, based_on: int | None, way: str | None = None
    ) -> PoolSettings:
        """Change a pool and return its new settings. Raises NotFound, StaleVersion, InvalidValue."""
        by = _person(by)
        check_reason(patch.reason, required=self.require_reason)
        while True:
            stored = await self._store.pool(pool)
            _check_version(based_on, stored.version)
            schedule = await self._store.schedule()
            now = self._clock.now()

            def window_end(
                before: PoolSettings = stored, plan: Schedule = schedule, at: datetime = now
            ) -> datetime | None:
                return source_end(plan, at, pool=before.name, base=before.base_bounds())

            after = apply_patch(stored, patch, by=by, now=now, window_end=window_end)
            decision = await self._pool_decision(stored, after, patch, schedule=schedule, by=by, now=now)
            entry = entries.pool_entry(
                stored, after, kind=_kind(patch)[1], at=now, by=by, reason=patch.reason, way=_way(way)
            )
            try:
                saved = await self._store.save_pool(after, based_on=stored.version, decision=decision, audit=[entry])
            except StaleVersion:
                if based_on is not None:
                    raise
                continue
            self._notifier.notify()
            return saved

    async def change_schedule(
        self, schedule: Schedule, *, by: str, note: str = "", based_on: int | None, way: str | None = None
    ) -> Schedule:
        """Replace the whole schedule and return it with its new version. Raises StaleVersion, InvalidValue."""
        return await self._edit_schedule(lambda _: schedule, by=by, note=note, based_on=based_on, way=way)

    async def revert(
        self, record: AuditRecord, *, by: str, reason: str, based_on: int | None, way: str | None = None
    ) -> PoolSettings | Schedule:
        """Put back what an entry of the audit trail changed, as a new change. `based_on` is the version of what it
        changed, pool or schedule. Raises NotFound, StaleVersion, InvalidValue (field `entry`: it cannot be put back).
        """
        check_reason(reason, required=self.require_reason)
        name = entries.pool_of(record.entry)
        if name is not None:
            present = await self._store.pool(name)
            patch = entries.pool_patch(record, present, now=self._clock.now(), given=reason)
            return await self.change_pool(name, patch, by=by, based_on=based_on, way=way)
        if not entries.is_schedule_change(record.entry):
            raise InvalidValue("entry", f"{record.number} is no change of a pool or of the schedule")
        note = entries.reason(record, reason)
        return await self._edit_schedule(
            lambda stored: entries.schedule(record, stored), by=by, note=note, based_on=based_on, way=way
        )

    async def add_one_off(
        self,
        patch: BoundsPatch,
        *,
        pool: str | None = None,
        until: str | datetime = UNTIL_WINDOW_ENDS,
        name: str | None = None,
        by: str,
        reason: str = "",
        based_on: int | None = None,
        way: str | None = None,
    ) -> Schedule:
        """Put other bounds in force from now `until`: an instant, a length ("2h"), or the end of what holds now.

        `pool` `None` means every pool. One-offs that are over are dropped on the way. `based_on` is the schedule's
        version. Raises NotFound, StaleVersion, InvalidValue (field `until` where nothing in force ever ends).
        """
        base = (await self._store.pool(pool)).base_bounds() if pool is not None else Bounds(0, 0)
        by = _person(by)

        def with_one_off(stored: Schedule) -> Schedule:
            now = self._clock.now()
            end = _one_off_end(stored, until, now, pool=pool, base=base)
            kept = tuple(rule for rule in stored.one_offs if rule.end > now)
            zone = wallclock.zone(stored.zone)
            called = name or _free_name(f"Until {wording.moment(end, now, zone)}", kept)
            pools = (pool,) if pool is not None else ()
            one_off = patch.apply(OneOff(called, now, end, pools=pools, reason=reason, by=by))
            return replace(stored, one_offs=(one_off, *kept))

        return await self._edit_schedule(with_one_off, by=by, note=reason, based_on=based_on, way=way)

    async def edit_window(
        self,
        name: str,
        patch: BoundsPatch,
        *,
        by: str,
        note: str = "",
        based_on: int | None = None,
        way: str | None = None,
    ) -> Schedule:
        """Change the bounds or budgets of the weekly window `name`. Raises NotFound, StaleVersion, InvalidValue."""
        return await self.edit_source(f"window:{name}", patch, by=by, note=note, based_on=based_on, way=way)

    async def edit_source(
        self,
        source: str,
        patch: BoundsPatch,
        *,
        by: str,
        note: str = "",
        based_on: int | None = None,
        way: str | None = None,
    ) -> Schedule:
        """Change the rule named by a `Bounds.source` other than the base. Raises as `edit_window` does."""

        def edited(stored: Schedule) -> Schedule:
            if source not in {rule.source for rule in stored.rules}:
                kind, _, name = source.partition(":")
                raise NotFound("one-off" if kind == "one_off" else "window", name)
            return replace(
                stored,
                windows=tuple(patch.apply(rule) if rule.source == source else rule for rule in stored.windows),
                one_offs=tuple(patch.apply(rule) if rule.source == source else rule for rule in stored.one_offs),
            )

        return await self._edit_schedule(edited, by=by, note=note, based_on=based_on, way=way)

    async def _edit_schedule(
        self, edit: Callable[[Schedule], Schedule], *, by: str, note: str, based_on: int | None, way: str | None
    ) -> Schedule:
        by = _person(by)
        check_text(note, "reason")
        check_reason(note, required=self.require_reason)
        while True:
            stored = await self._store.schedule()
            _check_version(based_on, stored.version)
            changed = edit(stored)
            validate(changed)
            await self._check_pools(changed)
            decisions = self._schedule_decisions(stored, changed, by=by, note=note)
            entry = entries.schedule_entry(stored, changed, at=self._clock.now(), by=by, reason=note, way=_way(way))
            try:
                saved = await self._store.save_schedule(
                    changed, based_on=stored.version, decisions=decisions, audit=[entry]
                )
            except StaleVersion:
                if based_on is not None:
                    raise
                continue
            self._notifier.notify()
            return saved

    async def _check_pools(self, schedule: Schedule) -> None:
        known: set[str] = set()
        for rule in schedule.rules:
            for pool in set(rule.pools) - known:
                try:
                    await self._store.pool(pool)
                except NotFound:
                    raise InvalidValue(schedule.path_of(rule) + ".pools", f"no pool is named {pool!r}") from None
                known.add(pool)

    async def _pool_decision(
        self, before: PoolSettings, after: PoolSettings, patch: PoolPatch, *, schedule: Schedule, by: str, now: datetime
    ) -> Decision:
        figures = self._figures(before.name) or await self._saved_figures(before)
        action, reason = _kind(patch)
        bounds = _effective(after, schedule, now)
        return Decision(
            at=now,
            pool=before.name,
            actor="operator",
            action=action,
            reason=reason,
            sentence=sentence(before, after, patch, by=by, now=now, zone=wallclock.zone(schedule.zone)),
            limit=(figures.limit, figures.limit),
            quota=_quotas(before, after, figures, schedule, now),
            by=by,
            note=patch.reason or None,
            interactive=figures.interactive,
            interactive_waiting=figures.interactive_waiting,
            batch=figures.batch,
            backlog=figures.backlog,
            window=bounds.source,
            bounds=(bounds.floor, bounds.ceiling),
            changes=changes(before, after, patch),
        )

    async def _saved_figures(self, settings: PoolSettings) -> Figures:
        saved = await self._store.saved_limit(settings.name)
        return Figures(limit=saved.limit if saved else float(settings.slots))

    def _schedule_decisions(self, before: Schedule, after: Schedule, *, by: str, note: str) -> Sequence[Decision]:
        """Return one decision for each pool that the changed rules name, or one for every pool (`*`)."""
        moved = moved_rules(before, after)
        told = [rule_told(name, old, new) for name, (old, new) in moved.items()]
        if before.zone != after.zone:
            told.insert(0, f"zone {before.zone} -> {after.zone}")
        more = [f"and {len(told) - _TOLD} more changes"] if len(told) > _TOLD else []
        text = "; ".join([*told[:_TOLD], *more]) or "schedule stays as it was"
        found: dict[str, tuple[object, object]] = dict(moved)
        if before.zone != after.zone:
            found["zone"] = (before.zone, after.zone)
        rules = [rule for pair in moved.values() for rule in pair if rule is not None]
        everywhere = before.zone != after.zone or not rules or any(not rule.pools for rule in rules)
        pools = [EVERY_POOL] if everywhere else sorted({pool for rule in rules for pool in rule.pools})
        return [
            Decision(
                at=self._clock.now(),
                pool=pool,
                actor="operator",
                action="set",
                reason="schedule",
                sentence=signed(text, by=by, reason=note),
                limit=(0.0, 0.0),
                quota=(0, 0),
                by=by,
                note=note or None,
                changes=found,
            )
            for pool in pools
        ]


def _way(given: str | None) -> str:
    return given or way_of(ASKING.get())


def source_end(schedule: Schedule, now: datetime, *, pool: str | None, base: Bounds) -> datetime | None:
    """Return when the bounds in force now end: the window's end, or the next change of the base; `None`: never."""
    if pool is None:
        return next_change(schedule, now)
    return bounds_at(schedule, now, pool=pool, base=base).until or next_change(schedule, now, pool)


def _one_off_end(
    schedule: Schedule, until: str | datetime, now: datetime, *, pool: str | None, base: Bounds
) -> datetime:
    if isinstance(until, datetime):
        return until
    if until == FOREVER:
        raise InvalidValue("until", "a one-off has an end; to change the bounds for good, change the base")
    if until != UNTIL_WINDOW_ENDS:
        return now + duration(until, "until")
    end = source_end(schedule, now, pool=pool, base=base)
    if end is None:
        raise InvalidValue(
            "until", 'no window is in force and none follows: give a time such as "1h", or change the base'
        )
    return end


def _free_name(wanted: str, taken: Iterable[OneOff]) -> str:
    names = {rule.name.casefold() for rule in taken}
    candidates = (wanted, *(f"{wanted} ({number})" for number in range(2, len(names) + 3)))
    return next(name for name in candidates if name.casefold() not in names)


def _person(by: str) -> str:
    check_text(by, "by", most=MAX_NAME)
    return by.strip() or "operator"


def _check_version(based_on: int | None, present: int) -> None:
    if based_on is not None and based_on != present:
        raise StaleVersion(based_on, present)


def _kind(patch: PoolPatch) -> tuple[str, str]:
    """Return action and reason code of a pool change."""
    if patch.given == {"pause"}:
        return ("pause", "pause") if patch.pause else ("resume", "resume")
    if patch.hold is not None:
        return "set", "hold"
    return "set", "release" if patch.auto else "settings"


def _effective(settings: PoolSettings, schedule: Schedule, now: datetime) -> Bounds:
    bounds = bounds_at(schedule, now, pool=settings.name, base=settings.base_bounds())
    return clamp_bounds(bounds, settings.batch_max)


def _quotas(
    before: PoolSettings, after: PoolSettings, figures: Figures, schedule: Schedule, now: datetime
) -> tuple[int, int]:
    """Return the quota before and after; a hold that is released passes its quota on, within the bounds."""
    demand = figures.interactive + figures.interactive_waiting
    was = _limits(before, figures.limit, schedule, now)
    released = was.hold if after.hold is None else None
    limit = figures.limit if released is None else float(released + demand + after.headroom)
    return batch_quota(was, demand), batch_quota(_limits(after, limit, schedule, now), demand)


def _limits(settings: PoolSettings, limit: float, schedule: Schedule, now: datetime) -> PoolLimits:
    bounds = _effective(settings, schedule, now)
    hold = settings.hold.quota if settings.hold is not None and settings.hold.active(now) else None
    return PoolLimits(
        settings.slots, settings.reserve, settings.headroom, bounds.floor, bounds.ceiling, limit=limit, hold=hold
    )
