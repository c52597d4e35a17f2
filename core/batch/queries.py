"""Batches and files as the API tells them: OpenAI's fields, and Tidegate's own beside them."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from core.batch.values import Batch, BatchStatus, Eta, EtaState, StoredFile, Usage
from core.ports import BatchStore, Clock

Json = dict[str, Any]
_STAMPS = (
    "created_at",
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


async def no_eta(batch: Batch) -> Eta | None:
    """Tell nothing."""
    return None


def no_reason(pool: str) -> str | None:
    """Know nothing that keeps a pool from starting batch."""
    return None


class BatchQueries:
    """Reads batches for API and pages. `eta` estimates; `why` tells what keeps a pool from starting batch now."""

    def __init__(
        self,
        *,
        store: BatchStore,
        clock: Clock,
        eta: Callable[[Batch], Awaitable[Eta | None]] = no_eta,
        why: Callable[[str], str | None] = no_reason,
    ) -> None:
        self._store = store
        self._clock = clock
        self.eta = eta
        self.why = why

    async def json(self, batches: Sequence[Batch]) -> list[Json]:
        """Return the batches as JSON, all as of one instant."""
        places = _places(await self._store.active()) if any(not batch.ended for batch in batches) else {}
        return [await self._json(batch, places.get(batch.id)) for batch in batches]

    async def eta_of(self, batch: Batch) -> Eta:
        """Return when the batch will be done, as far as that can be told."""
        now = self._clock.now()
        if batch.ended:
            return Eta(EtaState.DONE, now)
        found = await self.eta(batch)
        if found is not None:
            return found
        return Eta(EtaState.PAUSED if batch.pause else EtaState.LEARNING, now, basis="not enough data yet")

    async def _json(self, batch: Batch, place: int | None) -> Json:
        eta = await self.eta_of(batch)
        waiting_for = eta.waiting_for or self._waiting_for(batch, place)
        own = {
            "state": state_of(batch),
            "eta": eta_json(eta, waiting_for),
            "deadline_risk": eta.risk.value if eta.risk else None,
            "position": place,
            "waiting_for": waiting_for,
            "pool": batch.pool or None,
            "priority": batch.priority,
        }
        return batch_json(batch) | {"tidegate": own}

    def _waiting_for(self, batch: Batch, place: int | None) -> str | None:
        if batch.ended or batch.status is not BatchStatus.IN_PROGRESS:
            return None
        if batch.pause is not None:
            return f"paused by {batch.pause.by}" + (f": {batch.pause.reason}" if batch.pause.reason else "")
        if (reason := self.why(batch.pool)) is not None:
            return reason
        if batch.running or place is None or place == 1:
            return None
        return f"{place - 1} batch{'es' if place > 2 else ''} before it"


def state_of(batch: Batch) -> str:
    """Return one word for people: validating, paused, queued, running, finishing, cancelling or done."""
    if batch.ended:
        return "done"
    if batch.status is not BatchStatus.IN_PROGRESS:
        return "finishing" if batch.status is BatchStatus.FINALIZING else batch.status.value
    if batch.pause is not None:
        return "paused"
    return "running" if batch.running else "queued"


def batch_json(batch: Batch) -> Json:
    """Return OpenAI's batch object. Times are whole seconds."""
    told = batch.ended
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": _errors(batch),
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id if told else None,
        "error_file_id": batch.error_file_id if told else None,
        **{name: seconds(getattr(batch, name)) for name in _STAMPS},
        "request_counts": counts_of(batch),
        "usage": usage_json(batch.usage),
        "metadata": batch.metadata or None,
    }


def counts_of(batch: Batch) -> dict[str, int]:
    """Return OpenAI's counts: nothing counts until all lines are found good."""
    if batch.in_progress_at is None:
        return {"total": 0, "completed": 0, "failed": 0}
    return {"total": batch.total, "completed": batch.completed, "failed": batch.failed}


def usage_json(usage: Usage) -> Json:
    """Return OpenAI's usage object."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def eta_json(eta: Eta, waiting_for: str | None) -> Json:
    """Return an ETA with times in RFC 3339; they are null unless it is estimated."""
    return {
        "state": eta.state.value,
        "low": instant(eta.low),
        "mid": instant(eta.mid),
        "high": instant(eta.high),
        "as_of": instant(eta.as_of),
        "basis": eta.basis,
        "waiting_for": waiting_for,
    }


def file_json(file: StoredFile) -> Json:
    """Return OpenAI's file object."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": seconds(file.created_at),
        "expires_at": seconds(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def seconds(at: datetime | None) -> int | None:
    """Return whole seconds since 1970."""
    return None if at is None else int(at.timestamp())


def instant(at: datetime | None) -> str | None:
    """Return RFC 3339, to the second."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _errors(batch: Batch) -> Json | None:
    if not batch.errors:
        return None
    fields = ("code", "line", "message", "param")
    return {"object": "list", "data": [{name: getattr(error, name) for name in fields} for error in batch.errors]}


def _places(active: Sequence[Batch]) -> dict[str, int]:
    """Return each waiting or running batch's place in its pool, from 1: by priority, deadline and age."""
    places: dict[str, int] = {}
    taken: dict[str, int] = {}
    for batch in sorted(active, key=lambda each: (-each.priority, each.expires_at, each.created_at)):
        if batch.status is BatchStatus.IN_PROGRESS:
            taken[batch.pool] = taken.get(batch.pool, 0) + 1
            places[batch.id] = taken[batch.pool]
    return places
