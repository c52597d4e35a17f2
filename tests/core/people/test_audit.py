from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.control.decisions import Decision
from core.errors import InvalidValue
from core.people.audit import (
    CONTROLLER,
    GENESIS,
    LONGEST_TEXT,
    AuditEntry,
    AuditHead,
    AuditRecord,
    Verifier,
    canonical,
    chained,
    check_reason,
    digest,
    of_decision,
    sound,
)

NOW = datetime(2026, 12, 9, 12, 30, 15, 123456, tzinfo=UTC)
ENTRY = AuditEntry(NOW, "ann", "pool.settings", "pool:default", {"ceiling": 7}, {"ceiling": 4}, "GPU 3 out")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def chain(length: int = 4) -> list[AuditRecord]:
    return chained([replace(ENTRY, reason=f"no {n}") for n in range(length)], AuditHead())


def head_of(records: list[AuditRecord]) -> AuditHead:
    return AuditHead(records[-1].number, records[-1].hash)


def fault(records: list[AuditRecord], head: AuditHead) -> str | None:
    verifier = Verifier()
    return next((told for each in records if (told := verifier.check(each))), None) or verifier.end(head)


def test_each_row_carries_the_hash_of_the_one_before() -> None:
    records = chain()
    assert [record.number for record in records] == [1, 2, 3, 4]
    assert [record.previous for record in records] == [GENESIS, *(record.hash for record in records[:-1])]
    assert fault(records, head_of(records)) is None
    assert fault([], AuditHead()) is None


def test_a_chain_goes_on_from_its_head_as_if_written_at_once() -> None:
    first = chain(2)
    rest = chained([replace(ENTRY, reason=f"no {n}") for n in (2, 3)], head_of(first))
    assert first + rest == chain(4)


@pytest.mark.parametrize(
    "change",
    [
        {"at": NOW + timedelta(microseconds=1)},
        {"actor": "bob"},
        {"action": "pool.hold"},
        {"target": "pool:other"},
        {"before": {"ceiling": 8}},
        {"after": None},
        {"reason": "no 1!"},
        {"way": "command line"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_field_is_told_at_its_row(change: dict[str, Any]) -> None:
    records = chain()
    forged = [*records[:1], replace(records[1], entry=replace(records[1].entry, **change)), *records[2:]]
    assert fault(forged, head_of(records)) == "entry 2 was changed after it was written"


def test_a_row_changed_with_its_own_hash_breaks_the_next_one() -> None:
    records = chain()
    entry = replace(records[1].entry, actor="bob")
    forged = replace(records[1], entry=entry, hash=digest(2, entry, records[1].previous))
    told = fault([records[0], forged, *records[2:]], head_of(records))
    assert told == "entry 3 does not carry the hash of the entry before it"


def test_rows_taken_out_are_told_wherever_they_stood() -> None:
    records = chain()
    head = head_of(records)
    assert fault(records[1:], head) == "entry 1 is missing (entry 2 follows entry 0)"
    assert fault([records[0], *records[2:]], head) == "entry 2 is missing (entry 3 follows entry 1)"
    assert fault(records[:3], head) == "entry 4 is missing (the last one written is entry 4)"
    assert fault([], head) == "entry 1 is missing (the last one written is entry 4)"


def test_rows_that_were_never_written_are_told() -> None:
    records = chain(5)
    assert fault(records, head_of(records[:4])) == "entry 5 was added by hand (the last one written is entry 4)"
    assert fault(records, AuditHead()) == "entry 1 was added by hand (the last one written is entry 0)"
    assert fault(records, AuditHead(5, GENESIS)) == "entry 5 is not the one that was written last"


@given(VALUES, VALUES)
def test_hashes_survive_being_stored_as_json(before: object, after: object) -> None:
    [record] = chained([replace(ENTRY, before=before, after=after)], AuditHead())
    assert sound(record.entry) == record.entry
    assert digest(1, sound(record.entry), GENESIS) == record.hash


def test_the_order_of_names_and_the_zone_of_the_instant_change_no_hash() -> None:
    one = replace(ENTRY, before={"a": 1, "b": 2})
    other = replace(one, before={"b": 2, "a": 1}, at=NOW.astimezone(timezone(timedelta(hours=9))))
    assert digest(1, one, GENESIS) == digest(1, other, GENESIS)
    assert canonical({"b": [1.5, float("nan")], "a": NOW}) == '{"a":"2026-12-09T12:30:15.123456Z","b":[1.5,null]}'


def test_the_hash_is_that_of_the_documented_text() -> None:
    text = canonical({"b": 1, "a": {"y": None, "x": True}})
    assert text == '{"a":{"x":true,"y":null},"b":1}'


def test_texts_are_bounded_and_such_as_every_database_can_hold() -> None:
    """R45 awsl-project/maxx PR#833: unbounded text filled the database."""
    made = sound(replace(ENTRY, actor="a\0b\ud800", reason="x" * 9999))
    assert made.actor == "ab?"
    assert len(made.reason) == LONGEST_TEXT


def decision(**fields: Any) -> Decision:
    given = {"actor": "controller", "action": "cut", "limit": (14.0, 9.8), "quota": (9, 5), **fields}
    return Decision(at=NOW, pool="default", reason="latency", sentence="p95 2.1 s is over 2.0 s.", **given)


def test_a_move_of_the_controller_becomes_an_entry_that_says_why() -> None:
    entry = of_decision(decision())
    assert entry is not None
    assert entry.automatic
    assert (entry.actor, entry.action, entry.target, entry.way) == (
        "controller",
        "limit.cut",
        "pool:default",
        CONTROLLER,
    )
    assert entry.before == {"limit": 14.0, "quota": 9}
    assert entry.after == {"limit": 9.8, "quota": 5}
    assert entry.reason == "p95 2.1 s is over 2.0 s."


def test_what_moves_nothing_or_was_done_by_a_person_gets_no_entry_from_its_decision() -> None:
    assert of_decision(decision(action="hold")) is None
    assert of_decision(decision(actor="operator", action="set")) is None
    opened = of_decision(decision(actor="schedule", action="window"))
    assert opened is not None
    assert opened.actor == "schedule"


def test_a_reason_is_asked_for_where_policy_does() -> None:
    check_reason("", required=False)
    check_reason("GPU 3 out", required=True)
    with pytest.raises(InvalidValue) as refused:
        check_reason("  ", required=True)
    assert refused.value.field == "reason"
