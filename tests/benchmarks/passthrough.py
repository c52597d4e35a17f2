"""The bare ASGI pass-through: the anchor where nginx is missing. Forwards bytes and decides nothing.

`uvicorn` runs it; `STUB_PORT` names the port of the server behind it.
"""

import asyncio
import os
import re
from typing import Any

LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
FREE: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []


async def app(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    path = scope["path"].encode() + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    reader, writer = FREE.pop() if FREE else await asyncio.open_connection("127.0.0.1", int(os.environ["STUB_PORT"]))
    writer.write(b"POST %b HTTP/1.1\r\nhost: stub\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    length = LENGTH.search(head)
    headers = [(b"content-type", b"application/json" if length else b"text/event-stream")]
    if length:
        headers.append((b"content-length", length[1]))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if length:
        await send({"type": "http.response.body", "body": await reader.readexactly(int(length[1]))})
    else:
        while (size := int(await reader.readline(), 16)) > 0:
            piece = (await reader.readexactly(size + 2))[:-2]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await reader.readline()
        await send({"type": "http.response.body", "body": b""})
    FREE.append((reader, writer))
