"""Who asks: on whose behalf a request runs, and what its sender may be."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from core.lanes import Lane

OPERATOR = "operator"
"""How whoever made a change is called where nobody has to say who he is."""
ANY_MODEL = ("*",)


class Role(StrEnum):
    """What a person or key is allowed, each including all before it."""

    VIEWER = "viewer"
    MEMBER = "member"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Return the place in the order, 0 for the one who may least."""
        return _RANKS[self]

    def includes(self, other: "Role") -> bool:
        """Tell whether this role may all that `other` may."""
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Identity:
    """On whose behalf a request runs, the lane it runs in unless lowered, and what else it may use.

    `key` is the name of the API key, `account` that of the person signed in; both are `None` where nobody has to say.
    `models` are globs. `session` names the session that `account` came with, if any.
    """

    tenant: str
    lane: Lane
    lanes: frozenset[Lane]
    key: str | None = None
    role: Role = Role.MEMBER
    models: tuple[str, ...] = ANY_MODEL
    account: str | None = None
    session: str | None = None

    @property
    def name(self) -> str:
        """Return the name under which what it changes is recorded."""
        return self.account or self.key or OPERATOR

    @property
    def anonymous(self) -> bool:
        """Tell whether nobody had to say who this is."""
        return self.account is None and self.key is None


OPEN = Identity("default", Lane.INTERACTIVE, frozenset(Lane), role=Role.ADMIN)
"""Everyone, while there is neither key nor account."""
GUEST = Identity("default", Lane.INTERACTIVE, frozenset(Lane), role=Role.MEMBER)
"""Everyone who calls the inference API while there are accounts but no keys."""

ASKING: ContextVar[Identity] = ContextVar("asking", default=OPEN)
"""Who sent the request that is being answered in this task."""
