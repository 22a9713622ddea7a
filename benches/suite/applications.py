"""Both ends of the measurements of applications: aiohttp, and the clients of Redis and PostgreSQL, each a process of its own.

The clients are unmodified: what `smcfast run --only` does to asyncio is done to the ports that are to be reached over smcfast,
and to no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import asyncpg
import redis.asyncio
import uvloop
from aiohttp import web

import smcfast
from smcfast import wrapping
from suite.machine import percentile, pin
from suite.streams import HOST, LONG

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.channel import Channel

    Figures = dict[str, float]
    Work = Callable[[], Awaitable[object]]
    Clients = contextlib.AbstractAsyncContextManager[list[Work]]

BODY = b"x" * 100
PIPELINED = 100
"""Commands that are sent at once."""


async def serve_http(parent: Channel, cpu: int | None, folder: str) -> None:
    """aiohttp's server, at a TCP port, a unix socket and a port of smcfast: tell them, until the parent says something."""
    pin(cpu)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=BODY)

    app = web.Application()
    app.add_routes([web.get("/", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    tcp, unix = web.TCPSite(runner, HOST, 0), web.UnixSite(runner, f"{folder}/http")
    await tcp.start()
    await unix.start()
    server = await smcfast.create_smc_server(runner.server, HOST, 0)
    ports = {"tcp": runner.addresses[0][1], "unix": f"{folder}/http", "smcfast": server.sockets[0].getsockname()[1]}
    parent.send(ports)
    await parent.areceive(LONG)
    server.close()
    await runner.cleanup()
    await server.wait_closed()


async def drive(parent: Channel, cpu: int | None, ports: list[int]) -> None:
    """Measure what the parent asks for until it says None; `ports` are those that are reached over smcfast."""
    pin(cpu)
    options = {"only": [f"{HOST}:{port}" for port in ports] or ["255.255.255.255:1"], "never": [], "send_size": None}
    for module in (asyncio, uvloop):
        wrapping.wrap(module, options | {"quiet": True})
    while order := await parent.areceive(LONG):
        before = dict(smcfast.stats()["connections"])
        work, over, connections = order.pop("work"), order.pop("over"), order.pop("connections")
        async with _CLIENTS[work](order.pop("address"), connections) as works:
            figures = await _measured(works, **order)
        taken = {path: count - before[path] for path, count in smcfast.stats()["connections"].items()}
        assert taken["smc-d"] == (connections if over.startswith("smcfast") else 0), taken
        parent.send(figures)


async def _measured(works: list[Work], seconds: float, each: int = 1) -> Figures:
    """Have every one of `works` done again and again for `seconds`, the first fifth not counted."""
    now, times = time.perf_counter_ns, list[int]()
    counted_from = now() + int(seconds * 2e8)
    end = counted_from + int(seconds * 8e8)

    async def repeat(work: Work) -> None:
        start = now()
        while start < end:
            await work()
            stop = now()
            if start >= counted_from:
                times.append(stop - start)
            start = stop

    await asyncio.gather(*map(repeat, works))
    elapsed = (now() - counted_from) / 1e9
    return {
        "per_s": len(times) * each / elapsed,
        "p50_us": percentile(times, 50) / 1e3,
        "p99_us": percentile(times, 99) / 1e3,
    }


@contextlib.asynccontextmanager
async def _http(address: int | str, connections: int) -> AsyncIterator[list[Work]]:
    if isinstance(address, str):
        connector: Any = aiohttp.UnixConnector(address, limit=connections)
    else:
        connector = aiohttp.TCPConnector(limit=connections)
    # The same for both, since aiohttp has more to do for some than for others; a unix socket has no use for the port.
    url = f"http://{HOST}:{address if isinstance(address, int) else 12345}/"
    async with aiohttp.ClientSession(connector=connector) as session:

        async def get() -> None:
            async with session.get(url) as response:
                assert await response.read() == BODY

        yield [get] * connections


@contextlib.asynccontextmanager
async def _redis(
    of: Callable[[redis.asyncio.Redis], Work], address: int | str, connections: int
) -> AsyncIterator[list[Work]]:
    where: dict[str, Any] = {"unix_socket_path": address} if isinstance(address, str) else {"port": address}
    async with contextlib.AsyncExitStack() as stack:
        works = []
        for _ in range(connections):
            client = redis.asyncio.Redis(**where)
            await stack.enter_async_context(client)
            await client.set("key", BODY)
            works.append(of(client))
        yield works


def _get(client: redis.asyncio.Redis) -> Work:
    async def work() -> None:
        assert await client.get("key") == BODY

    return work


def _set(client: redis.asyncio.Redis) -> Work:
    return functools.partial(client.set, "key", BODY)


def _pipelined(client: redis.asyncio.Redis) -> Work:
    async def work() -> None:
        async with client.pipeline(transaction=False) as pipe:
            for _ in range(PIPELINED):
                pipe.get("key")
            assert await pipe.execute() == [BODY] * PIPELINED

    return work


@contextlib.asynccontextmanager
async def _postgres(address: int | str, connections: int) -> AsyncIterator[list[Work]]:
    """The unix socket is told by its folder and the port in its name, as PostgreSQL has it."""
    folder, _, port = str(address).rpartition("/.s.PGSQL.")
    async with contextlib.AsyncExitStack() as stack:
        works: list[Work] = []
        for _ in range(connections):
            connection = await asyncpg.connect(host=folder or HOST, port=int(port), user="postgres", ssl=False)
            stack.push_async_callback(connection.close)
            statement = await connection.prepare("SELECT $1::int")
            works.append(functools.partial(statement.fetchval, 1))
        yield works


_CLIENTS: dict[str, Callable[[int | str, int], Clients]] = {
    "http": _http,
    "get": functools.partial(_redis, _get),
    "set": functools.partial(_redis, _set),
    "pipelined": functools.partial(_redis, _pipelined),
    "select": _postgres,
}
