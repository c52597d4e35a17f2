"""Batches as pages tell them: short words with a tone, sentences with clock times. No I/O."""

from collections.abc import Sequence
from datetime import datetime, tzinfo

from core import wording
from core.batch.queries import state_of
from core.batch.residuals import Score
from core.batch.values import Batch, BatchStatus, Eta, EtaState, ItemRow, ItemState, Risk
from core.batch.views import ErrorKind
from web.batch_contexts import BatchCells, ItemLine, Meter, Phase

GOOD, WARN, BAD, CALM = "good", "warn", "bad", "calm"
RISKS = {Risk.ON_TIME: ("on time", CALM), Risk.AT_RISK: ("at risk", WARN), Risk.WILL_MISS: ("will miss", BAD)}
OPEN_STATES = {
    "running": ("running", CALM),
    "queued": ("waiting", CALM),
    "paused": ("paused", WARN),
    "validating": ("checking the file", CALM),
    "finishing": ("writing results", CALM),
    "cancelling": ("being cancelled", WARN),
}
NEVER_RAN = frozenset((BatchStatus.EXPIRED, BatchStatus.CANCELLED, BatchStatus.CANCELLING))
"""Statuses in which requests that never ran count as failed, which says nothing about them."""
ITEM_TONES = {ItemState.SUCCEEDED: GOOD, ItemState.FAILED: BAD, ItemState.EXPIRED: WARN, ItemState.CANCELLED: WARN}
KINDS = {
    ItemState.EXPIRED: "the window ended before they ran",
    ItemState.CANCELLED: "cancelled before they ran",
}


def name_of(batch: Batch) -> str:
    """Return what to call a batch."""
    return batch.name or f"{batch.id[:14]}…"


def dom_id(batch: Batch) -> str:
    """Return the id of the element that shows a batch in the list."""
    return f"c-{batch.id.removeprefix('batch_')}"


def state(batch: Batch) -> tuple[str, str]:
    """Return in one word or two how a batch is, and the tone of that: partial failure is amber, never green."""
    if not batch.ended:
        return OPEN_STATES[state_of(batch)]
    if batch.status is BatchStatus.COMPLETED:
        if not batch.failed:
            return "done", GOOD
        return ("done, some failed", WARN) if batch.completed else ("all failed", BAD)
    if batch.status is BatchStatus.FAILED:
        return "refused", BAD
    return (batch.status.value, BAD if batch.status is BatchStatus.EXPIRED else CALM)


def meter(batch: Batch) -> Meter:
    """Return how far a batch is."""
    if batch.in_progress_at is None or not batch.total:
        return Meter(0.0, 0.0, wording.NO_DATA, bar=False)
    done, total = _percent(batch.completed, batch.total), wording.count(batch.total)
    if batch.status in NEVER_RAN:
        return Meter(done, 0.0, f"{wording.count(batch.completed)} of {total} answered")
    failed = f", {wording.count(batch.failed)} failed" if batch.failed else ""
    words = f"{wording.count(batch.completed + batch.failed)} of {total}{failed}"
    return Meter(done, _percent(batch.failed, batch.total), words, bar=bool(not batch.ended or batch.failed))


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2)


def cells(batch: Batch, eta: Eta, now: datetime, zone: tzinfo) -> BatchCells:
    """Return the moving part of a batch's row."""
    word, tone = state(batch)
    risk, risk_tone = RISKS[eta.risk] if eta.risk and not batch.ended else ("", CALM)
    return BatchCells(
        dom=dom_id(batch),
        ended=batch.ended,
        state=word,
        tone=tone,
        meter=meter(batch),
        eta=short_eta(batch, eta, now, zone),
        deadline="" if batch.ended else wording.moment(batch.expires_at, now, zone),
        risk=risk,
        risk_tone=risk_tone,
    )


def short_eta(batch: Batch, eta: Eta, now: datetime, zone: tzinfo) -> str:
    """Return when a batch will be done, or was, as the list tells it."""
    if batch.ended:
        return f"ended {wording.moment(batch.ended_at, now, zone)}"
    if eta.state is EtaState.ESTIMATED:
        low, high = wording.moment(eta.low, now, zone), wording.moment(eta.high, now, zone)
        return low if low == high else f"{low}–{high}"
    return "paused" if eta.state is EtaState.PAUSED else "not known yet"


def sentence(batch: Batch, eta: Eta, now: datetime, zone: tzinfo) -> tuple[str, str]:
    """Return the first thing to know of a batch, and its tone."""
    if batch.ended:
        return _ended(batch, wording.moment(batch.ended_at, now, zone))
    if batch.status is BatchStatus.CANCELLING:
        return "Being cancelled: requests that run are ended.", WARN
    if batch.status is BatchStatus.VALIDATING:
        return "The file is being checked.", CALM
    if batch.pause is not None:
        reason = f": {batch.pause.reason}" if batch.pause.reason else ""
        return f"Paused by {batch.pause.by}{reason}.", WARN
    tone = RISKS[eta.risk][1] if eta.risk else CALM
    if eta.state is EtaState.ESTIMATED:
        low, high = wording.moment(eta.low, now, zone), wording.moment(eta.high, now, zone)
        told = f"Done about {low}" if low == high else f"Done between {low} and {high}"
        return f"{told} (9 in 10).", tone
    if eta.state is EtaState.PAUSED:
        return f"{wording.sentence_case(eta.waiting_for or 'paused')}.", WARN
    return "Not known yet when it will be done.", CALM


