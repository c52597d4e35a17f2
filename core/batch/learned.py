"""All that ETAs are made from, kept up to date from what happens: no I/O, no clock of its own."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby

from core.batch.arrivals import Arrival, Arrivals
from core.batch.eta import Forecast, Outlook, Recent, fresh
from core.batch.meter import Meter
from core.batch.plan import Conditions
from core.batch.residuals import GivenEta, Ranges
from core.batch.throughput import Measured, Throughput, level
from core.batch.values import Batch, Usage
from core.batch.work import ANY, DEFAULT_KAPPA, Load, Prior, PriorKey, Priors, remaining

KEPT = timedelta(weeks=8)
"""How long throughput counts."""
EVERY = timedelta(minutes=5)
"""The least time between two ETAs of one batch that are kept."""
SCORED_KEPT = 4000

_TIMES_A_BATCH = 12
_ONE_BATCH = 300.0

RowKey = tuple[str, datetime, str]


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed since it was last stored."""

    rows: Sequence[tuple[str, Measured]] = ()
    priors: Sequence[tuple[PriorKey, Prior]] = ()
    given: Sequence[GivenEta] = ()

    def __bool__(self) -> bool:
        return bool(self.rows or self.priors or self.given)


class Learned:
    """Throughput by hour, priors, ETAs given and how they turned out, for all pools.

    `kappa` may be set per pool; it is 0.35 where it is not.
    """

    def __init__(
        self,
        *,
        rows: Iterable[tuple[str, Measured]] = (),
        priors: Iterable[tuple[PriorKey, Prior]] = (),
        given: Iterable[GivenEta] = (),
    ) -> None:
        """Take what was stored: one row per pool, hour and source; `given` in the order in which batches ended."""
        self.kappa: dict[str, float] = {}
        self.priors = Priors(priors)
        self.arrivals = Arrivals()
        self.scored: deque[GivenEta] = deque(maxlen=SCORED_KEPT)
        self._rows: dict[RowKey, Measured] = {(pool, row.start, row.source): row for pool, row in rows}
        self._changed_rows: set[RowKey] = set()
        self._new_given: list[GivenEta] = []
        self._meters: dict[str, Meter] = defaultdict(Meter)
        self._ranges: dict[str, Ranges] = defaultdict(Ranges)
        self._open: dict[str, list[GivenEta]] = defaultdict(list)
        self._throughput: dict[str, Throughput] = {}
        self._stale: set[str] = set()
        for (batch, ended_at), theirs in groupby(given, key=lambda each: (each.batch, each.ended_at)):
            if ended_at is None:
                self._open[batch] += theirs
            else:
                self._learn(list(theirs))

    # What happens

    def observe(
        self, batch: Batch, load: Load, *, seconds: float, model: str | None = None, done: float | None = None
    ) -> None:
        """Note requests of a batch that ended, and the seconds that all of them took.

        `done` items of it had ended before, as far as the caller knows better than the batch itself. The more had, the
        less a further one tells of the next batch.
        """
        if load.items <= 0:
            return
        done = batch.completed + batch.failed if done is None else done
        weight = load.items / (1 + done / _ONE_BATCH)
        uploaded = batch.prompt_tokens_total / max(1, batch.total) * load.items
        ratio = load.input_tokens / uploaded if uploaded > 0 else 1.0
        seen = Prior(weight, load.output_tokens / load.items, seconds / load.items, ratio)
        self.priors.observe(batch.pool, batch.tenant, model or batch.model or ANY, seen)
        self._meters[batch.pool].observe(load)

    def submitted(self, batch: Batch) -> None:
        """Note that a batch came; once each."""
        whole = replace(batch, completed=0, failed=0, usage=Usage())
        load = remaining(whole, self.priors.of(batch.pool, batch.tenant, batch.model))
        self.arrivals.add(Arrival(batch.pool, batch.tenant, batch.created_at, load))

    def sample(self, conditions: Conditions, now: datetime, *, backlog: bool) -> None:
        """Note how a pool stands, every few seconds; `backlog` tells whether batch has more to do than it may."""
        pool = conditions.settings.name
        prior = self.priors.at((pool, ANY, ANY))
        stretch = self._meters[pool].sample(now, conditions, prior, backlog=backlog)
        if stretch is not None:
            self._add_row(pool, stretch)

    def due(self, batch_id: str, now: datetime) -> bool:
        """Tell whether it is time to keep an ETA of a batch."""
        given = self._open.get(batch_id)
        return not given or now - given[-1].at >= EVERY

    def give(self, batch: Batch, found: Forecast, outlook: Outlook) -> GivenEta | None:
        """Keep what is now told of a batch, if it is the first ETA or the last is some time ago; else `None`."""
        before, now = self._open.get(batch.id), outlook.as_of
        if before and now - before[-1].at < max(EVERY, (found.mid - now) / _TIMES_A_BATCH):
            return None
        total = found.ahead.total
        given = GivenEta(
            batch=batch.id,
            tenant=batch.tenant,
            pool=batch.pool,
            at=now,
            low=found.low,
            mid=found.mid,
            high=found.high,
            items=total.items,
            input_tokens=total.input_tokens,
            output_tokens=total.output_tokens,
            first=not before and fresh(batch),
            calibrated=outlook.ranges.calibrated,
        )
        self._open[batch.id].append(given)
        self._new_given.append(given)
        return given

    def ended(self, batch_id: str, at: datetime | None) -> None:
        """Score a batch's ETAs by when it was completed; `None` forgets them, for a batch that ended otherwise."""
        given = self._open.pop(batch_id, [])
        if given and at is not None:
            self._learn([replace(each, ended_at=at) for each in given])

    # What is known

    @property
    def open(self) -> set[str]:
        """The batches for which ETAs were given, and that were not scored yet."""
        return {batch for batch, given in self._open.items() if given}

    def first(self, batch_id: str) -> GivenEta | None:
        """Return the first ETA that was given for a batch that is not scored yet."""
        given = self._open.get(batch_id)
        return given[0] if given else None

    def rows(self, pool: str) -> list[Measured]:
        """Return a pool's throughput by hour."""
        return [row for (name, _, _), row in self._rows.items() if name == pool]

    def recent(self, pool: str, now: datetime) -> list[Measured]:
        """Return what was measured of a pool in the last hour."""
        return self._meters[pool].recent(now)

    def stale(self, pool: str) -> bool:
        """Tell whether a pool has rows from which nothing was learned yet."""
        return pool in self._stale

    def learn(self, pool: str, throughput: Throughput) -> None:
        """Take what was learned from a pool's `rows`: some 10 ms of work after weeks, best done in a thread."""
        self._throughput[pool] = throughput
        self._stale.discard(pool)

    def outlook(
        self, conditions: Conditions, active: Sequence[Batch], now: datetime, *, weights: Mapping[str, float]
    ) -> Outlook:
        """Return all that tells when the batches of a pool will be done; `active` may hold those of others too."""
        pool = conditions.settings.name
        recent = self._meters[pool].recent(now)
        throughput = self._present(conditions, now)
        return Outlook(
            as_of=now,
            conditions=conditions,
            throughput=throughput,
            level=level(recent, throughput, now),
            ranges=self._ranges[pool],
            priors=self.priors,
            active=[batch for batch in active if batch.pool == pool],
            weights=weights,
            arrivals=self.arrivals.expected(pool, now, zone=conditions.schedule.zone),
            recent=_told(recent, now),
        )

    def changes(self) -> Changes:
        """Hand over what is to be stored; it is not handed over again, unless `not_stored` gives it back."""
        rows = [(key[0], self._rows[key]) for key in self._changed_rows if key in self._rows]
        priors = [(key, self.priors.at(key)) for key in self.priors.changed]
        given, self._new_given = self._new_given, []
        self._changed_rows.clear()
        self.priors.changed.clear()
        return Changes(rows, priors, given)

    def not_stored(self, changes: Changes) -> None:
        """Take back what could not be stored."""
        self._changed_rows |= {(pool, row.start, row.source) for pool, row in changes.rows}
        self.priors.changed |= {key for key, _ in changes.priors}
        self._new_given = [*changes.given, *self._new_given]

    def forget(self, before: datetime) -> None:
        """Drop throughput older than `before`."""
        self._rows = {key: row for key, row in self._rows.items() if row.start >= before}

    def _learn(self, scored: Sequence[GivenEta]) -> None:
        """Take the ETAs of one batch, which is in one pool."""
        self.scored.extend(scored)
        self._ranges[scored[0].pool].learn(scored)

    def _add_row(self, pool: str, stretch: Measured) -> None:
        row = replace(stretch, start=stretch.start.replace(minute=0, second=0, microsecond=0))
        key = (pool, row.start, row.source)
        self._rows[key] = self._rows[key] + row if key in self._rows else row
        self._changed_rows.add(key)
        self._stale.add(pool)

    def _present(self, conditions: Conditions, now: datetime) -> Throughput:
        """Return the throughput learned; as long as there is too little, the stretch that is still open counts too."""
        pool, zone = conditions.settings.name, conditions.schedule.zone
        kappa = self.kappa.get(pool, DEFAULT_KAPPA)
        if pool not in self._throughput:
            self.learn(pool, Throughput(self.rows(pool), zone=zone, kappa=kappa, now=now))
        learned, stretch = self._throughput[pool], self._meters[pool].open
        if learned.enough or stretch is None:
            return learned
        return Throughput([*self.rows(pool), stretch], zone=zone, kappa=kappa, now=now)


def _told(recent: Sequence[Measured], now: datetime) -> Recent:
    items = round(sum(row.load.items for row in recent))
    since = min((row.start for row in recent), default=now)
    return Recent(items, max(1, round((now - since).total_seconds() / 60)))
