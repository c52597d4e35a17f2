"""The eight statuses of a batch: one table of moves."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from core.batch.values import Batch, BatchStatus
from core.errors import InvalidValue

MOVES: dict[BatchStatus, frozenset[BatchStatus]] = {
    BatchStatus.VALIDATING: frozenset((BatchStatus.IN_PROGRESS, BatchStatus.FAILED, BatchStatus.CANCELLING)),
    BatchStatus.IN_PROGRESS: frozenset((BatchStatus.FINALIZING, BatchStatus.CANCELLING)),
    BatchStatus.FINALIZING: frozenset((BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLING)),
    BatchStatus.CANCELLING: frozenset((BatchStatus.CANCELLED,)),
    # Failed lines are run once more on demand.
    BatchStatus.COMPLETED: frozenset((BatchStatus.IN_PROGRESS,)),
    BatchStatus.FAILED: frozenset(),
    BatchStatus.EXPIRED: frozenset(),
    BatchStatus.CANCELLED: frozenset(),
}


def may(before: BatchStatus, after: BatchStatus) -> bool:
    """Tell whether a batch can go from `before` to `after`."""
    return after in MOVES[before]


def still_open(batch: Batch) -> Batch:
    """Return the batch. Raises InvalidValue where it ended or is about to."""
    if batch.status not in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
        raise InvalidValue("status", f"the batch is {batch.status}")
    return batch


def move(batch: Batch, status: BatchStatus, now: datetime) -> Batch:
    """Return `batch` in `status`, with the instant of that noted. Raises InvalidValue for a move that is none."""
    if not may(batch.status, status):
        raise InvalidValue("status", f"a batch that is {batch.status} cannot become {status}")
    stamp: dict[str, Any] = {f"{status}_at": now}
    moved = replace(batch, status=status, **stamp)
    if batch.status is BatchStatus.COMPLETED:
        return replace(moved, in_progress_at=batch.in_progress_at, finalizing_at=None, completed_at=None)
    return moved
