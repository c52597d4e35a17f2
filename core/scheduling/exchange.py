"""Takes one LLM request from its arrival to the last byte of its answer: slot, upstream, sample, release."""

import asyncio
import math
import random

from core.errors import Evicted, RequestError, UpstreamFailed
from core.lanes import Lane, Outcome, PullBack
from core.ports import TimerHandle, UpstreamAnswer, UpstreamRequest
from core.samples import Observation
from core.scheduling.answer_scan import BodyScan, StreamScan
from core.scheduling.answers import (
    is_event_stream,
    outcome_of,
    outcome_of_status,
    read_answer,
    retry_after,
    upstream_timeout,
)
from core.scheduling.calls import Call, Reply
from core.scheduling.dispatcher import honest_retry_after
from core.scheduling.gateway import Gateway
from core.scheduling.interrupts import Interrupted, Scope
from core.scheduling.tickets import Ticket

HEARTBEAT_EVERY_S = 5.0
REFUSAL_RETRY_S = 0.05
MOST_PATIENT_RETRY_AFTER_S = 1.0

SHUTTING_DOWN = "shutting_down"
NO_STATUS = 600
"""From here on there are no HTTP statuses."""

_NONSENSE = "The model server answered with a status that does not exist:"
_REDIRECTED = "The model server answered with a redirect, which is never followed. Its address must be corrected."


