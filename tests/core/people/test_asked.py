from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from core.errors import InvalidValue
from core.lanes import Lane
from core.people import asked
from core.people.identity import Role
from core.people.tenants import Limits, Tenant
from tests.fakes_people import START


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", None),
        ("never", None),
        ("90d", START + timedelta(days=90)),
        ("2W", START + timedelta(weeks=2)),
        ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T12:00:00+02:00", datetime(2027, 1, 31, 10, tzinfo=UTC)),
        ("2027-01-31T12:00:00", datetime(2027, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_an_expiry_is_read(text: str, meant: datetime | None) -> None:
    assert asked.expiry("expires", text, START) == meant


@pytest.mark.parametrize("text", ["soon", "-1d", "1y", "2027-13-01", "999999w", "٣d"])
def test_an_expiry_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        asked.expiry("expires", text, START)
    assert caught.value.field == "expires"


def test_a_key_is_read_from_texts_and_from_lists_alike() -> None:
    listed = {"name": "k", "tenant": "t", "models": ["a", "b-*"], "cidrs": ["10.0.0.0/8"], "lanes": ["batch"]}
    texts = {"name": " k ", "tenant": "t", "models": "a, b-*", "cidrs": "10.0.0.0/8,", "lanes": "batch", "lane": ""}
    assert asked.new_key(listed, START) == asked.new_key(texts, START)
    plain = asked.new_key({"name": "k"}, START)
    assert (plain.tenant, plain.role, plain.models, plain.expires_at) == ("default", Role.MEMBER, ("*",), None)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"role": "king"}, "role"),
        ({"lane": "fast"}, "lane"),
        ({"lanes": ["fast"]}, "lanes"),
        ({"models": 5}, "models"),
        ({"name": 5}, "name"),
        ({"secret": "x"}, "secret"),
        ({"expires": "soon"}, "expires"),
    ],
)
def test_what_is_wrong_of_a_key_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        asked.new_key({"name": "k", **given}, START)
    assert caught.value.field == field


def test_a_tenants_change_takes_numbers_texts_and_nothing() -> None:
    patch = asked.tenant_patch(
        {"weight": "2,5", "batch_slots": "", "requests_per_minute": "60", "queued_items": None, "lanes": ["batch"]}
    )
    before = Tenant("a", batch_slots=4, limits=Limits(tokens_per_minute=7, queued_items=9))
    after = patch.apply(before)
    assert (after.weight, after.batch_slots, after.lanes) == (2.5, None, (Lane.BATCH,))
    assert after.limits == Limits(60, 7, None, None)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"weight": "heavy"}, "weight"),
        ({"weight": 0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"weight": True}, "weight"),
        ({"batch_slots": -1}, "batch_slots"),
        ({"batch_slots": 1.5}, "batch_slots"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_minute": 10**30}, "tokens_per_minute"),
        ({"lanes": []}, "lanes"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_wrong_of_a_tenant_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        asked.tenant_patch(given).apply(Tenant("a"))
    assert caught.value.field == field


def test_an_accounts_change_is_read() -> None:
    patch = asked.account_patch({"role": "viewer", "disabled": False})
    assert (patch.role, patch.tenant, patch.disabled) == (Role.VIEWER, None, False)
    with pytest.raises(InvalidValue, match="true or false"):
        asked.account_patch({"disabled": "yes"})
