"""The parts of the Batches pages that change by themselves, and what the pages' first answer has of them."""

from collections.abc import Sequence
from datetime import datetime, tzinfo
from urllib.parse import urlencode

import msgspec

from core import wording
from core.batch.eta import DeadlineRisk
from core.batch.queries import state_of
from core.batch.residuals import Score, Scores
from core.batch.values import Batch
from core.batch.views import ErrorKind
from core.control.wallclock import zone as zone_named
from core.errors import NotFound
from core.runtime import Runtime
from web import batch_words as words
from web.batch_contexts import BatchCells, BatchesLive, BatchKinds, BatchLive, FileLink, KindRow
from web.contexts import Context

MOST_KINDS = 12
MOST_MISTAKES = 50
LONGEST_EXAMPLE = 300
PREFIX = "batch_"


class BatchParts:
    """Reads batches of a running system as pages show them. `tenant` None is somebody who sees all."""

    def __init__(self, *, runtime: Runtime) -> None:
        self._runtime = runtime
        self._kinds: dict[tuple[str, int, int], BatchKinds] = {}

    async def parts(self, page: str, of: str, tenant: str | None, whole: bool) -> list[tuple[str, Context]]:
        """Return what is sent at one tick to who watches the list, or one batch; nothing of what is gone."""
        if page == "batch":
            return await self._batch_parts(of, tenant, whole)
        live: list[tuple[str, Context]] = [("#live", await self.strip(tenant))]
        rows = await self._runtime.store.named_batches(ids_of(of), tenant=tenant)
        shown = [batch for batch in rows if whole or not batch.ended]
        return [*live, *((f"#{cells.dom}", cells) for cells in await self.cells(shown))]

    async def _batch_parts(self, batch_id: str, tenant: str | None, whole: bool) -> list[tuple[str, Context]]:
        try:
            batch = await self._runtime.store.batch(batch_id, tenant=tenant)
        except NotFound:
            return []
        live: list[tuple[str, Context]] = [("#live", await self.batch(batch))]
        return [*live, ("#batch-errors", await self.errors(batch))] if whole else live

    @property
    def _now(self) -> datetime:
        return self._runtime.clock.now()

    @property
    def _zone(self) -> tzinfo:
        return zone_named(self._runtime.schedule.zone)

    async def cells(self, batches: Sequence[Batch]) -> list[BatchCells]:
        """Return the moving part of each row."""
        eta_of = self._runtime.batch_queries.eta_of
        return [words.cells(batch, await eta_of(batch), self._now, self._zone) for batch in batches]

    async def strip(self, tenant: str | None) -> BatchesLive:
        """Return how much there is to do."""
        active = [b for b in await self._runtime.store.active() if tenant in (None, b.tenant)]
        return BatchesLive(
            as_of=wording.clock(self._now, self._zone),
            summary=_summary(active),
            slots="; ".join(self._slots(name) for name in self._runtime.pools) + ".",
            score=words.score_words(self.score(tenant)),
        )

    def _slots(self, name: str) -> str:
        pool = self._runtime.pools[name]
        where = f" of pool {name}" if len(self._runtime.pools) > 1 else ""
        return f"batch holds {pool.counts.batch} of the {pool.dispatcher.quota()} slots it may use{where}"

    def scores(self) -> Scores:
        """Return how good past ETAs were."""
        return self._runtime.forecaster.score()

    def score(self, tenant: str | None) -> Score:
        """Return how good the ETAs of one team, or of all, were, as given when their batches began."""
        found = self.scores()
        return found.at_submission if tenant is None else found.tenants.get(tenant, Score(0, None, None))

    async def batch(self, batch: Batch) -> BatchLive:
        """Return the moving part of a batch's page."""
        told = (await self._runtime.batch_queries.json([batch]))[0]["tidegate"]
        eta, now, zone = await self._runtime.batch_queries.eta_of(batch), self._now, self._zone
        title, tone = words.sentence(batch, eta, now, zone)
        waits = told["waiting_for"] or ""
        risk = None if batch.ended else self._runtime.forecaster.risk(batch)
        return BatchLive(
            as_of=wording.clock(now, zone),
            version=batch.version,
            title=title,
            tone=tone,
            deadline=self._deadline(batch, risk),
            tuning=f"/?{urlencode({'pool': batch.pool})}#tuning" if risk and risk.quota is not None else "",
            basis="" if batch.ended or batch.pause else eta.basis,
            why="Why not faster" if batch.running else "Why it waits",
            waits="" if batch.pause or waits.casefold() in title.casefold() else f"{wording.sentence_case(waits)}.",
            phases=words.phases(batch),
            meter=words.meter(batch),
            counts=words.counts(batch),
            now=self._running(batch, told["position"]),
            tokens=words.tokens(batch),
            files=await self._files(batch),
            score=words.score_words(self.score(batch.tenant)),
        )

    def _deadline(self, batch: Batch, risk: DeadlineRisk | None) -> str:
        if batch.ended:
            return ""
        return risk.sentence if risk else f"Deadline {wording.moment(batch.expires_at, self._now, self._zone)}."

    def _running(self, batch: Batch, place: int | None) -> str:
        pool = self._runtime.pools.get(batch.pool)
        if batch.ended or pool is None or batch.in_progress_at is None:
            return ""
        quota = pool.dispatcher.quota()
        allowed = f"batch may use {quota} in {batch.pool}"
        settling = ", what runs above that is left to finish" if batch.running > quota else ""
        now = f"Now: {wording.slots(batch.running)}; {allowed}{settling}."
        return f"{now} Place {place} in line." if place and not batch.pause else now

    async def _files(self, batch: Batch) -> tuple[FileLink, ...]:
        ids = {"input": batch.input_file_id, "output": batch.output_file_id, "errors": batch.error_file_id}
        return tuple([await self._file(batch, kind, file_id) for kind, file_id in ids.items()])

    async def _file(self, batch: Batch, kind: str, file_id: str | None) -> FileLink:
        if kind != "input" and not batch.ended:
            return FileLink(kind, "", "at the end")
        if not file_id:
            return FileLink(kind, "", "none")
        try:
            file = await self._runtime.store.file(file_id, tenant=None)
        except NotFound:
            return FileLink(kind, "", "deleted")
        return FileLink(kind, f"/batches/{batch.id}/files/{kind}", _bytes(file.bytes))

    async def errors(self, batch: Batch) -> BatchKinds:
        """Return a batch's errors by kind. Counting goes through its items, so it is kept until another one fails."""
        key = batch.id, batch.failed, batch.version
        if key not in self._kinds:
            if len(self._kinds) >= 64:
                self._kinds.clear()
            self._kinds[key] = await self._errors(batch)
        return self._kinds[key]

    async def _errors(self, batch: Batch) -> BatchKinds:
        found = await self._runtime.store.error_kinds(batch.id, limit=MOST_KINDS) if batch.failed else []
        examples = [await self._example(batch, kind) for kind in found]
        rows = tuple(_kind_row(batch, kind, example) for kind, example in zip(found, examples, strict=True))
        mistakes = tuple(
            f"{f'Line {error.line}: ' if error.line else ''}{error.message} ({error.code})"
            for error in batch.errors[:MOST_MISTAKES]
        )
        return BatchKinds(words.headline(batch, found, examples[0] if examples else ""), rows, mistakes)

    async def _example(self, batch: Batch, kind: ErrorKind) -> str:
        """Return what the first error of a kind says, "" where it says nothing or is gone."""
        items = await self._runtime.store.items(batch.id, after=kind.first - 1, limit=1)
        if not items or not items[0].length:
            return ""
        try:
            line = await self._runtime.files.read(batch.error_file, items[0].offset, items[0].length)
            return _message(msgspec.json.decode(line))
        except (NotFound, msgspec.DecodeError, UnicodeDecodeError):
            return ""


