"""Breaking off what a task waits for, with a reason: by a deadline, or from outside."""

import asyncio
import math
from types import TracebackType

from core.lanes import Outcome, PullBack
from core.ports import Clock, TimerHandle

Reason = Outcome | PullBack | str

NEAR_S = 1.0


class Interrupted(Exception):
    """What ran inside a Scope was broken off for `reason`."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Deadlines:
    """Looks every second for those of many deadlines that come near; only they get a timer of their own.

    A timer costs a request two microseconds, and an open stream 700 bytes.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._far: dict[Scope, None] = {}
        self._timer: TimerHandle | None = None

    def put(self, scope: "Scope") -> None:
        """Call a scope's `look` within the last second before it is due, whatever its deadline becomes."""
        self._far[scope] = None
        if self._timer is None:
            self._timer = self._clock.call_later(NEAR_S, self._look)

    def drop(self, scope: "Scope") -> None:
        """Look after a scope no more."""
        del self._far[scope]

    def _look(self) -> None:
        now = self._clock.monotonic()
        for scope in [scope for scope in self._far if scope.due < now + NEAR_S]:
            scope.look(now)
        self._timer = self._clock.call_later(NEAR_S, self._look) if self._far else None


class Scope:
    """A `with` block in the current task that `interrupt` or a deadline breaks off; it then raises Interrupted.

    Like asyncio.timeout it cancels the task and turns that one cancellation into the error; a cancellation from
    elsewhere passes through. The first reason wins. A scope may be entered again after it was left; an interrupt that
    comes between two blocks breaks the next one off.

    `loop` is the one it runs on, which costs a system call to find out. `due` is the deadline, in monotonic seconds.
    """

    __slots__ = (
        "_cancelled",
        "_cancelling",
        "_clock",
        "_deadlines",
        "_due_reason",
        "_far",
        "_loop",
        "_reason",
        "_soon",
        "_task",
        "_timer",
        "_timer_at",
        "due",
    )

    def __init__(self, *, clock: Clock, loop: asyncio.AbstractEventLoop, deadlines: Deadlines) -> None:
        self.due = math.inf
        self._due_reason: Reason = ""
        self._clock = clock
        self._loop = loop
        self._deadlines = deadlines
        self._far = False
        self._timer: TimerHandle | None = None
        self._timer_at = math.inf
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._cancelled = False
        self._soon: asyncio.Handle | None = None
        self._reason: Reason | None = None

    def __enter__(self) -> "Scope":
        if self._reason is not None:
            raise Interrupted(self._take_reason())
        self._task = asyncio.current_task(self._loop)
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        task, self._task = self._task, None
        self._disarm()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._reason is None or task is None:
            return
        ours = True
        if self._cancelled:
            self._cancelled = False
            ours = task.uncancel() <= self._cancelling
        if ours and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise Interrupted(self._take_reason()) from error

    def interrupt(self, reason: Reason) -> None:
        """Break the block off, or the next one to be entered. May be called by the block's own task."""
        if self._reason is not None:
            return
        self._reason = reason
        if self._task is None:
            return
        if self._task is asyncio.current_task(self._loop):
            # A task that cancels itself would meet the cancellation wherever it next waits, even outside the block.
            self._soon = self._loop.call_soon(self._cancel)
        else:
            self._cancel()

    def deadline(self, due: float, reason: Reason, now: float) -> None:
        """Interrupt with `reason` at the second `due`, instead of any deadline set before; `now` is the present one.

        Putting a deadline off, as every piece of an answer does, costs next to nothing.
        """
        self.due, self._due_reason = due, reason
        if not self._far or due < now + NEAR_S:
            self.look(now)

    def look(self, now: float) -> None:
        """See to it that the deadline is kept: now, by a timer, or by being looked after."""
        if self._timer is not None and self.due >= self._timer_at:
            return
        if self.due >= now + NEAR_S and self._timer is None:
            if not self._far:
                self._far = True
                self._deadlines.put(self)
            return
        self._disarm()
        self._timer_at = self.due
        self._timer = self._clock.call_later(max(0.0, self.due - now), self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        if self.due > self._timer_at:
            self.look(self._clock.monotonic())
        else:
            self.interrupt(self._due_reason)

    def _cancel(self) -> None:
        self._soon = None
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    def _disarm(self) -> None:
        if self._far:
            self._far = False
            self._deadlines.drop(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take_reason(self) -> Reason:
        reason, self._reason = self._reason, None
        assert reason is not None
        return reason
