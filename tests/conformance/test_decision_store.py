from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pytest
from sqlalchemy import text

from core.control.decisions import Decision, Trigger
from core.quotas import Budgets
from core.storage.database import Database
from core.storage.store import SqlStore

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 9, 12, 0, 0, 5, tzinfo=UTC)
CUT = Decision(
    at=NOW,
    pool="default",
    actor="controller",
    action="cut",
    reason="per_token",
    sentence="Limit 44 -> 39: p95 time per token of 63 interactive requests is 84 ms, budget 75 ms (112 %).",
    limit=(44.5, 39.25),
    quota=(33, 28),
    triggers=(Trigger("per_token", 84.0, 75.0, 63), Trigger("first_token", None, 1.0)),
    interactive=8,
    interactive_waiting=2,
    batch=30,
    backlog=1200,
    next_move_at=NOW + timedelta(seconds=10),
    window="window:Peak",
    bounds=(4, 40),
    config_version=7,
    shadow=True,
)


class Colour(StrEnum):
    RED = "red"


async def test_a_decision_is_read_back_as_it_was(store: SqlStore) -> None:
    change = replace(
        CUT, actor="operator", by="ann", note="GPU 3 out", changes={"ceiling": (28, 24), "hold": (None, 4)}
    )
    await store.append([CUT, change])
    assert await store.recent() == [change, CUT]


async def test_the_newest_come_first_and_those_of_one_instant_in_reverse_order(store: SqlStore) -> None:
    rows = [replace(CUT, at=NOW + timedelta(seconds=second), sentence=str(n)) for n, second in enumerate((2, 0, 1, 1))]
    await store.append(rows)
    assert [row.sentence for row in await store.recent()] == ["0", "3", "2", "1"]
    assert [row.sentence for row in await store.recent(limit=2)] == ["0", "3"]


async def test_since_is_inclusive_and_exact_to_the_microsecond(store: SqlStore) -> None:
    rows = [replace(CUT, at=NOW + timedelta(microseconds=n), sentence=str(n)) for n in (-1, 0, 1)]
    await store.append(rows)
    assert [row.sentence for row in await store.recent(since=NOW)] == ["1", "0"]


async def test_a_pools_log_holds_what_concerns_every_pool_too(store: SqlStore) -> None:
    await store.append([replace(CUT, pool=pool) for pool in ("a", "b", "*")])
    assert [row.pool for row in await store.recent(pool="a")] == ["*", "a"]


async def test_nothing_is_nan_in_the_log(store: SqlStore, url: str) -> None:
    nan, inf = float("nan"), float("inf")
    odd = replace(
        CUT,
        limit=(nan, inf),
        triggers=(Trigger("live", nan, inf), Trigger("first", -inf, 1.0)),
        changes={"budgets": (Budgets(nan), nan)},
    )
    await store.append([odd])
    [row] = await store.recent()
    assert row.limit == (0.0, 0.0)
    assert [trigger.value for trigger in row.triggers] == [None, None]
    assert row.changes["budgets"] == ({"first_token_s": None, "per_token_ms": 75.0, "error_rate": 0.02}, None)
    database = Database(url)
    async with database.engine.connect() as connection:
        raw = str((await connection.execute(text("SELECT CAST(figures AS TEXT) FROM decision"))).scalar())
    await database.close()
    assert "nan" not in raw.lower()
    assert "inf" not in raw.lower()


async def test_whatever_a_change_holds_is_stored(store: SqlStore) -> None:
    await store.append([replace(CUT, changes={"a": (NOW, Colour.RED), "b": (object, {1, 2})})])
    [row] = await store.recent()
    assert row.changes["a"] == ("2026-12-09T12:00:00.000005Z", "red")


async def test_pruning_deletes_the_older_ones_alone_however_many_they_are(store: SqlStore) -> None:
    old = [replace(CUT, at=NOW - timedelta(seconds=n + 1)) for n in range(1234)]
    await store.append([*old, CUT])
    assert await store.prune(NOW) == 1234
    assert await store.recent() == [CUT]
    assert await store.prune(NOW) == 0


async def test_nothing_to_append_is_no_transaction(store: SqlStore) -> None:
    await store.append([])
    assert await store.recent() == []
