"""Tenants, keys, accounts and sessions as JSON values: for the API and the audit trail. Never a secret, nor a hash."""

from datetime import datetime
from typing import Any

from core.people.accounts import Account
from core.people.keys import ApiKey
from core.people.sessions import Session
from core.people.tenants import Limits, Tenant

Json = dict[str, Any]


def instant(at: datetime | None) -> str | None:
    """Return an instant as RFC 3339 in UTC, to the second."""
    return None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


def tenant_json(tenant: Tenant) -> Json:
    """Return a tenant."""
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "batch_slots": tenant.batch_slots,
        **{name: getattr(tenant.limits, name) for name in Limits.__slots__},
        "lanes": list(tenant.lanes),
        "created_at": instant(tenant.created_at),
        "version": tenant.version,
    }


def key_json(key: ApiKey, now: datetime) -> Json:
    """Return a key; `old_until` is until when the secret from before a rotation is still taken."""
    return {
        "name": key.name,
        "tenant": key.tenant,
        "prefix": key.prefix,
        "state": key.state(now).value,
        "role": key.role.value,
        "lane": key.lane.value,
        "lanes": list(key.lanes),
        "models": list(key.models),
        "cidrs": list(key.cidrs),
        "created_at": instant(key.created_at),
        "expires_at": instant(key.expires_at),
        "last_used_at": instant(key.last_used_at),
        "revoked_at": instant(key.revoked_at),
        "old_prefix": key.old_prefix if key.overlaps(now) else None,
        "old_until": instant(key.old_until) if key.overlaps(now) else None,
    }


def account_json(account: Account) -> Json:
    """Return an account; `sign_in` tells how: password, provider, proxy, or none yet."""
    return {
        "name": account.name,
        "role": account.role.value,
        "tenant": account.tenant,
        "sign_in": sign_in_by(account),
        "disabled": not account.active,
        "created_at": instant(account.created_at),
        "last_sign_in_at": instant(account.last_sign_in_at),
        "disabled_at": instant(account.disabled_at),
    }


def sign_in_by(account: Account) -> str:
    """Return how an account signs in."""
    if account.password is not None:
        return "password"
    if account.subject is None:
        return "none yet"
    return "proxy" if account.subject == f"proxy|{account.name}" else "provider"


def session_json(session: Session) -> Json:
    """Return a session."""
    return {
        "id": session.id,
        "account": session.account,
        "created_at": instant(session.created_at),
        "expires_at": instant(session.expires_at),
        "seen_at": instant(session.seen_at),
        "address": session.address,
        "agent": session.agent,
        "way": session.way.value,
    }
