"""The Batches pages without a browser: what they say, what their forms do, who sees what."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from core.batch.output import answer_line
from core.batch.residuals import GivenEta
from core.batch.service import NewBatch
from core.batch.values import Batch, BatchPause, BatchStatus, Eta, EtaState, ItemEnd, ItemState, Risk
from core.lanes import Lane
from core.people.audit import AuditQuery
from core.people.identity import Identity, Role
from tests.web.pages import HOME, Site, Tags, fields, links, site, text
from web import batch_pages
from web import batch_words as words
from web.batch_live import joined
from web.gate import Gate
from web.live import Watched

pytestmark = pytest.mark.anyio

ENDPOINT = "/v1/chat/completions"
NOW = datetime(2026, 12, 9, 12, tzinfo=UTC)


def line(custom_id: str) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": {"model": "m", "messages": []}}


def jsonl(*lines: object) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


@pytest.fixture
async def pages(tmp_path: Path) -> AsyncIterator[Site]:
    """A system in which nothing runs but what a test runs itself."""
    async with site(tmp_path, floor=0, ceiling=0) as running:
        await running.runtime.worker.stop()
        yield running


async def made(pages: Site, name: str = "nightly", count: int = 3, **order: Any) -> Batch:
    """Create a batch and wait until it is checked."""
    data = order.pop("data", None) or jsonl(*(line(f"doc-{number}") for number in range(count)))
    tenant = order.get("tenant", "default")
    upload = pages.runtime.batches.upload()
    await upload.write(data)
    file = await upload.finish(tenant=tenant, filename="in.jsonl", expires_after=None)
    wanted = {"tenant": tenant, "endpoint": ENDPOINT, "completion_window": "24h", "name": name, **order}
    new = NewBatch(input_file_id=file.id, **wanted)
    batch = await pages.runtime.batches.create(new, dedupe=file.id, again=False)
    return await settled(pages, batch.id, BatchStatus.IN_PROGRESS, BatchStatus.FAILED)


async def settled(pages: Site, batch_id: str, *statuses: BatchStatus) -> Batch:
    async with asyncio.timeout(20):
        while (batch := await pages.runtime.store.batch(batch_id)).status not in statuses:
            await asyncio.sleep(0.01)
    return batch


async def run(pages: Site, batch: Batch, *states: ItemState, message: str = "no such model") -> Batch:
    """Run the next items as a worker would, and end the batch if none is left."""
    store, files = pages.runtime.store, pages.runtime.files
    now, lease = pages.runtime.clock.now(), timedelta(seconds=60)
    items = await store.claim(batch.id, owner="w", now=now, lease=lease, limit=len(states))
    ends, sizes = [], {True: batch.output_size, False: batch.error_size}
    for item, state in zip(items, states, strict=True):
        good = state is ItemState.SUCCEEDED
        body = {"choices": []} if good else {"error": {"message": message, "code": "bad"}}
        status = 200 if good else 400
        written = answer_line(batch.id, item.index, item.custom_id, status=status, body=json.dumps(body).encode())
        offset = await files.append(batch.output_file if good else batch.error_file, written)
        sizes[good] = offset + len(written)
        code = None if good else "http_400"
        ends.append(ItemEnd(batch.id, item.index, state, offset, len(written), status, 3, 0, 4, error_code=code))
    await store.finish(ends, owner="w", sizes={batch.id: (sizes[True], sizes[False])})
    return await pages.runtime.closer.settle(batch.id)


GOOD, FAILED = ItemState.SUCCEEDED, ItemState.FAILED


@contextmanager
def asking(role: Role, tenant: str = "other") -> Iterator[None]:
    """Let all requests come from somebody who has signed in."""
    who = Identity(tenant, Lane.BATCH, frozenset(Lane), role=role, account="anna")

    async def identify(self: Gate, scope: object) -> Identity:
        return who

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "known", lambda self, scope: None)
        patch.setattr(Gate, "identify", identify)
        yield


# The list


async def test_an_empty_list_says_what_to_do(pages: Site) -> None:
    html = await pages.get("/batches")
    assert "No batches yet." in text(html)
    assert "/batches/new" in links(html)
    assert "No batch fits" in text(await pages.get("/batches?q=nothing"))


async def test_the_list_shows_states_counts_deadline_and_why_no_eta(pages: Site) -> None:
    batch = await made(pages, count=4)
    await run(pages, batch, GOOD, FAILED)
    told = text(await pages.get("/batches"), words.dom_id(batch))
    assert "waiting" in told
    assert "2 of 4, 1 failed" in told
    assert "ETA: paused" in told
    assert "Deadline: " in told
    assert "1 waiting; 2 requests to go." in text(await pages.get("/batches"), "live")


async def test_filters_live_in_the_address(pages: Site) -> None:
    first = await made(pages, "alpha")
    second = await made(pages, "beta", tenant="search")
    done = await run(pages, await made(pages, "gamma", 1), GOOD)
    await pages.runtime.batches.pause(second.id, tenant=None, by="anna", reason="")
    wanted: dict[str, list[Batch]] = {
        "": [first, second, done],
        "show=active": [first, second],
        "show=paused": [second],
        "show=waiting": [first],
        "show=running": [],
        "show=at_risk": [],
        "show=done": [done],
        "show=failed": [],
        "q=BET": [second],
        "team=search": [second],
        "team=search&show=done": [],
        f"q={first.id[6:20]}": [first],
        "show=active&q=alp": [first],
        "show=nonsense": [first, second, done],
    }
    for query, batches in wanted.items():
        hrefs = {f"/batches/{batch.id}" for batch in batches}
        html = await pages.get(f"/batches?{query}")
        shown = {href for href in links(html) if href.startswith("/batches/batch_")}
        assert shown == hrefs, query


@pytest.mark.parametrize("show", ["", "active"])
async def test_older_batches_are_one_link_away(pages: Site, monkeypatch: pytest.MonkeyPatch, show: str) -> None:
    monkeypatch.setattr(batch_pages, "PAGE", 2)
    made_ = [await made(pages, f"n{number}") for number in range(3)]
    html = await pages.get(f"/batches?show={show}")
    older = next(href for href in links(html) if "after=" in href)
    assert f"/batches/{made_[0].id}" not in links(html)
    html = await pages.get(older)
    assert f"/batches/{made_[0].id}" in links(html)
    assert not any("after=" in href for href in links(html))
    await pages.get("/batches?after=batch_0", 404)


async def test_partial_failure_is_amber_and_total_failure_red(pages: Site) -> None:
    """BerriAI/litellm PR #39626: a batch with failures that looks like success."""
    some = await run(pages, await made(pages, "some", 2), GOOD, FAILED)
    none = await run(pages, await made(pages, "none", 2), FAILED, FAILED)
    fine = await run(pages, await made(pages, "fine", 1), GOOD)
    html = await pages.get("/batches")
    for batch, tone in ((some, "t-warn"), (none, "t-bad"), (fine, "t-good")):
        classes = {given.get("class", "") for tag, given in Tags(html, words.dom_id(batch)).tags if tag == "p"}
        assert tone in classes


