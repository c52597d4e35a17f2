from datetime import timedelta

import pytest

from core.batch.states import MOVES, may, move
from core.batch.values import FINAL_STATUSES, Batch, BatchStatus
from core.errors import InvalidValue
from tests.batch_house import START

LATER = START + timedelta(hours=1)


def batch(status: BatchStatus = BatchStatus.VALIDATING) -> Batch:
    return Batch("batch_1", "t", None, "", None, "/v1/embeddings", "f", timedelta(hours=24), START, status=status)


def test_every_status_is_in_the_table_and_can_be_reached() -> None:
    assert set(MOVES) == set(BatchStatus)
    reached = set().union(*MOVES.values())
    assert reached == set(BatchStatus) - {BatchStatus.VALIDATING}


def test_what_is_final_stays_but_for_failed_lines_that_run_again() -> None:
    assert {status: MOVES[status] for status in FINAL_STATUSES if MOVES[status]} == {
        BatchStatus.COMPLETED: {BatchStatus.IN_PROGRESS}
    }


@pytest.mark.parametrize("before", list(BatchStatus))
@pytest.mark.parametrize("after", list(BatchStatus))
def test_a_move_is_noted_with_its_instant_or_refused(before: BatchStatus, after: BatchStatus) -> None:
    if not may(before, after):
        with pytest.raises(InvalidValue, match=f"{before} cannot become {after}"):
            move(batch(before), after, LATER)
        return
    moved = move(batch(before), after, LATER)
    assert moved.status is after
    if (before, after) != (BatchStatus.COMPLETED, BatchStatus.IN_PROGRESS):
        assert getattr(moved, f"{after}_at") == LATER


def test_a_batch_that_goes_on_is_not_ended_any_more() -> None:
    ended = batch(BatchStatus.VALIDATING)
    for status in (BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.COMPLETED):
        ended = move(ended, status, START)
    assert (ended.ended, ended.ended_at) == (True, START)
    again = move(ended, BatchStatus.IN_PROGRESS, LATER)
    assert (again.ended_at, again.completed_at, again.in_progress_at) == (None, None, START)
