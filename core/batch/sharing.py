"""What stands before a batch: its tenant's batches that go first, and the shares of other tenants meanwhile. Pure.

A fluid picture of `core.batch.fairness`: tenants with work share the pool by weight, and each serves its batches one
after the other by rank.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.batch.work import Load

Rank = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """A batch that wants to run: whose it is, its rank among that tenant's (the least goes first), and what is left."""

    batch: str
    tenant: str
    rank: Rank
    left: Load


@dataclass(frozen=True, slots=True)
class Ahead:
    """What the pool does until a batch is done.

    `total` is all of it, the batch's own included; `batches` and `items` count what its tenant has before it, `teams`
    other tenants that share the pool with it.
    """

    total: Load
    batches: int = 0
    items: int = 0
    teams: int = 0


def ahead_of(
    target: Claim,
    others: Sequence[Claim],
    *,
    weights: Mapping[str, float],
    kappa: float,
    coming: Mapping[str, Load] | None = None,
) -> Ahead:
    """Return what the pool does until `target` is done. `weights` are 1 where not given.

    `coming` is what other tenants will have brought until then.
    """
    before = [each for each in others if each.tenant == target.tenant and _goes_before(each, target)]
    own = sum((each.left for each in before), target.left)
    rivals: dict[str, Load] = defaultdict(Load)
    for each in others:
        if each.tenant != target.tenant:
            rivals[each.tenant] += each.left
    teams = len(rivals)
    for tenant, load in (coming or {}).items():
        if tenant != target.tenant:
            rivals[tenant] += load
    shares = _served(own, target.tenant, rivals, weights, kappa)
    total = sum((rivals[tenant].scaled(share) for tenant, share in shares.items()), own)
    items = round(sum(each.left.items for each in before))
    return Ahead(total, len(before), items, teams)


def _goes_before(one: Claim, other: Claim) -> bool:
    return one.batch != other.batch and (one.rank, one.batch) < (other.rank, other.batch)


def _served(
    own: Load, tenant: str, rivals: Mapping[str, Load], weights: Mapping[str, float], kappa: float
) -> dict[str, float]:
    """Return the share of each rival's work that is done when `own` is.

    Each gets work in proportion to its weight: what counts is who is empty first, in work per weight.
    """
    until = own.work(kappa) / weights.get(tenant, 1.0)
    empty_at = {name: load.work(kappa) / weights.get(name, 1.0) for name, load in rivals.items()}
    return {name: min(1.0, until / at) for name, at in empty_at.items() if at > 0}
