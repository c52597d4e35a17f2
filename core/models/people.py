"""The tables of teams, keys, accounts and sign-ins."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, Index
from sqlmodel import Field, SQLModel

from core.models.columns import Instant, part

PEOPLE_ID = 1


class TenantRow(SQLModel, table=True):
    """One team: `core.people.tenants.Tenant`."""

    __tablename__ = "tenant"

    name: str = Field(primary_key=True)
    weight: float
    batch_slots: int | None = Field(default=None, sa_type=BigInteger)
    requests_per_minute: int | None = Field(default=None, sa_type=BigInteger)
    tokens_per_minute: int | None = Field(default=None, sa_type=BigInteger)
    queued_items: int | None = Field(default=None, sa_type=BigInteger)
    queued_tokens: int | None = Field(default=None, sa_type=BigInteger)
    lanes: list[str] = Field(sa_type=JSON)
    created_at: datetime = Field(sa_type=Instant)
    version: int


class ApiKeyRow(SQLModel, table=True):
    """One API key: `core.people.keys.ApiKey`; of its secrets the keyed hashes."""

    __tablename__ = "api_key"

    name: str = Field(primary_key=True)
    tenant: str
    hash: str
    prefix: str
    role: str
    lane: str
    lanes: list[str] = Field(sa_type=JSON)
    models: list[str] = Field(sa_type=JSON)
    cidrs: list[str] = Field(sa_type=JSON)
    created_at: datetime = Field(sa_type=Instant)
    expires_at: datetime | None = Field(default=None, sa_type=Instant)
    last_used_at: datetime | None = Field(default=None, sa_type=Instant)
    revoked_at: datetime | None = Field(default=None, sa_type=Instant)
    old_hash: str | None = Field(default=None)
    old_prefix: str | None = Field(default=None)
    old_until: datetime | None = Field(default=None, sa_type=Instant)


class AccountRow(SQLModel, table=True):
    """One person: `core.people.accounts.Account`; `password` is Argon2's text."""

    __tablename__ = "account"
    __table_args__ = (Index("ix_account_subject", "subject", unique=True, **part("subject IS NOT NULL")),)

    name: str = Field(primary_key=True)
    role: str
    tenant: str
    password: str | None = Field(default=None)
    subject: str | None = Field(default=None)
    created_at: datetime = Field(sa_type=Instant)
    last_sign_in_at: datetime | None = Field(default=None, sa_type=Instant)
    disabled_at: datetime | None = Field(default=None, sa_type=Instant)


class SessionRow(SQLModel, table=True):
    """One sign-in: `core.people.sessions.Session`; of the cookie the keyed hash."""

    __tablename__ = "session"
    __table_args__ = (Index("ix_session_account", "account"), Index("ix_session_expires_at", "expires_at"))

    id: str = Field(primary_key=True)
    hash: str
    account: str
    created_at: datetime = Field(sa_type=Instant)
    expires_at: datetime = Field(sa_type=Instant)
    seen_at: datetime = Field(sa_type=Instant)
    address: str
    agent: str
    way: str


class PeopleRow(SQLModel, table=True):
    """The one row that all changes of people, teams and keys go through: it numbers them, and keeps their order."""

    __tablename__ = "people"

    id: int = Field(default=PEOPLE_ID, primary_key=True)
    revision: int = Field(sa_type=BigInteger)
    secret_mark: str | None = Field(default=None)
    setup_hash: str | None = Field(default=None)
    setup_until: datetime | None = Field(default=None, sa_type=Instant)
