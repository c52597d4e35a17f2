"""The composition root: the only module that names adapters, and builds every pool the same way for everyone.

`serve`, `demo` and `simulate` all build their pools with `build_pool`; they differ in clock, upstream and stores.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta

import structlog

from core.clock import SystemClock
from core.collector import PoolCollector
from core.config import PoolConfig, Settings, pool_settings
from core.control.calendar import Calendar
from core.control.controller import PoolController
from core.control.decisions import Decision
from core.control.loop import ControlLoop, Outbox
from core.control.windows import Schedule
from core.coordination.local import LocalNotifier
from core.history import History, Sample
from core.lanes import Lane
from core.lifecycle import Service
from core.metrics import Instruments, PoolMeters
from core.operations import Figures, Operations
from core.overview import Reading, Waits, sample
from core.pools import Pool
from core.ports import Clock, DecisionStore, Notifier, SavedLimit, SettingsStore, Upstream
from core.probe import Probe
from core.quotas import PoolLimits, PoolSettings
from core.samples import SampleBoard
from core.scheduling.dispatcher import Dispatcher
from core.scheduling.gateway import Gateway
from core.scheduling.limiter import Limiter
from core.storage.migrate import migrate
from core.storage.store import SqlStore
from core.upstream import AiohttpTransport, HttpUpstream

log = structlog.get_logger(__name__)


def build_pool(
    config: PoolConfig,
    *,
    settings: PoolSettings,
    schedule: Schedule,
    clock: Clock,
    upstream: Upstream,
    emit: Callable[[Decision], None],
    saved: SavedLimit | None = None,
    instruments: Instruments | None = None,
    period: float = 5.0,
) -> Pool:
    """Build one pool's data and control plane: limiter, dispatcher, samples, gateway and controller.

    The controller's first limits are in force when this returns.
    """
    before_first_tick = PoolLimits(settings.slots, settings.reserve, settings.headroom, 0, 0, limit=0.0)
    dispatcher = Dispatcher(
        limits=before_first_tick,
        slots=Limiter(limits=before_first_tick),
        clock=clock,
        interactive_queue=config.interactive_queue,
        batch_queue=config.batch_queue,
        batch_max_wait=config.batch_max_wait,
        pull_backs=config.pull_backs,
        batch_rps=config.batch_rps,
        batch_tpm=config.batch_tpm,
    )
    board = SampleBoard()
    meters = PoolMeters(instruments=instruments or Instruments(), pool=config.name)
    gateway = Gateway(config=config, dispatcher=dispatcher, board=board, upstream=upstream, clock=clock, meters=meters)
    controller = PoolController(
        settings=settings,
        schedule=schedule,
        config=config,
        clock=clock,
        board=board,
        dispatcher=dispatcher,
        saved=saved,
        emit=emit,
        period=period,
    )
    return Pool(config, dispatcher, board, controller, gateway, upstream)


class Runtime:
    """Everything that one serving process runs. `start` brings stored settings, holds and windows into force."""

    def __init__(self, *, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.started_at = self.clock.now()
        self.instruments = Instruments()
        self.notifier = LocalNotifier()
        self.store = SqlStore(settings.database_url)
        self.operations = Operations(
            settings_store=self.store, notifier=self.notifier, clock=self.clock, figures=self._figures
        )
        self.schedule = Schedule()
        self.file_settings: Mapping[str, PoolSettings] = {c.name: pool_settings(c) for c in settings.pool_configs}
        self.pools: dict[str, Pool] = {}
        self.probes: dict[str, Probe] = {}
        self.outbox = Outbox()
        self._controllers: dict[str, PoolController] = {}
        self.loop = ControlLoop(
            controllers=self._controllers,
            clock=self.clock,
            outbox=self.outbox,
            decisions=self.store,
            settings=self.store,
            period=settings.tick,
        )
        self.history = History(clock=self.clock, read=self._samples)
        self.calendar = Calendar(
            clock=self.clock,
            schedule=self.schedule,
            wake=self.loop.wake,
            prune=self.store.prune,
            retention=timedelta(days=settings.decision_retention_days),
        )
        self._reloading = asyncio.Lock()
        self._watch = SettingsWatch(reload=self.reload, notifier=self.notifier)

    @property
    def settings_store(self) -> SettingsStore:
        """Where operators' settings and the schedule are stored."""
        return self.store

    @property
    def decisions(self) -> DecisionStore:
        """Where decisions are stored."""
        return self.store

    async def start(self) -> None:
        """Migrate the database, bring what is stored into force, and start everything that runs by itself."""
        await migrate(self.settings.database_url)
        await self.store.seed(list(self.file_settings.values()), Schedule())
        self.schedule = await self.store.schedule()
        for config in self.settings.pool_configs:
            await self._add_pool(config)
        self.instruments.registry.register(
            PoolCollector(pools=lambda: list(self.pools.values()), tick_age=lambda: self.loop.tick_age)
        )
        self.calendar.rearm(self.schedule)
        self.calendar.start()
        for service in self._services():
            service.start()

    async def stop(self) -> None:
        """Stop everything, keep what the controllers have learned, and close all connections."""
        for service in reversed(self._services()):
            await service.stop()
        await self.calendar.stop()
        for pool in self.pools.values():
            await pool.upstream.close()
        await self.store.close()

    async def reload(self) -> None:
        """Bring what is stored now into force, before the next dispatch."""
        # One at a time: of two overlapping ones the slower could put what it read earlier in force last.
        async with self._reloading:
            await self._reload()

    async def _reload(self) -> None:
        schedule = await self.store.schedule()
        for pool in self.pools.values():
            stored = await self.store.pool(pool.name)
            if (stored, schedule) != (pool.settings, self.schedule):
                pool.controller.configure(stored, schedule)
        if schedule != self.schedule:
            self.schedule = schedule
            self.calendar.rearm(schedule)

    def reading(self, pool: Pool) -> Reading:
        """Return the present figures of a pool, as pages and API show them."""
        controller, dispatcher, settings = pool.controller, pool.dispatcher, pool.settings
        now = self.clock.monotonic()
        return Reading(
            at=self.clock.now(),
            settings=settings,
            bounds=controller.bounds,
            counts=dispatcher.counts(),
            quota=dispatcher.quota(),
            shadow_quota=controller.shadow_quota,
            limit=controller.limit,
            settling=dispatcher.settling(),
            seen=pool.board.seen(now, controller.bounds.budgets, settings.model_budgets),
            waits={lane: Waits(*dispatcher.waits(lane)) for lane in Lane},
            tick_age_s=now - controller.last_tick,
            tick_s=self.settings.tick,
            backed_off_s=dispatcher.backed_off_for(),
            file=self.file_settings.get(pool.name),
        )

    def _services(self) -> list[Service]:
        return [self.loop, self.history, *self.probes.values(), self._watch]

    async def _add_pool(self, config: PoolConfig) -> None:
        key = config.api_key.get_secret_value() if config.api_key else None
        pool = build_pool(
            config,
            settings=await self.store.pool(config.name),
            schedule=self.schedule,
            clock=self.clock,
            upstream=HttpUpstream(base_url=config.base_url, api_key=key, transport=AiohttpTransport()),
            emit=self.outbox.add,
            saved=await self.store.saved_limit(config.name),
            instruments=self.instruments,
            period=self.settings.tick,
        )
        self.pools[config.name] = pool
        self._controllers[config.name] = pool.controller
        self.probes[config.name] = Probe(pool=config.name, base_url=config.base_url, api_key=key, clock=self.clock)

    def _figures(self, name: str) -> Figures | None:
        pool = self.pools.get(name)
        if pool is None:
            return None
        counts = pool.counts
        return Figures(
            pool.controller.limit, counts.interactive, counts.interactive_waiting, counts.batch, counts.backlog
        )

    def _samples(self) -> Mapping[str, Sample]:
        return {name: sample(self.reading(pool)) for name, pool in self.pools.items()}


class SettingsWatch(Service):
    """Brings stored settings into force when somebody here changed them, and looks every few seconds for others."""

    name = "settings watch"
    every_s = 5.0

    def __init__(self, *, reload: Callable[[], Awaitable[None]], notifier: Notifier) -> None:
        super().__init__()
        self._reload = reload
        self._notifier = notifier

    async def run(self) -> None:
        """Reload at each notification, and at the latest after `every_s`; a failing database is tried again."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.every_s):
                    await self._notifier.changed()
            try:
                await self._reload()
            except Exception:
                log.exception("stored settings could not be read")