# One batch


async def test_a_batch_of_which_all_lines_failed_shows_the_commonest_error(pages: Site) -> None:
    """R58 ProjectTech4DevAI/kaapi-backend#723."""
    batch = await run(pages, await made(pages, "eval-07"), FAILED, FAILED, FAILED)
    html = await pages.get(f"/batches/{batch.id}")
    assert "every one of 3 requests failed. There is no output file." in text(html, "live")
    assert "Output file none" in text(html, "live")
    assert "Commonest: status 400, 3 of 3 requests: no such model" in text(html, "batch-errors")
    assert f"/batches/{batch.id}/files/errors" in links(html)


async def test_a_refused_file_is_told_line_by_line(pages: Site) -> None:
    """R54, as a person sees it."""
    batch = await made(pages, data=jsonl(line("a"), line("b"), line("a")))
    html = await pages.get(f"/batches/{batch.id}")
    assert "Refused at" in text(html, "live")
    assert "Line 3: " in text(html, "batch-errors")
    assert "duplicate_custom_id" in text(html, "batch-errors")
    assert "Pause" not in text(html)


async def test_an_open_batch_tells_progress_phase_deadline_and_why_it_waits(pages: Site) -> None:
    batch = await run(pages, await made(pages, count=5), GOOD, FAILED)
    told = text(await pages.get(f"/batches/{batch.id}"), "live")
    for part in (
        "2 of 5, 1 failed",
        "1 answered, 1 failed, 0 running, 3 waiting.",
        "Deadline ",
        "leaves batch no slot",
    ):
        assert part in told, part
    html = await pages.get(f"/batches/{batch.id}")
    assert [given for tag, given in Tags(html, "live").tags if given.get("aria-current") == "step"]


