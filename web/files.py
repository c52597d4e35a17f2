"""OpenAI's Files API: upload, list, read, download and delete. Bytes stream through; none are kept in memory."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from core.batch.queries import file_json
from core.batch.service import BATCH_PURPOSE
from core.batch.values import StoredFile
from core.errors import InvalidValue, NotFound, RequestError
from web.api import endpoint, identity, json_answer, page, page_limit, refusal, runtime, told_reason
from web.errors import invalid_request
from web.orders import form_expires_after
from web.uploads import SLACK, UploadForm

LIST_MOST = 10_000


@endpoint
async def upload(request: Request) -> Response:
    """Take a file while it comes."""
    batches = runtime(request).batches
    _check_length(request, batches.file_bytes)
    taken = batches.upload()
    try:
        form = UploadForm(content_type=request.headers.get("content-type", ""), take=taken.write)
        await form.read(request.stream())
        _check_purpose(form.fields.get("purpose"))
        expires_after = form_expires_after(form.fields)
        file = await taken.finish(
            tenant=identity(request).tenant,
            filename=form.filename or "",
            expires_after=expires_after,
            reason=told_reason(request),
        )
    except BaseException as error:
        await taken.abort()
        if isinstance(error, InvalidValue) and error.field == "file":
            raise _too_large(batches.file_bytes) from None
        raise
    return json_answer(file_json(file))


@endpoint
async def files(request: Request) -> Response:
    """Answer with one page of files, newest first unless `order=asc`."""
    query = request.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidValue("order", "must be asc or desc")
    limit = page_limit(request, default=LIST_MOST, most=LIST_MOST)
    rows = await runtime(request).store.files(
        tenant=identity(request).tenant,
        purpose=query.get("purpose"),
        after=query.get("after") or None,
        limit=limit,
        ascending=order == "asc",
    )
    return json_answer(page([file_json(row) for row in rows[:limit]], more=len(rows) > limit))


@endpoint
async def file(request: Request) -> Response:
    """Answer with a file's facts."""
    return json_answer(file_json(await _file(request)))


@endpoint
async def content(request: Request) -> Response:
    """Answer with a file's bytes."""
    found = await _file(request)
    store = runtime(request).files
    if await store.size(found.id) < found.bytes:
        raise NotFound("file", found.id)
    headers = {
        "content-length": str(found.bytes),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(found.filename, safe='')}",
        "cache-control": "no-store",
    }
    return StreamingResponse(store.stream(found.id, end=found.bytes), 200, headers, "application/octet-stream")


@endpoint
async def delete(request: Request) -> Response:
    """Delete a file that no running batch needs."""
    file_id, reason = request.path_params["file_id"], told_reason(request)
    try:
        await runtime(request).batches.delete_file(file_id, tenant=identity(request).tenant, reason=reason)
    except InvalidValue as error:
        raise refusal(400, "file_in_use", f"{error.message}.", "file_id") from None
    return json_answer({"id": file_id, "object": "file", "deleted": True})


async def _file(request: Request) -> StoredFile:
    file_id = request.path_params["file_id"]
    return await runtime(request).store.file(file_id, tenant=identity(request).tenant)


def _check_length(request: Request, most: int) -> None:
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > most + SLACK:
        raise _too_large(most)


def _check_purpose(purpose: str | None) -> None:
    if purpose != BATCH_PURPOSE:
        given = "missing" if purpose is None else f"{purpose!r:.40}"
        raise invalid_request(f"`purpose` is {given}; Tidegate keeps files for batches: send 'batch'.", "purpose")


def _too_large(most: int) -> RequestError:
    message = f"The file is larger than {most:,} bytes (setting batch_file_bytes)."
    return refusal(413, "request_too_large", message, "file")


ROUTES = [
    Route("/v1/files", upload, methods=["POST"]),
    Route("/v1/files", files, methods=["GET"]),
    Route("/v1/files/{file_id}", file, methods=["GET"]),
    Route("/v1/files/{file_id}", delete, methods=["DELETE"]),
    Route("/v1/files/{file_id}/content", content, methods=["GET"]),
]
