"""A pool in make-believe time with known habits, to hold ETAs against what then happened."""

import math
import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from statistics import median

from core.batch.backtest import best_kappa
from core.batch.eta import Outlook, forecast
from core.batch.learned import Learned
from core.batch.plan import Conditions
from core.batch.sharing import Ahead
from core.batch.throughput import Throughput
from core.batch.values import Batch, BatchStatus, Usage
from core.batch.work import DEFAULT_KAPPA, Load
from core.control.windows import Schedule, Window, bounds_at
from core.quotas import Bounds, PoolSettings

START = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday; the clocks change on the 29th
STEP = timedelta(minutes=1)
KAPPA = 0.33
ZONE = "Europe/Berlin"
PEAK = Window("Peak", frozenset(range(5)), time(9), time(18), ceiling=14)
POOL = PoolSettings("default", slots=48, reserve=8, headroom=0, floor=1, ceiling=40)
TENANTS = {"search": (90, 1400), "qa": (420, 500), "news": (240, 2200), "data": (60, 300)}
"""Mean output and prompt tokens of each tenant's requests."""

_HALF = 12.0


@dataclass
class Job:
    """A batch, and what the world alone knows of it."""

    batch: Batch
    output: float
    prompt: float

    def left(self) -> float:
        return self.batch.left * (self.output + KAPPA * self.prompt)


@dataclass(frozen=True)
class Told:
    """What was foreseen of one batch at one time, by each method, in seconds; and what then came true."""

    batch: str
    at: datetime
    first: bool
    predicted: dict[str, float]  # seconds, by way of predicting
    low: float
    high: float
    actual: float = math.nan

    def error(self, method: str) -> float:
        return abs(self.predicted[method] / self.actual - 1)

    @property
    def held(self) -> bool:
        return self.low <= self.actual <= self.high

    @property
    def width(self) -> float:
        return self.high / self.low


