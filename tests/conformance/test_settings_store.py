import asyncio
import math
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta, timezone

import pytest

from core.control.decisions import Decision
from core.control.windows import OneOff, Schedule, Window
from core.errors import NotFound, StaleVersion
from core.ports import DecisionStore, SavedLimit, SettingsStore
from core.quotas import Budgets, Hold, Pause, PoolSettings
from core.storage.store import SqlStore

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 9, 12, 30, 15, 123456, tzinfo=UTC)
POOL = PoolSettings("default", slots=8, reserve=1, headroom=1, floor=1, ceiling=7)
FULL = replace(
    POOL,
    budgets=Budgets(0.5, 30.5, 0.0),
    model_budgets={"a/b": Budgets(2.0)},
    hold=Hold(4, NOW + timedelta(hours=1), "ann", "drain — now", NOW),
    pause=Pause("bob", "", NOW),
)
SCHEDULE = Schedule(
    "Europe/Berlin",
    (
        Window("Peak", frozenset({0, 1, 4}), time(7), time(22), 4, 12, Budgets(0.8), 10, "Asia/Tokyo", ("default",)),
        Window("Night", frozenset(range(7)), time(22), time(6)),
    ),
    (OneOff("Feast", NOW, NOW + timedelta(days=2), ceiling=9, reason="quiet", by="ann"),),
)


def decision(text: str = "did it", *, at: datetime = NOW) -> Decision:
    return Decision(at, "default", "operator", "set", "settings", text, (8.0, 8.0), (7, 7), by="ann")


@pytest.fixture
async def seeded(store: SqlStore) -> SqlStore:
    await store.seed([POOL], SCHEDULE)
    return store


async def test_the_store_is_both_ports(store: SqlStore) -> None:
    settings: SettingsStore = store
    decisions: DecisionStore = store
    assert settings is decisions
    await store.ping()


async def test_what_was_seeded_is_read_back_and_seeding_again_changes_nothing(seeded: SqlStore) -> None:
    await seeded.seed([replace(POOL, floor=3, headroom=0), replace(POOL, name="second")], Schedule("UTC"))
    assert await seeded.pool("default") == POOL
    assert await seeded.pool("second") == replace(POOL, name="second")
    assert await seeded.schedule() == SCHEDULE


async def test_a_pool_that_nobody_changed_begins_anew_with_other_slots(seeded: SqlStore) -> None:
    other = replace(POOL, slots=48, ceiling=47, model_budgets={"a": Budgets(2.0)})
    await seeded.seed([other, replace(POOL, name="second")], SCHEDULE)
    assert await seeded.pool("default") == other
    assert await seeded.pool("second") == replace(POOL, name="second")


async def test_a_pool_that_somebody_changed_keeps_its_slots(seeded: SqlStore) -> None:
    changed = await seeded.save_pool(replace(POOL, ceiling=6), based_on=1, decision=decision())
    await seeded.seed([replace(POOL, slots=48, ceiling=47)], SCHEDULE)
    assert await seeded.pool("default") == changed


async def test_many_seeds_at_once_make_one(store: SqlStore) -> None:
    await asyncio.gather(*(store.seed([POOL], SCHEDULE) for _ in range(8)))
    assert (await store.pool("default")).version == 1


async def test_every_field_survives_a_save_and_a_restart(seeded: SqlStore, url: str) -> None:
    saved = await seeded.save_pool(FULL, based_on=1, decision=decision())
    assert saved == replace(FULL, version=2)
    other = SqlStore(url)
    assert await other.pool("default") == saved
    hold = (await other.pool("default")).hold
    assert hold is not None
    assert hold.until is not None
    assert hold.until.utcoffset() == timedelta(0)
    released = await other.save_pool(replace(saved, hold=None, pause=None), based_on=2, decision=decision())
    await other.close()
    assert await seeded.pool("default") == replace(FULL, hold=None, pause=None, version=3) == released


async def test_a_stale_save_is_refused_and_leaves_no_trace(seeded: SqlStore) -> None:
    await seeded.save_pool(replace(POOL, ceiling=5), based_on=1, decision=decision("first"))
    with pytest.raises(StaleVersion) as caught:
        await seeded.save_pool(replace(POOL, ceiling=3), based_on=1, decision=decision("second"))
    assert (caught.value.given, caught.value.present) == (1, 2)
    assert (await seeded.pool("default")).ceiling == 5
    assert [row.sentence for row in await seeded.recent()] == ["first"]


async def test_a_save_without_a_base_overrides_and_the_version_still_goes_up(seeded: SqlStore) -> None:
    await seeded.save_pool(replace(POOL, ceiling=5), based_on=1, decision=decision())
    saved = await seeded.save_pool(replace(POOL, ceiling=3), based_on=None, decision=decision())
    assert (saved.version, saved.ceiling) == (3, 3)


