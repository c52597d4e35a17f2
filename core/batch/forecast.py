"""Watches the batches of all pools, learns how they go, and tells when each will be done.

All is read off the stored batches every few seconds, so that it counts whatever process did the work, and each finished
item once, whatever crashes.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from core.batch.backtest import best_kappa
from core.batch.eta import DeadlineRisk, Outlook, deadline_risk, eta, forecast, may_start
from core.batch.eta_words import CHECKING
from core.batch.learned import KEPT, Changes, Learned
from core.batch.plan import Conditions
from core.batch.residuals import Scores, scores
from core.batch.throughput import Throughput
from core.batch.values import Batch, BatchStatus, Eta, EtaState
from core.batch.work import DEFAULT_KAPPA, Load
from core.errors import NotFound
from core.lifecycle import Service
from core.ports import BatchStore, Clock

LOOK_EVERY_S = 5.0
KEEP_EVERY_S = 60.0
NIGHTLY_S = 86400.0
ETAS_KEPT = timedelta(days=90)
QUOTED_WINDOW = timedelta(hours=24)
RECENT_BATCHES = 500

log = structlog.get_logger(__name__)


class ForecastStore(Protocol):
    """Keeps what ETAs are made from. Every method is one transaction, but for pruning, which is several small ones."""

    async def learned(self, *, since: datetime) -> Learned:
        """Return all that was kept; of throughput that from `since` on, of ETAs the latest 5,000 by when they ended."""

    async def keep_learned(self, changes: Changes, *, at: datetime) -> None:
        """Store what has changed; rows and priors replace those of the same key."""

    async def score_etas(self, batch_id: str, ended_at: datetime | None) -> None:
        """Note when a batch was completed with its ETAs; `None` deletes those, for a batch that ended otherwise."""

    async def prune_learned(self, *, before: datetime) -> None:
        """Delete what is older than `before`."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A batch at the last look."""

    batch: Batch
    done: int
    load: Load


