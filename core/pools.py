"""A pool at work: one upstream's capacity with all that decides over it."""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from core.config import PoolConfig
from core.control.controller import PoolController
from core.ports import Upstream
from core.quotas import PoolSettings
from core.samples import SampleBoard
from core.scheduling.dispatcher import Dispatcher, PoolCounts
from core.scheduling.gateway import Gateway


@dataclass(frozen=True, slots=True)
class Pool:
    """What `core.runtime.build_pool` built for one upstream."""

    config: PoolConfig
    dispatcher: Dispatcher
    board: SampleBoard
    controller: PoolController
    gateway: Gateway
    upstream: Upstream

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.config.name

    @property
    def settings(self) -> PoolSettings:
        """The operators' settings now in force."""
        return self.controller.settings

    @property
    def counts(self) -> PoolCounts:
        """What is in flight and waiting now."""
        return self.dispatcher.counts()


def serving(pools: Iterable[Pool], model: str) -> tuple[Pool, str] | None:
    """Return the first pool that serves `model`, by alias or glob, and the name by which its server knows the model."""
    for pool in pools:
        real = pool.config.aliases.get(model, model)
        if model in pool.config.aliases or any(fnmatch.fnmatchcase(real, glob) for glob in pool.config.models):
            return pool, real
    return None
