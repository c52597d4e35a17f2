"""The metrics: every pool's present state, counters and histograms, read when somebody asks for them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from core.lanes import Lane
from core.metrics import LaneMeters, Tally
from core.pools import Pool

Row = tuple[tuple[str, ...], float | None]


@dataclass(frozen=True, slots=True)
class _Family:
    """One family: its name, help and labels besides `pool`, and how to read its rows from a pool."""

    kind: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    help: str
    labels: tuple[str, ...]
    rows: Callable[[Pool], Iterable[Row]]

    def read(self, pools: Sequence[Pool]) -> Metric:
        family = self.kind(f"tidegate_{self.name}", self.help, labels=("pool", *self.labels))
        for pool in pools:
            for labels, value in self.rows(pool):
                if value is not None:
                    family.add_metric((pool.name, *labels), value)
        return family


@dataclass(frozen=True, slots=True)
class _Histogram:
    """One histogram by lane: its name and help, and which of a lane's tallies it is."""

    name: str
    help: str
    tally: Callable[[LaneMeters], Tally]

    def read(self, pools: Sequence[Pool]) -> Metric:
        family = HistogramMetricFamily(f"tidegate_{self.name}", self.help, labels=("pool", "lane"))
        for pool in pools:
            for lane, meters in pool.gateway.meters.lanes.items():
                tally = self.tally(meters)
                family.add_metric((pool.name, lane.value), tally.buckets(), tally.total)
        return family


def _by_lane(read: Callable[[Pool], tuple[float | None, float | None]]) -> Callable[[Pool], Iterable[Row]]:
    def rows(pool: Pool) -> Iterable[Row]:
        interactive, batch = read(pool)
        return [((Lane.INTERACTIVE.value,), interactive), ((Lane.BATCH.value,), batch)]

    return rows


def _one(read: Callable[[Pool], float | None]) -> Callable[[Pool], Iterable[Row]]:
    return lambda pool: [((), read(pool))]


def _outcomes(pool: Pool) -> Iterable[Row]:
    lanes = pool.gateway.meters.lanes.items()
    return [((lane.value, outcome.value), n) for lane, meters in lanes for outcome, n in meters.outcomes.items()]


def _tokens(pool: Pool) -> Iterable[Row]:
    for lane, meters in pool.gateway.meters.lanes.items():
        yield (lane.value, "input", "usage"), meters.input_tokens
        for estimated, tokens in meters.output_tokens.items():
            yield (lane.value, "output", "estimated" if estimated else "usage"), tokens


def _refusals(pool: Pool) -> Iterable[Row]:
    return [((lane.value, code), n) for (lane, code), n in pool.dispatcher.stats.rejected.items()]


def _evictions(pool: Pool) -> Iterable[Row]:
    return [((lane.value, code), n) for (lane, code), n in pool.gateway.stats.evicted.items()]


