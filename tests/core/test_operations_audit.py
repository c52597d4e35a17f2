"""Each change has its entry in the audit trail, can be put back, and needs a reason where policy says so."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, time
from pathlib import Path

import pytest

from core.clock import SystemClock
from core.control.windows import Schedule, Window
from core.coordination.local import LocalNotifier
from core.errors import InvalidValue, StaleVersion
from core.operations import BoundsPatch, Operations, PoolPatch
from core.people.audit import COMMAND_LINE, AuditEntry, AuditQuery, AuditRecord
from core.quotas import PoolSettings
from core.storage.migrate import migrate
from core.storage.store import SqlStore

pytestmark = pytest.mark.anyio

POOL = PoolSettings("default", slots=8, reserve=1, headroom=1, floor=1, ceiling=7)
PEAK = Window("Peak", frozenset(range(7)), time(0), time(0), ceiling=4)
SCHEDULE = Schedule("UTC", (PEAK,))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    url = f"sqlite:///{tmp_path / 'tidegate.db'}"
    await migrate(url)
    store = SqlStore(url)
    await store.seed([POOL], SCHEDULE)
    yield store
    await store.close()


def operations_on(store: SqlStore, *, require_reason: bool = False) -> Operations:
    return Operations(
        settings_store=store, notifier=LocalNotifier(), clock=SystemClock(), require_reason=require_reason
    )


@pytest.fixture
async def operations(store: SqlStore) -> Operations:
    return operations_on(store)


async def last(store: SqlStore) -> AuditRecord:
    return (await store.audit(AuditQuery(limit=1)))[0]


async def test_a_change_of_a_pool_has_one_entry_with_who_what_from_to_why_and_way(
    operations: Operations, store: SqlStore
) -> None:
    patch = PoolPatch(ceiling=4, reason="GPU 3 out")
    await operations.change_pool("default", patch, by="ann", based_on=1, way=COMMAND_LINE)
    [record] = await store.audit(AuditQuery(automatic=True))
    entry = record.entry
    assert (entry.actor, entry.action, entry.target) == ("ann", "pool.settings", "pool:default")
    assert (entry.reason, entry.way) == ("GPU 3 out", "command line")
    assert (entry.before["ceiling"], entry.after["ceiling"]) == (7, 4)
    assert (entry.before["version"], entry.after["version"]) == (1, 2)


async def test_every_kind_of_change_names_itself(operations: Operations, store: SqlStore) -> None:
    for patch in (PoolPatch(hold=2), PoolPatch(auto=True), PoolPatch(pause=True), PoolPatch(pause=False)):
        await operations.change_pool("default", patch, by="ann", based_on=None)
    await operations.change_schedule(Schedule(), by="ann", based_on=None)
    actions = [record.entry.action for record in await store.audit(AuditQuery())]
    assert actions == ["schedule.change", "pool.resume", "pool.pause", "pool.release", "pool.hold"]


async def test_what_is_refused_leaves_no_entry(operations: Operations, store: SqlStore) -> None:
    with pytest.raises(InvalidValue):
        await operations.change_pool("default", PoolPatch(ceiling=99), by="ann", based_on=None)
    with pytest.raises(StaleVersion):
        await operations.change_pool("default", PoolPatch(ceiling=4), by="ann", based_on=5)
    assert await store.audit(AuditQuery(automatic=True)) == []


async def test_a_reverted_pool_change_is_a_new_change_with_the_old_value(
    operations: Operations, store: SqlStore
) -> None:
    await operations.change_pool("default", PoolPatch(ceiling=4), by="ann", based_on=1)
    record = await last(store)
    await operations.change_pool("default", PoolPatch(floor=2), by="bob", based_on=2)
    saved = await operations.revert(record, by="cy", reason="GPU 3 is back", based_on=3)
    assert saved == replace(POOL, floor=2, version=4)
    entry = (await last(store)).entry
    assert (entry.actor, entry.reason) == ("cy", "reverts entry 1: GPU 3 is back")
    assert (entry.before["ceiling"], entry.after["ceiling"]) == (4, 7)
    assert len(await store.audit(AuditQuery())) == 3


async def test_a_reverted_schedule_change_keeps_what_others_changed_since(
    operations: Operations, store: SqlStore
) -> None:
    await operations.edit_window("Peak", BoundsPatch(ceiling=2), by="ann", based_on=1)
    record = await last(store)
    night = replace(PEAK, name="Night", ceiling=6)
    present = await store.schedule()
    await operations.change_schedule(replace(present, windows=(*present.windows, night)), by="bob", based_on=2)
    saved = await operations.revert(record, by="cy", reason="", based_on=3)
    assert saved == Schedule("UTC", (PEAK, night), version=4)


async def test_a_revert_on_what_somebody_changed_meanwhile_is_refused(operations: Operations, store: SqlStore) -> None:
    await operations.change_pool("default", PoolPatch(ceiling=4), by="ann", based_on=1)
    record = await last(store)
    await operations.change_pool("default", PoolPatch(ceiling=5), by="bob", based_on=2)
    with pytest.raises(StaleVersion):
        await operations.revert(record, by="cy", reason="", based_on=2)
    assert (await store.pool("default")).ceiling == 5


async def test_what_is_no_change_of_settings_cannot_be_reverted(operations: Operations, store: SqlStore) -> None:
    signed_in = AuditEntry(datetime(2026, 1, 1, tzinfo=UTC), "ann", "sign-in", "account:ann")
    [record] = await store.record(signed_in)
    with pytest.raises(InvalidValue, match="no change of a pool"):
        await operations.revert(record, by="cy", reason="", based_on=None)


async def test_policy_asks_every_change_for_a_reason_whoever_makes_it(store: SqlStore) -> None:
    """One place below pages, API and command line: none of them can forget it."""
    operations = operations_on(store, require_reason=True)
    await operations.change_pool("default", PoolPatch(ceiling=4, reason="GPU 3 out"), by="ann", based_on=1)
    record = await last(store)
    attempts = [
        operations.change_pool("default", PoolPatch(ceiling=4), by="ann", based_on=None),
        operations.change_pool("default", PoolPatch(pause=True, reason=" "), by="ann", based_on=None),
        operations.change_schedule(Schedule(), by="ann", based_on=None),
        operations.edit_window("Peak", BoundsPatch(ceiling=2), by="ann"),
        operations.add_one_off(BoundsPatch(ceiling=2), until="1h", by="ann"),
        operations.revert(record, by="ann", reason="", based_on=None),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidValue) as refused:
            await attempt
        assert refused.value.field == "reason"
    assert len(await store.audit(AuditQuery())) == 1
    await operations.revert(record, by="ann", reason="it is back", based_on=None)