async def test_requests_are_paged_and_searched(pages: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_pages, "ITEMS_PAGE", 2)
    batch = await run(pages, await made(pages, count=5), GOOD, FAILED)
    path = f"/batches/{batch.id}"
    html = await pages.get(path)
    more = next(href for href in links(html) if "after=1" in href)
    assert "doc-1" in text(html)
    assert "doc-2" not in text(html)
    assert "doc-2" in text(await pages.get(more))
    found = text(await pages.get(f"{path}?q=OC-4"))
    assert "doc-4" in found
    assert "doc-0" not in found
    assert "doc-0" not in text(await pages.get(f"{path}?state=failed"))
    assert "doc-1" in text(await pages.get(f"{path}?state=failed&code=http_400"))
    assert "No request fits" in text(await pages.get(f"{path}?q=%25"))
    await pages.get(f"{path}?after=99999999999999999999&state=nope")


async def test_files_are_downloaded_as_they_are(pages: Site) -> None:
    batch = await made(pages, "a/b", 2)
    path = f"/batches/{batch.id}/files"
    answer = await pages.client.get(f"{path}/input")
    assert len(answer.text.splitlines()) == 2
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''a-b-input.jsonl"
    for kind in ("output", "errors", "nothing"):
        await pages.get(f"{path}/{kind}", 404)
    batch = await run(pages, batch, GOOD, FAILED)
    assert json.loads((await pages.client.get(f"{path}/output")).text)["custom_id"] == "doc-0"
    assert json.loads((await pages.client.get(f"{path}/errors")).text)["custom_id"] == "doc-1"
    await pages.runtime.batches.delete_file(batch.output_file, tenant=None)
    await pages.get(f"{path}/output", 404)
    assert "Output file deleted" in text(await pages.get(f"/batches/{batch.id}"), "live")


async def test_names_and_texts_from_outside_are_escaped(pages: Site) -> None:
    evil = "<script>alert(1)</script>"
    batch = await made(pages, evil, data=jsonl(line(evil)), metadata={"owner": evil})
    await run(pages, batch, FAILED, message=evil)
    for path in ("/batches", f"/batches/{batch.id}", f"/batches/confirm?action=retry-failed&id={batch.id}"):
        html = await pages.get(path)
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert" in html


async def test_there_is_no_page_of_a_batch_that_is_not(pages: Site) -> None:
    for path in ("/batches/batch_0", "/batches/batch_0/files/input", "/batches/confirm?action=explode"):
        await pages.get(path, 404)


# Live parts


async def test_each_tick_sends_the_rows_that_are_shown_and_open(pages: Site) -> None:
    open_, other = await made(pages, "open"), await made(pages, "other")
    done = await run(pages, await made(pages, "done", 1), GOOD)
    watched = Watched("batches", of=joined([open_, done]))
    fast, whole = [await pages.ui.parts.fragment(watched, each) for each in (False, True)]
    assert words.dom_id(open_) in fast
    assert words.dom_id(done) not in fast
    assert words.dom_id(done) in whole
    assert words.dom_id(other) not in whole


async def test_live_parts_hold_nothing_that_changes_anything(pages: Site) -> None:
    batch = await run(pages, await made(pages, count=2), GOOD)
    for watched in (Watched("batches", of=joined([batch])), Watched("batch", of=batch.id)):
        tags = {tag for tag, _ in Tags(await pages.ui.parts.fragment(watched, True)).tags}
        assert not tags & {"button", "form", "input", "select"}


async def test_the_stream_of_another_teams_batch_stays_empty(pages: Site) -> None:
    batch = await made(pages)
    assert await pages.ui.parts.fragment(Watched("batch", of=batch.id, tenant="other"), True) == ""
    assert await pages.ui.parts.fragment(Watched("batch", of="batch_0"), True) == ""
    shown = await pages.ui.parts.fragment(Watched("batches", of=joined([batch]), tenant="other"), True)
    assert words.dom_id(batch) not in shown
    with asking(Role.MEMBER):
        answer = await pages.client.get(f"/ui/live?page=batch&of={batch.id}")
    assert answer.text == ""
    assert "nightly" not in answer.text


# Changes


