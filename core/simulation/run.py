"""Runs a scenario in virtual time through the product's own pool: the same factory, gateway, dispatcher, controller."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from core.config import PoolConfig, pool_settings
from core.control.decisions import Decision
from core.control.windows import Schedule
from core.lanes import Lane
from core.pools import Pool
from core.ports import Clock
from core.quotas import PoolLimits
from core.runtime import build_pool
from core.simulation.arrivals import arrivals
from core.simulation.clients import BatchSource, Desk, InteractiveClients
from core.simulation.driver import EngineDriver
from core.simulation.engine import Condition, Engine
from core.simulation.figures import Level, RunLog
from core.simulation.policies import Aimd, AimdSettings, Fixed, Law, Policy, quota_limits, total_limits
from core.simulation.scenarios import HOURS, Mishap, Scenario, scenario
from core.simulation.upstream import SimulatedUpstream
from core.simulation.virtual_time import run_virtual

EPOCH = datetime(2026, 1, 5, tzinfo=UTC)
"""A Monday midnight: the instant at which virtual time begins."""

TICK = 5.0
REPORT_EVERY = 2.0
"""Virtual seconds between the readings of a running stream."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: which scenario, which seed, and who sets the quota.

    `policy` is `law`, `none` (no batch at all), `total` or `quota` (fixed at `level` slots), or `aimd` with its
    settings. A fixed number stands alone: without pull-backs and without first-token pacing. `pool` overrides fields of
    the pool's configuration.
    """

    scenario: str
    seed: int
    policy: str = "law"
    level: int = 0
    aimd: AimdSettings | None = None
    hours: float = HOURS
    pool: tuple[tuple[str, Any], ...] = ()


FIXED = ("total", "quota")


class _Over(Exception):
    """The time of the run is over."""


@dataclass(slots=True)
class World:
    """All that takes part in one run."""

    plan: Plan
    scenario: Scenario
    clock: Clock
    desk: Desk
    driver: EngineDriver
    pool: Pool
    policy: Policy
    random: random.Random
    levels: list[Level]

    async def tick(self) -> None:
        """Let the policy tick for ever, and note what it set."""
        while True:
            now = self.clock.monotonic()
            self.policy.tick(now)
            dispatcher = self.pool.dispatcher
            self.levels.append(Level(now, dispatcher.limits.limit, dispatcher.quota()))
            await self.clock.sleep(TICK)

    async def suffer(self, mishap: Mishap) -> None:
        """Let one mishap befall the server."""
        await self.clock.sleep(mishap.start)
        self.driver.become(mishap.condition)
        if mishap.kill:
            self.driver.kill(mishap.kill, self.random)
        await self.clock.sleep(mishap.end - mishap.start)
        self.driver.become(Condition())

    def log(self, clients: InteractiveClients, source: BatchSource) -> RunLog:
        """Return what the run left behind."""
        return RunLog(
            seconds=self.scenario.seconds,
            budgets=self.pool.controller.bounds.budgets,
            records=clients.records,
            items=source.finished,
            levels=self.levels,
            aborts=sum(self.pool.dispatcher.stats.pull_backs.values()),
            generated_tokens=self.driver.generated_tokens,
            wasted_tokens=self.driver.wasted_tokens,
            refused_interactive=self.desk.refused[Lane.INTERACTIVE],
            refused_batch=self.desk.refused[Lane.BATCH],
        )


def simulate_one(plan: Plan) -> RunLog:
    """Run `plan` to its end and return its log. The same plan gives the same log."""
    # The gateway draws its back-off from the module's generator.
    random.seed(plan.seed)
    return run_virtual(lambda clock: _live(plan, clock), EPOCH)


def _ignore(decision: Decision) -> None:
    pass


def build_world(plan: Plan, clock: Clock, emit: Callable[[Decision], None] = _ignore) -> World:
    """Set a run up; nothing happens yet."""
    setting = scenario(plan.scenario, hours=plan.hours)
    config = PoolConfig(base_url="http://simulated.invalid/v1", **_pool_fields(plan, setting))
    driver = EngineDriver(engine=Engine(setting.engine), clock=clock, report_every=REPORT_EVERY)
    desk = Desk()
    pool = build_pool(
        config,
        settings=pool_settings(config),
        schedule=Schedule(),
        clock=clock,
        upstream=SimulatedUpstream(driver=driver, clock=clock, observer=desk.note),
        emit=emit,
    )
    chance = random.Random(plan.seed * 104729 + 17)
    return World(plan, setting, clock, desk, driver, pool, _policy(plan, pool), chance, [])


def _pool_fields(plan: Plan, setting: Scenario) -> dict[str, Any]:
    return {"slots": setting.slots, "pull_backs": plan.policy not in FIXED, **dict(plan.pool)}


def _policy(plan: Plan, pool: Pool) -> Policy:
    limits: PoolLimits = pool.dispatcher.limits
    if plan.policy == "law":
        return Law(pool.controller.tick)
    if plan.policy == "total":
        return Fixed(pool.dispatcher, total_limits(limits, plan.level))
    if plan.policy in ("quota", "none"):
        return Fixed(pool.dispatcher, quota_limits(limits, plan.level))
    if plan.policy == "aimd" and plan.aimd is not None:
        return Aimd(pool.dispatcher, limits, plan.aimd)
    raise ValueError(f"no such policy: {plan.policy}")


async def _live(plan: Plan, clock: Clock) -> RunLog:
    world = build_world(plan, clock)
    clients = InteractiveClients(
        gateway=world.pool.gateway,
        clock=clock,
        desk=world.desk,
        arrivals=arrivals(world.scenario.traffic, plan.seed),
        random=world.random,
        on_first=lambda record: world.policy.first(record, clock.monotonic()),
        on_done=lambda record: world.policy.done(record, clock.monotonic()),
    )
    source = BatchSource(
        gateway=world.pool.gateway,
        clock=clock,
        desk=world.desk,
        batches=world.scenario.batches,
        random=world.random,
        paced=plan.policy not in FIXED,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(world.tick())
            tasks.create_task(clients.run(tasks))
            if plan.policy != "none":
                tasks.create_task(source.run(tasks))
            for mishap in world.scenario.mishaps:
                tasks.create_task(world.suffer(mishap))
            await clock.sleep(world.scenario.seconds)
            log = world.log(clients, source)
            raise _Over
    except* _Over:
        pass
    return log
