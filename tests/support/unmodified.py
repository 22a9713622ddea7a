"""A server and a client of asyncio that know nothing of smcfast, as `smcfast run` gets them.

``unmodified.py LOOP serve HOST ...`` prints its places as JSON and ends with its stdin; ``unmodified.py LOOP ask PLACE ...`` prints
what was right of what it has got.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

DATA = bytes(range(256)) * 4000


class Reverse(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> None:
        self.transport.write(self.data[::-1])


class Collect(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""
        self.all: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(DATA)
        transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.set_exception(exc) if exc else self.all.set_result(self.data)


async def reverse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.read())[::-1])
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def serve(*hosts: str) -> None:
    loop = asyncio.get_running_loop()
    servers, places = [], []
    for host in hosts:
        for server in (await asyncio.start_server(reverse, host, 0), await loop.create_server(Reverse, host, 0)):
            servers.append(server)
            places.append(f"{host},{server.sockets[0].getsockname()[1]}")
    print(json.dumps(places), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    for server in servers:
        server.close()


async def ask(*places: str) -> None:
    right = [await ask_one(*place.rsplit(",", 1)) for place in places]
    print(json.dumps(right))


async def ask_one(host: str, port: str) -> list[bool]:
    """By streams, by a protocol, and over a socket that is connected first, as aiohttp does it."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(DATA)
    writer.write_eof()
    got = [await reader.read()]
    writer.close()
    await writer.wait_closed()
    _, protocol = await loop.create_connection(Collect, host, int(port))
    got.append(await protocol.all)
    ((family, kind, proto, _, address), *_) = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    sock = socket.socket(family, kind, proto)
    sock.setblocking(False)
    await loop.sock_connect(sock, address)
    _, protocol = await loop.create_connection(Collect, sock=sock)
    got.append(await protocol.all)
    return [each == DATA[::-1] for each in got]


if __name__ == "__main__":
    kind, role, *words = sys.argv[1:]
    main = {"serve": serve, "ask": ask}[role](*words)
    if kind == "uvloop":
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)
