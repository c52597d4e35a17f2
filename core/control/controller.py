"""One pool's controller: reads the signals, asks the law, and puts limit, bounds, hold and pause in force.

Every road to a quota ends here: a change by hand, by window or by feedback is published by the same line.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from core.control import wallclock
from core.control.decisions import Decision, Trigger
from core.control.journal import Journal
from core.control.limits import AimdLimit, Limit, LimitConfig, LimitState, Move, confined, continued
from core.control.reasons import Action, Reason
from core.control.sentences import Scene
from core.control.windows import Schedule, bounds_at
from core.ports import Clock, SavedLimit
from core.quotas import Bounds, Hold, PoolLimits, PoolSettings, automatic_quota, clamp_bounds
from core.samples import SampleBoard, Signals


class Counts(Protocol):
    """Requests in flight and waiting, per lane."""

    @property
    def interactive(self) -> int:
        """Interactive in flight."""

    @property
    def interactive_waiting(self) -> int:
        """Interactive waiting for a slot."""

    @property
    def batch(self) -> int:
        """Batch in flight."""

    @property
    def backlog(self) -> int:
        """Batch ready to run."""


class Actuator(Protocol):
    """What enforces the limits: the pool's dispatcher."""

    def apply(self, limits: PoolLimits) -> None:
        """Let `limits` be in force from the next dispatch on."""

    def counts(self) -> Counts:
        """Return the present counts."""

    def quota(self) -> int:
        """Return batch's quota in force."""

    def demand(self) -> int:
        """Return the interactive demand that the quota leaves room for."""

    def take_bound(self) -> bool:
        """Tell whether the limit stopped batch since the last call."""

    def overdue_first_tokens(self, now: float) -> int:
        """Count batch requests that wait too long for their first token."""