async def test_of_many_saves_on_one_version_exactly_one_wins(seeded: SqlStore, url: str) -> None:
    other = SqlStore(url)
    saves = [
        each.save_pool(replace(POOL, ceiling=n % 7), based_on=1, decision=decision(str(n)))
        for n in range(10)
        for each in (seeded, other)
    ]
    results = await asyncio.gather(*saves, return_exceptions=True)
    await other.close()
    assert sum(isinstance(result, PoolSettings) for result in results) == 1
    assert sum(isinstance(result, StaleVersion) for result in results) == 19
    assert len(await seeded.recent()) == 1


async def test_the_schedule_is_versioned_in_the_same_way(seeded: SqlStore) -> None:
    wider = replace(SCHEDULE, windows=(), zone="UTC")
    saved = await seeded.save_schedule(wider, based_on=1, decisions=[decision("one"), decision("two")])
    assert saved == replace(wider, version=2) == await seeded.schedule()
    assert [(row.sentence, row.config_version) for row in await seeded.recent()] == [("two", 2), ("one", 2)]
    with pytest.raises(StaleVersion):
        await seeded.save_schedule(wider, based_on=1, decisions=[])
    assert (await seeded.save_schedule(wider, based_on=None, decisions=[])).version == 3


async def test_a_one_off_in_another_offset_stays_the_same_instant(seeded: SqlStore) -> None:
    there = timezone(timedelta(hours=5, minutes=45))
    one_off = OneOff("There", NOW.astimezone(there), (NOW + timedelta(hours=1)).astimezone(there))
    saved = await seeded.save_schedule(replace(SCHEDULE, one_offs=(one_off,)), based_on=1, decisions=[])
    assert saved.one_offs[0].start == NOW == (await seeded.schedule()).one_offs[0].start


async def test_what_does_not_exist_is_not_found(store: SqlStore) -> None:
    with pytest.raises(NotFound):
        await store.pool("nobody")
    with pytest.raises(NotFound):
        await store.save_pool(POOL, based_on=None, decision=decision())
    with pytest.raises(NotFound):
        await store.schedule()
    with pytest.raises(NotFound):
        await store.save_schedule(SCHEDULE, based_on=None, decisions=[])
    assert await store.recent() == []


async def test_the_learned_limit_is_kept_and_replaced(store: SqlStore) -> None:
    assert await store.saved_limit("default") is None
    first = SavedLimit(12.25, math.pi, 40.0, NOW)
    await store.save_limit("default", first)
    assert await store.saved_limit("default") == first
    second = SavedLimit(13.0, 14.0, 15.0, NOW + timedelta(minutes=1))
    await store.save_limit("default", second)
    await store.save_limit("other", first)
    assert await store.saved_limit("default") == second


async def test_parallel_writers_and_readers_meet_no_error(seeded: SqlStore, url: str) -> None:
    """R85 AstrBotDevs/AstrBot PR#6474, dstackai/dstack#825: "database is locked" under parallel writes.

    Two stores stand for two processes: four editors who read, then write; an audit; a batch of 500 writes; readers.
    """
    other = SqlStore(url)
    edits = 25

    async def editor(store: SqlStore, name: str) -> None:
        done = 0
        while done < edits:
            present = await store.pool("default")
            try:
                await store.save_pool(present, based_on=present.version, decision=decision(name))
                done += 1
            except StaleVersion:
                continue

    async def audit(store: SqlStore) -> None:
        for n in range(50):
            await store.append([decision(f"audit {n}")])

    async def batch(store: SqlStore, items: int) -> None:
        for n in range(items):
            await store.save_limit(f"item {n}", SavedLimit(n, n, n, NOW))

    async def reader(store: SqlStore) -> None:
        for _ in range(50):
            await store.recent(limit=20)
            await store.schedule()

    jobs = [editor(store, f"editor {n}") for n, store in enumerate((seeded, seeded, other, other))]
    jobs += [audit(seeded), audit(other), *(batch(store, 50) for store in (seeded, other) for _ in range(5))]
    jobs += [reader(store) for store in (seeded, other) for _ in range(3)]
    await asyncio.gather(*jobs)
    assert (await seeded.pool("default")).version == 1 + 4 * edits
    assert len(await seeded.recent(limit=1000)) == 4 * edits + 100
    await other.close()


async def test_a_write_that_is_cancelled_leaves_nothing_and_blocks_nobody(seeded: SqlStore) -> None:
    for turn in range(20):
        task = asyncio.create_task(seeded.append([decision(f"cancelled {turn}")] * 5))
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await seeded.append([decision("last")])
    rows = [row.sentence for row in await seeded.recent(limit=1000)]
    assert rows[0] == "last"
    assert {rows.count(text) for text in rows[1:]} <= {5}  # each whole or not at all
