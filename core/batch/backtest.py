"""Which `kappa` would have made the best ETAs: past ones are made again, from what was known at the time. Pure."""

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import median

from core.batch.plan import Conditions, Plan
from core.batch.residuals import GivenEta
from core.batch.throughput import Measured, Throughput, level
from core.batch.work import DEFAULT_KAPPA, KAPPAS, Load

FEWEST_ETAS = 100
FEWEST_DAYS = 6
MOST_ETAS = 400
BETTER = 0.9
"""The share of the present error below which another value is taken."""

_LAST_HOURS = timedelta(hours=2)


def best_kappa(
    rows: Sequence[Measured],
    scored: Sequence[GivenEta],
    conditions: Conditions,
    *,
    present: float = DEFAULT_KAPPA,
) -> float:
    """Return the kappa of the least median error; `present` where there is too little data or little difference.

    `scored` are one pool's ETAs of completed batches. Windows and holds of the past are taken to be those of now.
    """
    used = sorted(scored, key=lambda given: given.at)[-MOST_ETAS:]
    days = {given.at.date() for given in used}
    if len(used) < FEWEST_ETAS or len(days) < FEWEST_DAYS:
        return present
    errors = {kappa: _error(rows, used, conditions, kappa) for kappa in {*KAPPAS, present}}
    best = min(errors, key=lambda kappa: errors[kappa])
    return best if errors[best] < BETTER * errors[present] else present


def _error(rows: Sequence[Measured], scored: Sequence[GivenEta], conditions: Conditions, kappa: float) -> float:
    """Return the median error of the ETAs made again with `kappa`; what was learned is renewed once a day."""
    by_day: dict[datetime, list[GivenEta]] = defaultdict(list)
    for given in scored:
        by_day[given.at.replace(hour=0, minute=0, second=0, microsecond=0)].append(given)
    errors = []
    for day, theirs in by_day.items():
        throughput = Throughput(
            [row for row in rows if row.start < day], zone=conditions.schedule.zone, kappa=kappa, now=day
        )
        if throughput.enough:
            errors += [_error_of(given, rows, throughput, conditions) for given in theirs]
    return median(errors) if errors else math.inf


def _error_of(given: GivenEta, rows: Sequence[Measured], throughput: Throughput, conditions: Conditions) -> float:
    hour = given.at.replace(minute=0, second=0, microsecond=0)
    recent = [row for row in rows if hour - _LAST_HOURS < row.start < hour]
    plan = Plan(conditions=conditions, throughput=throughput, level=level(recent, throughput, given.at), now=given.at)
    load = Load(given.items, given.input_tokens, given.output_tokens)
    mid = plan.finish(load.work(throughput.kappa))
    if mid is None:
        return math.inf
    predicted = max(1.0, (mid - given.at).total_seconds())
    return abs(math.log(given.actual_s / predicted))
