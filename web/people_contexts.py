"""What the templates of sign-in, tenants, keys and accounts are given; see `web.contexts`."""

from dataclasses import dataclass
from typing import ClassVar

from web.contexts import Choice, Shell


@dataclass(frozen=True, slots=True)
class SignInPage(Shell):
    """GET /sign-in."""

    template: ClassVar[str] = "sign_in.html"

    name: str
    next: str
    problem: str
    provider: bool
    open: bool


@dataclass(frozen=True, slots=True)
class SetUpPage(Shell):
    """GET /setup: the first admin's name and password."""

    template: ClassVar[str] = "setup.html"

    token: str
    values: dict[str, str]
    errors: dict[str, str]


@dataclass(frozen=True, slots=True)
class SessionLine:
    """One session in a list; `here`: it is the one that looks."""

    id: str
    account: str
    began: str
    seen: str
    ends: str
    address: str
    agent: str
    way: str
    here: bool


@dataclass(frozen=True, slots=True)
class AccountPage(Shell):
    """GET /account: one's own sessions and password."""

    template: ClassVar[str] = "account.html"

    name: str
    role: str
    tenant: str
    local: bool
    sessions: tuple[SessionLine, ...]
    errors: dict[str, str]
    told: str
    zone: str


@dataclass(frozen=True, slots=True)
class AccountLine:
    """One account in the list."""

    name: str
    role: str
    tenant: str
    sign_in: str
    last: str
    disabled: bool
    edit: str


@dataclass(frozen=True, slots=True)
class AccountForm:
    """The form for one account; `original` is "" for a new one."""

    original: str
    values: dict[str, str]
    roles: tuple[Choice, ...]
    tenants: tuple[Choice, ...]
    errors: dict[str, str]
    disabled: bool
    reason_required: bool


@dataclass(frozen=True, slots=True)
class AccountsPage(Shell):
    """GET /accounts."""

    template: ClassVar[str] = "accounts.html"

    accounts: tuple[AccountLine, ...]
    sessions: tuple[SessionLine, ...]
    form: AccountForm | None
    told: str
    refused: str
    reason_required: bool
    zone: str


@dataclass(frozen=True, slots=True)
class KeyLine:
    """One key in a tenant's list; from the settings file it cannot be changed here."""

    name: str
    prefix: str
    state: str
    role: str
    lanes: str
    limits: str
    used: str
    expires: str
    old: str
    from_file: bool


@dataclass(frozen=True, slots=True)
class TenantCard:
    """One tenant with its keys."""

    name: str
    facts: tuple[tuple[str, str], ...]
    keys: tuple[KeyLine, ...]


@dataclass(frozen=True, slots=True)
class TenantForm:
    """The form for one tenant; `original` is "" for a new one."""

    original: str
    version: int
    values: dict[str, str]
    lanes: tuple[Choice, ...]
    errors: dict[str, str]
    conflict: str
    reason_required: bool


@dataclass(frozen=True, slots=True)
class KeyForm:
    """The form for a new key."""

    values: dict[str, str]
    tenants: tuple[Choice, ...]
    lanes: tuple[Choice, ...]
    roles: tuple[Choice, ...]
    errors: dict[str, str]
    reason_required: bool


@dataclass(frozen=True, slots=True)
class TenantsPage(Shell):
    """GET /tenants."""

    template: ClassVar[str] = "tenants.html"

    tenants: tuple[TenantCard, ...]
    tenant_form: TenantForm | None
    key_form: KeyForm | None
    told: str
    open: bool
    zone: str


@dataclass(frozen=True, slots=True)
class RotatePage(Shell):
    """The question before a key gets a new secret."""

    template: ClassVar[str] = "rotate.html"

    name: str
    tenant: str
    prefix: str
    overlaps: tuple[Choice, ...]
    errors: dict[str, str]
    reason_required: bool


@dataclass(frozen=True, slots=True)
class RevokePage(Shell):
    """The question before a key is revoked: its name must be typed."""

    template: ClassVar[str] = "revoke.html"

    name: str
    tenant: str
    prefix: str
    used: str
    values: dict[str, str]
    errors: dict[str, str]
    reason_required: bool
