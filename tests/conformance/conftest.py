"""Real servers for the conformance suites. Where one cannot start its tests are skipped, with the reason; with
TIDEGATE_REQUIRE_SERVERS=1 they fail instead."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from core.storage.migrate import migrate
from core.storage.store import SqlStore
from tests.postgres import Missing, fresh_database, postgres


def cannot(reason: str) -> NoReturn:
    if os.environ.get("TIDEGATE_REQUIRE_SERVERS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a real PostgreSQL's maintenance database."""
    try:
        with postgres() as url:
            yield url
    except Missing as missing:
        cannot(str(missing))


@pytest.fixture(params=["sqlite", "postgresql"])
async def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of a fresh, empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'tidegate.db'}"
        return
    async with fresh_database(request.getfixturevalue("server")) as url:
        yield url


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
