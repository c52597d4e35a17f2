import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from core.config import KeyConfig, PoolConfig, Settings
from core.control.decisions import Decision, Trigger
from core.runtime import Runtime
from web.admin import ROUTES
from web.gate import Gate
from web.permissions import guarded

pytestmark = pytest.mark.anyio

NOBODY = "http://127.0.0.1:9/v1"
ANY = {"if-match": "*"}
ALWAYS = {
    "name": "Always",
    "days": ["mon", "Tuesday", "WED", "thu", "fri", "sat", "Sun"],
    "start": "00:00",
    "end": "24:00",
    "ceiling": 3,
}


def app_of(runtime: Runtime) -> Starlette:
    app = Starlette(routes=guarded(ROUTES))
    app.state.runtime = runtime
    app.state.gate = Gate(runtime=runtime)
    return app


def client_of(app: Starlette, **options: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1", **options)


async def started(settings: Settings) -> AsyncIterator[Runtime]:
    runtime = Runtime(settings=settings)
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async for runtime in started(Settings(data=tmp_path, upstream=NOBODY, slots=8)):
        yield runtime


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(app_of(runtime)) as client:
        yield client


@pytest.fixture
async def several(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    pools = (PoolConfig(name="large", base_url=NOBODY, slots=32), PoolConfig(name="small", base_url=NOBODY, slots=2))
    async for runtime in started(Settings(data=tmp_path, pools=pools)):
        async with client_of(app_of(runtime)) as client:
            yield client


async def change(client: httpx2.AsyncClient, headers: Mapping[str, str] = ANY, **body: object) -> httpx2.Response:
    return await client.patch("/api/pools/default", json=body, headers=headers)


async def put(client: httpx2.AsyncClient, headers: Mapping[str, str] = ANY, **body: object) -> httpx2.Response:
    return await client.put(
        "/api/schedule", json={"zone": "UTC", "windows": [], "one_offs": [], **body}, headers=headers
    )


def strict(response: httpx2.Response) -> Any:
    """Read JSON in which NaN and Infinity are no numbers."""

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} in JSON")

    return json.loads(response.content, parse_constant=refuse)


def field_of(response: httpx2.Response) -> str:
    assert response.status_code == 422, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")
    return str(error["param"])


async def test_a_fresh_pool_has_every_field_and_null_where_there_is_no_data(client: httpx2.AsyncClient) -> None:
    """R95 linkerd/linkerd2 PR#750: NaN percentiles without traffic."""
    response = await client.get("/api/pools")
    [pool] = strict(response)["data"]
    budgets = {"first_token_s": 1.0, "per_token_ms": 75.0, "error_rate": 0.02}
    lane = {"in_flight": 0, "queued": 0, "oldest_wait_s": None, "wait_p50_s": None, "wait_p95_s": None}
    assert pool == {
        "name": "default",
        "slots": 8,
        "reserve": 1,
        "headroom": 1,
        "floor": 1,
        "ceiling": 7,
        "effective": {"floor": 1, "ceiling": 7, "budgets": budgets, "source": "base", "until": None},
        "mode": "auto",
        "paused": None,
        "hold": None,
        "limit": 2.0,
        "quota": 1,
        "shadow_quota": 1,
        "settling": 0,
        "window": None,
        "budgets": budgets,
        "seen": {
            "first_token_p95_s": None,
            "per_token_p95_ms": None,
            "total_p95_s": None,
            "error_rate": None,
            "samples": 0,
        },
        "lanes": {"interactive": lane, "batch": lane},
        "version": 1,
    }
    one = await client.get("/api/pools/default")
    assert (one.json(), one.headers["etag"]) == (pool, '"1"')


async def test_a_hold_is_in_force_when_the_answer_comes(client: httpx2.AsyncClient, runtime: Runtime) -> None:
    body = {"hold": 5, "for": "15m", "reason": "drain"}
    response = await client.patch("/api/pools/default", json=body, headers={"if-match": '"1"'})
    pool = response.json()
    assert (response.status_code, response.headers["etag"], pool["version"]) == (200, '"2"', 2)
    assert (pool["mode"], pool["quota"], runtime.pools["default"].dispatcher.quota()) == ("hold", 5, 5)
    assert (pool["hold"]["quota"], pool["hold"]["reason"], pool["hold"]["by"]) == (5, "drain", "operator")
    until = datetime.fromisoformat(pool["hold"]["until"])
    assert timedelta(minutes=14) < until - datetime.now(UTC) <= timedelta(minutes=15)
    released = (await change(client, auto=True)).json()
    assert (released["mode"], released["hold"], released["quota"]) == ("auto", None, 5)


async def test_pause_and_hold_are_separate(client: httpx2.AsyncClient) -> None:
    await change(client, hold=2)
    paused = (await change(client, pause=True, reason="night")).json()
    assert (paused["paused"]["reason"], paused["hold"]["quota"]) == ("night", 2)
    resumed = (await change(client, pause=False)).json()
    assert (resumed["paused"], resumed["hold"]["quota"]) == (None, 2)
    again = (await change(client, pause=True)).json()
    released = (await change(client, auto=True)).json()
    assert (released["paused"], released["hold"]) == (again["paused"], None)


async def test_without_if_match_nothing_changes(client: httpx2.AsyncClient) -> None:
    response = await change(client, {}, ceiling=3)
    assert (response.status_code, response.json()["error"]["code"]) == (428, "precondition_required")
    assert (await client.get("/api/pools/default")).json()["ceiling"] == 7
    assert (await put(client, {})).status_code == 428


async def test_a_stale_version_gets_the_pool_as_it_is_now(client: httpx2.AsyncClient) -> None:
    await change(client, {"if-match": '"1"'}, ceiling=5)
    response = await change(client, {"if-match": '"1"'}, ceiling=3)
    body = response.json()
    assert (response.status_code, response.headers["etag"]) == (412, '"2"')
    assert (body["ceiling"], body["version"], body["error"]["code"]) == (5, 2, "version_stale")
    assert (await change(client, {"if-match": "*"}, ceiling=3)).json()["ceiling"] == 3


async def test_a_change_made_elsewhere_counts_as_well(client: httpx2.AsyncClient, runtime: Runtime) -> None:
    """A command line writes to the store behind the running server's back."""
    stored = await runtime.store.pool("default")
    decision = Decision(datetime.now(UTC), "default", "operator", "set", "settings", "by hand", (8, 8), (7, 7))
    await runtime.store.save_pool(replace(stored, ceiling=4), based_on=1, decision=decision)
    response = await change(client, {"if-match": '"1"'}, ceiling=3)
    assert (response.status_code, response.json()["ceiling"], response.headers["etag"]) == (412, 4, '"2"')


@pytest.mark.parametrize("header", ['"1"', "1", 'W/"1"', '"7", "1"'])
async def test_if_match_is_read_in_every_spelling(client: httpx2.AsyncClient, header: str) -> None:
    assert (await change(client, {"if-match": header}, ceiling=5)).status_code == 200


@pytest.mark.parametrize("header", ["x", '""', "", '"-1"', '"1.0"', f'"{"9" * 30}"'])
async def test_an_if_match_that_is_no_version_is_refused(client: httpx2.AsyncClient, header: str) -> None:
    response = await change(client, {"if-match": header}, ceiling=5)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "If-Match")


