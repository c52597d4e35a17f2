"""The settings' shapes, and what must hold between them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from core.config import BudgetConfig, KeyConfig, LaneTimeouts, PoolConfig, Settings, pool_settings, slots_for
from core.errors import ConfigError
from core.lanes import Lane
from core.quotas import Budgets

UPSTREAM = "http://127.0.0.1:8000/v1"
CANARY = "sk-canary-0123456789"


def pool(**fields: Any) -> PoolConfig:
    return PoolConfig(base_url=UPSTREAM, **fields)


def message_of(caught: pytest.ExceptionInfo[ValidationError]) -> str:
    return caught.value.errors()[0]["msg"]


def test_settings_made_in_code_depend_on_nothing_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_SLOTS", "3")
    assert Settings().slots is None


def test_one_pool_needs_only_an_upstream() -> None:
    (only,) = Settings(upstream="http://127.0.0.1:8000").pool_configs
    wanted = pool_settings(only)
    assert (only.name, only.base_url, only.api_key) == ("default", UPSTREAM, None)
    assert (wanted.slots, wanted.reserve, wanted.headroom, wanted.floor, wanted.ceiling) == (8, 1, 1, 1, 7)


def test_without_an_upstream_the_mend_is_named() -> None:
    with pytest.raises(ConfigError, match="TIDEGATE_UPSTREAM=http"):
        _ = Settings().pool_configs


def test_every_limit_of_the_top_level_reaches_the_single_pool() -> None:
    (only,) = Settings(
        upstream=UPSTREAM,
        upstream_key=SecretStr(CANARY),
        slots=16,
        reserve=2,
        interactive_queue=9,
        pull_backs=False,
        interactive_timeouts=LaneTimeouts(total=5),
        models="gpt-*, llama*",
    ).pool_configs
    assert only.api_key == SecretStr(CANARY)
    assert (only.slots, only.reserve, only.interactive_queue, only.pull_backs) == (16, 2, 9, False)
    assert only.interactive_timeouts.total == 5
    assert only.models == ("gpt-*", "llama*")


@pytest.mark.parametrize(("capacity", "slots"), [(1, 1), (2, 1), (4, 3), (10, 7), (100, 75)])
def test_slots_become_three_quarters_of_the_capacity(capacity: int, slots: int) -> None:
    assert slots_for(capacity) == slots
    assert pool(upstream_capacity=capacity).slots == slots
    assert Settings(upstream=UPSTREAM, upstream_capacity=capacity).pool_configs[0].slots == slots


@pytest.mark.parametrize("make", [pool, lambda **fields: Settings(upstream=UPSTREAM, **fields)])
def test_slots_and_capacity_together_are_refused(make: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        make(slots=8, upstream_capacity=10)
    assert "exclude each other" in message_of(caught)


@pytest.mark.parametrize(
    ("fields", "reserve", "headroom", "floor", "ceiling"),
    [
        ({"slots": 1}, 0, 0, 1, 1),
        ({"slots": 2}, 1, 0, 1, 1),
        ({"slots": 4}, 1, 1, 1, 3),
        ({"slots": 8, "pull_backs": False}, 1, 1, 1, 4),
        ({"slots": 8, "reserve": 3}, 3, 1, 1, 5),
        ({"slots": 8, "ceiling": 0}, 1, 1, 0, 0),
        ({"slots": 8, "reserve": 0}, 0, 1, 1, 8),
    ],
)
def test_defaults_follow_from_the_other_settings(
    fields: dict[str, Any], reserve: int, headroom: int, floor: int, ceiling: int
) -> None:
    wanted = pool_settings(pool(**fields))
    assert (wanted.reserve, wanted.headroom, wanted.floor, wanted.ceiling) == (reserve, headroom, floor, ceiling)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"slots": 4, "reserve": 4}, "reserve = 4"),
        ({"slots": 4, "ceiling": 4}, "ceiling = 4"),
        ({"slots": 4, "floor": 3, "ceiling": 2}, "floor = 3"),
        ({"slots": 4, "floor": 1, "ceiling": 0}, "floor = 1"),
    ],
)
def test_bounds_that_do_not_fit_the_pool_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        pool(**fields)
    assert named in message_of(caught)
    with pytest.raises(ValidationError) as caught:
        Settings(upstream=UPSTREAM, **fields)
    assert named in message_of(caught)


@pytest.mark.parametrize(
    "fields", [{"slots": 0}, {"budgets": {"first_token_s": float("nan")}}, {"batch_rps": 0}, {"name": "a b"}]
)
def test_values_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        pool(**fields)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("name", ["slots", "port", "tick", "interactive_queue", "upstream_capacity", "floor"])
def test_true_and_false_are_no_numbers(name: str, flag: bool) -> None:
    with pytest.raises(ValidationError, match="must be a value, not true or false"):
        Settings.model_validate({name: flag})


def test_flags_are_flags_in_pools_and_outside() -> None:
    assert not Settings(insecure=True, pull_backs=False).pull_backs
    with pytest.raises(ValidationError, match="not true or false"):
        pool(slots=True)


def test_the_data_folder_may_be_named_from_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings.model_validate({"data": "~/tide"}).data == tmp_path / "tide"
    with pytest.raises(ValidationError, match="home folder that is not known"):
        Settings.model_validate({"data": "~nobody-of-this-name/tide"})


def test_batch_time_outs_that_are_not_given_stay_those_of_batch() -> None:
    """Unset is not the default of the other lane."""
    given = PoolConfig.model_validate({"base_url": UPSTREAM, "batch_timeouts": {"total": 60}})
    assert given.batch_timeouts == LaneTimeouts(first_byte=600, between_bytes=120, total=60)


def test_budgets_reach_the_stored_settings() -> None:
    strict = BudgetConfig(first_token_s=0.5, per_token_ms=20, error_rate=0.1)
    wanted = pool_settings(pool(budgets=strict, model_budgets={"big": strict}))
    assert wanted.budgets == Budgets(0.5, 20, 0.1)
    assert wanted.model_budgets == {"big": Budgets(0.5, 20, 0.1)}


def test_several_pools_are_served_as_given() -> None:
    settings = Settings(pools=(pool(name="a"), pool(name="b", slots=3)))
    assert [(each.name, each.slots) for each in settings.pool_configs] == [("a", 8), ("b", 3)]


def test_pools_and_settings_of_a_single_pool_exclude_each_other() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(pools=(pool(name="a"),), reserve=1)
    assert message_of(caught).startswith("Value error, reserve is for a single pool")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"pools": (pool(name="a"), pool(name="a"))}, "pools: 'a'"),
        ({"keys": (KeyConfig(name="k", key="1"), KeyConfig(name="k", key="2"))}, "keys: 'k'"),
        ({"keys": (KeyConfig(name="k", key="1"), KeyConfig(name="l", key="1"))}, "same value"),
    ],
)
def test_names_and_keys_are_unique(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(**fields)
    assert named in message_of(caught)


def test_a_key_has_a_default_lane_among_those_it_may_use() -> None:
    assert KeyConfig(name="k", key="1").lane is Lane.INTERACTIVE
    assert KeyConfig(name="k", key="1", lanes=("batch",)).lane is Lane.BATCH
    with pytest.raises(ValidationError):
        KeyConfig(name="k", key="1", lane="interactive", lanes=("batch",))


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "schlüssel"])
def test_a_key_is_something_a_header_can_carry(key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        KeyConfig(name="k", key=key)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("postgresql://u:p@db/tide", "postgresql+asyncpg://u:p@db/tide"),
        ("postgres://db/tide", "postgresql+asyncpg://db/tide"),
        ("sqlite:///x.db", "sqlite+aiosqlite:///x.db"),
    ],
)
def test_a_database_url_gets_its_async_driver(given: str, wanted: str) -> None:
    assert Settings(database=given).database_url == wanted


def test_the_database_is_sqlite_in_the_data_folder_by_default(tmp_path: Any) -> None:
    assert Settings(data=tmp_path).database_url == f"sqlite+aiosqlite:///{tmp_path}/tidegate.db"


def test_no_secret_shows_in_a_repr_or_an_error() -> None:
    """R101 kalyan-1845/ai-code-reviewer#785: settings dumped at start-up."""
    one = Settings(
        upstream=UPSTREAM,
        upstream_key=CANARY,
        database=f"postgresql://u:{CANARY}@db/tide",
        keys=(KeyConfig(name="k", key=CANARY),),
    )
    several = Settings(pools=(pool(name="a", api_key=CANARY),))
    for settings in (one, several):
        assert CANARY in settings.secrets()
        assert CANARY not in repr(settings) + str(settings) + repr(settings.pool_configs)
    with pytest.raises(ValidationError) as caught:
        Settings(upstream=f"http://u:{CANARY}@host", database=CANARY, upstream_key=f"{CANARY} x")
    assert CANARY not in str(caught.value)
