"""``redis_client.py LOOP PORT``: works with a Redis, and prints what was right, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

import redis.asyncio
from common import BIG, HOST, pattern, run

COUNT = 1000


async def work(client: redis.asyncio.Redis) -> dict[str, bool]:
    right = {}
    right["large"] = await client.set("large", pattern(BIG)) is True and await client.get("large") == pattern(BIG)
    right["binary"] = await client.append("binary", bytes(range(256))) == 256
    async with client.pipeline(transaction=False) as pipe:
        for number in range(COUNT):
            pipe.set(f"key{number}", number).get(f"key{number}")
        answers = await pipe.execute()
    right["pipeline"] = answers == [each for number in range(COUNT) for each in (True, b"%d" % number)]
    async with client.pipeline(transaction=True) as pipe:
        right["transaction"] = await pipe.incr("count").incr("count").execute() == [1, 2]
    sum_of = "local sum = 0 for _, word in ipairs(ARGV) do sum = sum + word end return sum"
    right["script"] = await client.eval(sum_of, 0, *range(100)) == sum(range(100))
    await client.zadd("ranks", {f"member{number}": number for number in range(COUNT)})
    right["scan"] = len([each async for each in client.zscan_iter("ranks", count=10)]) == COUNT
    right["nothing"] = await client.get("nothing") is None
    return right


async def hear(client: redis.asyncio.Redis) -> bool:
    """What is published comes in order to who has subscribed, over a connection of its own."""
    async with client.pubsub() as heard:
        await heard.subscribe("news")
        await heard.get_message(timeout=30)
        words = [pattern(100 + number, number) for number in range(COUNT)]

        async def listen() -> list[bytes]:
            return [(await anext(messages))["data"] for _ in words]

        messages = heard.listen()
        listener = asyncio.create_task(listen())
        for word in words:
            await client.publish("news", word)
        return await listener == words


async def main(port: str) -> None:
    async with redis.asyncio.Redis(host=HOST, port=int(port)) as client:
        await client.flushall()
        right = await work(client)
        right["pubsub"] = await hear(client)
        answers = await asyncio.gather(*(client.get(f"key{number}") for number in range(5)))
        right["at once"] = answers == [b"%d" % number for number in range(5)]
    print(json.dumps(right))


if __name__ == "__main__":
    run(sys.argv[1], main(sys.argv[2]))
