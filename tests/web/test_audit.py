from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.batch.service import NewBatch
from core.call_record import CallRecord
from core.control.decisions import Decision
from core.operations import PoolPatch
from core.people.audit import AuditEntry, AuditQuery
from tests.web.pages import Site, fields, links, site, text

pytestmark = pytest.mark.anyio

CALL = CallRecord(
    datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp(), "req_1", "search", "chat", "default", "m", "interactive", "",
    "success", 200, 1.5, 120.0, 2500.0, 7, 1200, estimated=True,
)  # fmt: skip


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as running:
        yield running


async def change(here: Site, **fields: object) -> int:
    """Change the pool; return the number of the entry."""
    patch = PoolPatch(reason="GPU 3 out", **fields)  # type: ignore[arg-type]
    await here.runtime.operations.change_pool("default", patch, by="ann", based_on=None)
    return await newest(here)


async def newest(here: Site) -> int:
    """The number of the newest entry of a person; the controller's restart has one of its own."""
    return (await here.runtime.audit.audit(AuditQuery()))[0].number


async def test_a_change_shows_who_what_from_to_why_and_by_which_way(here: Site) -> None:
    await change(here, ceiling=4)
    shown = text(await here.get("/audit"))
    assert "ann pool default settings : ceiling 7 → 4 GPU 3 out Revert browser" in shown


async def test_the_controllers_moves_show_only_when_asked_for(here: Site) -> None:
    move = Decision(here.ui.parts.now, "default", "controller", "cut", "latency", "p95 is over.", (9.0, 6.0), (7, 5))
    await here.runtime.store.append([move])
    assert "p95 is over." not in await here.get("/audit")
    shown = await here.get("/audit?controller=1")
    assert "limit cut default: limit 9 → 6, quota 7 → 5" in text(shown).replace(" :", ":")
    assert fields(shown, "/audit")["controller"] == ["1"]


async def test_filters_live_in_the_address_and_in_the_exports(here: Site) -> None:
    await change(here, ceiling=4)
    await here.runtime.store.record(AuditEntry(here.ui.parts.now, "bob", "sign-in.failed", "account:bob"))
    shown = await here.get("/audit?who=bob&what=sign-in&from=2020-01-01&to=2099-01-01&q=BOB")
    assert "sign-in failed bob" in text(shown)
    assert "pool default settings" not in shown
    assert fields(shown, "/audit") == {
        "who": "bob",
        "what": "sign-in",
        "from": "2020-01-01",
        "to": "2099-01-01",
        "q": "BOB",
        "controller": [],
    }
    [csv] = [link for link in links(shown) if link.endswith("format=csv")]
    assert "actor=bob&action=sign-in&since=2020-01-01T00%3A00%3A00%2B00%3A00&until=2099-01-02T00" in csv


async def test_a_day_that_is_none_is_told(here: Site) -> None:
    assert "must be a day" in await here.get("/audit?from=tomorrow", 422)


async def test_older_entries_are_a_link_away(here: Site) -> None:
    entry = AuditEntry(here.ui.parts.now, "ann", "sign-in", "account:ann")
    oldest, second = (await here.runtime.store.record(*[entry] * 101))[:2]
    shown = await here.get("/audit?who=ann")
    assert f"/audit?who=ann&before={second.number}" in links(shown)
    assert f"/audit/{oldest.number}" in links(await here.get(f"/audit?who=ann&before={second.number}"))


async def test_markup_in_an_entry_is_shown_not_run(here: Site) -> None:
    entry = AuditEntry(here.ui.parts.now, "<b>x</b>", "sign-in.failed", "account:<script>", {"<i>": 1}, {"<i>": 2})
    [record] = await here.runtime.store.record(entry)
    for path in ("/audit", f"/audit/{record.number}"):
        shown = await here.get(path)
        assert "<script>" not in shown.split("<main")[1]
        assert "<b>x</b>" not in shown


async def test_an_entry_opens_before_after_and_its_hashes(here: Site) -> None:
    number = await change(here, ceiling=4)
    shown = text(await here.get(f"/audit/{number}"))
    [record] = await here.runtime.audit.audit(AuditQuery())
    assert '"ceiling": 7' in shown
    assert '"ceiling": 4' in shown
    assert record.hash in shown
    assert record.previous in shown


async def test_a_missing_entry_is_not_found(here: Site) -> None:
    await here.get("/audit/99", 404)
    await here.get(f"/audit/{10**30}", 404)


async def test_a_revert_shows_what_it_would_do_and_makes_a_new_change(here: Site) -> None:
    number = await change(here, ceiling=4, floor=2)
    form = await here.form(f"/audit/{number}", "revert-form")
    assert "Field Now Then ceiling 4 7 floor 2 1" in text(await here.get(f"/audit/{number}"))
    answer = await here.post("/ui/audit/revert", form | {"reason": "GPU 3 is back"})
    assert answer.status_code == 303
    shown = text(await here.get(answer.headers["location"]))
    assert "Applied" in shown
    assert f"reverts entry {number}: GPU 3 is back" in shown
    assert (here.settings().ceiling, here.settings().floor) == (7, 1)


