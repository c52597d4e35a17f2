"""How much batch work other tenants usually bring, so that an ETA reckons with what is still to come. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from core.batch.work import Load
from core.control import wallclock

FADES = timedelta(days=7)
"""The time in which what arrived counts 1/e."""
FARTHEST = timedelta(days=7)
"""What comes later than that is not reckoned with."""

_HOUR = timedelta(hours=1)
_TRUSTED_S = 3 * 86400.0  # of watching, before which arrivals are taken to be rarer than they looked
_SLOT_COUNTS = 2.0  # batches in an hour of the day that weigh as much as what was to be expected of it
_BELOW_MEAN = 0.6  # how far the median of a small random number lies below its mean
_SLOT_SHARES = {False: 5 / 7 / 24, True: 2 / 7 / 24}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A batch that was submitted: where, by whom, when, and what it asked for."""

    pool: str
    tenant: str
    at: datetime
    load: Load


class Arrivals:
    """The batches of the last weeks, to tell what the next hours will bring."""

    def __init__(self) -> None:
        self._seen: list[Arrival] = []

    def add(self, arrival: Arrival) -> None:
        """Note a batch; those of more than a month ago are forgotten."""
        self._seen.append(arrival)
        oldest = arrival.at - 4 * FADES
        if self._seen[0].at < oldest:
            self._seen = [each for each in self._seen if each.at >= oldest]

    def expected(self, pool: str, now: datetime, *, zone: str) -> "Expected":
        """Return what is to be expected of a pool's tenants from `now` on; hours and weekends are those of `zone`."""
        seen = [each for each in self._seen if each.pool == pool and each.at <= now]
        weights = [math.exp(-((now - each.at) / FADES)) for each in seen]
        since = min((each.at for each in seen), default=now)
        fades, watched = FADES.total_seconds(), (now - since).total_seconds()
        seconds = fades * -math.expm1(-watched / fades) + _TRUSTED_S
        tenants: dict[str, Load] = {}
        slots: dict[tuple[bool, int], float] = {}
        for each, weight in zip(seen, weights, strict=True):
            tenants[each.tenant] = tenants.get(each.tenant, Load()) + each.load.scaled(weight / seconds)
            slot = _slot(each.at, zone)
            slots[slot] = slots.get(slot, 0.0) + weight
        return Expected(now, zone, sum(weights) / seconds, tenants, slots)


class Expected:
    """What the tenants of one pool are expected to bring from an instant on."""

    def __init__(
        self,
        now: datetime,
        zone: str,
        batches: float,
        tenants: Mapping[str, Load],
        slots: Mapping[tuple[bool, int], float],
    ) -> None:
        """Take batches and each tenant's load per second, and how many batches came in which hours."""
        self._now = now
        self._zone = zone
        self._batches = batches
        self._tenants = tenants
        self._slots = slots
        self._total = sum(slots.values())
        self._hours: list[float] = [0.0]

    def within(self, seconds: float) -> dict[str, Load]:
        """Return what each tenant will probably bring in the next `seconds`: rather the median than the mean."""
        if not self._tenants:
            return {}
        span = self._weighed(min(seconds, FARTHEST.total_seconds()))
        batches = self._batches * span
        share = max(0.0, batches - _BELOW_MEAN) / batches if batches > 0 else 0.0
        return {tenant: load.scaled(span * share) for tenant, load in self._tenants.items()}

    def _weighed(self, seconds: float) -> float:
        """Return the seconds, those in busy hours counting more."""
        hours, rest = divmod(seconds, 3600.0)
        while len(self._hours) <= hours + 1:
            at = self._now + (len(self._hours) - 1) * _HOUR
            self._hours.append(self._hours[-1] + 3600.0 * self._busy(at))
        before, after = self._hours[int(hours)], self._hours[int(hours) + 1]
        return before + (after - before) * rest / 3600.0

    def _busy(self, at: datetime) -> float:
        slot = _slot(at, self._zone)
        usual = self._total * _SLOT_SHARES[slot[0]]
        return (self._slots.get(slot, 0.0) + _SLOT_COUNTS) / (usual + _SLOT_COUNTS)


def _slot(at: datetime, zone: str) -> tuple[bool, int]:
    """Return whether it is weekend, and the hour of the day."""
    local = at.astimezone(wallclock.zone(zone))
    return local.weekday() >= 5, local.hour
