import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from core.batch.forecast import Forecaster
from core.batch.residuals import GivenEta
from core.batch.values import Batch, BatchPause, BatchStatus, EtaState, Risk, Usage
from core.errors import NotFound
from core.storage.migrate import migrate
from core.storage.store import SqlStore
from tests.eta_outlooks import NOW, POOL, batch, conditions

pytestmark = pytest.mark.anyio


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.at = NOW
        self.slept = asyncio.Event()

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - NOW).total_seconds()

    async def sleep(self, seconds: float) -> None:
        self.slept.set()
        await asyncio.Event().wait()


class Kept:
    """Batches as a store tells them."""

    def __init__(self) -> None:
        self.rows: dict[str, Batch] = {}
        self.broken = False

    async def active(self) -> list[Batch]:
        if self.broken:
            raise OSError("the database is down")
        return [row for row in self.rows.values() if not row.ended]

    async def batch(self, batch_id: str, *, tenant: str | None = None) -> Batch:
        if batch_id not in self.rows:
            raise NotFound("batch", batch_id)
        return self.rows[batch_id]

    async def batches(self, *, tenant: str | None, after: str | None, limit: int) -> list[Batch]:
        return list(self.rows.values())[-limit:]


class House:
    """A forecaster over a real database, with a pool that does a request a second."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.clock = Hands()
        self.kept = Kept()
        self.pool = conditions(POOL)
        self.forecaster = self.forecasts()

    def forecasts(self) -> Forecaster:
        return Forecaster(
            store=self.store, batches=self.kept, clock=self.clock, conditions=lambda: {"default": self.pool}
        )

    def put(self, **fields: object) -> Batch:
        made = batch(**{"created_at": self.clock.at, "in_progress_at": self.clock.at, **fields})
        made = replace(made, prompt_tokens_total=40 * made.total)
        self.kept.rows[made.id] = made
        return made

    def progress(self, batch_id: str, items: int) -> None:
        row = self.kept.rows[batch_id]
        items = min(items, row.left)
        usage = Usage(
            input_tokens=row.usage.input_tokens + 40 * items, output_tokens=row.usage.output_tokens + 99 * items
        )
        done = row.completed + items
        row = replace(row, completed=done, usage=usage, running=min(10, row.total - done))
        if done == row.total:
            row = replace(row, status=BatchStatus.COMPLETED, completed_at=self.clock.at)
        self.kept.rows[batch_id] = row

    async def run(self, seconds: int, *, per_second: float = 1.0, step: int = 5) -> None:
        """Let time pass: the oldest open batch gets on, and the forecaster looks."""
        for _ in range(0, seconds, step):
            self.clock.at += timedelta(seconds=step)
            open_ones = [row for row in self.kept.rows.values() if not row.ended and row.pause is None]
            if open_ones:
                self.progress(open_ones[0].id, round(per_second * step))
            await self.forecaster.look()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    url = f"sqlite:///{tmp_path / 'tidegate.db'}"
    await migrate(url)
    store = SqlStore(url)
    yield House(store)
    await store.close()


async def test_it_learns_before_it_tells_and_then_tells_about_the_truth(house: House) -> None:
    made = house.put(total=3600)
    await house.forecaster.look()
    assert (await house.forecaster.eta(made)).state is EtaState.LEARNING
    await house.run(15)
    found = await house.forecaster.eta(house.kept.rows["batch_1"])
    assert found.state is EtaState.LEARNING
    assert "of 30" in found.basis
    await house.run(285)
    found = await house.forecaster.eta(house.kept.rows["batch_1"])
    assert found.state is EtaState.ESTIMATED
    assert found.mid is not None
    assert abs(found.mid - (NOW + timedelta(seconds=3600))) < timedelta(minutes=5)
    assert "requests in the last" in found.basis
    assert found.risk is Risk.ON_TIME


async def test_before_the_first_look_and_for_an_unknown_pool_everything_is_learning(house: House) -> None:
    assert (await house.forecaster.eta(batch())).state is EtaState.LEARNING
    await house.forecaster.look()
    assert (await house.forecaster.eta(batch(pool="nowhere"))).state is EtaState.LEARNING
    assert house.forecaster.risk(batch(pool="nowhere")) is None


async def test_every_eta_is_kept_scored_when_the_batch_is_completed_and_survives_a_restart(house: House) -> None:
    house.put(total=900, id="batch_0")
    await house.run(1000)
    house.put(total=2400, id="batch_1")
    await house.run(2500)
    told = house.forecaster.score()
    assert told.at_submission.n == 2
    assert told.overall.n > 3
    assert told.overall.median_error is not None
    assert told.overall.median_error < 0.1
    assert told.overall.held == 1.0
    assert told.tenants["news"].n == 2
    again = house.forecasts()
    await again.look()
    assert again.score() == told
    assert again.learned.open == set()


async def test_what_was_learned_survives_a_restart_so_that_the_first_batch_has_an_eta(house: House) -> None:
    house.put(total=1500)
    await house.run(1600)
    house.forecaster = house.forecasts()
    made = house.put(total=3600, id="batch_2")
    await house.forecaster.look()
    found = await house.forecaster.eta(made)
    assert found.state is EtaState.ESTIMATED
    assert found.mid is not None
    assert abs(found.mid - (house.clock.at + timedelta(hours=1))) < timedelta(minutes=6)


async def test_etas_of_a_batch_that_was_cancelled_are_forgotten(house: House) -> None:
    made = house.put(total=36_000)
    await house.run(600)
    assert house.forecaster.learned.open == {made.id}
    house.kept.rows[made.id] = replace(
        house.kept.rows[made.id], status=BatchStatus.CANCELLED, cancelled_at=house.clock.at
    )
    await house.run(5)
    assert house.forecaster.learned.open == set()
    assert house.forecaster.score().overall.n == 0
    assert (await house.store.learned(since=NOW - timedelta(days=1))).open == set()


async def test_a_batch_that_ended_while_nobody_looked_is_scored_at_the_next_start(house: House) -> None:
    house.put(total=1500)
    await house.run(600)
    await house.forecaster._keep()
    house.progress("batch_1", 10_000)
    house.forecaster = house.forecasts()
    await house.forecaster.look()
    assert house.forecaster.score().overall.n > 0


async def test_a_pool_paused_or_held_at_0_teaches_nothing_about_its_throughput(house: House) -> None:
    house.put(total=36_000)
    await house.run(900)
    house.pool = replace(house.pool, quota=0)
    await house.run(900, per_second=0)
    rows = house.forecaster.learned.rows("default")
    assert 800 <= sum(row.seconds for row in rows) <= 900
    assert sum(row.load.items for row in rows) == pytest.approx(sum(row.seconds for row in rows), rel=0.02)


async def test_a_batch_that_limits_itself_says_nothing_about_the_pool(house: House) -> None:
    house.put(total=36_000, interval_s=1.0)
    await house.run(900)
    assert house.forecaster.learned.rows("default") == []


async def test_a_paused_batch_has_no_time_but_its_pauser(house: House) -> None:
    made = house.put(total=3600)
    await house.run(600)
    paused = replace(house.kept.rows[made.id], pause=BatchPause("bob", "", house.clock.at), version=2)
    found = await house.forecaster.eta(paused)
    assert (found.state, found.mid, found.waiting_for) == (EtaState.PAUSED, None, "batch is paused by bob")


async def test_a_quote_tells_what_a_batch_would_take_behind_those_of_its_team(house: House) -> None:
    house.put(total=3600)
    await house.run(600)
    alone = await house.forecaster.quote(lines=600, prompt_tokens=24_000, tenant="qa", pool="default", model="m")
    behind = await house.forecaster.quote(lines=600, prompt_tokens=24_000, tenant="news", pool="default", model="m")
    assert alone.mid is not None
    assert behind.mid is not None
    now = house.clock.at
    assert timedelta(minutes=15) < alone.mid - now < timedelta(minutes=25)
    assert timedelta(minutes=55) < behind.mid - now < timedelta(minutes=70)
    assert behind.waiting_for == "1 batch, 3,000 requests ahead"
    with pytest.raises(NotFound):
        await house.forecaster.quote(lines=1, prompt_tokens=1, tenant="qa", pool="nowhere", model=None)


async def test_a_store_that_fails_is_tried_again_and_nothing_is_lost(house: House) -> None:
    house.put(total=36_000)
    await house.run(600)

    async def fails(*_: object, **__: object) -> None:
        raise OSError("disk full")

    changes = house.forecaster.learned.changes()
    house.forecaster.learned.not_stored(changes)
    works, house.store.keep_learned = house.store.keep_learned, fails
    with pytest.raises(OSError, match="disk full"):
        await house.run(120)
    house.store.keep_learned = works
    await house.run(60)
    stored = await house.store.learned(since=NOW - timedelta(days=1))
    assert stored.rows("default")
    assert stored.open == {"batch_1"}


async def test_the_loop_outlives_a_database_that_is_down(house: House) -> None:
    house.kept.broken = True
    house.forecaster.start()
    await asyncio.wait_for(house.clock.slept.wait(), 5)
    assert house.forecaster.running
    assert (await house.forecaster.eta(batch())).state is EtaState.LEARNING
    await house.forecaster.stop()
    await house.forecaster.stop()


async def test_seconds_in_a_slot_are_learned_from_how_many_were_under_way(house: House) -> None:
    """10 in flight at 1 a second are 10 s each (Little's law)."""
    house.put(total=36_000)
    await house.run(900)
    assert house.forecaster.learned.priors.of("default", "news", "m").seconds == pytest.approx(10, abs=0.6)


async def test_etas_are_kept_at_submission_and_then_now_and_then(house: House) -> None:
    house.put(total=600, id="batch_0")
    await house.run(700)
    made = house.put(total=3600)
    await house.run(900)
    given: list[GivenEta] = house.forecaster.learned._open[made.id]
    assert given[0].first
    assert not any(each.first for each in given[1:])
    assert 2 <= len(given) <= 4
    assert all(b.at - a.at >= timedelta(minutes=5) for a, b in pairwise(given))