_GAUGES = (
    ("in_flight", "Requests that hold a slot.", ("lane",), _by_lane(lambda p: (p.counts.interactive, p.counts.batch))),
    (
        "queued",
        "Requests that wait for a slot.",
        ("lane",),
        _by_lane(lambda p: (p.counts.interactive_waiting, p.counts.backlog)),
    ),
    (
        "oldest_wait_seconds",
        "The longest present wait for a slot; absent while nobody waits.",
        ("lane",),
        _by_lane(lambda p: (p.counts.interactive_oldest_s, p.counts.batch_oldest_s)),
    ),
    ("slots", "Requests that the pool may have in flight.", (), _one(lambda p: p.dispatcher.limits.slots)),
    ("limit", "The learned limit on the total in flight.", (), _one(lambda p: p.controller.limit)),
    ("batch_quota", "Slots that batch may hold now.", (), _one(lambda p: p.dispatcher.quota())),
    ("shadow_quota", "The quota if no hold stood.", (), _one(lambda p: p.controller.shadow_quota)),
    ("floor", "The lower bound of the quota now in force.", (), _one(lambda p: p.dispatcher.limits.floor)),
    ("ceiling", "The upper bound of the quota now in force.", (), _one(lambda p: p.dispatcher.limits.ceiling)),
    ("batch_paused", "1 while an operator paused batch.", (), _one(lambda p: p.dispatcher.limits.paused)),
    (
        "pressure",
        "Each signal of the controller as a share of its threshold; absent without data.",
        ("signal",),
        lambda p: [
            ((t.name,), t.value / t.threshold) for t in p.controller.triggers if t.value is not None and t.threshold > 0
        ],
    ),
)
_HISTOGRAMS = (
    _Histogram("wait_seconds", "Wait for a slot.", lambda lane: lane.wait),
    _Histogram(
        "first_token_seconds",
        "From arrival to the first token of a streamed answer, queue wait included.",
        lambda lane: lane.first_token,
    ),
    _Histogram(
        "per_token_seconds",
        "Mean time per token after the first, of streamed answers of more than 8 tokens.",
        lambda lane: lane.per_token,
    ),
)
_COUNTERS = (
    ("requests", "Requests by outcome.", ("lane", "outcome"), _outcomes),
    (
        "tokens",
        "Tokens by direction; counted: from the server's usage, or estimated from content pieces.",
        ("lane", "direction", "counted"),
        _tokens,
    ),
    (
        "limit_moves",
        "Moves of the limit.",
        ("action", "reason"),
        lambda p: [(key, n) for key, n in p.controller.moves.items()],
    ),
    (
        "pull_backs",
        "Running batch requests aborted and put back at the head of their queue.",
        ("cause",),
        lambda p: [((cause.value,), n) for cause, n in p.dispatcher.stats.pull_backs.items()],
    ),
    (
        "wasted_tokens",
        "Tokens generated for batch requests that were then pulled back.",
        (),
        _one(lambda p: p.gateway.stats.wasted_tokens),
    ),
    ("retries", "Requests sent again.", ("reason",), lambda p: [((r,), n) for r, n in p.gateway.stats.retries.items()]),
    (
        "backpressure_pauses",
        "Times the upstream asked batch to stay away.",
        (),
        _one(lambda p: p.dispatcher.stats.back_offs),
    ),
    (
        "backpressure_seconds",
        "Seconds for which the upstream asked batch to stay away.",
        (),
        _one(lambda p: p.dispatcher.stats.back_off_seconds),
    ),
    ("refusals", "Requests refused before they could wait.", ("lane", "code"), _refusals),
    ("evictions", "Requests taken out of a queue.", ("lane", "code"), _evictions),
    (
        "overdue_batch_started",
        "Batch requests started out of turn because they had waited too long.",
        (),
        _one(lambda p: p.dispatcher.stats.overdue_started),
    ),
)
FAMILIES: tuple[_Family | _Histogram, ...] = (
    *_HISTOGRAMS,
    *(_Family(GaugeMetricFamily, *row) for row in _GAUGES),
    *(_Family(CounterMetricFamily, *row) for row in _COUNTERS),
)


class PoolCollector(Collector):
    """Reads every pool when the metrics are asked for; costs nothing in between."""

    def __init__(
        self,
        *,
        pools: Callable[[], Sequence[Pool]],
        tick_age: Callable[[], float | None],
        calls_dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        self._pools = pools
        self._tick_age = tick_age
        self._calls_dropped = calls_dropped

    def collect(self) -> Iterable[Metric]:
        """Yield all families."""
        pools = self._pools()
        for family in FAMILIES:
            yield family.read(pools)
        age = GaugeMetricFamily("tidegate_control_tick_age_seconds", "Seconds since the controller's last tick.")
        value = self._tick_age()
        if value is not None:
            age.add_metric((), value)
        yield age
        help_text = "Calls left out of the call log because the database was too slow or down."
        yield CounterMetricFamily("tidegate_call_log_dropped", help_text, value=self._calls_dropped())

    def exposition(self) -> bytes:
        """Return all families in the Prometheus text format."""
        return generate_latest(self)
