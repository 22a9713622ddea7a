"""Redis and PostgreSQL, each behind `smcfast proxy`, with their clients for asyncio as they are, and with clients in C."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import redis.asyncio

import smcfast
from apps.support.runs import LIMIT, PROGRAMS, Way, asked
from support.proxy import proxy
from support.streams import pattern

if TYPE_CHECKING:
    import pytest

    from apps.support.servers import Server
    from support.proxy import Proxy

REDIS = ("large", "binary", "pipeline", "transaction", "script", "scan", "nothing", "pubsub", "at once")
POSTGRES = ("rows", "prepared", "large", "cursor", "copy", "rolled back", "committed", "error", "notice", "cancelled")


def front(server: Server) -> str:
    """A forward in front of a server, which speaks SMC."""
    return f"smc:127.0.0.1:0=tcp:{server.host}:{server.port}"


async def all_took(way: Way, running: Proxy, count: int) -> None:
    """The proxy ends, and so many connections have come by `way`."""
    status, end = await running.ended(signal.SIGTERM)
    assert status == 0
    taken = way.taken(count)
    assert (end["connections"], end["paths"], end["fallbacks"]) == (count, taken["paths"], taken["fallbacks"])
    assert (end["reset"], end["cut_off"], end["not_connected"]) == (0, 0, 0)
    for each in running.connections:
        assert each["fault"] is None
        assert each["paths"] == [way.value]


async def test_redis_as_it_is(loop_kind: str, way: Way, redis_server: Server) -> None:
    """The connection of the commands, one that listens, and four more for commands at once."""
    async with proxy(loop_kind, front(redis_server), env=way.env) as running:
        program = str(PROGRAMS / "redis_client.py")
        right, client = await asyncio.to_thread(asked, way, program, loop_kind, str(running.port()))
        assert right == dict.fromkeys(REDIS, True)
        assert client == way.taken(1 + 1 + 4)
        await all_took(way, running, 1 + 1 + 4)


async def test_redis_with_one_line_changed(
    loop_kind: str, way: Way, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []

    async def connect(**options: Any) -> Any:
        reader, writer = await smcfast.open_smc_connection(**options, config=way.config)
        paths.append(writer.get_extra_info("smc").path)
        return reader, writer

    async with proxy(loop_kind, front(redis_server), env=way.env) as running:
        monkeypatch.setattr(asyncio, "open_connection", connect)
        async with redis.asyncio.Redis(host="127.0.0.1", port=running.port()) as client:
            large = pattern(3_000_000)
            assert await client.set("key", large) is True
            assert await client.get("key") == large
        monkeypatch.undo()
        assert paths == [way.value]
        await all_took(way, running, 1)


async def test_postgresql_as_it_is(loop_kind: str, way: Way, postgres_server: Server) -> None:
    """One connection for the most of it, one by which a query is cancelled, and a pool of four."""
    async with proxy(loop_kind, front(postgres_server), env=way.env) as running:
        program = str(PROGRAMS / "asyncpg_client.py")
        right, client = await asyncio.to_thread(asked, way, program, loop_kind, str(running.port()))
        assert right == dict.fromkeys((*POSTGRES, "pool"), True)
        assert client == way.taken(1 + 1 + 4)
        await all_took(way, running, 1 + 1 + 4)


async def test_clients_in_c_behind_two_proxies(
    loop_kind: str, way: Way, redis_server: Server, postgres_server: Server
) -> None:
    """redis-cli and psql know nothing of SMC, as their servers do; a pair of proxies does."""
    async with (
        proxy(loop_kind, front(redis_server), front(postgres_server), env=way.env) as near_servers,
        proxy(
            loop_kind,
            *(f"tcp:127.0.0.1:0=smc:127.0.0.1:{near_servers.port(number)}" for number in range(2)),
            env=way.env,
        ) as near_clients,
    ):
        large = pattern(300_000).hex()
        await said("redis-cli", "-p", str(near_clients.port(0)), "-x", "SET", "in c", text=large)
        assert await said("redis-cli", "-p", str(near_clients.port(0)), "GET", "in c") == large
        sql = "SELECT sum(number), repeat('x', 300000) FROM generate_series(1, 1000) number"
        psql = ("psql", "-h", "127.0.0.1", "-p", str(near_clients.port(1)), "-U", "postgres", "-XAtc", sql)
        assert await said(*psql) == "500500|" + "x" * 300_000
        await all_took(way, near_clients, 3)
        await all_took(way, near_servers, 3)


async def said(*command: str, text: str = "") -> str:
    done = await asyncio.to_thread(
        subprocess.run, command, input=text, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    return done.stdout.strip()
