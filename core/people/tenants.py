"""Tenants (teams): what one may use, and where the running system looks it up."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from core.errors import InvalidValue
from core.lanes import Lane
from core.people.names import check_name

DEFAULT = "default"
MOST_WEIGHT = 1000.0
MOST = 2**53
ALL_LANES = (Lane.INTERACTIVE, Lane.BATCH)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tenant may ask for; `None`: no limit.

    Requests and tokens per minute count direct calls of the inference API; queued items and tokens what its durable
    batches may have left to do when one more is created.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    queued_items: int | None = None
    queued_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A team. `weight` is its share of batch beside other tenants, `batch_slots` the most slots its batch may hold."""

    name: str
    weight: float = 1.0
    batch_slots: int | None = None
    limits: Limits = field(default_factory=Limits)
    lanes: tuple[Lane, ...] = ALL_LANES
    created_at: datetime | None = None
    version: int = 1


def checked_tenant(tenant: Tenant) -> Tenant:
    """Return the tenant if all of it makes sense. Raises InvalidValue, naming the field."""
    check_name("name", tenant.name)
    if not 0 < tenant.weight <= MOST_WEIGHT:
        raise InvalidValue("weight", f"must be a number above 0, at most {MOST_WEIGHT:g}")
    if not tenant.lanes:
        raise InvalidValue("lanes", "must name at least one lane")
    _check_whole("batch_slots", tenant.batch_slots, least=0)
    for name in Limits.__slots__:
        _check_whole(name, getattr(tenant.limits, name), least=1)
    return tenant


def _check_whole(name: str, value: int | None, *, least: int) -> None:
    if value is not None and not least <= value <= MOST:
        raise InvalidValue(name, f"must be a whole number, {least} or more, or empty for no limit")


class TenantDirectory(Mapping[str, Tenant]):
    """The tenants now in force; a name that is not stored is a tenant without limits.

    As a mapping it has the stored ones. `weights` is a view for fair sharing that always shows the present weights.
    """

    def __init__(self) -> None:
        self._tenants: Mapping[str, Tenant] = {}
        self.weights: Mapping[str, float] = _Weights(self)

    def put(self, tenants: Mapping[str, Tenant]) -> None:
        """Let these be in force from now on."""
        self._tenants = tenants

    def tenant(self, name: str) -> Tenant:
        """Return the tenant of that name."""
        return self._tenants.get(name) or Tenant(name)

    def weight(self, name: str) -> float:
        """Return a tenant's share of batch beside others."""
        return self.tenant(name).weight

    def batch_slots(self, name: str) -> int | None:
        """Return the most slots that a tenant's batch may hold, `None` for no ceiling of its own."""
        return self.tenant(name).batch_slots

    def limits(self, name: str) -> Limits:
        """Return what a tenant may ask for."""
        return self.tenant(name).limits

    def __bool__(self) -> bool:
        """Be true without a tenant, too: it may get some, and nobody should take another in its place."""
        return True

    def __getitem__(self, name: str) -> Tenant:
        return self._tenants[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tenants)

    def __len__(self) -> int:
        return len(self._tenants)


class _Weights(Mapping[str, float]):
    """The weights of a directory's tenants, by name."""

    def __init__(self, directory: TenantDirectory) -> None:
        self._directory = directory

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, name: str) -> float:
        return self._directory[name].weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._directory)

    def __len__(self) -> int:
        return len(self._directory)
