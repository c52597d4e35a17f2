import json
from datetime import timedelta

import pytest

from core.batch.queries import BatchQueries
from core.batch.values import Batch, Eta, EtaState, ItemState, Risk
from tests.batch_house import LEASE, START, House, jsonl, line

pytestmark = pytest.mark.anyio


def queries(parts: House, **options: object) -> BatchQueries:
    return BatchQueries(store=parts.store, clock=parts.clock, **options)  # type: ignore[arg-type]


async def test_a_batch_is_told_in_openais_fields_with_whole_seconds(parts: House) -> None:
    batch = await parts.started(3, metadata={"a": "b"}, completion_window="2d")
    await parts.run(batch, ItemState.SUCCEEDED, ItemState.FAILED)
    [told] = await queries(parts).json([await parts.store.batch(batch.id)])
    assert (told["object"], told["status"], told["completion_window"]) == ("batch", "in_progress", "2d")
    assert told["request_counts"] == {"total": 3, "completed": 1, "failed": 1}
    assert told["created_at"] == int(START.timestamp())
    assert told["expires_at"] == told["created_at"] + 2 * 86_400
    assert (told["usage"]["input_tokens"], told["usage"]["total_tokens"]) == (6, 14)
    assert (told["metadata"], told["errors"], told["output_file_id"]) == ({"a": "b"}, None, None)
    json.dumps(told, allow_nan=False)


async def test_no_count_shows_before_all_lines_are_found_good(parts: House) -> None:
    batch = await parts.create(jsonl(line(), {"bad": 1}))
    [told] = await queries(parts).json([batch])
    assert (told["request_counts"]["total"], told["tidegate"]["state"]) == (0, "validating")
    failed = await parts.intake().run(batch)
    [told] = await queries(parts).json([failed])
    assert told["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert [(each["code"], each["line"]) for each in told["errors"]["data"]] == [("missing_custom_id", 2)]
    assert told["tidegate"]["state"] == "done"


async def test_the_place_follows_priority_then_deadline_then_age(parts: House) -> None:
    first = await parts.started(1, dedupe="1")
    urgent = await parts.started(1, dedupe="2", completion_window="2h")
    ahead = await parts.started(1, dedupe="3", priority=1)
    parts.clock.time += timedelta(seconds=1)
    last = await parts.started(1, dedupe="4")
    told = await queries(parts).json([first, urgent, ahead, last])
    assert [each["tidegate"]["position"] for each in told] == [3, 2, 1, 4]
    assert told[1]["tidegate"]["waiting_for"] == "1 batch before it"
    assert told[2]["tidegate"]["waiting_for"] is None


async def test_what_a_batch_waits_for_is_told(parts: House) -> None:
    batch = await parts.started(1)
    blocked = queries(parts, why=lambda pool: f"pool {pool} is closed")
    [told] = await blocked.json([batch])
    assert (told["tidegate"]["state"], told["tidegate"]["waiting_for"]) == ("queued", "pool default is closed")
    paused = await parts.batches.pause(batch.id, tenant="t", by="ann", reason="costs")
    [told] = await blocked.json([paused])
    own = told["tidegate"]
    assert (own["state"], own["waiting_for"], own["eta"]["state"]) == ("paused", "paused by ann: costs", "paused")
    await parts.batches.resume(batch.id, tenant="t")
    await parts.store.claim(batch.id, owner="w", now=START, lease=LEASE, limit=1)
    [told] = await queries(parts).json([await parts.store.batch(batch.id)])
    assert told["tidegate"]["state"] == "running"


async def test_an_estimate_is_told_as_clock_times_and_none_is_not_guessed(parts: House) -> None:
    batch = await parts.started(1)
    [told] = await queries(parts).json([batch])
    eta = told["tidegate"]["eta"]
    assert (eta["state"], eta["low"], eta["mid"], eta["high"]) == ("learning", None, None, None)

    async def estimate(batch: Batch) -> Eta:
        hours = [START + timedelta(hours=n) for n in (1, 2, 3)]
        return Eta(EtaState.ESTIMATED, START, *hours, basis="40 answers", risk=Risk.AT_RISK)

    [told] = await queries(parts, eta=estimate).json([batch])
    own = told["tidegate"]
    assert own["deadline_risk"] == "at_risk"
    assert (own["eta"]["low"], own["eta"]["high"]) == ("2026-12-09T13:00:00Z", "2026-12-09T15:00:00Z")
    await parts.run(batch, ItemState.SUCCEEDED)
    [told] = await queries(parts, eta=estimate).json([await parts.closer.settle(batch.id)])
    assert (told["tidegate"]["eta"]["state"], told["tidegate"]["position"]) == ("done", None)
