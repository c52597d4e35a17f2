"""The facts of files in SQL; their bytes are the FileStore's."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import and_, delete, exists, or_, tuple_
from sqlmodel import col, select

from core.batch.values import StoredFile
from core.errors import InvalidValue, NotFound
from core.models import BatchRow, FileRow
from core.people.audit import AuditEntry
from core.storage.audit import append
from core.storage.database import Database

_NEEDED = and_(
    col(BatchRow.ended_at).is_(None),
    or_(
        col(BatchRow.input_file_id) == col(FileRow.id),
        col(BatchRow.output_file_id) == col(FileRow.id),
        col(BatchRow.error_file_id) == col(FileRow.id),
    ),
)


class SqlFiles:
    """The files of `core.ports.BatchStore`."""

    _database: Database

    async def add_file(self, file: StoredFile, *, audit: Sequence[AuditEntry] = ()) -> None:
        """Store a file's facts, in place of those it has."""
        columns = _columns(file)
        insert = self._database.insert(FileRow).values(id=file.id, **columns)
        async with self._database.write() as session:
            await session.execute(insert.on_conflict_do_update(index_elements=["id"], set_=columns))
            await append(session, audit)

    async def file(self, file_id: str, *, tenant: str | None) -> StoredFile:
        """Return a file's facts."""
        async with self._database.read() as session:
            row = await session.get(FileRow, file_id)
        return _file_of(_visible(row, file_id, tenant))

    async def files(
        self, *, tenant: str | None, purpose: str | None, after: str | None, limit: int, ascending: bool
    ) -> list[StoredFile]:
        """Return one page in order of creation, plus one file more where there is more."""
        place = tuple_(col(FileRow.created_at), col(FileRow.id))
        order = (col(FileRow.created_at), col(FileRow.id))
        query = select(FileRow).order_by(*(each if ascending else each.desc() for each in order)).limit(limit + 1)
        if tenant is not None:
            query = query.where(col(FileRow.tenant) == tenant)
        if purpose is not None:
            query = query.where(col(FileRow.purpose) == purpose)
        async with self._database.read() as session:
            if after is not None:
                last = _visible(await session.get(FileRow, after), after, tenant)
                cursor = tuple_(last.created_at, last.id)
                query = query.where(place > cursor if ascending else place < cursor)
            return [_file_of(row) for row in await session.scalars(query)]

    async def delete_file(self, file_id: str, *, tenant: str | None, audit: Sequence[AuditEntry] = ()) -> None:
        """Forget a file that no batch needs any more."""
        async with self._database.write() as session:
            row = _visible(await session.get(FileRow, file_id, with_for_update=True), file_id, tenant)
            needed = select(BatchRow.id).where(_NEEDED, col(FileRow.id) == file_id).limit(1)
            batch = (await session.scalars(needed)).first()
            if batch is not None:
                raise InvalidValue("file_id", f"{batch} still needs this file; cancel that batch or wait for its end")
            await session.execute(delete(FileRow).where(col(FileRow.id) == row.id))
            await append(session, audit)

    async def expired_files(self, *, now: datetime, limit: int) -> list[StoredFile]:
        """Return files whose time is over and that no batch needs any more."""
        needed = exists().where(_NEEDED)
        query = select(FileRow).where(col(FileRow.expires_at) <= now, ~needed).limit(limit)
        async with self._database.read() as session:
            return [_file_of(row) for row in await session.scalars(query)]


def _visible(row: FileRow | None, file_id: str, tenant: str | None) -> FileRow:
    if row is None or tenant not in (None, row.tenant):
        raise NotFound("file", file_id)
    return row


def _columns(file: StoredFile) -> dict[str, object]:
    return {
        "tenant": file.tenant,
        "filename": file.filename,
        "purpose": file.purpose,
        "size": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
    }


def _file_of(row: FileRow) -> StoredFile:
    return StoredFile(row.id, row.tenant, row.filename, row.purpose, row.size, row.created_at, row.expires_at)
