"""Slows down who guesses passwords. Pure: time is a parameter."""

from collections import OrderedDict
from dataclasses import dataclass

WINDOW_S = 300.0
MOST_REMEMBERED = 10_000


@dataclass(slots=True)
class _Failures:
    since: float
    count: int = 0


class SignInThrottle:
    """Counts failed sign-ins for 5 minutes from the first: 5 for one account from one address, 20 from one address.

    50 for one account from wherever. Who is over must wait until those 5 minutes are over; nobody else is hindered.
    An attempt counts as failed when it begins, so that attempts side by side count each other; a success takes that
    back.
    """

    def __init__(self, *, per_pair: int = 5, per_address: int = 20, per_account: int = 50) -> None:
        self._most = {"pair": per_pair, "address": per_address, "account": per_account}
        self._failures: OrderedDict[tuple[str, ...], _Failures] = OrderedDict()

    def wait(self, account: str, address: str, now: float) -> float:
        """Return the seconds until this may be tried, 0 for now."""
        waits = [self._wait(key, self._most[key[0]], now) for key in _keys(account, address)]
        return max(waits)

    def failed(self, account: str, address: str, now: float) -> None:
        """Note a failure."""
        for key in _keys(account, address):
            found = self._failures.get(key)
            if found is None or now - found.since >= WINDOW_S:
                found = self._failures[key] = _Failures(now)
            found.count += 1
            self._failures.move_to_end(key)
        while len(self._failures) > MOST_REMEMBERED:
            self._failures.popitem(last=False)

    def succeeded(self, account: str, address: str) -> None:
        """Take back the failure noted before a success, and what failed for that account from that address."""
        pair, *others = _keys(account, address)
        self._failures.pop(pair, None)
        for key in others:
            found = self._failures.get(key)
            if found is not None:
                found.count -= 1

    def _wait(self, key: tuple[str, ...], most: int, now: float) -> float:
        found = self._failures.get(key)
        if found is None or found.count < most:
            return 0.0
        return max(0.0, found.since + WINDOW_S - now)


def _keys(account: str, address: str) -> tuple[tuple[str, ...], ...]:
    return ("pair", account, address), ("address", address), ("account", account)
