import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.changes import MAX_FOR, apply_patch, check_settings, duration, sentence
from core.clock import SystemClock
from core.control.windows import OneOff, Schedule, Window, bounds_at
from core.coordination.local import LocalNotifier
from core.errors import InvalidValue, NotFound, StaleVersion
from core.operations import EVERY_POOL, BoundsPatch, Figures, Operations, PoolPatch
from core.quotas import Budgets, Hold, Pause, PoolSettings
from core.storage.migrate import migrate
from core.storage.store import SqlStore

NOW = datetime(2026, 12, 9, 12, tzinfo=UTC)  # a Wednesday
POOL = PoolSettings("default", slots=8, reserve=1, headroom=1, floor=1, ceiling=7)
PEAK = Window("Peak", frozenset(range(5)), time(7), time(15), ceiling=4)
SCHEDULE = Schedule("UTC", (PEAK, Window("Night", frozenset(range(7)), time(22), time(6), ceiling=6)))


class SetClock(SystemClock):
    """A wall clock that stands where it was put."""

    at = NOW

    def now(self) -> datetime:
        return self.at


class CountingNotifier(LocalNotifier):
    count = 0

    def notify(self) -> None:
        self.count += 1
        super().notify()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    url = f"sqlite:///{tmp_path / 'tidegate.db'}"
    await migrate(url)
    store = SqlStore(url)
    await store.seed([POOL, replace(POOL, name="second")], SCHEDULE)
    yield store
    await store.close()


@pytest.fixture
async def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def notifier() -> CountingNotifier:
    return CountingNotifier()


@pytest.fixture
async def operations(store: SqlStore, clock: SetClock, notifier: CountingNotifier) -> Operations:
    return Operations(
        settings_store=store,
        notifier=notifier,
        clock=clock,
        figures=lambda pool: Figures(limit=6.5, interactive=2, interactive_waiting=1, batch=3, backlog=40),
    )


async def sentences(store: SqlStore) -> list[str]:
    return [row.sentence for row in await store.recent()]


def patched(patch: PoolPatch, settings: PoolSettings = POOL) -> PoolSettings:
    return apply_patch(settings, patch, by="ann", now=NOW, window_end=lambda: None)


@pytest.mark.anyio
async def test_a_hold_is_stored_with_its_decision_and_told(
    operations: Operations, store: SqlStore, notifier: CountingNotifier
) -> None:
    patch = PoolPatch(hold=4, hold_for="3h", reason="drain before the release")
    after = await operations.change_pool("default", patch, by="ann", based_on=1)
    assert after.hold == Hold(4, NOW + timedelta(hours=3), "ann", "drain before the release", NOW)
    assert await store.pool("default") == after
    [row] = await store.recent()
    assert row.sentence == "Held at 4 until 15:00 by ann: drain before the release."
    assert (row.actor, row.action, row.reason, row.by, row.note) == (
        "operator",
        "set",
        "hold",
        "ann",
        "drain before the release",
    )
    assert (row.limit, row.quota, row.window, row.bounds) == ((6.5, 6.5), (2, 4), "window:Peak", (1, 4))
    assert (row.interactive, row.interactive_waiting, row.batch, row.backlog) == (2, 1, 3, 40)
    assert row.changes == {"hold": (None, 4)}
    assert row.config_version == after.version == 2
    assert notifier.count == 1


@pytest.mark.anyio
async def test_one_three_one_one_quickly_ends_at_one_with_four_rows(operations: Operations, store: SqlStore) -> None:
    """R29 MassTransit/MassTransit#1671: 1 -> 3 -> 1 stayed at 3, and setting the same value hung."""
    for ceiling in (1, 3, 1, 1):
        await operations.change_pool("default", PoolPatch(ceiling=ceiling), by="ann", based_on=None)
    assert (await store.pool("default")).ceiling == 1
    assert await sentences(store) == [
        "Ceiling stays 1 by ann.",
        "Ceiling 3 -> 1 by ann.",
        "Ceiling 1 -> 3 by ann.",
        "Ceiling 7 -> 1 by ann.",
    ]


@pytest.mark.anyio
async def test_the_same_four_holds_at_once_all_end_and_the_version_counts_them(
    operations: Operations, store: SqlStore
) -> None:
    """R29, from four pages at the same moment."""
    holds = [
        operations.change_pool("default", PoolPatch(hold=quota), by="ann", based_on=None) for quota in (1, 3, 1, 1)
    ]
    async with asyncio.timeout(30):
        await asyncio.gather(*holds)
    assert (await store.pool("default")).version == 5
    assert len(await store.recent()) == 4


