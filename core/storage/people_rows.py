"""Rows of people, teams and keys from values and back."""

from typing import Any

from core.lanes import Lane
from core.models import AccountRow, ApiKeyRow, SessionRow, TenantRow
from core.people.accounts import Account
from core.people.identity import Role
from core.people.keys import ApiKey
from core.people.sessions import Session, Way
from core.people.tenants import Limits, Tenant

_KEY_PLAIN = (
    "name",
    "tenant",
    "hash",
    "prefix",
    "created_at",
    "expires_at",
    "last_used_at",
    "revoked_at",
    "old_hash",
    "old_prefix",
    "old_until",
)
_ACCOUNT_PLAIN = ("name", "tenant", "password", "subject", "created_at", "last_sign_in_at", "disabled_at")
_SESSION_PLAIN = ("id", "hash", "account", "created_at", "expires_at", "seen_at", "address", "agent")


def tenant_columns(tenant: Tenant) -> dict[str, Any]:
    """Return the columns of a tenant's row."""
    limits = {name: getattr(tenant.limits, name) for name in Limits.__slots__}
    plain = {name: getattr(tenant, name) for name in ("name", "weight", "batch_slots", "created_at", "version")}
    return {**plain, **limits, "lanes": list(tenant.lanes)}


def tenant_of(row: TenantRow) -> Tenant:
    """Return the tenant that the row holds."""
    return Tenant(
        name=row.name,
        weight=row.weight,
        batch_slots=row.batch_slots,
        limits=Limits(row.requests_per_minute, row.tokens_per_minute, row.queued_items, row.queued_tokens),
        lanes=tuple(map(Lane, row.lanes)),
        created_at=row.created_at,
        version=row.version,
    )


def key_columns(key: ApiKey) -> dict[str, Any]:
    """Return the columns of a key's row."""
    lists = {name: list(getattr(key, name)) for name in ("lanes", "models", "cidrs")}
    return {**{name: getattr(key, name) for name in _KEY_PLAIN}, **lists, "role": key.role, "lane": key.lane}


def key_of(row: ApiKeyRow) -> ApiKey:
    """Return the key that the row holds."""
    return ApiKey(
        **{name: getattr(row, name) for name in _KEY_PLAIN},
        role=Role(row.role),
        lane=Lane(row.lane),
        lanes=tuple(map(Lane, row.lanes)),
        models=tuple(row.models),
        cidrs=tuple(row.cidrs),
    )


def account_columns(account: Account) -> dict[str, Any]:
    """Return the columns of an account's row."""
    return {**{name: getattr(account, name) for name in _ACCOUNT_PLAIN}, "role": account.role}


def account_of(row: AccountRow) -> Account:
    """Return the account that the row holds."""
    return Account(**{name: getattr(row, name) for name in _ACCOUNT_PLAIN}, role=Role(row.role))


def session_columns(session: Session) -> dict[str, Any]:
    """Return the columns of a session's row."""
    return {**{name: getattr(session, name) for name in _SESSION_PLAIN}, "way": session.way}


def session_of(row: SessionRow) -> Session:
    """Return the session that the row holds."""
    return Session(**{name: getattr(row, name) for name in _SESSION_PLAIN}, way=Way(row.way))
