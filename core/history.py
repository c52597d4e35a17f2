"""The last two hours of each pool, sampled once a second, for the charts. In memory, bounded, lost at a restart."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from core.lifecycle import Service
from core.ports import Clock

FINE = timedelta(seconds=1)
FINE_SPAN = timedelta(minutes=15)
COARSE = timedelta(seconds=10)
COARSE_SPAN = timedelta(hours=2)
_PER_BUCKET = COARSE // FINE


@dataclass(frozen=True, slots=True)
class Sample:
    """One pool at one instant. `p95_s` is the interactive p95 to the first token, `None` where there is no data.

    `budget_s` is the budget it is held against; `limit` and `quota` are in slots.
    """

    at: datetime
    p95_s: float | None
    budget_s: float
    limit: float
    quota: int
    interactive: int
    batch: int


class Ring:
    """One pool's samples: each of the last 15 minutes, and the worst of every 10 for two hours."""

    def __init__(self) -> None:
        self._fine: deque[Sample] = deque(maxlen=FINE_SPAN // FINE)
        self._coarse: deque[Sample] = deque(maxlen=COARSE_SPAN // COARSE)
        self._open: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Append the newest sample."""
        self._fine.append(sample)
        self._open.append(sample)
        if len(self._open) == _PER_BUCKET:
            self._coarse.append(_bucket(self._open))
            self._open.clear()

    def since(self, start: datetime) -> Sequence[Sample]:
        """Return the samples from `start` on, oldest first, as fine as they are kept."""
        fine = [sample for sample in self._fine if sample.at >= start]
        if not self._fine or self._fine[0].at <= start:
            return fine
        return [sample for sample in self._coarse if start <= sample.at < self._fine[0].at] + fine

    def __len__(self) -> int:
        return len(self._fine) + len(self._coarse) + len(self._open)


def _bucket(samples: Sequence[Sample]) -> Sample:
    """Return the last of `samples` with the worst p95 of all of them: a short peak must not vanish from the chart."""
    known = [sample.p95_s for sample in samples if sample.p95_s is not None]
    return replace(samples[-1], p95_s=max(known, default=None))


class History(Service):
    """Samples every pool once a second.

    `read` returns the present sample of each pool by name; a pool that it no longer names is forgotten.
    """

    name = "history"

    def __init__(self, *, clock: Clock, read: Callable[[], Mapping[str, Sample]]) -> None:
        super().__init__()
        self._clock = clock
        self._read = read
        self._rings: dict[str, Ring] = {}

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample()
            await self._clock.sleep(FINE.total_seconds())

    def sample(self) -> None:
        """Take one sample of each pool now."""
        samples = self._read()
        for name in self._rings.keys() - samples.keys():
            del self._rings[name]
        for name, sample in samples.items():
            self._rings.setdefault(name, Ring()).add(sample)

    def since(self, pool: str, start: datetime) -> Sequence[Sample]:
        """Return the pool's samples from `start` on, oldest first; none for a pool that was never sampled."""
        ring = self._rings.get(pool)
        return ring.since(start) if ring else ()