@pytest.mark.anyio
async def test_slots_go_down_and_up_again_and_a_ceiling_of_all_follows(operations: Operations, store: SqlStore) -> None:
    """R27 resilience4j/resilience4j#2489: 8 -> 2 with 8 running, then 2 -> 8."""
    low = await operations.change_pool("default", PoolPatch(slots=2), by="ann", based_on=1)
    assert (low.slots, low.reserve, low.ceiling, low.floor) == (2, 1, 1, 1)
    high = await operations.change_pool("default", PoolPatch(slots=8), by="ann", based_on=2)
    assert replace(high, version=1) == POOL
    assert await sentences(store) == ["Slots 2 -> 8; ceiling 1 -> 7 by ann.", "Slots 8 -> 2; ceiling 7 -> 1 by ann."]


@pytest.mark.anyio
async def test_a_change_on_an_old_version_is_refused_and_leaves_no_row(
    operations: Operations, store: SqlStore, notifier: CountingNotifier
) -> None:
    await operations.change_pool("default", PoolPatch(ceiling=5), by="ann", based_on=1)
    with pytest.raises(StaleVersion):
        await operations.change_pool("default", PoolPatch(floor=2), by="bob", based_on=1)
    assert len(await store.recent()) == 1
    assert notifier.count == 1


@pytest.mark.anyio
async def test_a_wrong_value_or_pool_changes_nothing(
    operations: Operations, store: SqlStore, notifier: CountingNotifier
) -> None:
    with pytest.raises(InvalidValue):
        await operations.change_pool("default", PoolPatch(ceiling=8), by="ann", based_on=1)
    with pytest.raises(NotFound):
        await operations.change_pool("nobody", PoolPatch(ceiling=3), by="ann", based_on=None)
    with pytest.raises(InvalidValue, match="printable"):
        await operations.change_pool("default", PoolPatch(ceiling=3), by="a\nb", based_on=None)
    assert await store.pool("default") == POOL
    assert (await store.recent(), notifier.count) == ([], 0)


@pytest.mark.anyio
async def test_pause_and_hold_never_touch_each_other(operations: Operations, store: SqlStore) -> None:
    async def change(**fields: object) -> PoolSettings:
        patch = PoolPatch(**fields)
        return await operations.change_pool("default", patch, by="ann", based_on=None)

    paused = await change(pause=True, reason="maintenance")
    held = await change(hold=3, hold_for="forever")
    assert (held.pause, held.hold and held.hold.quota) == (paused.pause, 3)
    resumed = await change(pause=False)
    assert (resumed.pause, resumed.hold) == (None, held.hold)
    again = await change(pause=True)
    released = await change(auto=True)
    assert (released.pause, released.hold) == (again.pause, None)
    assert (await change(slots=4, ceiling=2)).pause == again.pause
    assert await sentences(store) == [
        "Slots 8 -> 4; ceiling 7 -> 2 by ann.",
        "Released from 3 by ann.",
        "Batch paused by ann.",
        "Batch (paused by ann since 12:00) resumed by ann.",
        "Held at 3 for ever by ann.",
        "Batch paused by ann: maintenance.",
    ]
    assert [(row.action, row.reason) for row in await store.recent()] == [
        ("set", "settings"),
        ("set", "release"),
        ("pause", "pause"),
        ("resume", "resume"),
        ("set", "hold"),
        ("pause", "pause"),
    ]


@pytest.mark.anyio
async def test_a_release_passes_the_held_quota_on(operations: Operations, store: SqlStore) -> None:
    await operations.change_pool("default", PoolPatch(hold=3), by="ann", based_on=None)
    await operations.change_pool("default", PoolPatch(auto=True), by="ann", based_on=None)
    assert [row.quota for row in await store.recent()] == [(3, 3), (2, 3)]


@pytest.mark.anyio
async def test_what_was_set_outlasts_a_restart(operations: Operations, store: SqlStore, tmp_path: Path) -> None:
    patch = PoolPatch(hold=2, hold_for="1d", slots=6, floor=2, budgets={"per_token_ms": 50.0})
    await operations.change_pool("default", patch, by="ann", based_on=1)
    after = await operations.change_pool("default", PoolPatch(pause=True), by="bob", based_on=2)
    await operations.add_one_off(BoundsPatch(ceiling=2), until="2h", by="ann")
    await store.close()
    later = SqlStore(f"sqlite:///{tmp_path / 'tidegate.db'}")
    await later.seed([POOL], SCHEDULE)
    assert await later.pool("default") == after
    assert after.pause == Pause("bob", "", NOW)
    assert after.budgets == Budgets(1.0, 50.0, 0.02)
    assert (await later.schedule()).one_offs[0].ceiling == 2
    await later.close()


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("15m", NOW + timedelta(minutes=15)),
        ("1h", NOW + timedelta(hours=1)),
        (None, NOW + timedelta(hours=1)),
        ("30d", NOW + timedelta(days=30)),
        ("forever", None),
        ("until_window_ends", NOW + timedelta(hours=3)),
    ],
)
@pytest.mark.anyio
async def test_a_hold_lasts_as_long_as_was_said(
    operations: Operations, text: str | None, until: datetime | None
) -> None:
    after = await operations.change_pool("default", PoolPatch(hold=0, hold_for=text), by="ann", based_on=None)
    assert after.hold is not None
    assert after.hold.until == until


