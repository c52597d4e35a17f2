"""One engine for both databases: SQLite in WAL with immediate write transactions, or PostgreSQL."""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlmodel import SQLModel

from core.errors import ConfigError

BUSY_TIMEOUT_S = 30
WAL_TRIES, WAL_PAUSE_S = 300, 0.01
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgres": "postgresql+asyncpg", "postgresql": "postgresql+asyncpg"}

T = TypeVar("T")


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
        self._writer = WriterThread(self.engine.url) if self.is_sqlite else None

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

    async def work(self, do: Callable[[Connection], T], *, durable: bool = True) -> T:
        """Run `do` on a connection in one write transaction, committed unless it raises, and return what it returns.

        For the hot statements: on SQLite the whole transaction is one hop to a thread, not one for each statement, and
        the next writer need not wait until the disk has it. One that is not `durable` does not wait for that either: a
        power cut, not a crash, may undo it.
        """
        if self._writer is None:
            async with self._immediate.begin() as connection:
                return await connection.run_sync(do)
        async with self._turn():
            result = await self._writer.run(do)
        if durable:
            await asyncio.to_thread(self._writer.flush)
        return result

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
        if self._writer is not None:
            self._writer.close()

    def _turn(self) -> AbstractAsyncContextManager[object]:
        return self._one_writer or nullcontext()


class WriterThread:
    """One thread with a connection of its own to a SQLite database; both begin when they are first needed.

    Its commits do not wait for the disk; `flush` does, for all that was committed before.
    """

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="sqlite")
        self._engine: Engine | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, do: Callable[[Connection], T]) -> T:
        """Run `do` in a transaction there. Who is cancelled meanwhile leaves only when the transaction is over."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "sqlite writer")
        job = asyncio.get_running_loop().run_in_executor(self._thread, self._transact, do)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            await asyncio.wait({job})
            raise

    def flush(self) -> None:
        """Wait until the disk has the write-ahead log. What is no longer in it was flushed when it was taken over."""
        with suppress(FileNotFoundError):
            handle = os.open(f"{self._url.database}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def close(self) -> None:
        """End thread and connection. Legal twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._dispose)
            thread.shutdown()

    def _transact(self, do: Callable[[Connection], T]) -> T:
        if self._engine is None:
            engine = create_engine(self._url, pool_size=1, **_sqlite_options())
            _listen(engine)
            event.listen(engine, "connect", _wait_for_no_disk)
            self._engine = engine.execution_options(immediate=True)
        with self._engine.begin() as connection:
            return do(connection)

    def _dispose(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None


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
    if url.get_backend_name() != "sqlite":
        return create_async_engine(url, pool_pre_ping=True, **_JSON)
    engine = create_async_engine(url, **_sqlite_options())
    _listen(engine.sync_engine)
    return engine


def _sqlite_options() -> dict[str, Any]:
    return {"connect_args": {"timeout": BUSY_TIMEOUT_S}, **_JSON}


def _listen(engine: Engine) -> None:
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)


def _to_json(value: object) -> str:
    """Return JSON in which nothing is NaN or infinite: those are null."""
    return msgspec.json.encode(value, enc_hook=str).decode()


_JSON: dict[str, Any] = {"json_serializer": _to_json, "json_deserializer": msgspec.json.decode}


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says, not where the driver thinks
    cursor = connection.cursor()
    _write_ahead(cursor)
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _write_ahead(cursor: Any) -> None:
    """Bring the file to write-ahead logging. Of several that do so at once on a new file, all but one are refused.

    They are refused at once, whatever the busy time-out, and so ask again until one of them has done it.
    """
    for _ in range(WAL_TRIES):
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            time.sleep(WAL_PAUSE_S)
        else:
            return
    cursor.execute("PRAGMA journal_mode = WAL")


def _wait_for_no_disk(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