async def test_of_parallel_changes_on_one_version_one_wins(client: httpx2.AsyncClient) -> None:
    answers = await asyncio.gather(*(change(client, {"if-match": '"1"'}, ceiling=n) for n in range(1, 7)))
    assert sorted(answer.status_code for answer in answers) == [200, 412, 412, 412, 412, 412]
    assert (await client.get("/api/pools/default")).json()["version"] == 2


async def test_clicking_one_three_one_one_ends_at_one_with_four_rows(client: httpx2.AsyncClient) -> None:
    """R29 MassTransit/MassTransit#1671."""
    for quota in (1, 3, 1, 1):
        assert (await change(client, hold=quota)).json()["quota"] == quota
    rows = (await client.get("/api/decisions?pool=default")).json()["data"]
    holds = [row for row in rows if row["reason"] == "hold" and row["actor"] == "operator"]
    assert [row["quota"][1] for row in holds] == [1, 1, 3, 1]


async def test_slots_go_down_and_up_while_it_runs(client: httpx2.AsyncClient, runtime: Runtime) -> None:
    """R27 resilience4j/resilience4j#2489: the refresh task died when the limit fell below what was out."""
    low = (await change(client, slots=2)).json()
    assert (low["slots"], low["ceiling"], low["effective"]["ceiling"]) == (2, 1, 1)
    high = (await change(client, slots=8)).json()
    assert (high["slots"], high["ceiling"]) == (8, 7)
    assert runtime.loop.running


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"hold": 8}, "hold"),
        ({"hold": -1}, "hold"),
        ({"hold": 1.5}, "hold"),
        ({"hold": "3"}, "hold"),
        ({"hold": None}, "hold"),
        ({"hold": True}, "hold"),
        ({"hold": 10**400}, "hold"),
        ({"hold": 1, "for": "soon"}, "for"),
        ({"hold": 1, "for": 15}, "for"),
        ({"hold": 1, "for": "until_window_ends"}, "for"),
        ({"for": "1h"}, "for"),
        ({"auto": False}, "auto"),
        ({"auto": "yes"}, "auto"),
        ({"pause": 1}, "pause"),
        ({"slots": 0}, "slots"),
        ({"slots": 1}, "slots"),
        ({"reserve": 8}, "reserve"),
        ({"floor": 3, "ceiling": 2}, "floor"),
        ({"ceiling": 8}, "ceiling"),
        ({"budgets": {}}, "budgets"),
        ({"budgets": 1}, "budgets"),
        ({"budgets": {"first_token_s": "1"}}, "budgets.first_token_s"),
        ({"budgets": {"first_token_s": -1}}, "budgets.first_token_s"),
        ({"budgets": {"patience": 1}}, "budgets.patience"),
        ({"reason": 1, "pause": True}, "reason"),
        ({"reason": "x" * 501, "pause": True}, "reason"),
        ({"quota": 4}, "quota"),
        ({"ceiling": 4, "Floor": 4}, "Floor"),
        ({}, "body"),
        ([], "body"),
        (None, "body"),
        ("x", "body"),
    ],
)
async def test_a_bad_value_is_refused_by_its_field_and_changes_nothing(
    client: httpx2.AsyncClient, body: object, field: str
) -> None:
    text = json.dumps(body)
    headers = {**ANY, "content-type": "application/json"}
    assert field_of(await client.patch("/api/pools/default", content=text, headers=headers)) == field
    assert (await client.get("/api/pools/default")).json()["version"] == 1