class Exchange:
    """One call and its answer, whoever sends it: a client, a durable batch, or a simulation. It begins when it is run.

    Errors go into the reply. `abort` may be called from anywhere at any time, once or more.
    """

    __slots__ = (
        "_aborted",
        "_call",
        "_clock",
        "_connection_failed",
        "_dispatcher",
        "_gateway",
        "_heart",
        "_observation",
        "_refused_before",
        "_reply",
        "_scope",
        "_slot",
        "_status",
        "_ticket",
        "_timeouts",
        "_total_until",
    )

    def __init__(self, gateway: Gateway, call: Call, reply: Reply) -> None:
        self._gateway = gateway
        self._call = call
        self._reply = reply
        self._clock = gateway.clock
        self._dispatcher = gateway.dispatcher
        self._timeouts = gateway.timeouts(call.lane)
        self._scope = Scope(clock=gateway.clock, loop=gateway.loop, deadlines=gateway.deadlines)
        arrived = gateway.clock.monotonic()
        self._total_until = arrived + self._timeouts.total
        self._observation = Observation(
            call.lane, call.model, arrived, call.stream, call.has_tokens, call.source or call.tenant
        )
        self._ticket = Ticket(
            call.lane,
            arrived,
            self._granted,
            self._scope.interrupt,
            model=call.model,
            durable=call.durable,
            streamed=call.stream,
            has_tokens=call.has_tokens,
        )
        self._slot: asyncio.Future[None] | None = None
        self._heart: TimerHandle | asyncio.Task[None] | None = None
        self._aborted: Outcome | None = None
        self._refused_before = False
        self._connection_failed = False
        self._status = 0

    @property
    def started(self) -> float | None:
        """When the call got its slot, in monotonic seconds; `None` before, and again after a pull-back."""
        return self._observation.started

    def abort(self, outcome: Outcome) -> None:
        """Break the exchange off: the client is gone, or the process stops."""
        self._aborted = outcome
        self._scope.interrupt(outcome)

    def shut_down(self, *, waiting_only: bool = False) -> None:
        """End with 503 because the process stops. A durable item is its worker's matter, who gives it back."""
        if not self._call.durable and not (waiting_only and self.started is not None):
            self._scope.interrupt(SHUTTING_DOWN)

    def client_left(self) -> None:
        """Break the exchange off: the client is gone."""
        self.abort(Outcome.CLIENT_DISCONNECT)

    async def run(self) -> Outcome:
        """Answer the call. Returns the outcome; raises nothing but a cancellation and what the reply raises."""
        call, live = self._call, self._gateway.live
        self._gateway.board.open(self._observation, self._observation.arrived)
        if call.stream and not call.durable:
            self._heart = self._clock.call_later(self._gateway.config.heartbeat_after, self._start_heartbeats)
        outcome = Outcome.CANCELLED
        live[self] = None
        try:
            outcome = await self._answer()
        except RequestError as error:
            outcome = outcome_of(error)
            self._status = error.status
            self._stop_heartbeats()
            await self._reply.fail(error)
        except Interrupted as stop:
            outcome = stop.reason if isinstance(stop.reason, Outcome) else Outcome.CANCELLED
        finally:
            del live[self]
            self._stop_heartbeats()
            self._record(outcome)
            self._ticket.let_go()
        return outcome

    async def _answer(self) -> Outcome:
        """Wait for a slot and use it, again after each pull-back."""
        waits_since = self._observation.arrived
        granted = self._dispatcher.submit(self._ticket)
        while True:
            if not granted:
                await self._wait_for_slot(waits_since)
            now = self._clock.monotonic()
            self._observation.started = now
            if self._call.durable:
                self._total_until = now + self._timeouts.total
            outcome = await self._use_slot()
            if outcome is not Outcome.PREEMPTED:
                return outcome
            if self._aborted is not None:
                self._dispatcher.cancel(self._ticket)
                return self._aborted
            granted, waits_since = False, self._clock.monotonic()

    async def _wait_for_slot(self, since: float) -> None:
        self._slot = self._gateway.loop.create_future()
        try:
            with self._scope as scope:
                scope.deadline(self._patient_until(), "queue_timeout", self._clock.monotonic())
                await self._slot
        except Interrupted as stop:
            if isinstance(stop.reason, PullBack):
                self._scope.interrupt(stop.reason)
                return
            self._leave_queue()
            if stop.reason == SHUTTING_DOWN:
                self._gateway.stats.evicted[self._call.lane, SHUTTING_DOWN] += 1
                raise _shutting_down() from None
            if stop.reason == "queue_timeout":
                raise self._queue_timeout() from None
            raise
        except asyncio.CancelledError:
            self._leave_queue()
            raise
        finally:
            self._slot = None
            self._call.queued_s += self._clock.monotonic() - since

    def _leave_queue(self) -> None:
        """Leave without having used a slot, even one granted in this very moment."""
        if self._ticket.lease is not None and not self._ticket.pulling:
            self._dispatcher.release(self._ticket, Outcome.CANCELLED)
        else:
            self._dispatcher.cancel(self._ticket)

    def _granted(self) -> None:
        if self._slot is not None and not self._slot.done():
            self._slot.set_result(None)

    def _patient_until(self) -> float:
        """Return the monotonic second until which the call waits for a slot."""
        arrived, until = self._observation.arrived, self._total_until
        if self._call.lane is Lane.INTERACTIVE:
            until = min(until, arrived + self._gateway.config.interactive_max_wait)
        return until if self._call.max_wait is None else min(until, arrived + self._call.max_wait)

    async def _use_slot(self) -> Outcome:
        """Use the granted slot once and give it back with its outcome, whatever happens."""
        outcome, aborted = Outcome.CANCELLED, True
        try:
            with self._scope:
                answer = await self._send()
                try:
                    outcome = await self._pass_on(answer)
                    aborted = False
                finally:
                    answer.close()
        except Interrupted as stop:
            if isinstance(stop.reason, PullBack):
                outcome = Outcome.PREEMPTED
                return outcome
            if isinstance(stop.reason, Outcome):
                outcome = stop.reason
                raise
            if stop.reason == SHUTTING_DOWN:
                raise _shutting_down() from None
            outcome = Outcome.TIMEOUT
            raise upstream_timeout(stop.reason) from None
        except RequestError as error:
            outcome, aborted = outcome_of(error), False
            raise
        finally:
            self._give_slot_back(outcome, aborted=aborted)
        return outcome

    def _give_slot_back(self, outcome: Outcome, *, aborted: bool) -> None:
        if outcome is Outcome.PREEMPTED:
            seen, call = self._observation, self._call
            call.input_tokens = call.output_tokens = 0
            call.estimated = False
            self._gateway.stats.wasted_tokens += seen.tokens
            self._gateway.stats.retries["pulled_back"] += 1
            seen.started = seen.first = seen.last = None
            seen.tokens = 0
            self._dispatcher.put_back(self._ticket)
        else:
            spent = self._call.input_tokens + self._call.output_tokens
            self._dispatcher.release(self._ticket, outcome, tokens=spent, aborted=aborted)

    async def _send(self) -> UpstreamAnswer:
        """Send, once more if the provider refused an interactive call and a batch request made room for it."""
        call = self._call
        request = UpstreamRequest("POST", call.path, call.body, call.headers, self._timeouts.connect)
        now, within = self._clock.monotonic(), self._timeouts.first_byte if call.stream else math.inf
        self._scope.deadline(min(self._total_until, now + within), "first_byte", now)
        answer = await self._try_send(request)
        if answer.status in (429, 503) and self._refused(answer):
            answer.close()
            self._gateway.stats.retries["provider_429"] += 1
            await self._clock.sleep(REFUSAL_RETRY_S)
            answer = await self._try_send(request)
            if answer.status in (429, 503):
                self._refused(answer)
        return answer

    async def _try_send(self, request: UpstreamRequest) -> UpstreamAnswer:
        try:
            return await self._gateway.upstream.send(request)
        except UpstreamFailed as error:
            self._connection_failed = error.code == "upstream_unreachable"
            raise

    def _refused(self, answer: UpstreamAnswer) -> bool:
        """Note a refusal for lack of capacity; tell whether the call may be sent once more, room having been made."""
        seconds = retry_after(answer.headers, self._clock.now())
        if answer.status == 429:
            self._gateway.board.refused(self._clock.monotonic())
        if seconds is not None:
            self._dispatcher.back_off(seconds)
        elif answer.status == 429 and self._call.lane is Lane.BATCH:
            self._dispatcher.hold_batch(1.0 + random.random())
        impatient = seconds is not None and seconds > MOST_PATIENT_RETRY_AFTER_S
        if answer.status != 429 or self._call.lane is Lane.BATCH or self._refused_before or impatient:
            return False
        self._refused_before = True
        return self._dispatcher.pull_back_for_refusal()

    async def _pass_refusal_on(self, answer: UpstreamAnswer) -> None:
        body = await read_answer(answer)
        self._ticket.answered = True
        self._stop_heartbeats()
        await self._reply.start(answer.status, answer.headers)
        await self._reply.send(body)
        await self._reply.finish()

    async def _pass_on(self, answer: UpstreamAnswer) -> Outcome:
        """Pass an answer on as it comes. Returns the outcome; raises UpstreamFailed where the answer is none."""
        status = self._status = answer.status
        if 400 <= status < NO_STATUS:
            await self._pass_refusal_on(answer)
            return outcome_of_status(status)
        if status >= 300:
            raise UpstreamFailed(502, "upstream_error", _REDIRECTED if status < 400 else f"{_NONSENSE} {status}.")
        streamed = self._observation.streamed = is_event_stream(answer.headers)
        scan = StreamScan(self._call.path) if streamed else BodyScan()
        try:
            begun = await self._relay(answer, scan)
            scan.finish()
        finally:
            self._count_tokens(scan)
        if not scan.complete:
            raise UpstreamFailed(502, "upstream_truncated", "The model server ended the stream before its end mark.")
        if not begun:
            self._ticket.answered = True
            self._stop_heartbeats()
            await self._reply.start(status, answer.headers)
        await self._reply.finish()
        return outcome_of_status(scan.failed) if scan.failed else Outcome.SUCCESS

    async def _relay(self, answer: UpstreamAnswer, scan: StreamScan | BodyScan) -> bool:
        """Pass the body on, piece by piece; return whether there was any. A slow client is no fault of the server's."""
        scope, until, between, begun = self._scope, self._total_until, self._timeouts.between_bytes, False
        while piece := await answer.read():
            now = self._clock.monotonic()
            scope.deadline(until, "total", now)
            tokens = scan.feed(piece)
            if tokens:
                self._observe(tokens, now)
            if not begun:
                begun = self._ticket.answered = True
                self._stop_heartbeats()
                self._let_request_go()
                await self._reply.start(answer.status, answer.headers)
            await self._reply.send(piece)
            now = self._clock.monotonic()
            if now + between < until:
                scope.deadline(now + between, "between_bytes", now)
        return begun

    def _let_request_go(self) -> None:
        """Free the request's memory for the time of its answer, unless it may have to be sent again."""
        if not self._call.durable:
            self._call.body, self._call.headers = b"", ()

    def _observe(self, tokens: int, now: float) -> None:
        """Note pieces of content of a stream."""
        seen = self._observation
        if seen.first is None:
            seen.first = now
            self._dispatcher.first_token(self._ticket)
        seen.last = now
        seen.tokens += tokens

    def _count_tokens(self, scan: StreamScan | BodyScan) -> None:
        call = self._call
        call.input_tokens = scan.input_tokens or 0
        call.estimated = scan.output_tokens is None and scan.pieces > 0
        call.output_tokens = scan.pieces if scan.output_tokens is None else scan.output_tokens

    def _record(self, outcome: Outcome) -> None:
        seen, call, now = self._observation, self._call, self._clock.monotonic()
        self._gateway.board.close(
            seen,
            outcome,
            now,
            output_tokens=None if call.estimated else call.output_tokens or None,
            connection_failed=self._connection_failed,
            counts=outcome is not Outcome.CLIENT_ERROR,
        )
        self._gateway.meters.finished(
            seen,
            outcome,
            queued_s=call.queued_s,
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
            estimated=call.estimated,
        )
        if self._gateway.on_end is not None:
            self._gateway.on_end(call, seen, outcome, self._status, now)

    # Heartbeats

    def _start_heartbeats(self) -> None:
        self._heart = self._gateway.loop.create_task(self._beat(), name=f"heartbeat {self._call.id}")

    async def _beat(self) -> None:
        while True:
            await self._reply.heartbeat()
            await self._clock.sleep(HEARTBEAT_EVERY_S)

    def _stop_heartbeats(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            self._heart = None

    # Errors

    def _queue_timeout(self) -> Evicted:
        lane = self._call.lane
        self._gateway.stats.evicted[lane, "queue_timeout"] += 1
        waited = self._clock.monotonic() - self._observation.arrived
        counts = self._dispatcher.counts()
        position = (counts.interactive_waiting if lane is Lane.INTERACTIVE else counts.backlog) + 1
        wait = self._dispatcher.estimated_wait(lane, position)
        return Evicted(
            503,
            "queue_timeout",
            f"No slot became free within {waited:.0f} s. Try again later.",
            retry_after=honest_retry_after(wait),
            position=position,
            estimated_wait=wait,
        )


def _shutting_down() -> Evicted:
    return Evicted(503, SHUTTING_DOWN, "Tidegate is shutting down. Try again soon.", retry_after=5)
