import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlmodel import SQLModel

import core.models  # noqa: F401  (registers the tables)
from core.batch.values import Batch
from core.batch.window import window_of
from core.control.windows import Schedule
from core.errors import ConfigError
from core.paths import MIGRATIONS
from core.storage.database import Database
from core.storage.migrate import migrate, newest_revision
from core.storage.store import SqlStore

pytestmark = pytest.mark.anyio
DAY = timedelta(days=1)
BATCH = Batch("b", "t", None, "p", None, "/v1/embeddings", "f", DAY, datetime(2026, 12, 9, tzinfo=UTC))


def differences(connection: Connection) -> list[object]:
    return list(compare_metadata(MigrationContext.configure(connection), SQLModel.metadata))


def nullable(connection: Connection) -> dict[str, bool]:
    found = inspect(connection)
    return {f"{t}.{c['name']}": bool(c["nullable"]) for t in found.get_table_names() for c in found.get_columns(t)}


def back_to(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.downgrade(config, revision)


async def test_the_models_and_the_migrated_schema_agree(url: str) -> None:
    database = Database(url)
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []
        present = await connection.run_sync(nullable)
    wanted = {
        f"{table.name}.{column.name}": bool(column.nullable)
        for table in SQLModel.metadata.tables.values()
        for column in table.columns
    }
    assert {name: value for name, value in present.items() if not name.startswith("alembic_")} == wanted
    await database.close()


async def test_old_batches_tell_the_window_that_was_told_of_them_before(url: str) -> None:
    store = SqlStore(url)
    written = {"1h": "1h", "24h": "24h", "3d": "72h", "14d": "336h"}
    for window in written:
        await store.create(replace(BATCH, id=window, window=window_of(window), completion_window=window))
    database = Database(url)
    async with database.exclusive() as connection:
        await connection.run_sync(back_to, "0006")
    await database.close()
    await migrate(url)
    assert {name: (await store.batch(name)).completion_window for name in written} == written
    await store.close()


async def test_migrating_twice_and_many_at_once_is_one_migration(empty_url: str) -> None:
    await asyncio.gather(*(migrate(empty_url) for _ in range(5)))
    await migrate(empty_url)
    store = SqlStore(empty_url)
    await store.seed([], Schedule("Europe/Berlin"))
    assert (await store.schedule()).zone == "Europe/Berlin"
    await store.close()


async def test_a_database_of_a_newer_version_is_refused_in_one_clear_line_and_left_alone(url: str) -> None:
    database = Database(url)
    async with database.exclusive() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigError, match="another version of Tidegate") as caught:
        await migrate(url)
    assert "\n" not in str(caught.value)
    async with database.engine.connect() as connection:
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalar() == "9999"
    await database.close()


def test_the_migrations_are_one_line_from_the_first_to_the_last() -> None:
    script = ScriptDirectory(str(MIGRATIONS))
    assert script.get_heads() == [newest_revision()]
    assert [revision.down_revision for revision in script.walk_revisions()][-1] is None
