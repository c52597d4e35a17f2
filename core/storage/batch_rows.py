"""Batches from rows and back."""

from datetime import timedelta
from typing import Any

import msgspec
from sqlalchemy import RowMapping

from core.batch.values import Batch, BatchPause, BatchStatus, LineError, Usage

_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_CHANGING = (
    "pool",
    "model",
    "name",
    "output_file_id",
    "error_file_id",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
    "ended_at",
    "priority",
    "max_concurrency",
    "interval_s",
)
_FIXED = (
    "id",
    "tenant",
    "key",
    "endpoint",
    "input_file_id",
    "completion_window",
    "created_at",
    "dedupe",
    "output_size",
    "error_size",
)
_COUNTS = ("total", "completed", "failed", "prompt_tokens_total")


def changing_columns(batch: Batch) -> dict[str, Any]:
    """Return the columns that `update` stores: all but what never changes, counts and usage."""
    return {
        **{name: getattr(batch, name) for name in _CHANGING},
        "status": batch.status.value,
        "errors": msgspec.to_builtins(batch.errors),
        "labels": batch.metadata,
        "output_expires_after": batch.output_expires_after.total_seconds() if batch.output_expires_after else None,
        "pause": msgspec.to_builtins(batch.pause),
        "version": batch.version,
    }


def new_columns(batch: Batch) -> dict[str, Any]:
    """Return all columns of a new batch's row."""
    return {
        **changing_columns(batch),
        **{name: getattr(batch, name) for name in (*_FIXED, *_COUNTS)},
        **{name: getattr(batch.usage, name) for name in _TOKENS},
        "window": batch.window.total_seconds(),
    }


def batch_of(row: RowMapping) -> Batch:
    """Return the batch that the row holds; its column `running` is counted, not stored."""
    after = row["output_expires_after"]
    same = {name: row[name] for name in (*_CHANGING, *_FIXED, *_COUNTS, "running", "version") if name != "ended_at"}
    return Batch(
        **same,
        window=timedelta(seconds=row["window"]),
        status=BatchStatus(row["status"]),
        errors=msgspec.convert(row["errors"], tuple[LineError, ...]),
        usage=Usage(*(row[name] for name in _TOKENS)),
        metadata=row["labels"],
        output_expires_after=None if after is None else timedelta(seconds=after),
        pause=msgspec.convert(row["pause"], BatchPause | None),
    )
