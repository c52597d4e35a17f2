"""The histograms and counters that requests write as they pass.

Label values are bounded: pools and lanes come from the settings; models and tenants are not labels.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

from core.lanes import Lane, Outcome
from core.samples import Observation

_WAIT = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 600)
_FIRST = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
_PER_TOKEN = (0.005, 0.01, 0.02, 0.03, 0.045, 0.06, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
_POOL_LANE = ("pool", "lane")

disable_created_metrics()  # a timestamp beside every counter would double the lines and tell nothing new


class Instruments:
    """The histograms and counters that requests write, in one registry."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.wait = Histogram("tidegate_wait_seconds", "Wait for a slot.", _POOL_LANE, buckets=_WAIT, registry=registry)
        self.first_token = Histogram(
            "tidegate_first_token_seconds",
            "From arrival to the first token of a streamed answer, queue wait included.",
            _POOL_LANE,
            buckets=_FIRST,
            registry=registry,
        )
        self.per_token = Histogram(
            "tidegate_per_token_seconds",
            "Mean time per token after the first, of streamed answers of more than 8 tokens.",
            _POOL_LANE,
            buckets=_PER_TOKEN,
            registry=registry,
        )
        self.outcomes = Counter(
            "tidegate_requests", "Requests by outcome.", (*_POOL_LANE, "outcome"), registry=registry
        )
        self.tokens = Counter(
            "tidegate_tokens",
            "Tokens by direction; counted: from the server's usage, or estimated from content pieces.",
            (*_POOL_LANE, "direction", "counted"),
            registry=registry,
        )

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


class _LaneMeters:
    """One lane's children, bound once: looking labels up costs more than the rest of a request's accounting."""

    def __init__(self, instruments: Instruments, pool: str, lane: Lane) -> None:
        self.wait = instruments.wait.labels(pool, lane)
        self.first_token = instruments.first_token.labels(pool, lane)
        self.per_token = instruments.per_token.labels(pool, lane)
        self.outcomes = {outcome: instruments.outcomes.labels(pool, lane, outcome) for outcome in Outcome}
        self.input = instruments.tokens.labels(pool, lane, "input", "usage")
        self.output = {
            estimated: instruments.tokens.labels(pool, lane, "output", "estimated" if estimated else "usage")
            for estimated in (False, True)
        }


class PoolMeters:
    """What the gateway of one pool writes."""

    def __init__(self, *, instruments: Instruments, pool: str) -> None:
        self._lanes = {lane: _LaneMeters(instruments, pool, lane) for lane in Lane}

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
        lane = self._lanes[seen.lane]
        lane.outcomes[outcome].inc()
        if seen.started is None:
            return
        lane.wait.observe(queued_s)
        if seen.first is not None and seen.last is not None:
            lane.first_token.observe(seen.first - seen.arrived)
            tokens = output_tokens or seen.tokens
            if tokens > 8:
                lane.per_token.observe((seen.last - seen.first) / (tokens - 1))
        if input_tokens:
            lane.input.inc(input_tokens)
        if output_tokens:
            lane.output[estimated].inc(output_tokens)
