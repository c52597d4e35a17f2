"""What requests cost a pool, and what a tenant's answers are usually like. Pure.

Work is counted in output tokens; a prompt token costs the fraction `kappa` of one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from core.batch.values import Batch

KAPPAS = (0.1, 0.2, 0.35, 0.5)
DEFAULT_KAPPA = 0.35
PSEUDO_REQUESTS = 30
"""How many own requests it takes until they count as much as what was known before them."""
MEMORY = 2000
"""Requests after which older ones fade from a prior."""
ANY = "*"


@dataclass(frozen=True, slots=True)
class Load:
    """An amount of requests, with their tokens. Apart from each other, so that `kappa` may be chosen later."""

    items: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0

    def __add__(self, other: "Load") -> "Load":
        return Load(
            self.items + other.items,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
        )

    def scaled(self, share: float) -> "Load":
        """Return that share of it."""
        return Load(self.items * share, self.input_tokens * share, self.output_tokens * share)

    def work(self, kappa: float) -> float:
        """Return its work: output + kappa x prompt, and 1 a request, so that answers without tokens count too."""
        return self.items + self.output_tokens + kappa * self.input_tokens


@dataclass(frozen=True, slots=True)
class Prior:
    """What requests were like: how many were seen, and their means.

    Output tokens, seconds in a slot, and prompt tokens as the server counts them against the estimate of the upload.
    """

    items: float = 0.0
    output_tokens: float = 0.0
    seconds: float = 0.0
    prompt_ratio: float = 1.0

    def seen(self, more: "Prior") -> "Prior":
        """Return it with further requests; it remembers about the last 2,000."""
        count = min(self.items + more.items, float(MEMORY))
        share = min(1.0, more.items / count) if count else 0.0
        return self._mixed(more, share, count)

    def under(self, parent: "Prior") -> "Prior":
        """Return it as if 30 requests like those of `parent` had been seen before."""
        if not parent.items:
            return self
        return parent._mixed(self, self.items / (self.items + PSEUDO_REQUESTS), self.items + parent.items)

    def _mixed(self, other: "Prior", share: float, count: float) -> "Prior":
        return Prior(
            count,
            self.output_tokens + share * (other.output_tokens - self.output_tokens),
            self.seconds + share * (other.seconds - self.seconds),
            self.prompt_ratio + share * (other.prompt_ratio - self.prompt_ratio),
        )


PriorKey = tuple[str, str, str]
"""Pool, tenant and model; `ANY` stands for all of them together."""


class Priors:
    """Every tenant's priors by model, and those of models, tenants and pools as a whole.

    `changed` names those that were not stored since they changed.
    """

    def __init__(self, known: Iterable[tuple[PriorKey, Prior]] = ()) -> None:
        self._known = dict(known)
        self.changed: set[PriorKey] = set()

    def observe(self, pool: str, tenant: str, model: str, seen: Prior) -> None:
        """Note how requests went."""
        for key in {(pool, tenant, model), (pool, tenant, ANY), (pool, ANY, model), (pool, ANY, ANY)}:
            self._known[key] = self._known.get(key, Prior()).seen(seen)
            self.changed.add(key)

    def at(self, key: PriorKey) -> Prior:
        """Return what was seen under one key alone."""
        return self._known.get(key, Prior())

    def of(self, pool: str, tenant: str, model: str | None) -> Prior:
        """Return what to expect of a tenant's requests: its own, those of the model, those of the pool, in that order.

        Without a model, that is with several in one batch, the tenant's own and the pool's.
        """
        found = self.at((pool, ANY, ANY))
        if model is not None:
            found = self.at((pool, ANY, model)).under(found)
        return self.at((pool, tenant, model or ANY)).under(found)


def shrunk(expected: float, total: float, count: float, pseudo: float = PSEUDO_REQUESTS) -> float:
    """Return the mean of `count` values that sum up to `total`, after `pseudo` values of `expected`."""
    return (pseudo * expected + total) / (pseudo + count)


def remaining(batch: Batch, prior: Prior) -> Load:
    """Return what is left of a batch: its open items times what they will probably cost.

    Tokens are expected as `prior` says of what was counted at the upload, and more and more as the batch's own finished
    items turn out.
    """
    if batch.left <= 0:
        return Load()
    done = batch.completed + batch.failed
    output = prior.output_tokens if prior.items else batch.usage.output_tokens / max(done, 1)
    prompt = prior.prompt_ratio * batch.prompt_tokens_total / batch.total
    return Load(
        1.0,
        shrunk(prompt, batch.usage.input_tokens, done),
        shrunk(output, batch.usage.output_tokens, done),
    ).scaled(batch.left)
