"""``aiohttp_client.py LOOP PORT``: asks the server for everything that it can do, and prints what was right, as JSON."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from typing import TYPE_CHECKING

import aiohttp
from common import BIG, HOST, digest, pattern, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REQUESTS = 50


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    """A body whose length nobody knows beforehand, which is sent chunked."""
    for start in range(0, len(body), 65_521):
        yield body[start : start + 65_521]


async def ask(session: aiohttp.ClientSession, at: str) -> dict[str, bool]:
    """One connection by and by, but for the websocket, which takes it along to its end."""
    body = pattern(BIG)
    right = {}

    async def got(path: str) -> bytes:
        async with session.get(at + path) as response:
            assert response.status == 200
            return await response.read()

    async def uploaded(data: io.BytesIO | AsyncIterator[bytes]) -> list[object]:
        async with session.post(at + "/upload", data=data) as response:
            return list(await response.json())

    right["small"] = [await got("/small") for _ in range(REQUESTS)] == [b"hello"] * REQUESTS
    right["big"] = await got(f"/big/{BIG}") == body
    right["chunked"] = await got(f"/chunked/{BIG}") == body
    right["upload"] = await uploaded(io.BytesIO(body)) == ["whole", BIG, digest(body)]
    right["chunked upload"] = await uploaded(pieces(body)) == ["chunked", BIG, digest(body)]
    async with session.ws_connect(at + "/echo", max_msg_size=0) as socket:
        texts = [f"text {number}" for number in range(100)]
        for text in texts:
            await socket.send_str(text)
        right["texts"] = [await socket.receive_str() for _ in texts] == [text[::-1] for text in texts]
        await socket.send_bytes(body)
        right["bytes"] = await socket.receive_bytes() == body
    return right


async def many(session: aiohttp.ClientSession, at: str) -> bool:
    """As many connections at once as the session may have, each with its own body."""

    async def one(size: int) -> bool:
        async with session.get(f"{at}/big/{size}") as response:
            return await response.read() == pattern(size)

    return all(await asyncio.gather(*(one(1000 * number) for number in range(1, 41))))


async def main(port: str) -> None:
    at = f"http://{HOST}:{port}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        right = await ask(session, at)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=8)) as session:
        right["many"] = await many(session, at)
    print(json.dumps(right))


if __name__ == "__main__":
    run(sys.argv[1], main(sys.argv[2]))
