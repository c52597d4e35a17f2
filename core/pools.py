"""A pool at work: one upstream's capacity with all that decides over it."""

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