async def changed(pages: Site, action: str, *batches: Batch, **values: Any) -> httpx2.Response:
    data = {"action": action, "id": [batch.id for batch in batches], "back": "/batches", **values}
    return await pages.post("/ui/batches/change", data)


async def test_the_question_names_verb_and_batches_and_its_form_does_it(pages: Site) -> None:
    batch = await made(pages, "recap", 5)
    html = await pages.get(f"/batches/confirm?action=cancel&id={batch.id}&back=/batches/{batch.id}")
    assert "Cancel recap?" in text(html)
    assert "Cancel recap (5 left)" in text(html)
    form = await pages.form(f"/batches/confirm?action=cancel&id={batch.id}&back=/batches/{batch.id}", "change-form")
    answer = await pages.post("/ui/batches/change", form)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(f"/batches/{batch.id}?done=")
    assert "recap cancelled." in text(await pages.get(answer.headers["location"]))
    await settled(pages, batch.id, BatchStatus.CANCELLED)
    assert "Cancelled at" in text(await pages.get(f"/batches/{batch.id}"), "live")


async def test_pause_asks_for_a_reason_and_resume_lets_it_go_on(pages: Site) -> None:
    batch = await made(pages, "recap")
    answer = await changed(pages, "pause", batch)
    assert answer.status_code == 422
    assert "Give a reason" in text(answer.text)
    assert (await changed(pages, "pause", batch, reason="the prompt is wrong")).status_code == 303
    html = await pages.get(f"/batches/{batch.id}")
    assert "Paused by operator: the prompt is wrong." in text(html, "live")
    assert "Resume" in text(html)
    assert (await changed(pages, "resume", batch)).status_code == 303
    assert (await pages.runtime.store.batch(batch.id)).pause is None


async def test_priority_must_be_a_number_within_bounds(pages: Site) -> None:
    batch = await made(pages)
    for wrong in ("", "high", "101", "1e1"):
        assert (await changed(pages, "priority", batch, priority=wrong)).status_code == 422
    assert (await changed(pages, "priority", batch, priority="-7")).status_code == 303
    assert (await pages.runtime.store.batch(batch.id)).priority == -7
    assert "priority -7" in text(await pages.get("/batches"))


async def test_failed_requests_are_tried_again(pages: Site) -> None:
    batch = await run(pages, await made(pages, count=2), GOOD, FAILED)
    hrefs = links(await pages.get(f"/batches/{batch.id}"))
    href = next(href for href in hrefs if "retry-failed" in href)
    form = await pages.form(href, "change-form")
    assert (await pages.post("/ui/batches/change", form)).status_code == 303
    assert (await pages.runtime.store.batch(batch.id)).status is BatchStatus.IN_PROGRESS


async def test_several_are_changed_at_once_and_those_that_cannot_are_named(pages: Site) -> None:
    first, second = await made(pages, "one"), await made(pages, "two")
    done = await run(pages, await made(pages, "three", 1), GOOD)
    ids = "&".join(f"id={batch.id}" for batch in (first, second, done))
    told = text(await pages.get(f"/batches/confirm?action=pause&{ids}"))
    assert "Pause 2 batches?" in told
    assert "three : it is done" in told or "three: it is done" in told
    answer = await changed(pages, "pause", first, second, done, reason="x")
    told = text(await pages.get(answer.headers["location"]))
    assert "2 batches paused;" in told
    assert "was not:" in told


async def test_nothing_chosen_and_unknown_verbs_are_told(pages: Site) -> None:
    batch = await run(pages, await made(pages, "x", 1), GOOD)
    assert "No batch was chosen" in text(await pages.get("/batches/confirm?action=pause", 422))
    assert "None of them" in text(await pages.get(f"/batches/confirm?action=pause&id={batch.id}", 422))
    assert (await changed(pages, "pause", reason="x")).status_code == 422
    assert (await changed(pages, "explode", batch)).status_code == 404


async def undone(pages: Site, answer: httpx2.Response) -> httpx2.Response:
    """Press Undo on the page that follows a change."""
    form = fields(await pages.get(answer.headers["location"]), "/ui/batches/undo")
    return await pages.post("/ui/batches/undo", form)


