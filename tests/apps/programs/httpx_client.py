"""``httpx_client.py LOOP PORT``: asks the application of asgi.py for everything, and prints what was right, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import httpx
from common import BIG, HOST, digest, pattern, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REQUESTS = 50


async def pieces(body: bytes) -> AsyncIterator[bytes]:
    """A body whose length nobody knows beforehand, which is sent chunked."""
    for start in range(0, len(body), 65_521):
        yield body[start : start + 65_521]


async def ask(client: httpx.AsyncClient) -> dict[str, bool]:
    body = pattern(BIG)
    right = {}
    right["small"] = [(await client.get("/small")).content for _ in range(REQUESTS)] == [b"hello"] * REQUESTS
    async with client.stream("GET", f"/stream/{BIG}") as response:
        right["stream"] = b"".join([piece async for piece in response.aiter_bytes()]) == body
    expected = [BIG, digest(body)]
    right["upload"] = (await client.post("/upload", content=body)).json() == expected
    right["chunked upload"] = (await client.post("/upload", content=pieces(body))).json() == expected
    return right


async def main(port: str) -> None:
    at, one = f"http://{HOST}:{port}", httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(base_url=at, trust_env=False, limits=one, timeout=30) as client:
        right = await ask(client)
    async with httpx.AsyncClient(base_url=at, trust_env=False, timeout=30) as client:
        answers = await asyncio.gather(*(client.get(f"/stream/{1000 * number}") for number in range(1, 9)))
        right["many"] = [answer.content for answer in answers] == [pattern(1000 * number) for number in range(1, 9)]
    print(json.dumps(right))


if __name__ == "__main__":
    run(sys.argv[1], main(sys.argv[2]))