@pytest.mark.parametrize("text", ["", "{", "{'a':1}", '{"ceiling": NaN}', "\xff", "[" * 5000, '{"a":1} x'])
async def test_a_body_that_is_no_json_is_refused(client: httpx2.AsyncClient, text: str) -> None:
    headers = {**ANY, "content-type": "application/json; charset=utf-8"}
    response = await client.patch("/api/pools/default", content=text.encode("latin-1"), headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "body")


async def test_a_body_of_another_kind_or_size_is_refused(client: httpx2.AsyncClient) -> None:
    form = await client.patch("/api/pools/default", data={"ceiling": "3"}, headers=ANY)
    assert (form.status_code, form.json()["error"]["code"]) == (415, "unsupported_media_type")
    large = await change(client, reason="x" * 2_000_000)
    assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")


async def test_a_pool_that_is_not_there_is_not_found(client: httpx2.AsyncClient) -> None:
    for response in (
        await client.get("/api/pools/nobody"),
        await client.patch("/api/pools/nobody", json={"pause": True}, headers=ANY),
        await client.get("/api/decisions?pool=nobody"),
        await client.get("/api/schedule/preview?pool=nobody"),
    ):
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


async def test_bounds_change_the_base_and_the_answer_tells_what_hides_them(client: httpx2.AsyncClient) -> None:
    plain = (await change(client, ceiling=6)).json()
    assert (plain["effective"]["ceiling"], plain["shadowed_by"]) == (6, None)
    assert (await put(client, windows=[ALWAYS])).status_code == 200
    hidden = (await change(client, ceiling=5)).json()
    assert (hidden["ceiling"], hidden["effective"]["ceiling"], hidden["effective"]["source"]) == (5, 3, "window:Always")
    assert (hidden["window"], hidden["shadowed_by"]) == ("Always", "Always")
    free = (await change(client, floor=2)).json()
    assert (free["effective"]["floor"], free["shadowed_by"]) == (2, None)
    held = (await change(client, hold=1, ceiling=4)).json()
    assert held["shadowed_by"] == "hold"
    assert (await change(client, budgets={"per_token_ms": 50})).json()["shadowed_by"] is None
    assert (await change(client, pause=True)).json()["shadowed_by"] is None


async def test_controller_moves_do_not_change_the_version(client: httpx2.AsyncClient, runtime: Runtime) -> None:
    for _ in range(5):
        runtime.pools["default"].controller.tick()
    assert (await client.get("/api/pools/default")).headers["etag"] == '"1"'