async def test_pause_resume_and_priority_are_undone_as_new_changes(pages: Site) -> None:
    batch = await made(pages)

    async def now() -> tuple[bool, int]:
        found = await pages.runtime.store.batch(batch.id)
        return found.pause is not None, found.priority

    await undone(pages, await changed(pages, "pause", batch, reason="costs"))
    assert await now() == (False, 0)
    await undone(pages, await changed(pages, "priority", batch, priority="9"))
    assert await now() == (False, 0)
    await changed(pages, "pause", batch, reason="costs")
    await undone(pages, await changed(pages, "resume", batch))
    assert await now() == (True, 0)
    told = [record.entry for record in await pages.runtime.audit.audit(AuditQuery(action="batch"))]
    assert [(entry.action, entry.reason) for entry in told][:-1] == [
        ("batch.pause", "undo"),
        ("batch.resume", ""),
        ("batch.pause", "costs"),
        ("batch.priority", "undo"),
        ("batch.priority", ""),
        ("batch.resume", "undo: costs"),
        ("batch.pause", "costs"),
    ]


async def test_an_undo_leaves_alone_what_somebody_else_changed_since_and_puts_back_the_rest(pages: Site) -> None:
    first, second = await made(pages, "one"), await made(pages, "two")
    answer = await changed(pages, "priority", first, second, priority="9")
    await pages.runtime.batches.prioritise(first.id, 3, tenant=None)
    refused = await undone(pages, answer)
    assert refused.status_code == 409
    assert "one: somebody changed the same since." in text(refused.text)
    assert "two:" not in text(refused.text)
    found = [(await pages.runtime.store.batch(batch.id)).priority for batch in (first, second)]
    assert found == [3, 0]


async def test_what_cannot_be_undone_offers_no_undo_and_each_undo_needs_its_role_and_team(pages: Site) -> None:
    batch = await made(pages)
    cancelled = await changed(pages, "cancel", await made(pages, "other"))
    assert "Undo" not in text(await pages.get(cancelled.headers["location"]))
    answer = await changed(pages, "pause", batch, reason="costs")
    token = fields(await pages.get(answer.headers["location"]), "/ui/batches/undo")
    assert (await pages.post("/ui/undo", token)).status_code == 410
    with asking(Role.VIEWER, tenant="default"):
        assert "Undo" not in text(await pages.get(answer.headers["location"]))
        assert (await pages.post("/ui/batches/undo", token)).status_code == 403
    tuned = await pages.tune(ceiling="3")
    pool_token = fields(tuned, "/ui/undo")
    with asking(Role.MEMBER, tenant="default"):
        assert (await pages.post("/ui/batches/undo", pool_token)).status_code == 410
        assert (await pages.post("/ui/undo", pool_token)).status_code == 403
        assert (await pages.post("/ui/batches/undo", token)).status_code == 303
        assert (await pages.post("/ui/batches/undo", token)).status_code == 410
    second = await changed(pages, "pause", batch, reason="costs")
    token = fields(await pages.get(second.headers["location"]), "/ui/batches/undo")
    with asking(Role.MEMBER, tenant="other"):
        assert (await pages.post("/ui/batches/undo", token)).status_code == 409
    assert (await pages.runtime.store.batch(batch.id)).pause is not None


async def test_where_policy_asks_for_a_reason_every_form_has_its_field(tmp_path: Path) -> None:
    async with site(tmp_path, floor=0, ceiling=0, require_reason=True) as strict:
        refused = await upload(strict, jsonl(line("a")))
        assert (refused.status_code, bool(text(refused.text, "reason-problem"))) == (422, True)
        assert await strict.runtime.store.files(tenant=None, purpose=None, after=None, limit=1, ascending=True) == []
        answer = await upload(strict, jsonl(line("a")), reason="nightly run")
        batch = await settled(strict, answer.headers["location"].rpartition("/")[2], BatchStatus.IN_PROGRESS)
        for action in ("priority", "pause", "resume", "cancel"):
            page = await strict.get(f"/batches/confirm?action={action}&id={batch.id}")
            form = fields(page, "change-form") | {"priority": "3"}
            assert "because" in text(page)
            refused = await strict.post("/ui/batches/change", form)
            assert (refused.status_code, bool(text(refused.text, "reason-problem"))) == (422, True)
            assert (await strict.post("/ui/batches/change", form | {"reason": action})).status_code == 303
        told = [record.entry.reason for record in await strict.runtime.audit.audit(AuditQuery())]
        assert told == ["cancel", "resume", "pause", "priority", "nightly run", "nightly run"]


async def test_no_form_leads_to_another_site(pages: Site) -> None:
    batch = await made(pages)
    answer = await changed(pages, "resume", batch, back="https://evil.example/")
    assert answer.headers["location"].startswith("/batches?done=")


