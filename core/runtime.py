"""The composition root: the only module that names adapters, and builds every pool the same way for everyone.

`serve`, `demo` and `simulate` all build their pools with `build_pool`; they differ in clock, upstream and stores.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property

import structlog

from core.batch.closer import Closer
from core.batch.forecast import Forecaster
from core.batch.intake import Intake, IntakeLimits
from core.batch.keeper import Keeper
from core.batch.plan import Conditions
from core.batch.pruner import Pruner
from core.batch.queries import BatchQueries
from core.batch.queued import QueuedLimits
from core.batch.rescuer import Rescuer
from core.batch.service import Batches
from core.batch.wake import Wake
from core.batch.worker import BatchWorker
from core.call_log import CallLog
from core.clock import SystemClock
from core.collector import PoolCollector
from core.config import PoolConfig, Settings, pool_settings
from core.control.calendar import Calendar
from core.control.controller import PoolController
from core.control.decisions import Decision
from core.control.loop import ControlLoop, Outbox
from core.control.windows import Schedule
from core.coordination.local import LocalNotifier
from core.entrance import Doors, People, check_secret, entrance, look_at_doors, secret_of
from core.errors import ConfigError
from core.history import History, Sample
from core.lanes import Lane
from core.lifecycle import Service
from core.metrics import PoolMeters
from core.operations import Figures, Operations
from core.overview import Reading, Waits, differences, sample
from core.people.identity import ANY_MODEL
from core.people.limits import TenantLimits
from core.people.secret import derived
from core.people.tenants import TenantDirectory
from core.pools import Pool, serving
from core.ports import (
    AuditStore,
    CallStore,
    Clock,
    DecisionStore,
    FileStore,
    Notifier,
    SavedLimit,
    SettingsStore,
    Upstream,
)
from core.probe import Probe
from core.quotas import PoolLimits, PoolSettings
from core.samples import SampleBoard
from core.scheduling.dispatcher import Dispatcher
from core.scheduling.gateway import Gateway, OnEnd
from core.scheduling.limiter import Limiter
from core.storage.encrypted import EncryptedFiles, refuses
from core.storage.files import DiskFiles
from core.storage.migrate import migrate
from core.storage.store import SqlStore
from core.upstream import HttpUpstream
from core.webhook_client import HttpWebhookClient
from core.webhooks.posting import Poster
from core.webhooks.registry import Webhooks
from core.webhooks.sender import WebhookSender
from core.webhooks.signing import PURPOSE

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
    period: float = 5.0,
    on_end: OnEnd | None = None,
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
    gateway = Gateway(
        config=config,
        dispatcher=dispatcher,
        board=board,
        upstream=upstream,
        clock=clock,
        meters=PoolMeters(),
        on_end=on_end,
    )
    controller = PoolController(
        settings=settings,
        schedule=schedule,
        pull_backs=config.pull_backs,
        clock=clock,
        board=board,
        dispatcher=dispatcher,
        saved=saved,
        emit=emit,
        period=period,
    )
    return Pool(config, dispatcher, board, controller, gateway, upstream)


def http_upstream(base_url: str, api_key: str | None) -> HttpUpstream:
    """Return the client of the model server at `base_url`, whoever uses it: a pool, the demo or the bench."""
    return HttpUpstream(base_url=base_url, api_key=api_key)


async def migrate_database(settings: Settings) -> None:
    """Bring the database that `settings` name to this version's schema. Raises ConfigError."""
    await migrate(settings.database_url)


def file_store(settings: Settings) -> FileStore:
    """Return where the files of batches lie: on disk, encrypted where there is a secret for it."""
    disk = DiskFiles(folder=settings.data / "files")
    return EncryptedFiles(inner=disk, secret=settings.file_key.get_secret_value()) if settings.file_key else disk


async def check_file_key(settings: Settings) -> None:
    """Raise ConfigError where the files there are cannot be read with the secret that is given, or without one."""
    key = settings.file_key.get_secret_value() if settings.file_key else None
    refusal = await refuses(DiskFiles(folder=settings.data / "files"), key)
    if refusal is not None:
        raise ConfigError(f"file_key: {refusal}")