@pytest.mark.anyio
async def test_between_windows_a_hold_until_the_window_ends_lasts_until_the_next_begins(
    operations: Operations, clock: SetClock, store: SqlStore
) -> None:
    clock.at = NOW.replace(hour=18)
    patch = PoolPatch(hold=2, hold_for="until_window_ends")
    after = await operations.change_pool("default", patch, by="ann", based_on=None)
    assert after.hold is not None
    assert after.hold.until == NOW.replace(hour=22)
    await operations.change_schedule(Schedule(), by="ann", based_on=None)
    with pytest.raises(InvalidValue) as caught:
        await operations.change_pool("default", patch, by="ann", based_on=None)
    assert caught.value.field == "for"


@pytest.mark.anyio
async def test_a_hold_whose_time_has_passed_is_forgotten_at_the_next_change(
    operations: Operations, clock: SetClock, store: SqlStore
) -> None:
    await operations.change_pool("default", PoolPatch(hold=7, hold_for="1h"), by="ann", based_on=None)
    clock.at = NOW + timedelta(hours=1)
    after = await operations.change_pool("default", PoolPatch(slots=4), by="ann", based_on=None)
    assert after.hold is None


@pytest.mark.parametrize("text", ["", "h", "0m", "-1h", "1.5h", "31d", "99999d", "1w", "1h30m", "١h", "1 h", "soon"])
def test_an_odd_length_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        duration(text)
    assert caught.value.field == "for"


@given(st.integers(1, 99999), st.sampled_from("mhd"))
def test_a_length_is_never_beyond_its_bounds(count: int, unit: str) -> None:
    try:
        length = duration(f"{count}{unit}")
    except InvalidValue:
        return
    assert timedelta(minutes=1) <= length <= MAX_FOR