# Upload


async def upload(pages: Site, data: bytes, **values: str) -> httpx2.Response:
    files = {"file": ("night.jsonl", data, "application/jsonl")}
    fields = {"name": "", "endpoint": "", "window": "24h", "priority": "0", **values}
    return await pages.client.post("/ui/batches", data=fields, files=files, headers={"origin": HOME})


async def test_the_form_uploads_a_file_and_starts_a_batch(pages: Site) -> None:
    form = await pages.form("/batches/new", "new-form")
    assert form["window"] == "24h"
    answer = await upload(pages, jsonl(line("a"), line("b")), window="3d", priority="5")
    assert answer.status_code == 303
    batch = await settled(pages, answer.headers["location"].rpartition("/")[2], BatchStatus.IN_PROGRESS)
    assert (batch.name, batch.endpoint, batch.window, batch.priority) == ("night", ENDPOINT, timedelta(days=3), 5)
    assert batch.tenant == "default"


@pytest.mark.parametrize(
    ("data", "values", "status", "problem"),
    [
        (b"", {}, 422, "Choose a file that is not empty."),
        (b"{}\n", {}, 422, "names no url"),
        (b'{"url": "/v1/unknown"}\n', {}, 422, "names no url"),
        (jsonl(line("a")), {"window": "99d"}, 422, "Must be from"),
        (jsonl(line("a")), {"priority": "high"}, 422, "whole number"),
        (jsonl(line("a")), {"endpoint": "/v1/unknown"}, 422, "names no url"),
        (b"x" * 1500, {}, 413, "larger than"),
        (b"x" * 300_000, {}, 413, "larger than"),
    ],
)
async def test_a_form_with_a_mistake_comes_back_as_typed(
    tmp_path: Path, data: bytes, values: dict[str, str], status: int, problem: str
) -> None:
    async with site(tmp_path, batch_file_bytes=1024) as pages:
        answer = await upload(pages, data, name="kept", **values)
        assert answer.status_code == status
        assert problem in text(answer.text)
        assert await pages.runtime.store.batches(tenant=None, after=None, limit=1) == []
        assert await pages.runtime.store.files(tenant=None, purpose=None, after=None, limit=1, ascending=True) == []
        if status == 422:
            assert 'value="kept"' in answer.text


async def test_what_is_no_form_is_refused(pages: Site) -> None:
    answer = await pages.post("/ui/batches", {"name": "x"})
    assert answer.status_code == 400


# Who sees what


async def test_a_team_sees_and_changes_only_its_own(pages: Site) -> None:
    batch = await made(pages, "secret-plan")
    with asking(Role.MEMBER):
        assert "secret-plan" not in await pages.get("/batches")
        assert "secret-plan" not in await pages.get("/batches?team=default")
        for path in ("", "/files/input"):
            await pages.get(f"/batches/{batch.id}{path}", 404)
        assert "secret-plan" not in await pages.get(f"/batches/confirm?action=cancel&id={batch.id}", 422)
        await changed(pages, "cancel", batch)
    assert (await pages.runtime.store.batch(batch.id)).status is BatchStatus.IN_PROGRESS
    with asking(Role.OPERATOR):
        assert "secret-plan" in await pages.get("/batches")


async def test_who_may_only_look_gets_no_buttons(pages: Site) -> None:
    batch = await made(pages)
    with asking(Role.VIEWER, tenant="default"):
        for path in ("/batches", f"/batches/{batch.id}"):
            html = await pages.get(path)
            assert not any("confirm" in href or "new" in href for href in links(html))
            assert 'type="checkbox"' not in html


async def test_changes_carry_the_name_of_who_made_them(pages: Site) -> None:
    batch = await made(pages)
    with asking(Role.MEMBER, tenant="default"):
        await changed(pages, "pause", batch, reason="x")
    pause = (await pages.runtime.store.batch(batch.id)).pause
    assert pause is not None
    assert pause.by == "anna"


# Past ETAs


def given(number: int, *, held: bool, tenant: str = "default") -> GivenEta:
    at = NOW + timedelta(hours=number)
    hour = timedelta(hours=1)
    end = at + (hour if held else 5 * hour)
    return GivenEta(
        f"batch_{number}", tenant, "default", at, at, at + hour, at + 2 * hour, 1, 1, 1, first=True, ended_at=end
    )


