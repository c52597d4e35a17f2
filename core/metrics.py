"""What requests write as they pass, for the metrics: plain numbers, read when somebody asks for them (`collector`).

The library's own counters cost a request four times as much. Label values are bounded: pools and lanes come from the
settings; models and tenants are not labels.
"""

from bisect import bisect_left
from collections.abc import Sequence

from core.lanes import Lane, Outcome
from core.samples import Observation

WAIT_S = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 600)
FIRST_TOKEN_S = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
PER_TOKEN_S = (0.005, 0.01, 0.02, 0.03, 0.045, 0.06, 0.075, 0.1, 0.15, 0.25, 0.5, 1)


class Tally:
    """How many values fell into each bucket, whose upper ends are `bounds`, and what they sum up to."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.total = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, int]]:
        """Return for each upper end, the last of which is infinite, how many values are not above it."""
        ends = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        sums = [sum(self._counts[: place + 1]) for place in range(len(ends))]
        return list(zip(ends, sums, strict=True))


class LaneMeters:
    """One lane's numbers. `output_tokens` are by whether they are an estimate."""

    __slots__ = ("first_token", "input_tokens", "outcomes", "output_tokens", "per_token", "wait")

    def __init__(self) -> None:
        self.wait = Tally(WAIT_S)
        self.first_token = Tally(FIRST_TOKEN_S)
        self.per_token = Tally(PER_TOKEN_S)
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.input_tokens = 0
        self.output_tokens = {False: 0, True: 0}


class PoolMeters:
    """What the gateway of one pool writes, by lane."""

    def __init__(self) -> None:
        self.lanes = {lane: LaneMeters() for lane in Lane}

    def finished(
        self,
        seen: Observation,
        outcome: Outcome,
        *,
        queued_s: float,
        input_tokens: int,
        output_tokens: int,
        estimated: bool,
    ) -> None:
        """Account for a request that ended; `queued_s` is its wait for slots, in seconds."""
        lane = self.lanes[seen.lane]
        lane.outcomes[outcome] += 1
        if seen.started is None:
            return
        lane.wait.observe(queued_s)
        if seen.first is not None and seen.last is not None:
            lane.first_token.observe(seen.first - seen.arrived)
            tokens = output_tokens or seen.tokens
            if tokens > 8:
                lane.per_token.observe((seen.last - seen.first) / (tokens - 1))
        lane.input_tokens += input_tokens
        lane.output_tokens[estimated] += output_tokens
