"""What is stored of an attempt at an item, and what is told of a batch that backs off. No I/O."""

from dataclasses import replace
from datetime import datetime

from core.batch.attempts import Answer
from core.batch.output import answer_line, error_line, request_id
from core.batch.retry import Fate, Verdict
from core.batch.values import Batch, ClaimedItem, ItemEnd, ItemState
from core.control.decisions import Decision
from core.control.reasons import Action, Reason
from core.pools import Pool

_STATES = {Fate.DONE: ItemState.SUCCEEDED, Fate.FAILED: ItemState.FAILED, Fate.AGAIN: ItemState.PENDING}


def ending(item: ClaimedItem, answer: Answer, verdict: Verdict, *, due: datetime) -> tuple[ItemEnd, bytes]:
    """Return what to store of an attempt, and its result line; an item that goes back has none, and waits until `due`.

    The place of the line is not known yet.
    """
    code = _code(answer) if verdict.fate is not Fate.DONE else None
    end = ItemEnd(
        batch_id=item.batch_id,
        index=item.index,
        state=_STATES[verdict.fate],
        status_code=answer.attempt.status,
        seconds=answer.seconds,
        error_code=code,
    )
    if verdict.fate is Fate.AGAIN:
        return replace(end, not_before=due, counted=verdict.counted), b""
    spent = answer.spent
    end = replace(
        end,
        input_tokens=spent.input,
        cached_tokens=spent.cached,
        output_tokens=spent.output,
        reasoning_tokens=spent.reasoning,
    )
    return end, _line(item, answer, code or "")


def poisoned(batch: Batch, pool: Pool, *, failures: int, pause: float, at: datetime) -> Decision:
    """Return the row that tells that a batch backs off alone, because it fails while others do not."""
    counts, limit, quota = pool.counts, pool.controller.limit, pool.dispatcher.quota()
    bounds = pool.controller.bounds
    name = f"{batch.name} ({batch.id})" if batch.name else batch.id
    return Decision(
        at=at,
        pool=pool.name,
        actor="controller",
        action=Action.HOLD.value,
        reason=Reason.POISONED_BATCH.value,
        sentence=f"Batch {name} backs off for {pause:.0f} s: its last {failures} requests failed while others did not.",
        limit=(round(limit, 3), round(limit, 3)),
        quota=(quota, quota),
        interactive=counts.interactive,
        interactive_waiting=counts.interactive_waiting,
        batch=counts.batch,
        backlog=counts.backlog,
        bounds=(bounds.floor, bounds.ceiling),
        config_version=pool.settings.version,
    )


def _line(item: ClaimedItem, answer: Answer, code: str) -> bytes:
    status = answer.attempt.status
    if status is None or not answer.body:
        message = answer.message or "The model server gave no answer."
        return error_line(item.batch_id, item.index, item.custom_id, code=code, message=message)
    name = request_id(item.batch_id, item.index)
    return answer_line(item.batch_id, item.index, item.custom_id, status=status, body=answer.body, request=name)


def _code(answer: Answer) -> str:
    """Return the error's kind, for counts by kind."""
    return answer.attempt.code or (f"http_{answer.attempt.status}" if answer.attempt.status else "broken_off")