@dataclass
class World:
    """Runs day after day: jobs arrive, and the pool works on them by fair shares."""

    seed: int = 1
    per_day: float = 14.0
    day_noise: float = 0.18
    job_noise: float = 0.25
    outages: tuple[tuple[float, float], ...] = ()
    now: datetime = START
    done: dict[str, datetime] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    schedule: Schedule = field(default_factory=lambda: Schedule(ZONE, (PEAK,)))
    ability: float = 700.0
    teams: bool = True

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.count = 0
        self._day = (-1, 1.0)

    def conditions(self) -> Conditions:
        bounds = bounds_at(self.schedule, self.now, pool="default", base=POOL.base_bounds())
        return Conditions(POOL, self.schedule, self._quota(bounds), bounds)

    @property
    def active(self) -> list[Batch]:
        return [job.batch for job in self.jobs]

    def step(self, learned: Learned) -> list[Job]:
        """Let a minute pass; return what was submitted in it."""
        self._work(learned)
        self.now += STEP
        learned.sample(self.conditions(), self.now, backlog=bool(self.jobs))
        return self._arrivals(learned)

    def _work(self, learned: Learned) -> None:
        budget = self._rate() * STEP.total_seconds()
        while self.jobs and budget > 1e-6:
            heads = self._heads()
            need = min(job.left() for job in heads)
            part = min(need, budget / len(heads))
            for job in heads:
                self._progress(job, part, learned)
            budget -= part * len(heads)

    def _heads(self) -> list[Job]:
        """Return the job that each tenant is at."""
        by_tenant: dict[str, list[Job]] = defaultdict(list)
        for job in self.jobs:
            by_tenant[job.batch.tenant].append(job)
        return [
            min(theirs, key=lambda job: (job.batch.expires_at, job.batch.created_at)) for theirs in by_tenant.values()
        ]

    def _progress(self, job: Job, work: float, learned: Learned) -> None:
        batch, cost = job.batch, job.output + KAPPA * job.prompt
        items = batch.left if work >= job.left() - 1e-6 else work / cost
        noise = 1 + self.random.gauss(0, 0.7) / math.sqrt(max(1.0, items))
        load = Load(items, items * job.prompt, max(0.0, items * job.output * noise))
        usage = Usage(
            input_tokens=batch.usage.input_tokens + load.input_tokens,
            output_tokens=batch.usage.output_tokens + load.output_tokens,
        )
        job.batch = replace(batch, completed=batch.completed + items, usage=usage)
        learned.observe(batch, load, seconds=0.0)
        if job.batch.left <= 0:
            self.jobs.remove(job)
            self.done[batch.id] = self.now + STEP

    def _rate(self) -> float:
        quota = self._quota(bounds_at(self.schedule, self.now, pool="default", base=POOL.base_bounds()))
        day = (self.now - START).days
        if day != self._day[0]:
            self._day = (day, math.exp(self.random.gauss(0, self.day_noise)))
        hours = (self.now - START) / timedelta(hours=1)
        broken = 0.5 if any(begin <= hours < end for begin, end in self.outages) else 1.0
        slowed = 1 - 0.35 * self._interactive()
        return self.ability * self._day[1] * broken * slowed * quota / (quota + _HALF)

    def _interactive(self) -> float:
        """Return the share of the interactive peak that there is now."""
        hour = self.now.hour + self.now.minute / 60
        weekend = 0.45 if self.now.weekday() >= 5 else 1.0
        return weekend * (0.1 + 0.9 * max(0.0, math.sin((hour - 6) / 14 * math.pi)) if 6 <= hour < 20 else 0.1)

    def _quota(self, bounds: Bounds) -> int:
        return max(bounds.floor, min(bounds.ceiling, round(40 - 18 * self._interactive())))

    def _arrivals(self, learned: Learned) -> list[Job]:
        working = 7 <= self.now.hour < 19
        daily = self.per_day * (0.45 if self.now.weekday() >= 5 else 1.2)
        chance = daily / 1440 * (1.6 if working else 0.4)
        if self.random.random() >= chance:
            return []
        job = self._job()
        self.jobs.append(job)
        learned.submitted(job.batch)
        return [job]

    def _job(self) -> Job:
        self.count += 1
        tenant = self.random.choice(sorted(TENANTS))
        mean_output, mean_prompt = TENANTS[tenant]
        prompt = mean_prompt * math.exp(self.random.gauss(0, 0.6))
        output = mean_output * math.exp(self.random.gauss(0, self.job_noise))
        work = 1.0e6 * math.exp(self.random.gauss(0, 1.0))
        total = max(20, round(work / (output + KAPPA * prompt)))
        batch = Batch(
            id=f"batch_{self.count:05d}",
            tenant=tenant if self.teams else "one",
            key=None,
            pool="default",
            model=tenant,
            endpoint="/v1/chat/completions",
            input_file_id="file",
            window=timedelta(hours=24),
            created_at=self.now,
            in_progress_at=self.now,
            status=BatchStatus.IN_PROGRESS,
            total=total,
            prompt_tokens_total=round(total * prompt),
        )
        return Job(batch, output, prompt)


