"""One engine for both databases: SQLite in WAL with immediate write transactions, or PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import msgspec
from sqlalchemy import Connection, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlmodel import SQLModel

from core.errors import ConfigError

BUSY_TIMEOUT_S = 30
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgres": "postgresql+asyncpg", "postgresql": "postgresql+asyncpg"}


class Database:
    """Gives read and write sessions on one database; opens connections when they are first needed.

    On SQLite every write takes the write lock when it begins (BEGIN IMMEDIATE): a transaction that reads first and
    takes it later fails at once under load, whatever the time-out. Writers of one process queue here, fairly; those of
    other processes wait for each other for up to 30 s.
    """

    def __init__(self, url: str) -> None:
        """Raises ConfigError for a URL of no known kind."""
        self.engine = _engine(database_url(url))
        self._immediate = self.engine.execution_options(immediate=True)
        self._one_writer = asyncio.Lock() if self.is_sqlite else None

    @property
    def is_sqlite(self) -> bool:
        """Tell whether this is SQLite."""
        return self.engine.dialect.name == "sqlite"

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """Give a session in which every query sees one state of the database on SQLite, the latest on PostgreSQL."""
        async with AsyncSession(self.engine, expire_on_commit=False) as session:
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """Give a session in one transaction: committed at the end, rolled back if anything is raised."""
        async with self._turn(), AsyncSession(self._immediate, expire_on_commit=False) as session, session.begin():
            yield session

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[AsyncConnection]:
        """Give a connection in one write transaction, for what is no matter of rows (migrations)."""
        async with self._turn(), self._immediate.begin() as connection:
            yield connection

    def insert(self, table: type[SQLModel]) -> Any:
        """Return this database's INSERT, which can tell what to do on a conflict."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    async def ping(self) -> None:
        """Do a trivial read."""
        async with self.engine.connect() as connection:
            await connection.execute(text("SELECT 1"))

    async def close(self) -> None:
        """Close all connections. Legal twice."""
        await self.engine.dispose()

    def _turn(self) -> AbstractAsyncContextManager[object]:
        return self._one_writer or nullcontext()


def database_url(url: str) -> URL:
    """Return `url` with its async driver. Raises ConfigError, without naming what may hold a password."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigError("the database URL cannot be read; it must begin with sqlite:/// or postgresql://") from None
    parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
    if parsed.drivername not in _DRIVERS.values():
        raise ConfigError("the database URL must begin with sqlite:/// or postgresql://")
    if "sslmode" in parsed.query:
        query = {("ssl" if name == "sslmode" else name): value for name, value in parsed.query.items()}
        parsed = parsed.set(query=query)
    return parsed


def _engine(url: URL) -> AsyncEngine:
    options: dict[str, Any] = {"json_serializer": _to_json, "json_deserializer": msgspec.json.decode}
    if url.get_backend_name() != "sqlite":
        return create_async_engine(url, pool_pre_ping=True, **options)
    engine = create_async_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, **options)
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _to_json(value: object) -> str:
    """Return JSON in which nothing is NaN or infinite: those are null."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says, not where the driver thinks
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
