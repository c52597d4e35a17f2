"""The one table of who may do what. Pages, API and commands all ask here. Pure."""

from enum import StrEnum

from core.people.identity import Identity, Role


class Action(StrEnum):
    """What somebody may want to do."""

    PUBLIC = "public"
    """What needs no role: health, metrics, static files, the sign-in itself."""
    SEE = "see"
    INFER = "infer"
    BATCH_READ = "batch_read"
    BATCH_WRITE = "batch_write"
    OWN_ACCOUNT = "own_account"
    TUNE = "tune"
    SCHEDULE = "schedule"
    PAUSE = "pause"
    CALLS_READ = "calls_read"
    AUDIT_READ = "audit_read"
    TENANTS = "tenants"
    KEYS = "keys"
    ACCOUNTS = "accounts"
    UPSTREAMS = "upstreams"


LEAST: dict[Action, Role | None] = {
    Action.PUBLIC: None,
    Action.SEE: Role.VIEWER,
    Action.BATCH_READ: Role.VIEWER,
    Action.OWN_ACCOUNT: Role.VIEWER,
    Action.INFER: Role.MEMBER,
    Action.BATCH_WRITE: Role.MEMBER,
    Action.TUNE: Role.OPERATOR,
    Action.SCHEDULE: Role.OPERATOR,
    Action.PAUSE: Role.OPERATOR,
    Action.CALLS_READ: Role.OPERATOR,
    Action.AUDIT_READ: Role.OPERATOR,
    Action.TENANTS: Role.ADMIN,
    Action.KEYS: Role.ADMIN,
    Action.ACCOUNTS: Role.ADMIN,
    Action.UPSTREAMS: Role.ADMIN,
}
"""The least role that may do it; `None`: nobody is asked."""

GUEST_MAY = frozenset({Action.PUBLIC, Action.INFER, Action.BATCH_READ, Action.BATCH_WRITE})
"""What needs no sign-in, while there is no key, once there are accounts: calling the models, and own batches."""


def allows(role: Role, action: Action) -> bool:
    """Tell whether `role` may do `action`."""
    least = LEAST[action]
    return least is None or role.includes(least)


_MAY = {role: frozenset(action for action in Action if allows(role, action)) for role in Role}


def may(identity: Identity, action: Action) -> bool:
    """Tell whether who asks may do `action`. A guest, who has no name, may only what needs none."""
    if identity.account is None:
        if action is Action.OWN_ACCOUNT:
            return False
        if identity.key is None and identity.role is not Role.ADMIN:
            return action in GUEST_MAY
    return action in _MAY[identity.role]


def scope(identity: Identity, *, all_from: Role = Role.OPERATOR) -> str | None:
    """Return the tenant to which who asks is bound, `None` for all: operators see every team's batches.

    `all_from` is the least role that is bound to none.
    """
    return None if identity.role.includes(all_from) else identity.tenant