def ids_of(of: str) -> list[str]:
    """Return the batches that who watches the list shows; `joined` of them."""
    return [PREFIX + part for part in of.split(".") if part]


def joined(batches: Sequence[Batch]) -> str:
    """Return the batches of a list as one word for an address."""
    return ".".join(batch.id.removeprefix(PREFIX) for batch in batches)


def _summary(active: Sequence[Batch]) -> str:
    if not active:
        return "Nothing to do."
    states = [state_of(batch) for batch in active]
    counted = [(states.count(name), word) for name, (word, _) in words.OPEN_STATES.items()]
    told = ", ".join(f"{number} {word}" for number, word in counted if number)
    left = sum(batch.left for batch in active if batch.in_progress_at)
    return f"{wording.sentence_case(told)}; {wording.count(left)} requests to go."


def _kind_row(batch: Batch, kind: ErrorKind, example: str) -> KindRow:
    query = {"state": kind.state.value, **({"code": kind.code} if kind.code else {})}
    href = f"/batches/{batch.id}?{urlencode(query)}#requests"
    return KindRow(wording.sentence_case(words.kind_name(kind)), wording.count(kind.count), example, href)


def _message(line: object) -> str:
    """Return the message in a line of an error file, whichever part has one."""
    found = line.get("error") if isinstance(line, dict) else None
    if found is None and isinstance(line, dict):
        body = (line.get("response") or {}).get("body")
        found = body.get("error", body.get("message")) if isinstance(body, dict) else body
    message = found.get("message") if isinstance(found, dict) else found
    text = " ".join(message.split()) if isinstance(message, str) else ""
    return text if len(text) <= LONGEST_EXAMPLE else f"{text[:LONGEST_EXAMPLE]}…"


def _bytes(size: int) -> str:
    for unit, least in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= least:
            return f"{size / least:.1f} {unit}"
    return f"{size} bytes"
