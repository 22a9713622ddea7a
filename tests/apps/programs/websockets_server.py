"""``websockets_server.py LOOP``: sends back what it gets, texts turned round, until Ctrl-C; prints its port."""

from __future__ import annotations

import sys

from common import HOST, interrupted, run
from websockets.asyncio.server import ServerConnection, serve


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message[::-1] if isinstance(message, str) else message)


async def main() -> None:
    async with serve(echo, HOST, 0, max_size=None, compression=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await interrupted()


if __name__ == "__main__":
    run(sys.argv[1], main())
