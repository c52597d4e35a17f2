"""The tables behind the statements that are too hot for objects."""

from sqlalchemy import Table
from sqlmodel import SQLModel

from core.models import BatchItemRow, BatchRow, CallRow


def _table(model: type[SQLModel]) -> Table:
    return SQLModel.metadata.tables[str(model.__tablename__)]


BATCHES = _table(BatchRow)
ITEMS = _table(BatchItemRow)
CALLS = _table(CallRow)
