"""An asyncio event loop on which time passes only when everybody waits: hours go by in seconds, always the same way."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, TypeVar

from core.clock import LoopClock

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Every task waits and nothing is scheduled: no virtual time could ever wake one of them."""


class _TimeTravel(selectors.BaseSelector):
    """A selector that, asked to wait, moves the time on instead. Files never become ready on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._files: dict[Any, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("all tasks wait and nothing is scheduled; virtual time cannot go on")
        self.now += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, getattr(fileobj, "fileno", lambda: fileobj)(), events, data)
        self._files[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._files.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._files


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` starts at 0 and jumps to the next timer whenever no callback is ready.

    Timers fire in order of their time, those of one instant in the order in which they were set. Sockets and threads
    have no place here: what waits for one of them waits for ever, or ends in Deadlock.
    """

    def __init__(self) -> None:
        self._travel = _TimeTravel()
        super().__init__(self._travel)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._travel.now


def run_virtual(main: Callable[[LoopClock], Coroutine[Any, Any, T]], epoch: datetime) -> T:
    """Run `main(clock)` to its end in virtual time that begins at `epoch` (aware), and return its result.

    Tasks that are left over are cancelled. Raises Deadlock where `main` would wait for ever, else what `main` raises.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main(LoopClock(epoch=epoch)))
