"""What a batch would take, asked before it is submitted, and how good such answers were."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from core.batch.lines import LONGEST_MODEL
from core.batch.queries import eta_json
from core.batch.residuals import Score
from core.batch.survey import Survey, survey
from core.batch.values import Eta
from core.batch.window import window_of
from core.errors import InvalidValue
from web.api import body_of, endpoint, identity, json_answer, object_of, runtime, text_of, whole
from web.front import Front

MOST_LINES = 10_000_000
MOST_TOKENS = 10**13
_FIELDS = frozenset(("lines", "tokens", "prompt_tokens", "file_id", "model", "completion_window"))
_LONGEST_ID = 128


@endpoint
async def quote(request: Request) -> Response:
    """Answer when a batch of so many lines and prompt tokens, or of an uploaded file, would be done."""
    given = object_of(await body_of(request))
    unknown = sorted(given.keys() - _FIELDS)
    if unknown:
        raise InvalidValue(unknown[0], f"is unknown; known are {', '.join(sorted(_FIELDS))}")
    if "tokens" in given:
        given.setdefault("prompt_tokens", given.pop("tokens"))
    size = await _size(request, given)
    front: Front = request.app.state.front
    pool, model = front.router.find(text_of(given, "model", most=LONGEST_MODEL) or size.model)
    eta = await runtime(request).forecaster.quote(
        lines=size.lines,
        prompt_tokens=size.prompt_tokens,
        tenant=identity(request).tenant,
        pool=pool.name,
        model=model or None,
        window=window_of(given.get("completion_window", "24h")),
    )
    return json_answer(_quoted(eta, size, pool.name))


@endpoint
async def score(request: Request) -> Response:
    """Answer how far off ETAs were, and how often their range held; of tenants, the asker's own alone."""
    found = runtime(request).forecaster.score()
    tenant = identity(request).tenant
    own = found.tenants.get(tenant, Score(0, None, None))
    return json_answer(
        {
            "overall": _score(found.overall),
            "at_submission": _score(found.at_submission),
            "tenant": {"name": tenant, **_score(own)},
        }
    )


async def _size(request: Request, given: dict[str, Any]) -> Survey:
    file_id = text_of(given, "file_id", most=_LONGEST_ID)
    if file_id is not None:
        if "lines" in given or "prompt_tokens" in given:
            raise InvalidValue("file_id", "excludes lines and prompt_tokens; give either")
        file = await runtime(request).store.file(file_id, tenant=identity(request).tenant)
        found = await survey(file, runtime(request).files)
        if not found.lines:
            raise InvalidValue("file_id", "names a file without lines")
        return found
    lines = whole(given, "lines", least=1, most=MOST_LINES)
    tokens = whole(given, "prompt_tokens", least=0, most=MOST_TOKENS)
    if lines is None or tokens is None:
        missing = "lines" if lines is None else "prompt_tokens"
        raise InvalidValue(missing, "is missing; give lines and prompt_tokens, or file_id")
    return Survey(lines, tokens, None)


def _quoted(eta: Eta, size: Survey, pool: str) -> dict[str, Any]:
    return {
        "lines": size.lines,
        "prompt_tokens": size.prompt_tokens,
        "pool": pool,
        "eta": eta_json(eta, eta.waiting_for),
        "deadline_risk": eta.risk.value if eta.risk else None,
    }


def _score(found: Score) -> dict[str, Any]:
    return {"n": found.n, "median_error": found.median_error, "held": found.held}


ROUTES = [
    Route("/api/batch/quote", quote, methods=["POST"]),
    Route("/api/eta/score", score, methods=["GET"]),
]
