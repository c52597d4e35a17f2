"""Whether Tidegate is alive, and whether to send it traffic."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from core.changes import PoolPatch
from core.config import PoolConfig, Settings
from core.runtime import Runtime
from tests.servers import log_lines, running
from web import health, mock_server

pytestmark = pytest.mark.anyio
CANARY = "sk-canary-0123456789"


async def refuse() -> None:
    raise ConnectionError(f"no database at postgresql://u:{CANARY}@db")


async def never_answer() -> None:
    await asyncio.Event().wait()


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with running(mock_server.create_app(), lifespan="off") as url:
        yield url


@asynccontextmanager
async def gateway(folder: Path, *pools: PoolConfig) -> AsyncIterator[tuple[httpx2.AsyncClient, Runtime]]:
    """The health endpoints over a running runtime."""
    runtime = Runtime(settings=Settings(data=folder, pools=pools, tick=0.05))
    app = Starlette(routes=health.ROUTES)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gate") as client:
        assert (await client.get("/healthz")).status_code == 503
        assert [reason["code"] for reason in (await client.get("/readyz")).json()["reasons"]] == ["starting"]
        await runtime.start()
        app.state.runtime = runtime
        try:
            yield client, runtime
        finally:
            await runtime.stop()


async def answered(client: httpx2.AsyncClient, wanted: int) -> dict[str, Any]:
    """Ask until /readyz answers with the status `wanted`; return the body."""
    async with asyncio.timeout(20):
        for _ in itertools.count():
            answer = await client.get("/readyz")
            if answer.status_code == wanted:
                return dict(answer.json())
            await asyncio.sleep(0.01)
    raise AssertionError("unreachable")


def codes(body: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(reason["code"], reason["pool"]) for reason in body["reasons"]]


async def test_ready_once_the_upstream_answers_anything(tmp_path: Path, upstream: str) -> None:
    async with gateway(tmp_path, PoolConfig(name="a", base_url=upstream)) as (client, _):
        assert await answered(client, 200) == {"status": "ready", "reasons": []}
        health_answer = await client.get("/healthz")
        assert (health_answer.status_code, health_answer.json()) == (200, {"status": "ok"})
        assert health_answer.headers["cache-control"] == "no-store"


async def test_an_upstream_that_is_away_is_named_by_its_pool_but_tidegate_is_alive(
    tmp_path: Path, upstream: str
) -> None:
    away = PoolConfig(name="b", base_url="http://127.0.0.1:9/v1", api_key=CANARY)
    async with gateway(tmp_path, PoolConfig(name="a", base_url=upstream), away) as (client, _):
        body = await answered(client, 503)
        async with asyncio.timeout(20):
            while codes(body) != [("upstream_unreachable", "b")] or "not tried" in body["reasons"][0]["message"]:
                body = await answered(client, 503)
        assert body["reasons"][0]["message"] == "the upstream is away: connection failed"
        assert (await client.get("/healthz")).status_code == 200


async def test_a_controller_that_stands_still_for_three_ticks_is_a_reason(tmp_path: Path, upstream: str) -> None:
    async with gateway(tmp_path, PoolConfig(name="a", base_url=upstream)) as (client, runtime):
        await answered(client, 200)
        await runtime.loop.stop()
        assert codes(await answered(client, 503)) == [("controller_stale", "a")]
        runtime.loop.start()
        await answered(client, 200)


@pytest.mark.parametrize("ping", [refuse, never_answer])
async def test_a_database_that_is_down_or_silent_is_a_reason(
    tmp_path: Path, upstream: str, monkeypatch: pytest.MonkeyPatch, ping: Callable[[], Any]
) -> None:
    """R99 BerriAI/litellm#8075: what the database's driver says may hold its password."""
    monkeypatch.setattr(health, "DATABASE_PATIENCE_S", 0.05)
    async with gateway(tmp_path, PoolConfig(name="a", base_url=upstream)) as (client, runtime):
        await answered(client, 200)
        monkeypatch.setattr(runtime.settings_store, "ping", ping)
        body = await answered(client, 503)
        assert codes(body) == [("database_down", None)]
        assert CANARY not in str(body)


async def test_a_start_says_which_stored_settings_stand_before_those_that_are_given(tmp_path: Path) -> None:
    given = PoolConfig(name="a", base_url="http://127.0.0.1:9/v1", slots=8)
    async with gateway(tmp_path, given) as (_, runtime):
        await runtime.operations.change_pool("a", PoolPatch(ceiling=3), by="ann", based_on=None)
    with log_lines() as lines:
        async with gateway(tmp_path, given.model_copy(update={"slots": 16})):
            pass
    told = [line for line in lines if "stand before those given" in line["event"]]
    assert [(line["pool"], line["kept"]) for line in told] == [("a", "slots 8 (given: 16), ceiling 3 (given: 15)")]
