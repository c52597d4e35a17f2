"""Tenants, keys, accounts and sessions as the pages show them. Values alone, no requests."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, tzinfo
from urllib.parse import quote

from core import wording
from core.config import KeyConfig
from core.people.accounts import Account
from core.people.identity import ANY_MODEL, Role
from core.people.keys import ApiKey
from core.people.sessions import Session
from core.people.store import Everyone
from core.people.tenants import Limits, Tenant
from core.people.told import sign_in_by
from web.contexts import Choice
from web.people_contexts import AccountLine, KeyLine, SessionLine, TenantCard

ROLE_WORDS = {
    Role.VIEWER: "viewer: sees",
    Role.MEMBER: "member: calls models, own batches",
    Role.OPERATOR: "operator: tunes, schedules, pauses",
    Role.ADMIN: "admin: teams, keys, accounts",
}
LANE_WORDS = {
    "": "both lanes, interactive first",
    "both-batch": "both lanes, batch first",
    "interactive": "interactive only",
    "batch": "batch only",
}
OVERLAPS = {"0": "not at all", "1h": "1 hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}
_LIMITS = {
    "requests_per_minute": "Requests per minute",
    "tokens_per_minute": "Tokens per minute",
    "queued_items": "Queued items",
    "queued_tokens": "Queued tokens",
}


def tenant_cards(
    everyone: Everyone,
    file_keys: Sequence[KeyConfig],
    usage: Mapping[str, tuple[int, int, int]],
    *,
    now: datetime,
    zone: tzinfo,
) -> tuple[TenantCard, ...]:
    """Return every tenant with its keys. `usage`: requests and tokens of the last minute, batch calls at work."""
    return tuple(
        TenantCard(
            tenant.name,
            _facts(tenant, usage.get(tenant.name, (0, 0, 0))),
            (
                *(_key_line(key, now, zone) for key in everyone.keys if key.tenant == tenant.name),
                *(_file_line(key) for key in file_keys if key.tenant == tenant.name),
            ),
        )
        for tenant in everyone.tenants
    )


def _facts(tenant: Tenant, usage: tuple[int, int, int]) -> tuple[tuple[str, str], ...]:
    requests, tokens, batch = usage
    limits = ((label, getattr(tenant.limits, name)) for name, label in _LIMITS.items())
    return (
        ("Weight", wording.plain(tenant.weight)),
        ("Batch slots", "no limit" if tenant.batch_slots is None else f"at most {tenant.batch_slots}"),
        ("Lanes", _lanes_told(tenant.lanes)),
        *((label, f"at most {wording.count(most)}") for label, most in limits if most is not None),
        ("Last minute", f"{wording.count(requests)} requests, {wording.count(tokens)} tokens"),
        *([("Batch calls now", wording.count(batch))] if batch else []),
    )


def _key_line(key: ApiKey, now: datetime, zone: tzinfo) -> KeyLine:
    limits = [", ".join(key.models)] if key.models != ANY_MODEL else []
    limits += [f"from {', '.join(key.cidrs)}"] if key.cidrs else []
    old = f"{key.old_prefix}… until {wording.moment(key.old_until, now, zone)}" if key.overlaps(now) else ""
    return KeyLine(
        name=key.name,
        prefix=f"{key.prefix}…",
        state=key.state(now).value,
        role=key.role.value,
        lanes=_lanes_told(key.lanes, key.lane),
        limits="; ".join(limits),
        used=wording.moment(key.last_used_at, now, zone) if key.last_used_at else "never",
        expires=wording.moment(key.expires_at, now, zone) if key.expires_at else "never",
        old=old,
        from_file=False,
    )


def _file_line(key: KeyConfig) -> KeyLine:
    lanes = _lanes_told(key.lanes, key.lane)
    return KeyLine(key.name, "—", "active", key.role.value, lanes, "", "—", "never", "", from_file=True)


def _lanes_told(lanes: Iterable[str], first: str | None = None) -> str:
    names = list(lanes)
    if len(names) > 1:
        return f"both lanes, {first} first" if first else "both"
    return f"{names[0]} only" if first else names[0]


def session_lines(
    sessions: Iterable[Session], *, here: str | None, now: datetime, zone: tzinfo
) -> tuple[SessionLine, ...]:
    """Return sessions that still stand, the newest first; `here` is the id of the one that looks."""
    standing = sorted((each for each in sessions if each.expires_at > now), key=lambda each: each.created_at)
    return tuple(
        SessionLine(
            id=each.id,
            account=each.account,
            began=wording.moment(each.created_at, now, zone),
            seen=wording.moment(each.seen_at, now, zone),
            ends=wording.moment(each.expires_at, now, zone),
            address=each.address or "—",
            agent=each.agent or "—",
            way=each.way.value,
            here=each.id == here,
        )
        for each in reversed(standing)
    )


def account_lines(accounts: Iterable[Account], *, now: datetime, zone: tzinfo) -> tuple[AccountLine, ...]:
    """Return accounts as lines."""
    return tuple(
        AccountLine(
            name=each.name,
            role=each.role.value,
            tenant=each.tenant,
            sign_in=sign_in_by(each),
            last=wording.moment(each.last_sign_in_at, now, zone) if each.last_sign_in_at else "never",
            disabled=not each.active,
            edit=f"/accounts?edit={quote(each.name, safe='')}",
        )
        for each in accounts
    )


def roles(chosen: str) -> tuple[Choice, ...]:
    """Return the roles to choose from."""
    return tuple(Choice(role, label, role == chosen) for role, label in ROLE_WORDS.items())


def names(options: Iterable[str], chosen: str) -> tuple[Choice, ...]:
    """Return names to choose from; the chosen one stays where it is no longer among them."""
    found = dict.fromkeys([*options, *([chosen] if chosen else [])])
    return tuple(Choice(name, name, name == chosen) for name in found)


def choices(options: Mapping[str, str], chosen: str) -> tuple[Choice, ...]:
    """Return options to choose from, by value."""
    return tuple(Choice(value, label, value == chosen) for value, label in options.items())


def tenant_values(tenant: Tenant | None) -> dict[str, str]:
    """Return a tenant as its form starts with it."""
    if tenant is None:
        return {"weight": "1"}
    limits = {name: getattr(tenant.limits, name) for name in Limits.__slots__}
    numbers = {"batch_slots": tenant.batch_slots, **limits}
    return {
        "weight": wording.plain(tenant.weight),
        **{name: "" if value is None else str(value) for name, value in numbers.items()},
    }