@asynccontextmanager
async def open_people(settings: Settings) -> AsyncIterator[People]:
    """Give what changes people, teams and keys, for commands; a server may run meanwhile. Raises ConfigError.

    The data folder must be there.
    """
    await migrate(settings.database_url)
    store = SqlStore(settings.database_url)
    try:
        people = entrance(settings, store=store, clock=SystemClock(), directory=TenantDirectory())
        await people.begin(settings, SystemClock())
        yield people
    finally:
        await store.close()


@asynccontextmanager
async def open_audit(settings: Settings) -> AsyncIterator[AuditStore]:
    """Give the audit trail, for commands; a server may run meanwhile. Raises ConfigError."""
    await migrate(settings.database_url)
    store = SqlStore(settings.database_url)
    try:
        yield store
    finally:
        await store.close()


async def doors(settings: Settings, *, set_up: bool = False) -> Doors:
    """Tell what stands before whoever reaches the gateway; see `core.entrance.look_at_doors`. Raises ConfigError."""
    async with open_people(settings) as people:
        return await look_at_doors(people, settings, set_up=set_up)


class Runtime:
    """Everything that one serving process runs. `start` brings stored settings, holds and windows into force."""

    def __init__(self, *, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.started_at = self.clock.now()
        self.metrics = PoolCollector(
            pools=lambda: list(self.pools.values()),
            tick_age=lambda: self.loop.tick_age,
            calls_dropped=lambda: self.call_log.dropped,
        )
        self.notifier = LocalNotifier()
        self.store = SqlStore(settings.database_url)
        self.files: FileStore = file_store(settings)
        self.wake = Wake()
        self.operations = Operations(
            settings_store=self.store,
            notifier=self.notifier,
            clock=self.clock,
            figures=self._figures,
            require_reason=settings.require_reason,
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
        self.tenants = TenantDirectory()
        self.tenant_limits = TenantLimits(directory=self.tenants, monotonic=self.clock.monotonic)
        self._people: People | None = None
        self._build_batches()
        self._build_webhooks()
        self.call_log = CallLog(
            store=self.store, clock=self.clock, rows=settings.call_log_rows, days=settings.call_log_days
        )
        self.history = History(clock=self.clock, read=self._samples)
        self.calendar = Calendar(
            clock=self.clock,
            schedule=self.schedule,
            wake=self.loop.wake,
            prune=self.store.prune,
            retention=timedelta(days=settings.decision_retention_days),
            sweep=self.pruner.run_once,
            trim=self.call_log.prune,
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

    @property
    def audit(self) -> AuditStore:
        """The audit trail."""
        return self.store

    @property
    def calls(self) -> CallStore:
        """Where the call log is stored."""
        return self.store

    @property
    def people(self) -> People:
        """Who may come in; from the start on."""
        if self._people is None:
            raise RuntimeError("the runtime has not started")
        return self._people

    async def start(self) -> None:
        """Migrate the database, bring what is stored into force, and start everything that runs by itself."""
        await check_file_key(self.settings)
        await migrate(self.settings.database_url)
        await self._open()
        await self.store.seed(list(self.file_settings.values()), Schedule())
        self.schedule = await self.store.schedule()
        for config in self.settings.pool_configs:
            await self._add_pool(config)
        self.calendar.rearm(self.schedule)
        self.calendar.start()
        for service in self._services():
            service.start()

    def wind_up(self, *, waiting_only: bool) -> None:
        """Take no more batch on, and end the calls that wait for a slot, or all, with 503: the process is to stop."""
        self.worker.drain()
        for pool in self.pools.values():
            pool.gateway.shut_down(waiting_only=waiting_only)

    async def stop(self) -> None:
        """Stop everything, keep what the controllers have learned, and close all connections."""
        # A statement that is cancelled in the middle costs its connection: let a reload come to its end first.
        async with self._reloading:
            await self._watch.stop()
        for service in reversed(self._services()):
            await service.stop()
        await self.calendar.stop()
        for pool in self.pools.values():
            await pool.upstream.close()
        await self.store.close()

    async def _open(self) -> None:
        """Know who may come in. Raises ConfigError where stored keys were made under another secret."""
        people = entrance(self.settings, store=self.store, clock=self.clock, directory=self.tenants)
        await check_secret(people, self.settings)
        await people.begin(self.settings, self.clock)
        self._people = people

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
        return [
            *([self._people.ring] if self._people is not None else []),
            self.loop,
            self.call_log,
            self.history,
            *self.probes.values(),
            self._watch,
            self.keeper,
            self.webhook_sender,
            self.rescuer,
            self.forecaster,
            self.worker,
        ]

    def _build_batches(self) -> None:
        settings, store, files, clock = self.settings, self.store, self.files, self.clock
        kept = timedelta(days=settings.batch_retention_days)
        self.batches = Batches(
            store=store,
            files=files,
            clock=clock,
            wake=self.wake,
            retention=kept,
            file_bytes=settings.batch_file_bytes,
            admit=QueuedLimits(directory=self.tenants, active=store.active).check,
            require_reason=settings.require_reason,
        )
        self.closer = Closer(store=store, files=files, clock=clock, retention=kept)
        limits = IntakeLimits(lines=settings.batch_lines, line_bytes=settings.body_limit)
        intake = Intake(store=store, files=files, clock=clock, route=self._route, limits=limits, may_use=self._may_use)
        self.keeper = Keeper(store=store, intake=intake, closer=self.closer, wake=self.wake)
        self.pruner = Pruner(store=store, files=files, retention=kept)
        self.rescuer = Rescuer(store=store, clock=clock)
        self.worker = BatchWorker(
            store=store,
            files=files,
            pools=self.pools,
            clock=clock,
            wake=self.wake,
            owner=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
            emit=self.outbox.add,
            # Whoever holds the data folder is alone on its SQLite; a PostgreSQL may have other processes.
            alone=settings.database_url.startswith("sqlite"),
            grace_s=settings.shutdown_grace,
            weights=self.tenants.weights,
            batch_slots=self.tenants.batch_slots,
        )
        self.forecaster = Forecaster(store=store, batches=store, clock=clock, conditions=self._conditions)
        self.batch_queries = BatchQueries(store=store, clock=clock, eta=self.forecaster.eta, why=self._why_no_batch)

    def _build_webhooks(self) -> None:
        store, clock, hosts = self.store, self.clock, self.settings.webhook_hosts
        poster = Poster(client=HttpWebhookClient(hosts=hosts), clock=clock, key=lambda: self._webhook_key)
        reason = self.settings.require_reason
        self.webhooks = Webhooks(store=store, poster=poster, clock=clock, hosts=hosts, require_reason=reason)
        self.webhook_sender = WebhookSender(store=store, poster=poster, clock=clock)

    @cached_property
    def _webhook_key(self) -> bytes:
        return derived(secret_of(self.settings), PURPOSE)

    def _may_use(self, key: str | None, model: str) -> bool:
        """Tell whether the key of that name may name this model; where it is gone, it was let in when it was there."""
        globs = self.people.ring.snapshot.models.get(key or "", ANY_MODEL)
        return globs == ANY_MODEL or any(fnmatchcase(model, glob) for glob in globs)

    def _route(self, model: str) -> tuple[str, str] | None:
        found = serving(self.pools.values(), model)
        return (found[0].name, found[1]) if found is not None else None

    def _conditions(self) -> Mapping[str, Conditions]:
        return {
            name: Conditions(
                settings=pool.settings,
                schedule=self.schedule,
                quota=pool.dispatcher.quota(),
                bounds=pool.controller.bounds,
                backed_off_s=pool.dispatcher.backed_off_for(),
            )
            for name, pool in self.pools.items()
        }

    def _why_no_batch(self, name: str) -> str | None:
        """Return what keeps a pool from starting batch at all now, in words."""
        pool = self.pools.get(name)
        if pool is None:
            return f"pool {name}, which is not set up here"
        if pool.settings.pause is not None:
            return f"batch of pool {name}, paused by {pool.settings.pause.by}"
        if pool.dispatcher.quota() == 0:
            return f"quota: that of pool {name} is 0"
        return None

    async def _add_pool(self, config: PoolConfig) -> None:
        key = config.api_key.get_secret_value() if config.api_key else None
        pool = build_pool(
            config,
            settings=await self.store.pool(config.name),
            schedule=self.schedule,
            clock=self.clock,
            upstream=http_upstream(config.base_url, key),
            emit=self.outbox.add,
            saved=await self.store.saved_limit(config.name),
            period=self.settings.tick,
            on_end=self.call_log.of_pool(config.name) if self.settings.call_log_rows else None,
        )
        moved = differences(pool.settings, self.file_settings[config.name])
        if moved:
            told = ", ".join(f"{each.name} {each.stored} (given: {each.file})" for each in moved)
            log.info("settings that were changed here stand before those given at the start", pool=pool.name, kept=told)
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
