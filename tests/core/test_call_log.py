import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core import call_log
from core.call_log import GROUP, LONGEST_TEXT, CallLog
from core.call_record import CallQuery, CallRecord
from core.clock import SystemClock
from core.lanes import Lane, Outcome
from core.samples import Observation
from core.scheduling.calls import Call
from tests.servers import gate, until

pytestmark = pytest.mark.anyio


@dataclass
class Store:
    """A store that may be down or never answer."""

    down: bool = False
    stuck: bool = False
    groups: list[list[CallRecord]] = field(default_factory=list)
    pruned: list[tuple[float, int]] = field(default_factory=list)

    async def add_calls(self, records: Sequence[CallRecord]) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        if self.down:
            raise OSError("database is down")
        self.groups.append(list(records))

    async def calls(self, query: CallQuery) -> list[CallRecord]:
        return [record for group in self.groups for record in group]

    async def prune_calls(self, *, before: float, keep: int) -> int:
        self.pruned.append((before, keep))
        return 0

    @property
    def rows(self) -> list[CallRecord]:
        return [record for group in self.groups for record in group]


def log_on(store: Store, *, capacity: int = 5000, every: float = 0.01) -> CallLog:
    return CallLog(store=store, clock=SystemClock(), rows=100, days=2.0, capacity=capacity, every=every)


def end(log: CallLog, name: str = "req_1", **fields: object) -> None:
    made = Call(name, "search", Lane.INTERACTIVE, "m", "/chat/completions", b"secret text", key="chat")
    made.queued_s, made.input_tokens, made.output_tokens = 0.25, 7, 9
    for each, value in fields.items():
        setattr(made, each, value)
    seen = Observation(made.lane, made.model, arrived=10.0, streamed=True, first=10.5)
    log.of_pool("large")(made, seen, Outcome.SUCCESS, 200, 12.0)


async def test_what_ends_while_others_are_stored_waits_for_the_next_time() -> None:
    store = Store()
    log = log_on(store)
    stored = store.add_calls

    async def add_calls(records: Sequence[CallRecord]) -> None:
        await stored(records)
        end(log, f"req_{len(store.rows) + 1}")

    store.add_calls = add_calls  # type: ignore[method-assign]
    end(log)
    await log.flush()
    assert [len(group) for group in store.groups] == [1]
    await log.flush()
    assert [record.request for record in store.rows] == ["req_1", "req_2"]


async def test_a_call_becomes_a_row_with_its_waits_and_tokens_and_no_text() -> None:
    store = Store()
    log = log_on(store)
    end(log)
    await log.flush()
    [row] = store.rows
    assert (row.request, row.tenant, row.key, row.pool, row.model, row.lane) == (
        "req_1",
        "search",
        "chat",
        "large",
        "m",
        "interactive",
    )
    assert (row.outcome, row.status, row.batch) == ("success", 200, "")
    assert (row.queue_ms, row.first_token_ms, row.total_ms) == (250.0, 500.0, 2000.0)
    assert (row.input_tokens, row.output_tokens, row.estimated) == (7, 9, False)
    assert abs(row.at - (time.time() - time.monotonic() + 10.0)) < 5
    assert "secret" not in repr(row)


async def test_an_item_names_its_batch_and_an_answer_that_is_no_stream_has_no_first_token() -> None:
    store = Store()
    log = log_on(store)
    end(log, durable=True, source="batch_1", lane=Lane.BATCH)
    made = Call("r", "t", Lane.BATCH, "m", "/x", b"")
    log.of_pool("large")(made, Observation(Lane.BATCH, "m", 1.0, streamed=False, first=1.5), Outcome.TIMEOUT, 504, 2.0)
    await log.flush()
    assert [(row.batch, row.first_token_ms) for row in store.rows] == [("batch_1", 500.0), ("", None)]


async def test_rows_are_stored_in_groups() -> None:
    store = Store()
    log = log_on(store)
    for n in range(2 * GROUP + 1):
        end(log, f"req_{n}")
    await log.flush()
    assert [len(group) for group in store.groups] == [GROUP, GROUP, 1]
    assert store.rows[-1].request == f"req_{2 * GROUP}"


async def test_a_database_that_never_answers_costs_rows_but_delays_neither_request_nor_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(stuck=True)
    log = log_on(store, capacity=10)
    log.start()
    end(log, "first")
    until_taken = asyncio.get_running_loop().time() + 5
    while log._waiting:
        assert asyncio.get_running_loop().time() < until_taken
        await asyncio.sleep(0)
    for n in range(25):
        end(log, f"req_{n}")
    assert log.dropped == 15
    monkeypatch.setattr(call_log, "PATIENCE_S", 0.01)
    await log.stop()
    assert log.dropped == 15 + 1 + 10


async def test_a_database_that_is_down_costs_rows_until_it_is_back() -> None:
    store = Store(down=True)
    log = log_on(store)
    end(log)
    await log.flush()
    assert (log.dropped, store.rows) == (1, [])
    store.down = False
    end(log, "later")
    await log.flush()
    assert [row.request for row in store.rows] == ["later"]
    assert log.dropped == 1


async def test_what_waits_at_the_stop_is_stored() -> None:
    store = Store()
    log = log_on(store, every=3600)
    log.start()
    end(log)
    await log.stop()
    await log.stop()
    assert len(store.rows) == 1


async def test_the_name_of_a_model_is_bounded_and_such_as_every_database_can_hold() -> None:
    """R45 awsl-project/maxx PR#833: rows without bounds filled the database."""
    store = Store()
    log = log_on(store)
    for name in ("m" * 5000, "a\0b\ud800"):
        end(log, model=name)
    await log.flush()
    assert [row.model for row in store.rows] == ["m" * LONGEST_TEXT, "ab?"]


async def test_pruning_keeps_the_newest_rows_of_the_last_days() -> None:
    store = Store()
    now = datetime(2026, 12, 9, 12, tzinfo=UTC)
    await log_on(store).prune(now)
    assert store.pruned == [(datetime(2026, 12, 7, 12, tzinfo=UTC).timestamp(), 100)]


def test_every_answer_of_a_running_gateway_is_logged_once_with_its_outcome(tmp_path: Path) -> None:
    with gate(tmp_path / "data", keys=[{"name": "chat", "key": "key-of-chat-12345", "tenant": "search"}]) as running:
        auth = {"authorization": "Bearer key-of-chat-12345", "x-request-id": "mine"}
        assert running.chat(headers=auth, max_tokens=3).status_code == 200
        assert running.chat(headers={**auth, "x-request-id": "other"}, messages=7).status_code in (200, 400)
        found = until(lambda: len(rows := stored(running.runtime.store, running)) == 2 and rows)
    by_name = {row.request: row for row in found}
    assert by_name["mine"].outcome == "success"
    assert (by_name["mine"].tenant, by_name["mine"].key) == ("search", "chat")
    assert by_name["mine"].output_tokens == 3
    assert by_name["other"].status in (200, 400)


def stored(store: object, running: object) -> list[CallRecord]:
    from core.storage.store import SqlStore

    async def read() -> list[CallRecord]:
        other = SqlStore(running.runtime.settings.database_url)  # type: ignore[attr-defined]
        try:
            return await other.calls(CallQuery())
        finally:
            await other.close()

    return asyncio.run(read())


def test_nothing_is_logged_where_it_is_switched_off(tmp_path: Path) -> None:
    with gate(tmp_path / "data", call_log_rows=0) as running:
        assert running.chat(max_tokens=3).status_code == 200
        gateway = running.runtime.pools["default"].gateway
    assert gateway.on_end is None
