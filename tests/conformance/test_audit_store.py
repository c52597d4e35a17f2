"""What every AuditStore does."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from core.control.decisions import Decision
from core.control.windows import Schedule
from core.errors import NotFound, StaleVersion
from core.people.audit import CONTROLLER, AuditEntry, AuditHead, AuditQuery, Verifier
from core.ports import AuditStore
from core.quotas import PoolSettings
from core.storage.database import Database
from core.storage.store import SqlStore

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 9, 12, 30, 15, 123456, tzinfo=UTC)
POOL = PoolSettings("default", slots=8, reserve=1, headroom=1, floor=1, ceiling=7)
ENTRY = AuditEntry(NOW, "ann", "pool.settings", "pool:default", {"ceiling": 7}, {"ceiling": 4}, "GPU 3 out")


def decision(actor: str = "operator", action: str = "set") -> Decision:
    return Decision(NOW, "default", actor, action, "settings", "Did it.", (8.0, 6.0), (7, 5))


async def fault(store: AuditStore) -> str | None:
    verifier = Verifier()
    while page := await store.audit_chain(after=verifier.number, limit=7):
        for record in page:
            if told := verifier.check(record):
                return told
    return verifier.end(await store.audit_head())


async def run(url: str, *statements: str) -> None:
    database = Database(url)
    try:
        async with database.exclusive() as connection:
            for statement in statements:
                await connection.execute(text(statement))
    finally:
        await database.close()


async def test_entries_are_read_back_as_they_were_newest_first(store: SqlStore) -> None:
    trail: AuditStore = store
    assert await trail.audit_head() == AuditHead()
    written = await trail.record(ENTRY, replace(ENTRY, actor="bob", before=None, after=[1.5, "ü", None]))
    assert [record.number for record in written] == [1, 2]
    assert await trail.audit(AuditQuery()) == written[::-1]
    assert await trail.audit_record(2) == written[1]
    assert await trail.audit_head() == AuditHead(2, written[1].hash)
    assert await trail.record() == []
    assert await fault(trail) is None
    with pytest.raises(NotFound):
        await trail.audit_record(3)


async def test_many_that_append_at_once_make_one_chain(url: str) -> None:
    stores = [SqlStore(url) for _ in range(4)]
    await asyncio.gather(*(store.record(replace(ENTRY, reason=f"{n}"), ENTRY) for n in range(10) for store in stores))
    assert await fault(stores[0]) is None
    assert (await stores[0].audit_head()).number == 80
    for store in stores:
        await store.close()


async def test_changes_and_controller_rows_at_once_make_one_chain(url: str) -> None:
    """R85 AstrBotDevs/AstrBot PR#6474: writers at once, none of them refused."""
    stores = [SqlStore(url) for _ in range(3)]
    await stores[0].seed([POOL, replace(POOL, name="other")], Schedule())

    async def change(store: SqlStore, pool: str) -> None:
        for n in range(5):
            await store.save_pool(replace(POOL, name=pool), based_on=None, decision=decision(), audit=[ENTRY])
            await store.save_schedule(Schedule(), based_on=None, decisions=[], audit=[replace(ENTRY, reason=f"{n}")])

    async def move(store: SqlStore) -> None:
        for _ in range(5):
            await store.append([decision("controller", "cut"), decision("controller", "grow")])

    await asyncio.gather(change(stores[0], "default"), change(stores[1], "other"), move(stores[2]))
    assert await fault(stores[0]) is None
    assert (await stores[0].audit_head()).number == 30
    for store in stores:
        await store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET actor = 'nobody'",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE number = 2",
        "INSERT INTO audit SELECT * FROM audit WHERE number = 2",
    ],
)
async def test_the_database_itself_refuses_to_change_or_delete_a_row(store: SqlStore, url: str, statement: str) -> None:
    await store.record(*[ENTRY] * 3)
    with pytest.raises(DBAPIError):
        await run(url, statement)
    assert await fault(store) is None


async def test_a_row_cannot_be_replaced_nor_the_table_emptied(store: SqlStore, url: str) -> None:
    await store.record(*[ENTRY] * 3)
    sqlite = url.startswith("sqlite")
    with pytest.raises(DBAPIError, match="append-only"):
        await run(url, "INSERT OR REPLACE INTO audit SELECT * FROM audit" if sqlite else "TRUNCATE audit")
    assert await fault(store) is None


async def test_who_gets_round_the_database_is_found_out(store: SqlStore, url: str) -> None:
    await store.record(*[ENTRY] * 20)
    drop = "DROP TRIGGER audit_no_update" if url.startswith("sqlite") else "DROP TRIGGER audit_append_only ON audit"
    await run(url, drop, "UPDATE audit SET actor = 'nobody' WHERE number = 12")
    assert await fault(store) == "entry 12 was changed after it was written"


async def test_a_change_and_its_entry_are_stored_together_or_not_at_all(store: SqlStore) -> None:
    await store.seed([POOL], Schedule())
    await store.save_pool(replace(POOL, ceiling=4), based_on=1, decision=decision(), audit=[ENTRY])
    with pytest.raises(StaleVersion):
        await store.save_pool(replace(POOL, ceiling=3), based_on=1, decision=decision(), audit=[ENTRY])
    await store.save_schedule(Schedule("Europe/Berlin"), based_on=1, decisions=[], audit=[replace(ENTRY, actor="bob")])
    assert [record.entry.actor for record in await store.audit(AuditQuery())] == ["bob", "ann"]
    assert await fault(store) is None


async def test_the_controllers_moves_are_entries_beside_their_decisions(store: SqlStore) -> None:
    await store.append([decision("controller", "cut"), decision("controller", "hold"), decision("operator")])
    assert await store.audit(AuditQuery()) == []
    [record] = await store.audit(AuditQuery(automatic=True))
    assert (record.entry.actor, record.entry.action, record.entry.way) == ("controller", "limit.cut", CONTROLLER)


async def test_rows_are_found_by_who_what_when_and_text(store: SqlStore) -> None:
    entries = [
        replace(ENTRY, actor="ann", reason="GPU 3 out"),
        replace(ENTRY, actor="bob", action="pool.hold", at=NOW + timedelta(hours=1)),
        replace(ENTRY, actor="bob", action="schedule.change", target="schedule", at=NOW + timedelta(hours=2)),
        replace(ENTRY, actor="50%_", action="sign-in.failed", target="account:x", way="api key 50%_"),
    ]
    await store.record(*entries)

    async def numbers(**query: object) -> list[int]:
        return [record.number for record in await store.audit(AuditQuery(**query))]  # type: ignore[arg-type]

    assert await numbers() == [4, 3, 2, 1]
    assert await numbers(actor="bob") == [3, 2]
    assert await numbers(action="pool") == [2, 1]
    assert await numbers(action="pool.hold") == [2]
    assert await numbers(action="poo") == []
    assert await numbers(target="pool") == [2, 1]
    assert await numbers(target="pool:default") == [2, 1]
    assert await numbers(since=NOW + timedelta(hours=1)) == [3, 2]
    assert await numbers(until=NOW + timedelta(hours=1)) == [4, 1]
    assert await numbers(text="gpu 3") == [4, 3, 2, 1]
    assert await numbers(text="%_") == [4]
    assert await numbers(text="a_n") == []
    assert await numbers(before=3, limit=1) == [2]
