"""All that is stored, in one database."""

from core.storage.database import Database
from core.storage.decisions import SqlDecisions
from core.storage.settings import SqlSettings


class SqlStore(SqlSettings, SqlDecisions):
    """The stores of `core.ports` in one database, SQLite or PostgreSQL; `migrate` the URL before the first use."""

    def __init__(self, url: str) -> None:
        """Take the database's URL; connections open when they are first needed. Raises ConfigError for a bad URL."""
        super().__init__(database=Database(url))

    async def close(self) -> None:
        """Close all connections. Legal twice."""
        await self._database.close()