async def test_decisions_come_newest_first_and_can_be_narrowed(client: httpx2.AsyncClient, runtime: Runtime) -> None:
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    rows = [
        Decision(
            begin + timedelta(seconds=n),
            "default",
            "controller",
            "cut",
            "per_token",
            f"row {n}",
            (44.123456, 39.0),
            (33, 28),
            triggers=(Trigger("per_token", float("nan"), 75.0, 63),),
        )
        for n in range(3)
    ]
    await runtime.store.append(rows)
    answer = strict(await client.get("/api/decisions", params={"limit": 2, "since": "2029-12-31T23:00:00Z"}))
    assert [row["sentence"] for row in answer["data"]] == ["row 2", "row 1"]
    first = answer["data"][0]
    assert (first["at"], first["limit"], first["quota"]) == ("2030-01-01T00:00:02Z", [44.12, 39.0], [33, 28])
    assert first["triggers"] == [{"name": "per_token", "value": None, "threshold": 75.0, "n": 63}]
    raw = await client.get("/api/decisions?since=2030-01-01T01:00:01+01:00")
    assert [row["sentence"] for row in raw.json()["data"]] == ["row 2", "row 1"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=ten", "limit"),
        ("since=yesterday", "since"),
        ("since=2030-01-01", "since"),
        ("since=2030-01-01T00:00:00", "since"),
        ("since=9999-12-31T23:59:59-23:59", "since"),
    ],
)
async def test_a_bad_question_to_the_log_names_its_parameter(
    client: httpx2.AsyncClient, query: str, field: str
) -> None:
    assert field_of(await client.get(f"/api/decisions?{query}")) == field


async def test_the_schedule_can_be_put_back_as_it_was_read(client: httpx2.AsyncClient) -> None:
    window = {
        **ALWAYS,
        "floor": 2,
        "budgets": {"first_token_s": 2, "per_token_ms": 90, "error_rate": 0},
        "priority": 10,
        "zone": "Asia/Tokyo",
        "pools": ["default"],
    }
    one_off = {"name": "Feast", "start": "2027-01-01T12:00:00+02:00", "end": "2027-01-02T00:00:00Z", "ceiling": 7}
    saved = await put(client, {"if-match": '"1"'}, zone="Europe/Berlin", windows=[window], one_offs=[one_off])
    body = saved.json()
    assert (saved.status_code, saved.headers["etag"], body["version"]) == (200, '"2"', 2)
    assert body["windows"] == [{**window, "days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], "end": "00:00"}]
    assert body["one_offs"][0]["start"] == "2027-01-01T10:00:00Z"
    read = await client.get("/api/schedule")
    assert (read.json(), read.headers["etag"]) == (body, '"2"')
    again = await client.put("/api/schedule", json=body, headers={"if-match": read.headers["etag"]})
    assert again.json() == {**body, "version": 3}
    stale = await client.put("/api/schedule", json=body, headers={"if-match": '"2"'})
    assert (stale.status_code, stale.json()["version"], stale.json()["zone"]) == (412, 3, "Europe/Berlin")


async def test_a_new_schedule_is_in_force_when_the_answer_comes(client: httpx2.AsyncClient, runtime: Runtime) -> None:
    await put(client, windows=[ALWAYS])
    assert runtime.pools["default"].controller.bounds.source == "window:Always"
    assert runtime.calendar.next_edge is not None
    await put(client)
    assert runtime.pools["default"].controller.bounds.source == "base"
    assert runtime.calendar.next_edge is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"zone": "Mars"}, "zone"),
        ({"zone": None}, "zone"),
        ({"colour": "red"}, "colour"),
        ({"windows": {}}, "windows"),
        ({"windows": ["Peak"]}, "windows[0]"),
        ({"windows": [{**ALWAYS, "days": []}]}, "windows[0].days"),
        ({"windows": [{**ALWAYS, "days": [0, 1]}]}, "windows[0].days"),
        ({"windows": [{**ALWAYS, "days": ["sunday", "0"]}]}, "windows[0].days"),
        ({"windows": [{**ALWAYS, "days": "0 20 * * 0"}]}, "windows[0].days"),
        ({"windows": [{**ALWAYS, "start": "24:00"}]}, "windows[0].start"),
        ({"windows": [{**ALWAYS, "start": "7:00"}]}, "windows[0].start"),
        ({"windows": [{**ALWAYS, "end": "1--100000000"}]}, "windows[0].end"),
        ({"windows": [{**ALWAYS, "end": 6}]}, "windows[0].end"),
        ({"windows": [{k: v for k, v in ALWAYS.items() if k != "end"}]}, "windows[0].end"),
        ({"windows": [{**ALWAYS, "name": ""}]}, "windows[0].name"),
        ({"windows": [ALWAYS, ALWAYS]}, "windows[1].name"),
        ({"windows": [{**ALWAYS, "floor": 9}]}, "windows[0].floor"),
        ({"windows": [{**ALWAYS, "priority": "high"}]}, "windows[0].priority"),
        ({"windows": [{**ALWAYS, "budgets": {"first_token_s": 1}}]}, "windows[0].budgets.per_token_ms"),
        ({"windows": [{**ALWAYS, "pools": ["nobody"]}]}, "windows[0].pools"),
        ({"windows": [{**ALWAYS, "pools": [1]}]}, "windows[0].pools"),
        ({"windows": [{**ALWAYS, "cron": "0 20 * * 0"}]}, "windows[0].cron"),
        ({"windows": [{**ALWAYS, "name": f"W{n}"} for n in range(101)]}, "windows"),
        ({"one_offs": [{"name": "x", "start": "2027-01-01", "end": "2027-01-02"}]}, "one_offs[0].start"),
        (
            {"one_offs": [{"name": "x", "start": "2027-01-02T00:00:00Z", "end": "2027-01-01T00:00:00Z"}]},
            "one_offs[0].end",
        ),
    ],
)
async def test_a_bad_schedule_is_refused_by_its_field(
    client: httpx2.AsyncClient, body: dict[str, object], field: str
) -> None:
    """R80: a day is a name, never a number, as crontab's 0 is Sunday to some and Monday to others."""
    assert field_of(await put(client, **body)) == field
    assert (await client.get("/api/schedule")).json()["version"] == 1


