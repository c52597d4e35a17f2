"""uvicorn's HTTP protocol, writing once what is written in one go.

uvloop hands every write to the kernel at once; an answer's head and body, or a stream's last event and its end, would
be two system calls and wake the client twice. That is a tenth of a short request's cost.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class OneWriteTransport:
    """A transport that gathers what is written before the loop turns to something else. All but writing is passed on.

    What was written goes out before a `close`; `abort` drops it.
    """

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Tell whether the connection closes: asked for several times a request, and so not passed on by name."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Write `data` soon, with whatever else is written by then."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def close(self) -> None:
        """Write what is held, then close."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._held.clear()
        self._transport.abort()

    def _flush(self) -> None:
        held = self._held
        if held and not self._transport.is_closing():
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))
        held.clear()


class OneWriteProtocol(HttpToolsProtocol):
    """uvicorn's protocol over a `OneWriteTransport`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin with a connection."""
        super().connection_made(OneWriteTransport(transport, self.loop))  # type: ignore[arg-type]  # all it uses is there
