"""``websockets_client.py LOOP PORT``: sends messages of any kind to websockets_server.py or asgi.py, and prints what was right."""

from __future__ import annotations

import asyncio
import json
import sys

from common import BIG, HOST, pattern, run
from websockets.asyncio.client import connect


async def talk(at: str, number: int) -> dict[str, bool]:
    """One connection: texts one behind the other, a message that is sent in fragments, a big one, a ping."""
    right = {}
    async with connect(at, max_size=None, compression=None, proxy=None) as connection:
        texts = [f"text {number} {index}" for index in range(100)]
        for text in texts:
            await connection.send(text)
        right["texts"] = [await connection.recv() for _ in texts] == [text[::-1] for text in texts]
        body = pattern(200_000 + number)
        await connection.send([body[start : start + 7001] for start in range(0, len(body), 7001)])
        right["fragments"] = await connection.recv() == body
        big = pattern(BIG, number)
        await connection.send(big)
        right["big"] = await connection.recv() == big
        right["ping"] = await (await connection.ping()) >= 0
    return right


async def main(port: str) -> None:
    at = f"ws://{HOST}:{port}/"
    talks = await asyncio.gather(*(talk(at, number) for number in range(3)))
    print(json.dumps({what: all(each[what] for each in talks) for what in talks[0]}))


if __name__ == "__main__":
    run(sys.argv[1], main(sys.argv[2]))