class Backtest:
    """Foresees every active job twice an hour, and at its submission, with nothing but what was known then."""

    def __init__(self, world: World, *, learned: Learned | None = None) -> None:
        self.world = world
        self.learned = learned or Learned()
        self.kappa = DEFAULT_KAPPA
        self.told: list[Told] = []
        self._open: list[Told] = []
        self._hour: deque[tuple[datetime, float]] = deque()
        self._total = [0.0, 0.0]

    def run(self, days: float, *, first_day: float, on_day: Callable[[int], None] = lambda day: None) -> list[Told]:
        """Run for so many days; return what was foreseen from `first_day` on of jobs that were completed."""
        world, end = self.world, START + timedelta(days=days)
        while world.now < end:
            before = world.now
            for job in world.step(self.learned):
                self._foresee([job.batch], first=True, keep=world.now >= START + timedelta(days=first_day))
            self._settle()
            if world.now.minute % 30 == 0:
                self._foresee(world.active, first=False, keep=world.now >= START + timedelta(days=first_day))
            if world.now.hour == 3 and before.hour == 2:
                self._nightly()
                on_day((world.now - START).days)
        return self.told

    def _nightly(self) -> None:
        scored, conditions = list(self.learned.scored), self.world.conditions()
        self.kappa = best_kappa(self.learned.rows("default"), scored, conditions, present=self.kappa)
        self.learned.kappa["default"] = self.kappa
        self._relearn(conditions)

    def _relearn(self, conditions: Conditions) -> None:
        rows, zone = self.learned.rows("default"), conditions.schedule.zone
        self.learned.learn("default", Throughput(rows, zone=zone, kappa=self.kappa, now=self.world.now))

    def _foresee(self, batches: list[Batch], *, first: bool, keep: bool) -> None:
        world = self.world
        conditions = world.conditions()
        if self.learned.stale("default") and world.now.minute == 0:
            self._relearn(conditions)
        outlook = self.learned.outlook(conditions, world.active, world.now, weights={})
        for batch in batches:
            found = forecast(batch, outlook)
            if found is None:
                continue
            self.learned.give(batch, found, outlook)
            if keep:
                low, mid, high = (
                    max(1.0, (at - world.now).total_seconds()) for at in (found.low, found.mid, found.high)
                )
                rates = self._baselines(outlook, outlook.ahead(batch))
                self._open.append(Told(batch.id, world.now, first, {"model": mid, **rates}, low, high))

    def _baselines(self, outlook: Outlook, ahead: Ahead) -> dict[str, float]:
        kappa = outlook.throughput.kappa
        work = ahead.total.work(kappa)
        recent = self.learned.recent("default", self.world.now)
        rows = self.learned.rows("default") or recent
        mean = sum(row.load.work(kappa) for row in rows) / sum(row.seconds for row in rows)
        seconds = sum(row.seconds for row in recent)
        last = sum(row.load.work(kappa) for row in recent) / seconds if seconds >= 600 else mean
        return {"last hour": work / max(last, 1e-9), "global mean": work / mean}

    def _settle(self) -> None:
        done, self.world.done = self.world.done, {}
        for batch, at in done.items():
            self.learned.ended(batch, at)
            self.told += [
                replace(each, actual=max(1.0, (at - each.at).total_seconds()))
                for each in self._open
                if each.batch == batch
            ]
            self._open = [each for each in self._open if each.batch != batch]


HORIZONS = ((0.0, 0.5), (0.5, 2.0), (2.0, 6.0), (6.0, 16.0), (16.0, 1e9))
"""Hours ahead."""


def report(told: list[Told]) -> str:
    """Tell how each method did: its median error, how often it was within 25 %; how often the range held; its width."""
    if not told:
        return "none"
    figures = [f"{way} {error(told, way):.1%} / {within(told, way):.0%}" for way in told[0].predicted]
    return f"({len(told)}) {'; '.join(figures)}; range held {held(told):.1%}, p95/p5 {width(told):.2f}"


def error(told: list[Told], way: str) -> float:
    return median(each.error(way) for each in told)


def within(told: list[Told], way: str, share: float = 0.25) -> float:
    return sum(each.error(way) <= share for each in told) / len(told)


def held(told: list[Told]) -> float:
    return sum(each.held for each in told) / len(told)


def width(told: list[Told]) -> float:
    return median(each.width for each in told)


def submitted(told: list[Told]) -> list[Told]:
    return [each for each in told if each.first]


def in_week(told: list[Told], week: int) -> list[Told]:
    return [each for each in told if (each.at - START) // timedelta(weeks=1) == week - 1]


def ahead(told: list[Told], low: float, high: float) -> list[Told]:
    """Return those that foresaw so many hours."""
    return [each for each in told if low <= each.predicted["model"] / 3600 < high]