async def test_the_preview_tells_each_edge_with_what_is_in_force_around_it(client: httpx2.AsyncClient) -> None:
    other = {**ALWAYS, "name": "Other", "start": "22:00", "end": "06:00", "priority": 5}
    await put(client, zone="Europe/Berlin", windows=[ALWAYS, other])
    answer = (await client.get("/api/schedule/preview?days=2")).json()
    assert (answer["zone"], answer["pool"], answer["days"], answer["version"]) == ("Europe/Berlin", "default", 2, 2)
    assert [row["at"] for row in answer["data"]] == sorted(row["at"] for row in answer["data"])
    opens = next(row for row in answer["data"] if (row["name"], row["kind"]) == ("Other", "start"))
    assert opens["before"] == {"source": "window:Always", "floor": 1, "ceiling": 3}
    assert opens["after"]["source"] == "window:Other"
    assert "T22:00:00+0" in opens["local"]
    assert answer["overlaps"][0]["winner"] == "Other"
    assert (await client.get("/api/schedule/preview")).json()["days"] == 8
    for days in ("0", "63", "-1", "x", "1.5"):
        assert field_of(await client.get(f"/api/schedule/preview?days={days}")) == "days"


async def test_with_several_pools_each_is_changed_alone(several: httpx2.AsyncClient) -> None:
    names = [pool["name"] for pool in (await several.get("/api/pools")).json()["data"]]
    assert names == ["large", "small"]
    await several.patch("/api/pools/small", json={"hold": 0}, headers=ANY)
    assert (await several.get("/api/pools/large")).headers["etag"] == '"1"'
    await put(several, windows=[{**ALWAYS, "pools": ["large"]}])
    everywhere = (await several.get("/api/schedule/preview?days=1")).json()
    assert (everywhere["pool"], everywhere["data"][0]["after"]["floor"]) == (None, None)
    assert (await several.get("/api/schedule/preview?days=1&pool=small")).json()["data"] == []
    small = {row["pool"] for row in (await several.get("/api/decisions?pool=small")).json()["data"]}
    assert small == {"small"}


async def test_with_keys_every_route_needs_one_and_changes_carry_its_name(tmp_path: Path) -> None:
    key = KeyConfig(name="ops-cli", key="tg_secret")
    async for runtime in started(Settings(data=tmp_path, upstream=NOBODY, keys=(key,))):
        app = app_of(runtime)
        async with client_of(app) as anyone, client_of(app, headers={"authorization": "Bearer tg_secret"}) as known:
            for method, path in (
                ("GET", "/api/pools"),
                ("GET", "/api/pools/default"),
                ("PATCH", "/api/pools/default"),
                ("GET", "/api/decisions"),
                ("GET", "/api/schedule"),
                ("PUT", "/api/schedule"),
                ("GET", "/api/schedule/preview"),
            ):
                response = await anyone.request(method, path)
                assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
            held = (await change(known, hold=3)).json()
            assert held["hold"]["by"] == "ops-cli"
            wrong = await anyone.get("/api/pools", headers={"authorization": "Bearer tg_sécret".encode("latin-1")})
            assert wrong.status_code == 401