class PoolController:
    """Keeps one pool's limits in force. The stored settings hold from the construction on.

    `tick` moves the limit, once per period; `refresh` only puts in force what the clock changed, `configure` what a
    person changed. None of them waits. Under a hold the law goes on in shadow; on release it continues from the held
    quota. `bounds` are the effective ones, `last_tick` monotonic seconds, `last_move` and `why` the latest move and its
    sentence, `moves` counts moves and holds by (action, reason).
    """

    def __init__(
        self,
        *,
        settings: PoolSettings,
        schedule: Schedule,
        pull_backs: bool,
        clock: Clock,
        board: SampleBoard,
        dispatcher: Actuator,
        saved: SavedLimit | None,
        emit: Callable[[Decision], None],
        limit: Limit | None = None,
        period: float = 5.0,
    ) -> None:
        self.moves: Counter[tuple[str, str]] = Counter()
        self.last_move: Move | None = None
        self.why = ""
        self.last_tick = clock.monotonic()
        self._settings = settings
        self._schedule = schedule
        self._pull_backs = pull_backs
        self._clock = clock
        self._board = board
        self._dispatcher = dispatcher
        self._law: Limit = AimdLimit() if limit is None else limit
        self._period = period
        self._journal = Journal(pool=settings.name, emit=emit)
        self._hold, self.bounds = self._resolve(clock.now())
        self._state = self._begin(saved)
        self._publish()
        self._tell_start(saved)

    @property
    def limit(self) -> float:
        """C: the learned limit on the total in flight, in slots."""
        return self._state.limit

    @property
    def settings(self) -> PoolSettings:
        """The operators' settings in force."""
        return self._settings

    @property
    def shadow_quota(self) -> int:
        """The quota that the controller alone would give now."""
        return automatic_quota(self._limits(), self._dispatcher.demand())

    @property
    def hold(self) -> Hold | None:
        """The hold in force, `None` where none stands or its time has passed."""
        return self._hold

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """Every trigger of the latest tick; value / threshold is the pressure."""
        return self.last_move.triggers if self.last_move else ()

    @property
    def cut_at(self) -> float:
        """When the limit was cut last, in monotonic seconds; -inf: never."""
        return self._state.cut_at

    def saved(self) -> SavedLimit:
        """Return what to keep for the next start."""
        state = self._state
        return SavedLimit(state.limit, state.slow_start, state.cut_from, self._clock.now())

    def tick(self) -> None:
        """Read the signals, move the limit, publish."""
        self.refresh()
        now = self._clock.monotonic()
        signals = self._signals(now)
        before = self._dispatcher.quota()
        self._state, move = self._law.update(self._state, self._config(), signals)
        self._publish()
        self.last_tick, self.last_move = now, move
        self.moves[str(move.action), str(move.reason)] += 1
        scene = self._scene()
        self.why = self._journal.ticked(move, scene, state=self._state, quota_before=before)
        if signals.poisoned is not None:
            self.moves[str(Action.HOLD), str(Reason.POISONED_BATCH)] += 1
            self._journal.poisoned(signals.poisoned, signals.poisoned_n, scene)

    def refresh(self) -> None:
        """Put in force what the clock alone changed: window edges, a hold that expired. Does not move the limit."""
        hold, bounds = self._resolve(self._clock.now())
        ended, was = self._hold, self.bounds
        quota, limit = self._dispatcher.quota(), self.limit
        self._adopt(hold, bounds)
        if ended is not None and hold is None:
            self._journal.hold_expired(ended, self._scene(), quota_before=quota, limit_before=limit)
        if bounds.source != was.source:
            self._journal.bounds_changed(was, self._scene(), quota_before=quota, limit_before=limit)

    def configure(self, settings: PoolSettings, schedule: Schedule) -> None:
        """Put new stored settings in force, before the next dispatch. Whoever stored them wrote the decision."""
        self.refresh()
        self._settings, self._schedule = settings, schedule
        self._adopt(*self._resolve(self._clock.now()))
        self._journal.forget()

    # Inside

    def _resolve(self, now: datetime) -> tuple[Hold | None, Bounds]:
        settings = self._settings
        hold = settings.hold if settings.hold is not None and settings.hold.active(now) else None
        bounds = bounds_at(self._schedule, now, pool=settings.name, base=settings.base_bounds())
        return hold, clamp_bounds(bounds, settings.batch_max)

    def _adopt(self, hold: Hold | None, bounds: Bounds) -> None:
        """Put hold and bounds in force. The limit is cut to the bounds at once; a released hold passes its quota on."""
        released = self._hold if hold is None else None
        self._hold, self.bounds = hold, bounds
        self._state = confined(self._state, self._config())
        if released is not None:
            limit = released.quota + self._dispatcher.demand() + self._settings.headroom
            self._state = continued(self._state, self._config(), limit=limit, now=self._clock.monotonic())
        self._publish()

    def _begin(self, saved: SavedLimit | None) -> LimitState:
        if saved is None:
            return self._law.start(self._config())
        return self._law.start(self._config(), limit=saved.limit, age=self._age(saved))

    def _age(self, saved: SavedLimit) -> float:
        return (self._clock.now() - saved.at).total_seconds()

    def _tell_start(self, saved: SavedLimit | None) -> None:
        ended = self._settings.hold
        until = ended.until if ended is not None else None
        if saved is not None and ended is not None and until is not None and saved.at < until <= self._clock.now():
            quota = self._dispatcher.quota()
            self._journal.hold_expired(ended, self._scene(), quota_before=quota, limit_before=self.limit)
        cold = self._law.start(self._config())
        if saved is None or self._state == cold:
            self._journal.started(self._scene(), saved=None, age=None)
        else:
            self._journal.started(self._scene(), saved=saved.limit, age=self._age(saved))

    def _config(self) -> LimitConfig:
        """Return the law's parameters. Where running batch cannot be pulled back, growth is slow in small pools."""
        slots = self._settings.slots
        alpha = slots / 64
        return LimitConfig(
            slots=slots,
            floor=self.bounds.floor,
            alpha=max(1.0, alpha) if self._pull_backs else alpha,
            error_rate=self.bounds.budgets.error_rate,
            period=self._period,
        )

    def _limits(self) -> PoolLimits:
        settings, bounds = self._settings, self.bounds
        return PoolLimits(
            slots=settings.slots,
            reserve=settings.reserve,
            headroom=settings.headroom,
            floor=bounds.floor,
            ceiling=bounds.ceiling,
            limit=self._state.limit,
            hold=self._hold.quota if self._hold else None,
            paused=settings.pause is not None,
            room_for_peak=not self._pull_backs,
            first_token_s=bounds.budgets.first_token_s,
            model_first_token_s={name: b.first_token_s for name, b in settings.model_budgets.items()},
        )

    def _publish(self) -> None:
        self._dispatcher.apply(self._limits())

    def _signals(self, now: float) -> Signals:
        counts = self._dispatcher.counts()
        return self._board.signals(
            now,
            epoch=self._state.epoch,
            budgets=self.bounds.budgets,
            model_budgets=self._settings.model_budgets,
            interactive=counts.interactive,
            interactive_waiting=counts.interactive_waiting,
            batch=counts.batch,
            backlog=counts.backlog,
            bound=self._dispatcher.take_bound(),
            queued=self._dispatcher.overdue_first_tokens(now),
            target=self._config().target,
        )

    def _scene(self) -> Scene:
        counts = self._dispatcher.counts()
        return Scene(
            at=self._clock.now(),
            now=self._clock.monotonic(),
            limit=self._state.limit,
            quota=self._dispatcher.quota(),
            shadow_quota=self.shadow_quota,
            interactive=counts.interactive,
            interactive_waiting=counts.interactive_waiting,
            batch=counts.batch,
            backlog=counts.backlog,
            bounds=self.bounds,
            hold=self._hold,
            paused=self._settings.pause is not None,
            mixed=bool(self._settings.model_budgets),
            config=self._config(),
            version=self._settings.version,
            zone=wallclock.zone(self._schedule.zone),
        )
