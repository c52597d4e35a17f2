"""Decides what of a pool's moves is worth a row in the decision log, and writes the row.

A cut is a row at once, and so is growth after a row that said why the limit stood; more growth is folded into one row a
minute. A quota that moved while the limit stood shares that row's place. Why the limit does not move is told when the
reason changes, once a minute at most; that a cut drains and settles is told by the cut itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from core.control.decisions import Decision, Trigger
from core.control.limits import LimitState, Move
from core.control.reasons import Action, Reason
from core.control.sentences import Facts, Scene, sentence
from core.quotas import Bounds, Hold

FOLD = 60.0
"""Seconds of growth that one row tells."""

_QUIET = frozenset({Reason.DRAINING, Reason.SETTLING, Reason.FIXED})


@dataclass(frozen=True, slots=True)
class _Fold:
    """How things stood when the present minute began, and the latest growth since, if there was one."""

    since: float
    limit: float
    quota: int
    demand: int
    growth: Facts | None = None


class Journal:
    """One pool's decisions. `emit` takes each row as it is made."""

    def __init__(self, *, pool: str, emit: Callable[[Decision], None]) -> None:
        self._pool = pool
        self._emit = emit
        self._fold: _Fold | None = None
        self._told: Reason | None = None
        self._told_at = -math.inf
        self._stands = False
        self._poisoned_at: dict[str, float] = {}

    def started(self, scene: Scene, *, saved: float | None, age: float | None) -> None:
        """Tell from which limit the pool goes on."""
        facts = Facts(
            reason=Reason.COLD_START if saved is None else Reason.RESUMED,
            scene=scene,
            limit=(scene.limit if saved is None else saved, scene.limit),
            quota=(scene.quota, scene.quota),
            saved=saved,
            age=age,
        )
        self._write(facts, "restart", Action.START)

    def ticked(self, move: Move, scene: Scene, *, state: LimitState, quota_before: int) -> str:
        """Tell of one tick what is worth a row; return the sentence of the move, row or not."""
        facts = _of_move(move, scene, state, quota_before)
        fold = self._fold or _Fold(scene.now, move.before, quota_before, scene.demand)
        if move.action is Action.GROW:
            fold = replace(fold, growth=facts)
            if self._stands:
                self._tell_growth(fold)
                self._stands, fold = False, _begun(scene)
        if move.action is Action.CUT:
            self._tell_growth(fold)
            self._write(facts, "controller", Action.CUT)
            self._stands, fold = False, _begun(scene)
        elif move.action is Action.HOLD and self._is_news(move.reason, scene.now):
            self._tell_growth(fold)
            self._write(facts, "controller", Action.HOLD)
            self._told, self._told_at, self._stands = move.reason, scene.now, True
            fold = _begun(scene) if fold.growth else fold
        if scene.now - fold.since >= FOLD:
            if not self._tell_growth(fold):
                self._tell_quota(fold, facts)
            fold = _begun(scene)
        self._fold = fold
        return sentence(facts)

    def poisoned(self, source: str, failures: int, scene: Scene) -> None:
        """Tell, once a minute per source, that one batch alone fails and the limit stays."""
        self._poisoned_at = {name: at for name, at in self._poisoned_at.items() if scene.now - at < FOLD}
        if source in self._poisoned_at:
            return
        self._poisoned_at[source] = scene.now
        facts = _standing(Reason.POISONED_BATCH, scene, scene.quota)
        self._write(replace(facts, source=source, failures=failures), "controller", Action.HOLD)

    def bounds_changed(self, was: Bounds, scene: Scene, *, quota_before: int, limit_before: float) -> None:
        """Tell that the clock put other bounds in force."""
        self._fold = _begun(scene)
        reason = Reason.WINDOW_CLOSED if scene.bounds.source == "base" else Reason.WINDOW_OPENED
        facts = replace(_standing(reason, scene, quota_before), was=was, limit=(limit_before, scene.limit))
        self._write(facts, "schedule", Action.WINDOW)

    def hold_expired(self, ended: Hold, scene: Scene, *, quota_before: int, limit_before: float) -> None:
        """Tell that an operator's hold came to its end."""
        self._fold = _begun(scene)
        facts = _standing(Reason.HOLD_EXPIRED, scene, quota_before)
        self._write(replace(facts, ended=ended, limit=(limit_before, scene.limit)), "controller", Action.SET)

    def forget(self) -> None:
        """Begin a new minute: something outside the controller changed, and its own row tells it."""
        self._fold = None

    def _is_news(self, reason: Reason, now: float) -> bool:
        return reason not in _QUIET and reason is not self._told and now - self._told_at >= FOLD

    def _tell_growth(self, fold: _Fold) -> bool:
        """Tell in one row how the limit grew since the fold began; return whether it did."""
        growth = fold.growth
        if growth is None:
            return False
        folded = replace(growth, limit=(fold.limit, growth.limit[1]), quota=(fold.quota, growth.quota[1]))
        self._write(folded, "controller", Action.GROW)
        return True

    def _tell_quota(self, fold: _Fold, facts: Facts) -> None:
        """Tell, if it is much, how the quota followed interactive while the limit stood."""
        scene = facts.scene
        enough = max(2, scene.config.slots // 8)
        if scene.hold is not None or fold.limit != scene.limit or abs(scene.quota - fold.quota) < enough:
            return
        moved = replace(facts, reason=Reason.INTERACTIVE_CHANGED, quota=(fold.quota, scene.quota))
        self._write(replace(moved, demand=(fold.demand, scene.demand)), "controller", Action.SET)

    def _write(self, facts: Facts, actor: str, action: Action) -> None:
        scene = facts.scene
        source = scene.bounds.source
        self._emit(
            Decision(
                at=scene.at,
                pool=self._pool,
                actor=actor,
                action=action.value,
                reason=facts.reason.value,
                sentence=sentence(facts),
                limit=(round(facts.limit[0], 3), round(facts.limit[1], 3)),
                quota=facts.quota,
                triggers=facts.triggers,
                interactive=scene.interactive,
                interactive_waiting=scene.interactive_waiting,
                batch=scene.batch,
                backlog=scene.backlog,
                epoch=scene.at + timedelta(seconds=facts.epoch - scene.now) if math.isfinite(facts.epoch) else None,
                next_move_at=scene.at + timedelta(seconds=facts.wait) if facts.wait > 0 else None,
                window=None if source == "base" else source,
                bounds=(scene.bounds.floor, scene.bounds.ceiling),
                config_version=scene.version,
                shadow=scene.hold is not None and action in _SHADOWED,
            )
        )


_SHADOWED = frozenset({Action.CUT, Action.GROW, Action.HOLD})


def _begun(scene: Scene) -> _Fold:
    return _Fold(scene.now, scene.limit, scene.quota, scene.demand)


def _of_move(move: Move, scene: Scene, state: LimitState, quota_before: int) -> Facts:
    return Facts(
        reason=move.reason,
        scene=scene,
        limit=(move.before, move.after),
        quota=(quota_before, scene.quota),
        demand=(scene.demand, scene.demand),
        triggers=tuple(Trigger(str(t.name), t.value, t.threshold, t.n) for t in move.triggers),
        epoch=state.epoch,
        wait=max(0.0, move.next_at - scene.now),
        slow_start=state.slow_start,
        cut_from=state.cut_from,
    )


def _standing(reason: Reason, scene: Scene, quota_before: int) -> Facts:
    demand = (scene.demand, scene.demand)
    return Facts(reason, scene, (scene.limit, scene.limit), (quota_before, scene.quota), demand)
