"""All that is stored, in one database."""

from core.storage.audit import SqlAudit
from core.storage.batch_views import SqlBatchViews
from core.storage.batches import SqlBatches
from core.storage.calls import SqlCalls
from core.storage.database import Database
from core.storage.decisions import SqlDecisions
from core.storage.file_facts import SqlFiles
from core.storage.forecasts import SqlForecasts
from core.storage.items import SqlItems
from core.storage.people import SqlPeople
from core.storage.settings import SqlSettings
from core.storage.webhooks import SqlWebhooks


class SqlStore(
    SqlSettings,
    SqlDecisions,
    SqlAudit,
    SqlCalls,
    SqlFiles,
    SqlBatches,
    SqlItems,
    SqlBatchViews,
    SqlForecasts,
    SqlWebhooks,
    SqlPeople,
):
    """The stores of `core.ports` in one database, SQLite or PostgreSQL; `migrate` the URL before the first use."""

    def __init__(self, url: str) -> None:
        """Take the database's URL; connections open when they are first needed. Raises ConfigError for a bad URL."""
        super().__init__(database=Database(url))

    async def close(self) -> None:
        """Close all connections. Legal twice."""
        await self._database.close()
