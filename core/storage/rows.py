"""Rows from values and back."""

import math
from dataclasses import replace
from typing import Any

import msgspec

from core.control.decisions import Decision
from core.control.windows import OneOff, Schedule, Window
from core.models import SCHEDULE_ID, DecisionRow, PoolRow, ScheduleRow
from core.quotas import Budgets, Hold, Pause, PoolSettings

_COLUMNS = ("at", "pool", "actor", "action", "reason", "sentence", "by", "note")


def pool_columns(settings: PoolSettings) -> dict[str, Any]:
    """Return the columns of the pool's row."""
    columns: dict[str, Any] = msgspec.to_builtins(settings)
    return columns


def pool_of(row: PoolRow) -> PoolSettings:
    """Return the settings that the row holds."""
    return PoolSettings(
        name=row.name,
        slots=row.slots,
        reserve=row.reserve,
        headroom=row.headroom,
        floor=row.floor,
        ceiling=row.ceiling,
        budgets=msgspec.convert(row.budgets, Budgets),
        model_budgets=msgspec.convert(row.model_budgets, dict[str, Budgets]),
        hold=msgspec.convert(row.hold, Hold | None),
        pause=msgspec.convert(row.pause, Pause | None),
        version=row.version,
    )


def schedule_columns(schedule: Schedule) -> dict[str, Any]:
    """Return the columns of the schedule's row."""
    return {"id": SCHEDULE_ID, **msgspec.to_builtins(schedule)}


def schedule_of(row: ScheduleRow) -> Schedule:
    """Return the schedule that the row holds."""
    return Schedule(
        zone=row.zone,
        windows=msgspec.convert(row.windows, tuple[Window, ...]),
        one_offs=msgspec.convert(row.one_offs, tuple[OneOff, ...]),
        version=row.version,
    )


def decision_row(decision: Decision) -> DecisionRow:
    """Return a new row for the decision, in which no number is NaN or infinite."""
    figures: dict[str, Any] = msgspec.to_builtins(_sound(decision), enc_hook=str)
    columns = {name: getattr(decision, name) for name in _COLUMNS}
    for name in _COLUMNS:
        del figures[name]
    return DecisionRow(**columns, figures=figures)


def decision_of(row: DecisionRow) -> Decision:
    """Return the decision that the row holds."""
    return msgspec.convert({**{name: getattr(row, name) for name in _COLUMNS}, **row.figures}, Decision)


def _sound(decision: Decision) -> Decision:
    triggers = tuple(
        replace(each, value=_finite(each.value), threshold=_finite(each.threshold) or 0.0) for each in decision.triggers
    )
    before, after = decision.limit
    return replace(decision, triggers=triggers, limit=(_finite(before) or 0.0, _finite(after) or 0.0))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