async def test_past_etas_are_scored_in_plain_words(pages: Site) -> None:
    assert "No ETA was scored yet" in text(await pages.get("/eta"))
    learned = pages.runtime.forecaster.learned
    learned.scored.extend(given(number, held=number > 2) for number in range(20))
    learned.scored.append(given(30, held=True, tenant="search"))
    html = await pages.get("/eta")
    assert "team search" in text(html)
    assert text(html).count("missed") == 3
    with asking(Role.MEMBER, tenant="default"):
        told = text(await pages.get("/eta"))
        assert "Last 20 ETAs: 17 fell in the range." in told
        assert "search" not in told
        assert "Last 20 ETAs: 17 fell in the range." in text(await pages.get("/batches"), "live")


# Words


def batch_with(status: BatchStatus, **changes: Any) -> Batch:
    stamps = {} if status is BatchStatus.VALIDATING else {f"{status}_at": NOW}
    if status is not BatchStatus.FAILED and status is not BatchStatus.VALIDATING:
        stamps["in_progress_at"] = NOW
    return Batch(
        id="batch_1", tenant="t", key=None, pool="p", model="m", endpoint=ENDPOINT, input_file_id="f",
        window=timedelta(hours=24), created_at=NOW, status=status, **{"total": 4, **stamps, **changes},
    )  # fmt: skip


def estimate(**changes: Any) -> Eta:
    low, high = NOW + timedelta(hours=1), NOW + timedelta(hours=2)
    return Eta(**{"state": EtaState.ESTIMATED, "as_of": NOW, "low": low, "mid": low, "high": high, **changes})


PAUSE = BatchPause("anna", "x", NOW)


@pytest.mark.parametrize(
    ("batch", "eta", "words_", "tone"),
    [
        (batch_with(BatchStatus.IN_PROGRESS), estimate(), "Done between 13:00 and 14:00 (9 in 10).", "calm"),
        (batch_with(BatchStatus.IN_PROGRESS), estimate(high=NOW + timedelta(hours=1)), "Done about 13:00", "calm"),
        (batch_with(BatchStatus.IN_PROGRESS), estimate(risk=Risk.WILL_MISS), "Done between", "bad"),
        (batch_with(BatchStatus.IN_PROGRESS, pause=PAUSE), estimate(), "Paused by anna: x.", "warn"),
        (batch_with(BatchStatus.IN_PROGRESS), Eta(EtaState.LEARNING, NOW), "Not known yet", "calm"),
        (batch_with(BatchStatus.VALIDATING), Eta(EtaState.LEARNING, NOW), "The file is being checked.", "calm"),
        (batch_with(BatchStatus.CANCELLING), Eta(EtaState.LEARNING, NOW), "Being cancelled", "warn"),
        (batch_with(BatchStatus.COMPLETED, completed=4), Eta(EtaState.DONE, NOW), "4 requests answered.", "good"),
        (batch_with(BatchStatus.COMPLETED, completed=3, failed=1), Eta(EtaState.DONE, NOW), "1 failed.", "warn"),
        (batch_with(BatchStatus.COMPLETED, failed=4), Eta(EtaState.DONE, NOW), "There is no output file.", "bad"),
        (batch_with(BatchStatus.EXPIRED, completed=1, failed=3), Eta(EtaState.DONE, NOW), "1 of 4 requests", "bad"),
        (batch_with(BatchStatus.CANCELLED, failed=4), Eta(EtaState.DONE, NOW), "0 of 4 requests", "calm"),
        (batch_with(BatchStatus.FAILED), Eta(EtaState.DONE, NOW), "Refused at 12:00", "bad"),
    ],
)
def test_the_first_sentence_and_its_tone(batch: Batch, eta: Eta, words_: str, tone: str) -> None:
    told, found = words.sentence(batch, eta, NOW, UTC)
    assert words_ in told
    assert found == tone


@pytest.mark.parametrize("status", list(BatchStatus))
def test_every_status_has_a_word_phases_and_cells(status: BatchStatus) -> None:
    batch = batch_with(status)
    phases = words.phases(batch)
    assert [phase.state for phase in phases].count("now") == (0 if batch.ended else 1)
    assert words.cells(batch, Eta(EtaState.LEARNING, NOW), NOW, UTC).state
    assert words.state(batch)[1] in ("good", "warn", "bad", "calm")
