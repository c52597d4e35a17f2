"""The ten situations that the control law is held to, as traffic, batch work, a server and what befalls it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from core.simulation.arrivals import Batches, Change, Traffic
from core.simulation.engine import Condition, EngineSettings

HOURS = 3.0
"""The length for which the scenarios are written; shorter runs squeeze their times."""


@dataclass(frozen=True, slots=True)
class Mishap:
    """From `start` until `end` (seconds) the server is in `condition`; at its start each running request dies with
    probability `kill`.
    """

    start: float
    end: float
    condition: Condition
    kill: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One situation. `slots` is what the gateway believes that the server holds."""

    key: str
    title: str
    traffic: Traffic = field(default_factory=Traffic)
    batches: Batches = field(default_factory=Batches)
    engine: EngineSettings = field(default_factory=EngineSettings)
    mishaps: tuple[Mishap, ...] = ()
    slots: int = 64

    @property
    def seconds(self) -> float:
        """How long it runs."""
        return self.traffic.seconds


def _diurnal(seconds: float) -> Scenario:
    return Scenario("A", "diurnal, bursty", Traffic(seconds=seconds, day=seconds))


def _replica_loss(seconds: float) -> Scenario:
    half = Condition(share=0.5)
    mishaps = (
        Mishap(0.13 * seconds, 0.25 * seconds, half, kill=0.5),
        Mishap(0.76 * seconds, 0.90 * seconds, half, kill=0.5),
    )
    return replace(_diurnal(seconds), key="B", title="half the replicas die, twice", mishaps=mishaps)


def _slow(seconds: float) -> Scenario:
    slow = Condition(slow=1 / 0.6)
    mishaps = (Mishap(0.13 * seconds, 0.25 * seconds, slow), Mishap(0.74 * seconds, 0.88 * seconds, slow))
    return replace(_diurnal(seconds), key="B2", title="every step 1.67x slower, twice", mishaps=mishaps)


def _provider(seconds: float) -> Scenario:
    provider = EngineSettings(
        base=0.018,
        per_sequence=2e-5,
        per_prefill_token=1.5e-5,
        per_cached_token=0.0,
        chunk=16384,
        max_sequences=10_000,
        kv_tokens=10**9,
        hidden_limit=40,
    )
    mishaps = (Mishap(0.40 * seconds, 0.60 * seconds, Condition(limit_share=0.5)),)
    return replace(_diurnal(seconds), key="C", title="provider with a hidden limit", engine=provider, mishaps=mishaps)


def _flash(seconds: float) -> Scenario:
    share = seconds / (HOURS * 3600)
    quiet = tuple((start * share, end * share) for start, end in ((0, 1500), (3300, 4800), (6600, 8100)))
    traffic = Traffic(seconds=seconds, day=seconds, low=1.3, high=1.3, flat=True, quiet=quiet)
    return Scenario("D", "silence, then a flash crowd", traffic)


def _long_prompts(seconds: float) -> Scenario:
    batches = Batches(longer=(Change(0.35 * seconds, 0.75 * seconds, 1 / 0.4),))
    return replace(_diurnal(seconds), key="E", title="batch prompts 2.5x longer", batches=batches)


def _unstreamed(seconds: float) -> Scenario:
    return Scenario("F", "interactive does not stream", Traffic(seconds=seconds, day=seconds, streamed=0.0))


def _small_backend(seconds: float) -> Scenario:
    engine = EngineSettings(max_sequences=40)
    return replace(_diurnal(seconds), key="G", title="server holds 40, gateway believes 64", engine=engine)


def _waves(seconds: float) -> Scenario:
    return replace(_diurnal(seconds), key="H", title="batch in waves", batches=Batches(waves=(600.0, 1200.0)))


def _long_answers(seconds: float) -> Scenario:
    longer = (Change(0.3 * seconds, 0.7 * seconds, 3.0),)
    return Scenario(
        "I", "interactive answers 3x longer", Traffic(seconds=seconds, day=seconds, high=0.7, longer=longer)
    )


_MAKERS: dict[str, Callable[[float], Scenario]] = {
    "A": _diurnal,
    "B": _replica_loss,
    "B2": _slow,
    "C": _provider,
    "D": _flash,
    "E": _long_prompts,
    "F": _unstreamed,
    "G": _small_backend,
    "H": _waves,
    "I": _long_answers,
}
KEYS = tuple(_MAKERS)
"""The ten."""


SMALL = {"S8": 8, "S4": 4}
"""Pools of few slots, by key; not among the ten."""


def scenario(key: str, *, hours: float = HOURS) -> Scenario:
    """Return the scenario `key`: A, B, B2, C .. I, R for `recovery`, or one of `SMALL`. Raises KeyError."""
    if key == "R":
        return recovery()
    return small_pool(key, SMALL[key], hours * 3600) if key in SMALL else _MAKERS[key](hours * 3600)


def small_pool(key: str, slots: int, seconds: float) -> Scenario:
    """Return a pool in which server and gateway both hold `slots`, with as much less interactive traffic."""
    share = slots / 64
    traffic = Traffic(seconds=seconds, day=seconds, low=0.08 * share, high=1.4 * share)
    return Scenario(key, f"{slots} slots", traffic, engine=EngineSettings(max_sequences=slots), slots=slots)


def recovery() -> Scenario:
    """Return steady traffic during which half the capacity goes at 1,800 s and is back at 3,000 s."""
    traffic = Traffic(seconds=4200.0, day=4200.0, low=0.6, high=0.6, flat=True)
    return Scenario(
        "R",
        "capacity lost and regained",
        traffic,
        mishaps=(Mishap(1800.0, 3000.0, Condition(share=0.5), kill=0.5),),
    )
