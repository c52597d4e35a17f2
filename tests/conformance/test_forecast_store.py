from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from core.batch.forecast import ForecastStore
from core.batch.learned import Changes, Learned
from core.batch.residuals import GivenEta
from core.batch.throughput import Measured
from core.batch.work import ANY, Load, Prior
from core.storage.store import SqlStore

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 9, 12, 0, 0, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
WHOLE = NOW.replace(microsecond=0)
ROW = Measured(WHOLE, "window:Peak", 3599.5, Load(10, 2000.25, 512), 7.5, 14.0)
KEY = ("default", "news", "m/7b")
PRIOR = Prior(12.5, 99.25, 3.5, 0.75)
GIVEN = GivenEta("batch_1", "news", "default", NOW, NOW + HOUR, NOW + 2 * HOUR, NOW + 3 * HOUR, 4, 5.5, 6, True, True)
LONG_AGO = NOW - timedelta(days=400)


async def test_the_store_is_the_port(store: SqlStore) -> None:
    port: ForecastStore = store
    assert (await port.learned(since=LONG_AGO)).changes() == Changes([], [], [])


async def test_what_was_kept_is_read_back_as_it_was(store: SqlStore) -> None:
    await store.keep_learned(Changes([("default", ROW)], [(KEY, PRIOR)], [GIVEN]), at=NOW)
    found = await store.learned(since=LONG_AGO)
    assert found.rows("default") == [ROW]
    assert found.priors.at(KEY) == PRIOR
    assert found.first("batch_1") == GIVEN
    assert found.open == {"batch_1"}


async def test_rows_and_priors_replace_those_of_the_same_key(store: SqlStore) -> None:
    await store.keep_learned(Changes([("default", ROW)], [(KEY, PRIOR)]), at=NOW)
    newer = replace(ROW, seconds=1.0, load=Load(1, 2, 3))
    other = replace(ROW, source="base")
    later = Changes([("default", newer), ("default", other), ("second", ROW)], [(KEY, Prior(1, 2, 3, 4))])
    await store.keep_learned(later, at=NOW + HOUR)
    found = await store.learned(since=LONG_AGO)
    assert sorted(found.rows("default"), key=lambda row: row.source) == [other, newer]
    assert found.rows("second") == [ROW]
    assert found.priors.at(KEY) == Prior(1, 2, 3, 4)
    assert found.priors.at(("default", ANY, ANY)) == Prior()


async def test_scored_etas_come_back_in_the_order_in_which_batches_ended(store: SqlStore) -> None:
    given = [replace(GIVEN, batch=name, at=NOW + n * HOUR) for n, name in enumerate("abab")]
    await store.keep_learned(Changes(given=given), at=NOW)
    await store.score_etas("b", NOW + 5 * HOUR)
    await store.score_etas("a", NOW + 6 * HOUR)
    found = await store.learned(since=LONG_AGO)
    assert [each.batch for each in found.scored] == ["b", "b", "a", "a"]
    assert [each.at for each in found.scored] == [NOW + n * HOUR for n in (1, 3, 0, 2)]
    assert {each.ended_at for each in found.scored} == {NOW + 5 * HOUR, NOW + 6 * HOUR}
    assert found.open == set()


async def test_a_batch_that_was_not_completed_leaves_no_eta_and_scores_stand(store: SqlStore) -> None:
    await store.keep_learned(Changes(given=[GIVEN, replace(GIVEN, batch="other")]), at=NOW)
    await store.score_etas("other", NOW)
    await store.score_etas("batch_1", None)
    await store.score_etas("other", None)
    found = await store.learned(since=LONG_AGO)
    assert found.open == set()
    assert [each.batch for each in found.scored] == ["other"]


async def test_only_throughput_since_an_instant_is_read(store: SqlStore) -> None:
    old = replace(ROW, start=WHOLE - 10 * HOUR)
    await store.keep_learned(Changes([("default", ROW), ("default", old)]), at=NOW)
    assert (await store.learned(since=WHOLE)).rows("default") == [ROW]


async def test_pruning_deletes_the_older_alone_however_many_they_are(store: SqlStore) -> None:
    old = [replace(GIVEN, at=NOW - HOUR - timedelta(seconds=n)) for n in range(1100)]
    stale = [("default", replace(ROW, start=WHOLE - n * HOUR)) for n in range(1, 30)]
    await store.keep_learned(Changes([("default", ROW), *stale], [(KEY, PRIOR)], [*old, GIVEN]), at=NOW - HOUR)
    await store.keep_learned(Changes(priors=[(("default", ANY, ANY), PRIOR)]), at=NOW)
    await store.prune_learned(before=WHOLE)
    found = await store.learned(since=LONG_AGO)
    assert found.rows("default") == [ROW]
    assert (found.priors.at(KEY), found.priors.at(("default", ANY, ANY))) == (Prior(), PRIOR)
    found.ended("batch_1", NOW)
    assert len(found.scored) == 1


def test_changes_that_could_not_be_stored_are_handed_over_again() -> None:
    learned = Learned(rows=[("default", ROW)], priors=[(KEY, PRIOR)])
    changes = Changes([("default", ROW)], [(KEY, PRIOR)], [GIVEN])
    learned.not_stored(changes)
    again = learned.changes()
    assert (list(again.rows), list(again.priors), list(again.given)) == (
        list(changes.rows),
        list(changes.priors),
        list(changes.given),
    )
    assert not learned.changes()