async def test_a_revert_of_the_schedule_puts_the_rule_back(here: Site) -> None:
    schedule = here.runtime.schedule
    await here.runtime.operations.change_schedule(replace(schedule, zone="Europe/Berlin"), by="ann", based_on=None)
    await here.runtime.reload()
    form = await here.form(f"/audit/{await newest(here)}", "revert-form")
    assert (await here.post("/ui/audit/revert", form | {"reason": "no"})).status_code == 303
    assert here.runtime.schedule.zone == schedule.zone


async def test_a_revert_of_a_batch_puts_back_its_pause_or_priority_alone(here: Site) -> None:
    batches = here.runtime.batches
    upload = batches.upload()
    await upload.write(b"{}")
    file = await upload.finish(tenant="search", filename="x", expires_after=None)
    await here.runtime.keeper.stop()
    order = NewBatch("search", "/v1/embeddings", file.id, "24h", name="nightly")
    batch = await batches.create(order, dedupe="d", again=False)
    await batches.pause(batch.id, tenant=None, by="ann", reason="costs")
    paused = await newest(here)
    await batches.prioritise(batch.id, 7, tenant=None)
    page = await here.get(f"/audit/{paused}")
    assert "by ann" in text(page)
    form = fields(page, "revert-form")
    assert (await here.post("/ui/audit/revert", form | {"reason": "too dear"})).status_code == 303
    found = await here.runtime.store.batch(batch.id)
    assert (found.pause, found.priority) == (None, 7)
    entry = (await here.runtime.audit.audit(AuditQuery()))[0].entry
    assert (entry.action, entry.reason) == ("batch.resume", f"reverts entry {paused}: too dear")
    assert "cannot be put back now" in text(await here.get(f"/audit/{paused}"))
    answer = await here.post("/ui/audit/revert", form | {"reason": "again"})
    assert (answer.status_code, "changed the same since" in text(answer.text)) == (422, True)
    created = await here.runtime.audit.audit(AuditQuery(action="batch.create"))
    assert "revert-form" not in await here.get(f"/audit/{created[0].number}")


async def test_a_revert_without_a_reason_or_on_a_newer_version_changes_nothing(here: Site) -> None:
    form = await here.form(f"/audit/{await change(here, ceiling=4)}", "revert-form")
    assert (await here.post("/ui/audit/revert", form | {"reason": " "})).status_code == 422
    await change(here, ceiling=5)
    answer = await here.post("/ui/audit/revert", form | {"reason": "back"})
    assert answer.status_code == 409
    assert "Somebody changed this in the meantime" in answer.text
    await here.runtime.reload()
    assert here.settings().ceiling == 5


async def test_a_forged_revert_form_is_refused_without_harm(here: Site) -> None:
    await change(here, ceiling=4)
    for number in ("", "x", "99", "-1", "9" * 40):
        answer = await here.post("/ui/audit/revert", {"number": number, "version": "2", "reason": "x"})
        assert answer.status_code == 404
    [record] = await here.runtime.store.record(AuditEntry(here.ui.parts.now, "ann", "sign-in", "account:ann"))
    answer = await here.post("/ui/audit/revert", {"number": str(record.number), "version": "2", "reason": "x"})
    assert answer.status_code == 422


async def test_what_cannot_be_put_back_any_more_says_so(here: Site) -> None:
    number = await change(here, slots=20, ceiling=15)
    await change(here, hold=12)
    shown = await here.get(f"/audit/{number}")
    assert "cannot be put back now" in text(shown)
    assert "revert-form" not in shown


async def test_calls_are_listed_with_filters_and_an_export(here: Site) -> None:
    other = CALL._replace(request="req_2", lane="batch", batch="batch_7", outcome="upstream_error", status=503)
    await here.runtime.store.add_calls([CALL, other._replace(first_token_ms=None)])
    shown = text(await here.get("/audit/calls"))
    assert "search, chat default, m interactive success 200 1.5 ms 120 ms 2.50 s 7 / 1,200 about req_1" in shown
    assert "batch upstream error 503 1.5 ms — 2.50 s" in shown
    filtered = await here.get("/audit/calls?lane=batch&outcome=upstream_error")
    assert "req_1" not in filtered
    assert "/audit/calls?batch=batch_7" in links(filtered)
    assert "/api/calls/export?lane=batch&outcome=upstream_error&format=csv" in links(filtered)


async def test_a_log_that_is_switched_off_says_so(tmp_path: Path) -> None:
    async with site(tmp_path, call_log_rows=0) as running:
        assert "switched off" in text(await running.get("/audit/calls"))
