"""A load generator that costs next to nothing: `python client.py PORT JSON` prints what it measured as JSON.

The JSON names the kind of load: `{"kind": "requests", "connections": 64, "seconds": 5}` sends as fast as answers come,
with `"body"` that body; with `"rate": 300` so many a second, timed from when each was due. `{"kind": "streams",
"streams": 200, "chunks": 100, "gap": 0.05}` opens so many streams and follows them to their end; `"hold"` keeps them
open until a line comes on standard input, having printed "open" once all have their first event.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import uvloop

CALL = json.dumps(
    {"model": "stub", "messages": [{"role": "user", "content": "When is high tide at the gate? " * 4}], "stream": False}
).encode()
STREAMED = CALL.replace(b'"stream": false', b'"stream": true')
LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
SENT = re.compile(rb'"t":(\d+)')
LAST = b"\r\n0\r\n\r\n"


def request(body: bytes, query: str = "") -> bytes:
    head = (
        f"POST /v1/chat/completions{query} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer any\r\n"
        f"accept: application/json\r\ncontent-type: application/json\r\nuser-agent: bench\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    return {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 95, 99)}


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request in flight; `on_end` gets it when its answer is whole."""

    transport: asyncio.Transport

    def __init__(self, on_end: Callable[["Connection"], None]) -> None:
        self.on_end = on_end
        self.due = 0.0
        self.answer = bytearray()
        self.need = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a TCP client's transport can write

    def connection_lost(self, error: Exception | None) -> None:
        if self.need != -1 or self.answer:
            sys.exit("a connection broke off in the middle of an answer")

    def send(self, data: bytes, due: float) -> None:
        self.due = due
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.answer += data
        if self.need < 0:
            self._read_head()
        if self.need == 0:
            if not self.answer.endswith(LAST):
                return
        elif len(self.answer) < self.need or self.need < 0:
            return
        self.answer.clear()
        self.need = -1
        self.on_end(self)

    def _read_head(self) -> None:
        end = self.answer.find(b"\r\n\r\n")
        if end < 0:
            return
        if not self.answer.startswith(b"HTTP/1.1 200"):
            sys.exit(bytes(self.answer[:2000]).decode("latin-1"))
        length = LENGTH.search(self.answer, 0, end)
        self.need = end + 4 + int(length[1]) if length else 0


async def connect(port: int, number: int, make: Callable[[], Any]) -> list[Any]:
    loop, made = asyncio.get_running_loop(), []
    for _ in range(number):
        _, protocol = await loop.create_connection(make, "127.0.0.1", port)
        made.append(protocol)
    return made


async def as_fast_as_it_goes(port: int, connections: int, seconds: float, body: bytes) -> dict[str, Any]:
    call, times = request(body), []
    end = time.monotonic() + 3600

    def again(connection: Connection) -> None:
        now = time.monotonic()
        times.append(now - connection.due)
        if now < end:
            connection.send(call, now)

    opened = await connect(port, connections, lambda: Connection(again))
    begin = time.monotonic()
    end = begin + seconds
    for connection in opened:
        connection.send(call, begin)
    await asyncio.sleep(seconds + 0.2)
    return {"requests": len(times), "rate": len(times) / seconds} | percentiles(times)


async def at_a_rate(port: int, connections: int, seconds: float, rate: float) -> dict[str, Any]:
    call, times = request(CALL), []
    free: list[Connection] = []

    def back(connection: Connection) -> None:
        times.append(time.monotonic() - connection.due)
        free.append(connection)

    free.extend(await connect(port, connections, lambda: Connection(back)))
    begin = time.monotonic()
    for number in range(int(seconds * rate)):
        due = begin + number / rate
        if due > time.monotonic():
            await asyncio.sleep(due - time.monotonic())
        while not free:
            await asyncio.sleep(0.0005)
        free.pop().send(call, due)
    await asyncio.sleep(0.2)
    return {"requests": len(times), "rate": rate} | percentiles(times)


class Stream(asyncio.Protocol):
    """One stream, followed to its end."""

    def __init__(self, board: "Board") -> None:
        self.board = board
        self.seen = 0
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.board.left:
            sys.exit("a stream broke off")

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        sent = SENT.findall(data)
        if sent:
            self.board.transit.extend([(now - int(at)) / 1e9 for at in sent])
            if not self.seen:
                self.board.begun += 1
            self.seen += len(sent)
        elif not self.seen and not data.startswith(b"HTTP/1.1 200"):
            sys.exit(data[:2000].decode("latin-1"))
        self.tail = (self.tail + data)[-len(LAST) :]
        if self.tail == LAST:
            self.board.left -= 1


class Board:
    """What all streams together saw."""

    def __init__(self, streams: int) -> None:
        self.left = streams
        self.begun = 0
        self.transit: list[float] = []


async def streams(port: int, streams: int, chunks: int, gap: float, hold: bool) -> dict[str, Any]:
    board = Board(streams)
    call = request(STREAMED, f"?chunks={chunks}&gap={gap}")
    for opened in await connect(port, streams, lambda: Stream(board)):
        opened.transport.write(call)
        await asyncio.sleep(0)
    while board.begun < streams:
        await asyncio.sleep(0.01)
    if hold:
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        board.left = 0
    while board.left:
        await asyncio.sleep(0.01)
    return {"chunks": len(board.transit)} | percentiles(board.transit)


async def main(port: int, load: dict[str, Any]) -> None:
    kind = load.pop("kind")
    if kind == "streams":
        result = await streams(port, load["streams"], load["chunks"], load["gap"], load.get("hold", False))
    elif "rate" in load:
        result = await at_a_rate(port, load["connections"], load["seconds"], load["rate"])
    else:
        body = json.dumps(load["body"]).encode() if "body" in load else CALL
        result = await as_fast_as_it_goes(port, load["connections"], load["seconds"], body)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), json.loads(sys.argv[2])))