class Forecaster(Service):
    """Tells when batches will be done, and keeps the score of what it told.

    `conditions` returns the present pools by name. Before the first look, and as long as the store cannot be read,
    everything is `learning`. `learned` is what it knows; it may be read.
    """

    name = "forecaster"

    def __init__(
        self,
        *,
        store: ForecastStore,
        batches: BatchStore,
        clock: Clock,
        conditions: Callable[[], Mapping[str, Conditions]],
        weights: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        super().__init__()
        self.learned = Learned()
        self._store = store
        self._batches = batches
        self._clock = clock
        self._conditions = conditions
        self._weights = weights
        self._seen: dict[str, _Seen] = {}
        self._looked_at: datetime | None = None
        self._outlooks: dict[str, Outlook] = {}
        self._told: dict[tuple[str, int, int], Eta] = {}
        self._loaded = False
        self._kept_at = self._nightly_at = 0.0

    # What is told

    async def eta(self, batch: Batch) -> Eta:
        """Return when the batch will be done, as of the last look; times only with the state `estimated`."""
        key = batch.id, batch.version, batch.left
        found = self._told.get(key)
        if found is None:
            found = self._told[key] = self._eta(batch)
        return found

    def risk(self, batch: Batch) -> DeadlineRisk | None:
        """Return whether the batch will meet its deadline, and what mends it; `None` where no time is told."""
        outlook = self._outlook(batch.pool)
        if outlook is None or batch.ended or batch.status is BatchStatus.VALIDATING:
            return None
        return deadline_risk(batch, outlook)

    async def quote(
        self,
        *,
        lines: int,
        prompt_tokens: int,
        tenant: str,
        pool: str,
        model: str | None,
        window: timedelta = QUOTED_WINDOW,
    ) -> Eta:
        """Return when a batch would be done that was submitted now. Raises NotFound for an unknown pool."""
        outlook = self._outlook(pool)
        if outlook is None:
            raise NotFound("pool", pool)
        return eta(_quoted(lines, prompt_tokens, tenant, pool, model, window, outlook.as_of), outlook)

    def score(self) -> Scores:
        """Return how good the ETAs of the latest completed batches were."""
        return scores(list(self.learned.scored))

    # Watching

    async def run(self) -> None:
        """Look every 5 s until cancelled; what fails is tried again."""
        failing = False
        while True:
            try:
                await self.look()
                failing = False
            except Exception:
                if not failing:
                    log.exception("batches could not be forecast; this is tried again")
                failing = True
            await self._clock.sleep(LOOK_EVERY_S)

    async def stop(self) -> None:
        """Stop, and keep what was learned if the store allows."""
        was_running = self.running
        await super().stop()
        if was_running and self._loaded:
            try:
                await self._keep()
            except Exception:
                log.warning("what was learned about ETAs could not be stored", exc_info=True)

    async def look(self) -> None:
        """Take in what happened since the last look."""
        if not self._loaded:
            await self._load()
        active, now = await self._batches.active(), self._clock.now()
        seconds = (now - self._looked_at).total_seconds() if self._looked_at else 0.0
        for batch in [*active, *await self._gone(active)]:
            self._count(batch, max(0.0, seconds))
        self._seen = {batch.id: _seen(batch) for batch in active}
        self._sample(active, now)
        self._looked_at, self._outlooks = now, {}
        self._told.clear()
        await self._relearn(now)
        self._give(active)
        await self._settle(active)
        await self._keep_now_and_then(now)

    async def _load(self) -> None:
        now = self._clock.now()
        learned = await self._store.learned(since=now - KEPT)
        for batch in await self._batches.batches(tenant=None, after=None, limit=RECENT_BATCHES):
            if batch.in_progress_at is not None:
                learned.submitted(batch)
        self._seen = {batch.id: _seen(batch) for batch in await self._batches.active()}
        self.learned, self._loaded = learned, True

    async def _gone(self, active: Sequence[Batch]) -> list[Batch]:
        """Return those that have ended since the last look, as they ended."""
        gone = self._seen.keys() - {batch.id for batch in active}
        return [batch for batch in [await self._find(batch_id) for batch_id in gone] if batch is not None]

    async def _find(self, batch_id: str) -> Batch | None:
        try:
            return await self._batches.batch(batch_id)
        except NotFound:
            return None

    def _count(self, batch: Batch, seconds: float) -> None:
        """Learn from what a batch did since the last look, which was so many seconds ago."""
        before = self._seen.get(batch.id)
        if batch.in_progress_at is None:
            return
        if before is None or before.batch.in_progress_at is None:
            self.learned.submitted(batch)
        done, load = _done(batch)
        was_done, was = (before.done, before.load) if before else (0, Load())
        new = Load(load.items - was.items, load.input_tokens - was.input_tokens, load.output_tokens - was.output_tokens)
        if done > was_done:
            in_slots = (batch.running + (before.batch.running if before else 0)) / 2
            self.learned.observe(batch, new, seconds=in_slots * seconds, done=was_done)

    def _sample(self, active: Sequence[Batch], now: datetime) -> None:
        waiting = {batch.pool for batch in active if _has_backlog(batch)}
        for name, conditions in self._conditions().items():
            self.learned.sample(conditions, now, backlog=name in waiting)

    async def _relearn(self, now: datetime) -> None:
        """Learn anew from what was measured, and once a day choose kappa; in a thread, for it takes a while."""
        nightly = self._clock.monotonic() >= self._nightly_at
        for name, conditions in self._conditions().items():
            rows, kappa = self.learned.rows(name), self.learned.kappa.get(name, DEFAULT_KAPPA)
            if nightly:
                scored = [each for each in list(self.learned.scored) if each.pool == name]
                kappa = await asyncio.to_thread(best_kappa, rows, scored, conditions, present=kappa)
                self.learned.kappa[name] = kappa
            if nightly or self.learned.stale(name):
                zone = conditions.schedule.zone
                found = await asyncio.to_thread(Throughput, rows, zone=zone, kappa=kappa, now=now)
                self.learned.learn(name, found)

    def _give(self, active: Sequence[Batch]) -> None:
        """Keep the ETAs of batches for which one is due."""
        for batch in active:
            outlook = self._outlook(batch.pool)
            if outlook is None or not self.learned.due(batch.id, outlook.as_of):
                continue
            found = forecast(batch, outlook)
            if found is not None and may_start(batch, outlook):
                self.learned.give(batch, found, outlook)

    async def _settle(self, active: Sequence[Batch]) -> None:
        """Score the ETAs of batches that have ended."""
        ended = self.learned.open - {batch.id for batch in active}
        if ended:
            await self._keep()
        for batch_id in ended:
            batch = await self._find(batch_id)
            if batch is None or batch.ended:
                at = batch.completed_at if batch is not None and batch.status is BatchStatus.COMPLETED else None
                await self._store.score_etas(batch_id, at)
                self.learned.ended(batch_id, at)

    async def _keep_now_and_then(self, now: datetime) -> None:
        monotonic = self._clock.monotonic()
        if monotonic >= self._kept_at:
            await self._keep()
            self._kept_at = monotonic + KEEP_EVERY_S
        if monotonic >= self._nightly_at:
            await self._store.prune_learned(before=now - ETAS_KEPT)
            self.learned.forget(now - KEPT)
            self._nightly_at = monotonic + NIGHTLY_S

    async def _keep(self) -> None:
        changes = self.learned.changes()
        if not changes:
            return
        try:
            await self._store.keep_learned(changes, at=self._clock.now())
        except BaseException:
            self.learned.not_stored(changes)
            raise

    # Inside

    def _eta(self, batch: Batch) -> Eta:
        outlook = self._outlook(batch.pool)
        if outlook is not None:
            return eta(batch, outlook, first=self.learned.first(batch.id))
        now = self._looked_at or self._clock.now()
        checking = CHECKING if batch.status is BatchStatus.VALIDATING else ""
        return Eta(EtaState.DONE if batch.ended else EtaState.LEARNING, now, basis=checking)

    def _outlook(self, pool: str) -> Outlook | None:
        """Return the pool as of the last look; `None` before it, and for a pool that is not there."""
        if pool not in self._outlooks:
            conditions = self._conditions().get(pool)
            if conditions is None or self._looked_at is None:
                return None
            active = [seen.batch for seen in self._seen.values()]
            found = self.learned.outlook(conditions, active, self._looked_at, weights=self._weights())
            self._outlooks[pool] = found
        return self._outlooks[pool]


def _seen(batch: Batch) -> _Seen:
    done, load = _done(batch)
    return _Seen(batch, done, load)


def _done(batch: Batch) -> tuple[int, Load]:
    done = batch.completed + batch.failed
    return done, Load(done, batch.usage.input_tokens, batch.usage.output_tokens)


def _has_backlog(batch: Batch) -> bool:
    """Tell whether a batch would start more at once if it might; one that limits itself says nothing about the pool."""
    limited = batch.max_concurrency is not None or batch.interval_s > 0
    running = batch.status is BatchStatus.IN_PROGRESS and batch.pause is None
    return running and not limited and batch.left > batch.running


def _quoted(
    lines: int, prompt_tokens: int, tenant: str, pool: str, model: str | None, window: timedelta, now: datetime
) -> Batch:
    """Return the batch that is asked about, as if it had just begun."""
    return Batch(
        id="quoted",
        tenant=tenant,
        key=None,
        pool=pool,
        model=model,
        endpoint="",
        input_file_id="",
        window=window,
        created_at=now,
        in_progress_at=now,
        status=BatchStatus.IN_PROGRESS,
        total=lines,
        prompt_tokens_total=prompt_tokens,
    )
