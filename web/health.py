"""Tells machines whether Tidegate is alive (/healthz) and whether to send it traffic (/readyz)."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from core.runtime import Runtime

STALE_TICKS = 3
DATABASE_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that keeps Tidegate from being ready; `pool` where it is one pool's."""

    code: str
    message: str
    pool: str | None = None


async def healthz(request: Request) -> JSONResponse:
    """Answer 200 once stored settings, holds and windows are in force, whatever the upstream does."""
    if getattr(request.app.state, "runtime", None) is None:
        return _answer(503, {"status": "starting"})
    return _answer(200, {"status": "ok"})


async def readyz(request: Request) -> JSONResponse:
    """Answer 200 if requests can be served as they should be, else 503 with every reason why not."""
    runtime: Runtime | None = getattr(request.app.state, "runtime", None)
    if runtime is None:
        return _answer(503, {"status": "not_ready", "reasons": [asdict(Reason("starting", "Tidegate is starting"))]})
    reasons = [*upstream_reasons(runtime), *tick_reasons(runtime), *await database_reasons(runtime)]
    body = {"status": "not_ready" if reasons else "ready", "reasons": [asdict(reason) for reason in reasons]}
    return _answer(503 if reasons else 200, body)


def upstream_reasons(runtime: Runtime) -> list[Reason]:
    """Name each pool whose upstream gave no answer when last probed."""
    away = [probe for probe in runtime.probes.values() if not probe.reachable]
    return [
        Reason("upstream_unreachable", f"the upstream is away: {probe.error or 'not tried yet'}", probe.pool)
        for probe in away
    ]


def tick_reasons(runtime: Runtime) -> list[Reason]:
    """Name each pool whose controller has not ticked for three ticks."""
    now = runtime.clock.monotonic()
    ages = {name: now - pool.controller.last_tick for name, pool in runtime.pools.items()}
    return [
        Reason("controller_stale", f"the controller's last tick was {age:.0f} s ago", name)
        for name, age in ages.items()
        if age > STALE_TICKS * runtime.settings.tick
    ]


async def database_reasons(runtime: Runtime) -> list[Reason]:
    """Tell whether the database fails a trivial read, or does not answer it in time."""
    try:
        async with asyncio.timeout(DATABASE_PATIENCE_S):
            await runtime.settings_store.ping()
    except Exception as error:
        return [Reason("database_down", f"the database does not answer: {type(error).__name__}")]
    return []


def _answer(status: int, body: Mapping[str, object]) -> JSONResponse:
    return JSONResponse(body, status, headers={"cache-control": "no-store"})


ROUTES = [Route("/healthz", healthz), Route("/readyz", readyz)]