def _ended(batch: Batch, at: str) -> tuple[str, str]:
    done, failed, total = (wording.count(number) for number in (batch.completed, batch.failed, batch.total))
    if batch.status is BatchStatus.COMPLETED:
        if not batch.failed:
            return f"Done at {at}: {_requests(batch.total)} answered.", GOOD
        if not batch.completed:
            return f"Ended at {at}: every one of {_requests(batch.total)} failed. There is no output file.", BAD
        return f"Done at {at}: {done} of {total} requests answered, {failed} failed.", WARN
    if batch.status is BatchStatus.FAILED:
        return f"Refused at {at}: the file has mistakes. Nothing was run.", BAD
    answered = f"{done} of {total} requests were answered before" if batch.in_progress_at else "nothing had run"
    if batch.status is BatchStatus.EXPIRED:
        return f"Expired at {at}: {answered}; their results are kept.", BAD
    return f"Cancelled at {at}: {answered}.", CALM


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{wording.count(number)} requests"


def phases(batch: Batch) -> tuple[Phase, ...]:
    """Return the steps of a batch's life and where it stands."""
    started = batch.in_progress_at is not None
    begun = bool(batch.running or batch.completed or batch.failed)
    names = ["Checked" if started else "Checking", "Waiting", "Running", "Writing results", _last(batch)]
    if batch.ended:
        place = len(names)
        if not started:
            names = ["Checked", _last(batch)]
    elif batch.status is BatchStatus.VALIDATING:
        place = 0
    elif batch.status is BatchStatus.FINALIZING:
        place = 3
    else:
        place = 2 if begun else 1
        names[place] = "Paused" if batch.pause else names[place]
    steps = ["done" if index < place else "now" if index == place else "todo" for index in range(len(names))]
    return tuple(map(Phase, names, steps))


def _last(batch: Batch) -> str:
    return {
        BatchStatus.FAILED: "Refused",
        BatchStatus.EXPIRED: "Expired",
        BatchStatus.CANCELLED: "Cancelled",
        BatchStatus.CANCELLING: "Cancelled",
    }.get(batch.status, "Done")


def counts(batch: Batch) -> str:
    """Return what became of the requests of a batch so far, "" where the first sentence on it tells all."""
    if batch.ended or batch.in_progress_at is None:
        return ""
    waiting = max(0, batch.left - batch.running)
    told = {"answered": batch.completed, "failed": batch.failed, "running": batch.running, "waiting": waiting}
    return ", ".join(f"{wording.count(number)} {word}" for word, number in told.items()) + "."


def tokens(batch: Batch) -> str:
    """Return the tokens used so far."""
    used = batch.usage
    if not used.input_tokens and not used.output_tokens:
        return ""
    so_far = "" if batch.ended else " so far"
    return f"{wording.count(used.input_tokens)} prompt and {wording.count(used.output_tokens)} answer tokens{so_far}."


def score_words(score: Score) -> str:
    """Return how good past ETAs were, "" where none was scored."""
    if not score.n or score.held is None:
        return ""
    held = round(score.held * score.n)
    return f"Last {score.n} ETA{'s' if score.n > 1 else ''}: {held} fell in the range."


def kind_name(kind: ErrorKind) -> str:
    """Return an error's kind in words."""
    if kind.state in KINDS:
        return KINDS[kind.state]
    status = f"status {kind.status}" if kind.status else "no answer"
    plain = not kind.code or kind.code == f"http_{kind.status}"
    return status if plain else f"{kind.code} ({status})"


def headline(batch: Batch, kinds: Sequence[ErrorKind], example: str) -> str:
    """Return the commonest error in one line, "" where there is none."""
    if not kinds:
        return ""
    told = f": {example}" if example else ""
    share = f"{wording.count(kinds[0].count)} of {_requests(batch.total)}"
    return f"Commonest: {kind_name(kinds[0])}, {share}{told}"


def item_line(item: ItemRow) -> ItemLine:
    """Return one request as a line."""
    return ItemLine(
        custom_id=item.custom_id,
        state=item.state.value,
        tone=ITEM_TONES.get(item.state, CALM),
        status=str(item.status_code) if item.status_code else wording.NO_DATA,
        tries=item.attempts,
        took=wording.seconds(item.seconds) if item.seconds else wording.NO_DATA,
        error=item.error_code or "",
    )
