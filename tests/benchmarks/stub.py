"""A model server that costs next to nothing: `python stub.py SOCKET` serves the listening socket of that number.

A call is answered at once by a small JSON body, or, with `?chunks=N&gap=S` in its path, by a stream of N events, S
seconds apart, each with the monotonic time at which it was sent. After their first event the streams are spread evenly
over the gap.
"""

import asyncio
import re
import socket
import sys
import time

import uvloop

BODY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"stub","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"The tide is in."},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21}}'
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"stub","choices":'
    b'[{"index":0,"delta":{"content":"tide "},"logprobs":null,"finish_reason":null}],"t":%d}\n\n'
)
END = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"stub","choices":'
    b'[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
LENGTH = re.compile(rb"content-length: *(\d+)", re.I)
STREAM = re.compile(rb"[?&]chunks=(\d+)&gap=([0-9.]+)")
PHASES = 50


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Beat:
    """Writes to all streams of one gap: a fiftieth of them at each fiftieth of the gap."""

    def __init__(self, gap: float) -> None:
        self.gap = gap
        self.phases: list[dict[Stub, int]] = [{} for _ in range(PHASES)]
        self.next = 0
        self.at = asyncio.get_running_loop().time()
        self.turn()

    def add(self, stub: "Stub", chunks: int) -> None:
        min(self.phases, key=len)[stub] = chunks

    def turn(self) -> None:
        loop = asyncio.get_running_loop()
        streams = self.phases[self.next]
        self.next = (self.next + 1) % PHASES
        for stub, left in list(streams.items()):
            if stub.gone or left == 0:
                del streams[stub]
                stub.end()
            else:
                streams[stub] = left - 1
                stub.transport.write(chunk(EVENT % time.monotonic_ns()))
        self.at = max(self.at + self.gap / PHASES, loop.time() - self.gap)
        loop.call_at(self.at, self.turn)


BEATS: dict[float, Beat] = {}


class Stub(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a TCP server's transport can write
        self.gone = False
        self.buffer = b""

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (head := self.buffer.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self.buffer, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self.buffer) < end:
                return
            line = self.buffer[: self.buffer.index(b"\r\n")]
            self.buffer = self.buffer[end:]
            self.answer(line)

    def answer(self, line: bytes) -> None:
        wanted = STREAM.search(line)
        if wanted is None:
            self.transport.write(ANSWER)
            return
        self.transport.write(STREAM_HEAD)
        chunks, gap = int(wanted[1]), float(wanted[2])
        if gap == 0:
            self.transport.write(b"".join(chunk(EVENT % time.monotonic_ns()) for _ in range(chunks)))
            self.end()
            return
        if gap not in BEATS:
            BEATS[gap] = Beat(gap)
        self.transport.write(chunk(EVENT % time.monotonic_ns()))
        BEATS[gap].add(self, chunks - 1)

    def end(self) -> None:
        if not self.gone:
            self.transport.write(chunk(END) + b"0\r\n\r\n")


async def main(handle: int) -> None:
    server = await asyncio.get_running_loop().create_server(Stub, sock=socket.socket(fileno=handle), backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
