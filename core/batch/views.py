"""What pages ask about batches beyond what the API tells. Values, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

from core.batch.values import BatchStatus, ItemState


@dataclass(frozen=True, slots=True)
class BatchFilter:
    """Which batches to show: of a tenant (None: all), in some statuses (none: all), `text` in name or id."""

    tenant: str | None = None
    statuses: Sequence[BatchStatus] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """Which items to show: in some states (none: all), `text` in the custom_id, with an error of some kind."""

    states: Sequence[ItemState] = ()
    text: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """How many items of a batch ended alike without a result; `first` is the index of the first of them."""

    state: ItemState
    code: str
    status: int | None
    count: int
    first: int
