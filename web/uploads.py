"""Reads a multipart form while it comes: small fields are kept, the file goes on piece by piece."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header

from web.errors import invalid_request

MAX_FIELD = 64 * 1024
MAX_PARTS = 20
# What a form has beside the file's bytes: field names, boundaries, small fields.
SLACK = 256 * 1024
_UNFIT = re.compile(r"[\x00-\x1f\x7f]")


class UploadForm:
    """A form with one file, `file`, and small text fields, in any order.

    `take` gets the file's pieces. Raises RequestError 400 for what is no such form.
    """

    def __init__(self, *, content_type: str, take: Callable[[bytes], Awaitable[None]]) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise invalid_request("Send a form: content-type multipart/form-data with a boundary.", "body")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._take = take
        self._pieces: list[bytes] = []
        self._part = bytearray()
        self._parts = 0
        self._name = ""
        self._header = (bytearray(), bytearray())
        self._headers: dict[bytes, bytes] = {}
        self._in_file = False
        self._ended = False
        self._parser = _parser(options[b"boundary"], self)

    async def read(self, stream: AsyncIterator[bytes]) -> None:
        """Read the whole form."""
        async for piece in stream:
            try:
                self._parser.write(piece)
            except MultipartParseError:
                raise _broken() from None
            pieces, self._pieces = self._pieces, []
            for part in pieces:
                await self._take(part)
        if not self._ended:
            raise _broken()
        if self.filename is None:
            raise invalid_request("`file` is missing: send the file as a form field of that name.", "file")

    def on_part_begin(self) -> None:
        """Begin a part."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise invalid_request(f"The form has more than {MAX_PARTS} fields.", "body")
        self._part.clear()
        self._headers = {}

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        """Take a piece of a header's name."""
        self._header[0].extend(data[start:end])

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        """Take a piece of a header's value."""
        self._header[1].extend(data[start:end])

    def on_header_end(self) -> None:
        """Keep a header."""
        name, value = self._header
        self._headers[bytes(name).lower()] = bytes(value)
        self._header = (bytearray(), bytearray())

    def on_headers_finished(self) -> None:
        """Find out which field this part is."""
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._name = options.get(b"name", b"").decode(errors="replace")
        self._in_file = self._name == "file"
        if self._in_file:
            if self.filename is not None:
                raise invalid_request("The form has more than one `file`.", "file")
            self.filename = _safe_name(options.get(b"filename", b"").decode(errors="replace"))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Take a piece of a part."""
        if self._in_file:
            self._pieces.append(data[start:end])
            return
        self._part.extend(data[start:end])
        if len(self._part) > MAX_FIELD:
            raise invalid_request(f"The field {self._name[:40]!r} is too long.", self._name[:40])

    def on_part_end(self) -> None:
        """Keep a small field."""
        if not self._in_file:
            self.fields[self._name] = self._part.decode(errors="replace").replace("\0", "")

    def on_end(self) -> None:
        """Note that the form is complete."""
        self._ended = True


def _parser(boundary: bytes, form: UploadForm) -> MultipartParser:
    names = (
        "on_part_begin",
        "on_part_data",
        "on_part_end",
        "on_header_field",
        "on_header_value",
        "on_header_end",
        "on_headers_finished",
        "on_end",
    )
    callbacks: Any = {name: getattr(form, name) for name in names}
    try:
        return MultipartParser(boundary, callbacks)
    except MultipartParseError:
        raise _broken() from None


def _broken() -> Exception:
    return invalid_request(
        "The form is broken: it does not end with its boundary, or its parts cannot be read.", "body"
    )


def _safe_name(name: str) -> str:
    """Return the last part of a path, without what no name should hold."""
    return _UNFIT.sub("", re.split(r"[/\\]", name)[-1]).strip()[:255] or "upload.jsonl"
