"""What a request may do that its sender is known of: the lane it runs in, and the models it may name."""

from fnmatch import fnmatchcase

from starlette.types import Scope

from core.errors import RequestError
from core.lanes import Lane
from core.people.identity import ANY_MODEL, Identity
from web.errors import invalid_request

__all__ = ["IDENTITY", "Identity", "check_batch", "check_model", "choose_lane", "identity_of", "may_use"]

IDENTITY = "tidegate.identity"
"""Where in a request's scope stands who sent it."""


def identity_of(scope: Scope) -> Identity:
    """Return who sent a request, as the guard of its route found out (see `web.permissions`)."""
    identity: Identity = scope[IDENTITY]
    return identity


def choose_lane(
    identity: Identity, *, asked: object, service_tier: object = None, param: str = "x-tidegate-lane"
) -> Lane:
    """Return the lane of a request: its key's own, which the lane `asked` for can only lower.

    Raises RequestError: 400 for an unknown lane, naming `param`; 403 `lane_not_allowed`.
    """
    lane = identity.lane
    if asked is not None and asked not in tuple(Lane):
        shown = repr(asked)[:40]
        raise invalid_request(f"{param} is {shown}; it must be 'interactive' or 'batch'.", param)
    if asked == Lane.BATCH or service_tier == "flex":
        lane = Lane.BATCH
    if lane not in identity.lanes:
        raise RequestError(
            403,
            "lane_not_allowed",
            f"This key may not use the {lane} lane.",
            type="invalid_request_error",
            param=param,
            should_retry=False,
        )
    return lane


def check_batch(identity: Identity) -> None:
    """Raise RequestError 403 `lane_not_allowed` unless who asks may have anything run in the batch lane."""
    choose_lane(identity, asked=Lane.BATCH, param="authorization")


def may_use(identity: Identity, model: str) -> bool:
    """Tell whether who asks may name this model."""
    return identity.models == ANY_MODEL or any(fnmatchcase(model, glob) for glob in identity.models)


def check_model(identity: Identity, model: str | None) -> None:
    """Raise RequestError 403 `model_not_allowed` unless who asks may name this model, or names none."""
    if identity.models == ANY_MODEL or (model is not None and may_use(identity, model)):
        return
    message = (
        "This key may not be used without naming a model." if model is None else "This key may not use that model."
    )
    raise RequestError(
        403, "model_not_allowed", message, type="invalid_request_error", param="model", should_retry=False
    )
