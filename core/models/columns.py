"""What columns and indexes of several tables are made of."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, Integer, text
from sqlalchemy.types import TypeDecorator, TypeEngine


class Instant(TypeDecorator[datetime]):
    """An aware instant, kept in UTC; SQLite, which knows no zones, gets it without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive time; store UTC."""
        if value is None:
            return None
        if value.utcoffset() is None:
            raise ValueError("an instant needs its offset")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def big_id() -> TypeEngine[int]:
    """Return a 64-bit type that SQLite, too, numbers by itself."""
    return BigInteger().with_variant(Integer(), "sqlite")


def part(condition: str) -> dict[str, Any]:
    """Make an index one of the rows for which `condition` holds."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}