@pytest.mark.parametrize(
    ("patch", "field", "says"),
    [
        (PoolPatch(), "body", "changes nothing"),
        (PoolPatch(reason="why"), "body", "changes nothing"),
        (PoolPatch(hold=8), "hold", "outside 0 to slots - reserve = 8 - 1 = 7"),
        (PoolPatch(hold=-1), "hold", "must be 0 to"),
        (PoolPatch(hold=2.5), "hold", "whole number"),
        (PoolPatch(hold=True), "hold", "whole number"),
        (PoolPatch(hold=1, auto=True), "auto", "excludes hold"),
        (PoolPatch(auto=False), "auto", "can only be true"),
        (PoolPatch(hold_for="1h"), "for", "give hold with it"),
        (PoolPatch(hold=1, hold_for="1y"), "for", '"15m"'),
        (PoolPatch(hold=1, hold_for=""), "for", '"15m"'),
        (PoolPatch(slots=0), "slots", "must be 1 to"),
        (PoolPatch(slots=10**9), "slots", "must be"),
        (PoolPatch(slots=1), "slots", "give a reserve of at most 0 in the same change"),
        (PoolPatch(reserve=8), "reserve", "takes all of 8 slots: give a reserve of at most 7"),
        (PoolPatch(headroom=9), "headroom", "give a headroom of at most 8"),
        (
            PoolPatch(ceiling=8),
            "ceiling",
            "ceiling 8 is above slots - reserve = 8 - 1 = 7: give a ceiling of at most 7",
        ),
        (PoolPatch(floor=8), "floor", "floor 8 is above ceiling 7"),
        (PoolPatch(floor=5, ceiling=4), "floor", "floor 5 is above ceiling 4"),
        (PoolPatch(ceiling=0), "ceiling", "floor 1 is above ceiling 0"),
        (PoolPatch(budgets={"first_token_s": float("nan")}), "budgets.first_token_s", "finite"),
        (PoolPatch(budgets={"per_token_ms": 0}), "budgets.per_token_ms", "above 0"),
        (PoolPatch(budgets={"error_rate": 1.1}), "budgets.error_rate", "0 or more"),
        (PoolPatch(budgets={"patience": 1}), "budgets.patience", "is no budget"),
        (PoolPatch(pause=True, reason="x" * 501), "reason", "at most 500"),
        (PoolPatch(pause=True, reason="a\x00b"), "reason", "printable"),
    ],
)
def test_a_wrong_change_is_refused_by_field_value_and_fix(patch: PoolPatch, field: str, says: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        patched(patch)
    assert caught.value.field == field
    assert says in caught.value.message


def test_fewer_slots_than_a_lower_ceiling_or_a_hold_needs_are_refused_with_the_way_out() -> None:
    lower = replace(POOL, ceiling=5)
    with pytest.raises(InvalidValue, match="give a ceiling of at most 1 in the same change") as caught:
        patched(PoolPatch(slots=2), lower)
    assert caught.value.field == "slots"
    assert patched(PoolPatch(slots=2, ceiling=1), lower).ceiling == 1
    held = replace(POOL, hold=Hold(5, None, "ann", "", NOW))
    with pytest.raises(InvalidValue, match="hold at most 1, or release it, in the same change"):
        patched(PoolPatch(slots=2), held)
    assert patched(PoolPatch(slots=2, auto=True), held).hold is None


@given(
    st.builds(
        PoolPatch,
        hold=st.none() | st.integers(-1, 12),
        slots=st.none() | st.integers(-1, 12),
        reserve=st.none() | st.integers(-1, 12),
        headroom=st.none() | st.integers(-1, 12),
        floor=st.none() | st.integers(-1, 12),
        ceiling=st.none() | st.integers(-1, 12),
        pause=st.none() | st.booleans(),
    )
)
def test_whatever_is_accepted_is_sound(patch: PoolPatch) -> None:
    try:
        after = patched(patch)
    except InvalidValue:
        return
    check_settings(after)
    assert 0 <= after.floor <= after.ceiling <= after.batch_max
    assert after.hold is None or after.hold.quota <= after.batch_max
    assert all(
        getattr(after, name) == getattr(patch, name) for name in patch.given & {"slots", "reserve", "floor", "ceiling"}
    )


@pytest.mark.anyio
async def test_a_changed_schedule_tells_what_moved_for_whom(operations: Operations, store: SqlStore) -> None:
    wanted = Schedule("Europe/Berlin", (replace(PEAK, ceiling=2, floor=1), replace(PEAK, name="Extra")))
    saved = await operations.change_schedule(wanted, by="ann", note="winter", based_on=1)
    assert saved == replace(wanted, version=2)
    [row] = await store.recent()
    assert (row.pool, row.reason, row.note) == (EVERY_POOL, "schedule", "winter")
    assert row.sentence == (
        "Zone UTC -> Europe/Berlin; window Peak changed (floor as base -> 1, ceiling 4 -> 2); window Night removed; "
        "window Extra added by ann: winter."
    )
    with pytest.raises(StaleVersion):
        await operations.change_schedule(wanted, by="ann", based_on=1)


@pytest.mark.anyio
async def test_a_schedule_for_a_pool_that_is_not_there_is_refused(operations: Operations) -> None:
    wanted = replace(SCHEDULE, windows=(PEAK, replace(PEAK, name="B", pools=("second", "third"))))
    with pytest.raises(InvalidValue, match="'third'") as caught:
        await operations.change_schedule(wanted, by="ann", based_on=None)
    assert caught.value.field == "windows[1].pools"


@pytest.mark.anyio
async def test_a_one_off_lasts_by_default_until_the_window_in_force_ends_and_wins_at_once(
    operations: Operations, store: SqlStore
) -> None:
    saved = await operations.add_one_off(BoundsPatch(ceiling=2), pool="default", by="ann", reason="GPU 3 out")
    assert saved.one_offs == (
        OneOff(
            "Until 15:00", NOW, NOW + timedelta(hours=3), ceiling=2, pools=("default",), reason="GPU 3 out", by="ann"
        ),
    )
    bounds = bounds_at(saved, NOW, pool="default", base=POOL.base_bounds())
    assert (bounds.ceiling, bounds.source, bounds.until) == (2, "one_off:Until 15:00", NOW + timedelta(hours=3))
    assert bounds_at(saved, NOW, pool="second", base=POOL.base_bounds()).source == "window:Peak"
    [row] = await store.recent()
    assert (row.pool, row.sentence) == ("default", "One-off Until 15:00 added by ann: GPU 3 out.")


@pytest.mark.anyio
async def test_a_second_one_off_of_the_same_moment_has_its_own_name_and_wins(operations: Operations) -> None:
    await operations.add_one_off(BoundsPatch(ceiling=2), until="1h", by="ann")
    saved = await operations.add_one_off(BoundsPatch(ceiling=3), until="1h", by="ann")
    assert [one.name for one in saved.one_offs] == ["Until 13:00 (2)", "Until 13:00"]
    assert bounds_at(saved, NOW, pool="default", base=POOL.base_bounds()).ceiling == 3


@pytest.mark.anyio
async def test_one_offs_that_are_over_make_room(operations: Operations, clock: SetClock) -> None:
    await operations.add_one_off(BoundsPatch(ceiling=2), until="1h", by="ann")
    clock.at = NOW + timedelta(hours=2)
    saved = await operations.add_one_off(BoundsPatch(floor=0), until=NOW + timedelta(days=2), name="Feast", by="ann")
    assert [one.name for one in saved.one_offs] == ["Feast"]


@pytest.mark.anyio
async def test_a_one_off_without_an_end_or_a_change_is_refused(operations: Operations) -> None:
    for until in ("forever", "soon"):
        with pytest.raises(InvalidValue) as caught:
            await operations.add_one_off(BoundsPatch(ceiling=2), until=until, by="ann")
        assert caught.value.field == "until"
    with pytest.raises(InvalidValue, match="changes nothing"):
        await operations.add_one_off(BoundsPatch(), by="ann")
    await operations.change_schedule(Schedule(), by="ann", based_on=None)
    with pytest.raises(InvalidValue, match="no window is in force"):
        await operations.add_one_off(BoundsPatch(ceiling=2), pool="default", by="ann")


@pytest.mark.anyio
async def test_the_window_in_force_can_be_edited_by_name(operations: Operations, store: SqlStore) -> None:
    saved = await operations.edit_window("Peak", BoundsPatch(ceiling=3), by="ann", note="slow day", based_on=1)
    assert saved.windows == (replace(PEAK, ceiling=3), SCHEDULE.windows[1])
    assert await sentences(store) == ["Window Peak changed (ceiling 4 -> 3) by ann: slow day."]
    with pytest.raises(NotFound):
        await operations.edit_window("Nowhere", BoundsPatch(ceiling=3), by="ann")
    with pytest.raises(InvalidValue) as caught:
        await operations.edit_window("Peak", BoundsPatch(floor=9), by="ann")
    assert caught.value.field == "windows[0].floor"


@pytest.mark.anyio
async def test_a_one_off_in_force_can_be_edited_by_its_source(operations: Operations) -> None:
    saved = await operations.add_one_off(BoundsPatch(ceiling=2), until="1h", name="Feast", by="ann")
    edited = await operations.edit_source(
        "one_off:Feast", BoundsPatch(floor=0, budgets=Budgets(2.0)), by="bob", based_on=saved.version
    )
    assert edited.one_offs == (replace(saved.one_offs[0], floor=0, budgets=Budgets(2.0)),)


@pytest.mark.anyio
async def test_overriding_edits_of_different_things_lose_none(operations: Operations, store: SqlStore) -> None:
    edits = [operations.edit_window(name, BoundsPatch(ceiling=1), by="ann") for name in ("Peak", "Night")] + [
        operations.add_one_off(BoundsPatch(ceiling=n), until="1h", by="ann") for n in range(4)
    ]
    async with asyncio.timeout(30):
        await asyncio.gather(*edits)
    saved = await store.schedule()
    assert saved.version == 7
    assert [window.ceiling for window in saved.windows] == [1, 1]
    assert sorted(one.ceiling or 0 for one in saved.one_offs) == [0, 1, 2, 3]
    assert len({one.name for one in saved.one_offs}) == 4


@pytest.mark.anyio
async def test_without_a_running_pool_the_row_tells_the_limit_that_was_saved(
    store: SqlStore, clock: SetClock, notifier: CountingNotifier
) -> None:
    offline = Operations(settings_store=store, notifier=notifier, clock=clock)
    await offline.change_pool("default", PoolPatch(hold=1), by="ann", based_on=None)
    [row] = await store.recent()
    assert (row.limit, row.quota) == ((8.0, 8.0), (4, 1))


def test_changed_budgets_are_told_in_words() -> None:
    patch = PoolPatch(budgets={"first_token_s": 2.0, "per_token_ms": 75.0, "error_rate": 0.05})
    told = sentence(POOL, patched(patch), patch, by="ann", now=NOW, zone=UTC)
    assert told == ("First-token budget 1 s -> 2 s; per-token budget stays 75 ms; error budget 2 % -> 5 % by ann.")
