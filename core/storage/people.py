"""Tenants, keys, accounts and sessions in SQL."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar, cast

from sqlalchemy import CursorResult, Executable, delete, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlmodel import SQLModel, col, select

from core.errors import ConfigError, InvalidValue, NotFound, StaleVersion
from core.models import PEOPLE_ID, AccountRow, ApiKeyRow, PeopleRow, SessionRow, TenantRow
from core.people.accounts import Account
from core.people.audit import AuditEntry
from core.people.keys import ApiKey
from core.people.sessions import Session
from core.people.store import Everyone, SetUp
from core.people.tenants import Tenant
from core.storage.audit import append
from core.storage.database import Database
from core.storage.people_rows import (
    account_columns,
    account_of,
    key_columns,
    key_of,
    session_columns,
    session_of,
    tenant_columns,
    tenant_of,
)

Row = TypeVar("Row", bound=SQLModel)


class SqlPeople:
    """See `core.people.store.PeopleStore`. Each change begins with the one row of `people`, which puts all in order."""

    _database: Database

    async def revision(self) -> int:
        """Return the present revision."""
        # Asked for each second: a session would cost as much again.
        async with self._database.engine.connect() as connection:
            return (await connection.scalars(select(col(PeopleRow.revision)))).one()

    async def everyone(self) -> Everyone:
        """Return all that is stored."""
        async with self._database.read() as session:
            # The revision first: what is read after it is at least as new, on PostgreSQL maybe newer.
            people = await _people(session)
            return Everyone(
                revision=people.revision,
                tenants=tuple(map(tenant_of, await _all(session, TenantRow, TenantRow.name))),
                keys=tuple(map(key_of, await _all(session, ApiKeyRow, ApiKeyRow.name))),
                accounts=tuple(map(account_of, await _all(session, AccountRow, AccountRow.name))),
                sessions=tuple(map(session_of, await _all(session, SessionRow, SessionRow.created_at))),
                secret_mark=people.secret_mark,
            )

    async def add_tenants(
        self, tenants: Iterable[Tenant], *, entry: Callable[[Tenant], AuditEntry] | None = None
    ) -> list[Tenant]:
        """Store the tenants that are not stored yet."""
        async with self._change() as (session, _):
            added = [each for each in tenants if await self._insert_missing_tenant(session, each)]
            if entry is not None:
                await append(session, map(entry, added))
            return added

    async def change_tenant(
        self,
        name: str,
        change: Callable[[Tenant], Tenant],
        *,
        based_on: int | None,
        entry: Callable[[Tenant, Tenant], AuditEntry],
    ) -> Tenant:
        """Store the changed tenant as the next version."""
        async with self._change() as (session, _):
            row = await _get(session, TenantRow, name, "tenant")
            before = tenant_of(row)
            if based_on is not None and based_on != before.version:
                raise StaleVersion(based_on, before.version)
            after = replace(change(before), version=before.version + 1)
            row.sqlmodel_update(tenant_columns(after))
            await append(session, [entry(before, after)])
            return after

    async def add_key(
        self, key: ApiKey, *, tenant: Tenant, entry: AuditEntry, tenant_entry: AuditEntry, mark: str
    ) -> bool:
        """Store a new key, and its tenant where that is missing."""
        async with self._change() as (session, people):
            if await session.get(ApiKeyRow, key.name) is not None:
                raise InvalidValue("name", f"there is a key named {key.name} already; names are unique")
            await _check_mark(session, people, mark)
            is_new = await self._insert_missing_tenant(session, tenant)
            session.add(ApiKeyRow(**key_columns(key)))
            await append(session, [tenant_entry, entry] if is_new else [entry])
            return is_new

    async def change_key(
        self, name: str, change: Callable[[ApiKey], ApiKey], *, entry: Callable[[ApiKey, ApiKey], AuditEntry]
    ) -> ApiKey:
        """Store the changed key."""
        async with self._change() as (session, _):
            row = await _get(session, ApiKeyRow, name, "key")
            before = key_of(row)
            after = change(before)
            row.sqlmodel_update(key_columns(after))
            await append(session, [entry(before, after)])
            return after

    async def forget_keys(self, *, entry: Callable[[Sequence[ApiKey]], AuditEntry]) -> int:
        """Delete every key."""
        async with self._change() as (session, people):
            keys = [key_of(row) for row in await _all(session, ApiKeyRow, ApiKeyRow.name)]
            await session.execute(delete(ApiKeyRow))
            people.secret_mark = None
            await append(session, [entry(keys)])
            return len(keys)

    async def add_account(
        self, account: Account, *, entry: AuditEntry, only: Callable[[Sequence[Account]], None] | None = None
    ) -> None:
        """Store a new account."""
        async with self._change() as (session, people):
            there = [account_of(row) for row in await _all(session, AccountRow, AccountRow.name)]
            if only is not None:
                only(there)
            if account.name in {each.name for each in there}:
                raise InvalidValue("name", f"there is an account named {account.name} already")
            session.add(AccountRow(**account_columns(account)))
            people.setup_hash = people.setup_until = None
            await append(session, [entry])

    async def change_account(
        self,
        name: str,
        change: Callable[[Account, Sequence[Account]], Account],
        *,
        entry: Callable[[Account, Account], AuditEntry] | None,
        sign_out: bool = False,
    ) -> Account:
        """Store the changed account."""
        async with self._change() as (session, _):
            rows = await _all(session, AccountRow, AccountRow.name)
            row = next((each for each in rows if each.name == name), None)
            if row is None:
                raise NotFound("account", name)
            before = account_of(row)
            after = change(before, [account_of(each) for each in rows if each is not row])
            row.sqlmodel_update(account_columns(after))
            if sign_out:
                await session.execute(delete(SessionRow).where(col(SessionRow.account) == name))
            if entry is not None:
                await append(session, [entry(before, after)])
            return after

    async def add_session(self, session: Session, *, entry: AuditEntry) -> None:
        """Store a new session."""
        async with self._change() as (database, _):
            account = await _get(database, AccountRow, session.account, "account")
            account.last_sign_in_at = session.created_at
            await database.execute(delete(SessionRow).where(col(SessionRow.expires_at) <= session.created_at))
            database.add(SessionRow(**session_columns(session)))
            await append(database, [entry])

    async def end_sessions(self, ids: Iterable[str], *, entry: AuditEntry | None) -> int:
        """Delete sessions."""
        async with self._change() as (session, _):
            gone = await _count(session, delete(SessionRow).where(col(SessionRow.id).in_(list(ids))))
            if gone and entry is not None:
                await append(session, [entry])
            return gone

    async def seen(self, *, keys: Mapping[str, datetime], sessions: Mapping[str, datetime]) -> None:
        """Note when keys and sessions were last used."""
        async with self._database.write() as session:
            for name, at in sorted(keys.items()):
                used = update(ApiKeyRow).where(col(ApiKeyRow.name) == name).values(last_used_at=at)
                await session.execute(used)
            for id, at in sorted(sessions.items()):
                await session.execute(update(SessionRow).where(col(SessionRow.id) == id).values(seen_at=at))

    async def note(self, *entries: AuditEntry) -> None:
        """Add audit entries of what changed nothing."""
        async with self._database.write() as session:
            await append(session, entries)

    async def put_set_up(self, set_up: SetUp | None) -> None:
        """Let this be the one set-up link that may be used."""
        async with self._change() as (_, people):
            people.setup_hash = set_up.hash if set_up else None
            people.setup_until = set_up.until if set_up else None

    async def set_up(self) -> SetUp | None:
        """Return the set-up link that may be used."""
        async with self._database.read() as session:
            people = await _people(session)
        if people.setup_hash is None or people.setup_until is None:
            return None
        return SetUp(people.setup_hash, people.setup_until)

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[tuple[AsyncSession, PeopleRow]]:
        """Give a transaction that no other change of people overlaps, and that raises the revision."""
        async with self._database.write() as session:
            people = await _people(session, lock=True)
            people.revision += 1
            yield session, people

    async def _insert_missing_tenant(self, session: AsyncSession, tenant: Tenant) -> bool:
        insert = self._database.insert(TenantRow).values(**tenant_columns(tenant)).on_conflict_do_nothing()
        return await _count(session, insert) > 0


async def _people(session: AsyncSession, *, lock: bool = False) -> PeopleRow:
    return await session.get_one(PeopleRow, PEOPLE_ID, with_for_update=lock or None)


async def _all(session: AsyncSession, table: type[Row], order: Any) -> list[Row]:
    return list(await session.scalars(select(table).order_by(col(order))))


async def _get(session: AsyncSession, table: type[Row], name: str, kind: str) -> Row:
    row = await session.get(table, name)
    if row is None:
        raise NotFound(kind, name)
    return row


async def _count(session: AsyncSession, statement: Executable) -> int:
    return cast("CursorResult[Any]", await session.execute(statement)).rowcount


async def _check_mark(session: AsyncSession, people: PeopleRow, mark: str) -> None:
    """Keep the mark of the secret with the first key; a key made under another secret would never be known."""
    if people.secret_mark == mark:
        return
    if (await session.scalars(select(ApiKeyRow.name).limit(1))).first() is not None:
        raise ConfigError(
            "secret: it is not the one under which this database's keys were made; set TIDEGATE_SECRET to that one, or "
            "copy the file `secret` from the data folder of the installation that made them"
        )
    people.secret_mark = mark
