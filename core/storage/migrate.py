"""Brings a database to the schema of this version."""

import logging

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from core.errors import ConfigError
from core.paths import MIGRATIONS
from core.storage.database import Database

_LOCK = 7_139_450_217_803


async def migrate(url: str) -> None:
    """Create or update the schema of the database at `url`, in one transaction; do nothing where it is up to date.

    Any number of processes may do so at once: they take turns. Raises ConfigError where the database was written by a
    newer version, or cannot be used.
    """
    database = Database(url)
    try:
        async with database.exclusive() as connection:
            if not database.is_sqlite:
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            if await connection.run_sync(_revision) != newest_revision():
                await connection.run_sync(_upgrade)
    except (SQLAlchemyError, OSError) as error:
        logging.getLogger(__name__).debug("the database cannot be used", exc_info=error)
        fault = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"the database cannot be used: {fault}; check TIDEGATE_DATABASE and TIDEGATE_DATA") from None
    finally:
        await database.close()


def newest_revision() -> str:
    """Return this version's revision, by the name of the newest migration."""
    return max(file.name for file in (MIGRATIONS / "versions").glob("[0-9]*_*.py")).partition("_")[0]


def _revision(connection: Connection) -> str | None:
    """Return the revision of the database. To be up to date costs no alembic, which holds ten megabytes."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        logging.getLogger(__name__).debug("migration refused", exc_info=error)
        raise ConfigError(
            "the database was written by another version of Tidegate; install that version or a newer one, "
            "or point TIDEGATE_DATA at another folder"
        ) from None
