"""Set-ups that are interrupted: by cancellation at every await point, by a peer that dies or stops, by a closed server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig
from support import frames
from support.addresses import port_of
from support.echo import echoing, talk
from support.interrupt import cancelled_at
from support.process import descriptors
from support.steered import greeted
from support.streams import eventually, turns

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]


pytestmark = pytest.mark.usefixtures("nothing_is_left")


async def test_cancelling_the_client_at_every_await(host: str) -> None:
    """However far it came, nothing is left, and the server goes on."""
    async with echoing(host) as server:
        target = host, port_of(server.sockets)
        await talk(*await smcfast.open_smc_connection(*target))
        assert await points_of(target, lambda: quiet(server)) >= 2


async def test_cancelling_the_client_of_another_process_at_every_await(spawn: Spawn, loop_kind: str) -> None:
    child = spawn(serve, loop=loop_kind)
    target = await child.areceive()
    await talk(*await smcfast.open_smc_connection(*target))
    await points_of(target, turns)  # how many depends on what the other process has sent by then


async def points_of(target: tuple[str, int], settle: Callable[[], Any]) -> int:
    """Cancel a connect at its first, second, ... await until it has no more: how many it had."""
    points = 0
    while True:
        await settle()
        before = descriptors(), asyncio.all_tasks()
        # Every other attempt races two addresses, in tasks of their own.
        opening = smcfast.open_smc_connection(*target, happy_eyeballs_delay=0.1 if points % 2 else None)
        task = asyncio.ensure_future(_run(cancelled_at(points, opening)))
        await asyncio.wait([task])
        if not task.cancelled():
            assert await talk(*task.result()) == ("smc-d", None)
            return points
        del task, opening  # and with them the frames that the exception remembers
        await settle()
        gc.collect()
        assert set(descriptors().items()) - set(before[0].items()) == set(), points
        assert asyncio.all_tasks() - before[1] == set(), points
        points += 1


async def _run(generator: Any) -> Any:
    return await generator


async def quiet(server: smcfast.SmcServer) -> None:
    """Wait until the server has nobody."""
    await eventually(lambda: not (server._welcome.pending or server._clients))
    await turns()


async def test_cancelling_the_client_at_any_time(host: str, rng: random.Random) -> None:
    async with echoing(host) as server:
        target = host, port_of(server.sockets)
        cancelled = 0
        for _ in range(100):
            opening = asyncio.create_task(smcfast.open_smc_connection(*target))
            await asyncio.sleep(rng.uniform(0, 2e-3))
            opening.cancel()
            await asyncio.wait([opening])
            if opening.cancelled():
                cancelled += 1
            else:
                await talk(*opening.result())
        assert cancelled > 0
        await quiet(server)
        assert await talk(*await smcfast.open_smc_connection(*target)) == ("smc-d", None)


async def test_closing_the_server_at_any_time(host: str, rng: random.Random) -> None:
    """The client gets a stream that ends, or an error that says that nobody is there; it never hangs."""
    for _ in range(50):
        async with echoing(host) as server:
            target = host, port_of(server.sockets)
            opening = asyncio.create_task(smcfast.open_smc_connection(*target))
            await asyncio.sleep(rng.uniform(0, 2e-3))
            server.close()
            server.close_clients()
        try:
            reader, writer = await opening
        except ConnectionError:
            continue
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def serve(parent: Channel) -> None:
    """Child: serve until it is killed."""
    async with echoing() as server:
        parent.send(server.sockets[0].getsockname())
        await asyncio.Event().wait()


async def test_a_server_that_is_killed(spawn: Spawn, loop_kind: str) -> None:
    """Whatever the moment, the client is told in time."""
    for delay in (0.0, 0.001, 0.002, 0.005):
        child = spawn(serve, loop=loop_kind)
        target = await child.areceive()
        opening = asyncio.create_task(smcfast.open_smc_connection(*target))
        await asyncio.sleep(delay)
        child.kill()
        try:
            reader, writer = await opening
        except ConnectionError:
            continue
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_server_that_is_stopped_is_tcp_in_time(spawn: Spawn, loop_kind: str) -> None:
    """It has a listener and a queue, and no process that runs: connect succeeds, and the time-out bounds the rest."""
    child = spawn(serve, loop=loop_kind)
    target = await child.areceive()
    os.kill(child.pid, signal.SIGSTOP)
    config = SmcConfig(handshake_timeout=0.3)
    reader, writer = await smcfast.open_smc_connection(*target, config=config)
    assert writer.get_extra_info("smc").reason == "discovery_timeout"
    os.kill(child.pid, signal.SIGCONT)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()


async def connect_and_wait(parent: Channel, host: str, port: int) -> None:
    """Child: open connections until it is killed."""
    parent.send("ready")
    pairs = []
    while True:
        pairs.append(await smcfast.open_smc_connection(host, port))
        parent.send(pairs[-1][1].get_extra_info("smc").path)


async def test_a_client_that_is_killed(spawn: Spawn, loop_kind: str) -> None:
    async with echoing() as server:
        target = server.sockets[0].getsockname()
        for count in range(4):
            child = spawn(connect_and_wait, *target, loop=loop_kind)
            assert await child.areceive() == "ready"
            for _ in range(count):
                assert await child.areceive() == "smc-d"
            child.kill()
        assert await talk(*await smcfast.open_smc_connection(*target)) == ("smc-d", None)
        await quiet(server)


async def test_many_at_once(host: str) -> None:
    async with echoing(host) as server:
        target = host, port_of(server.sockets)
        pairs = await asyncio.gather(*(smcfast.open_smc_connection(*target) for _ in range(100)))
        assert {await talk(*pair) for pair in pairs} == {("smc-d", None)}


async def test_a_silent_peer_costs_the_server_no_more_than_the_time_out() -> None:
    """A client that proposed nothing after its GO is cut off, and the next one is served."""
    config = SmcConfig(handshake_timeout=1.5)  # the client below must have come to its GO by then
    async with echoing(config=config) as server:
        target = server.sockets[0].getsockname()
        async with greeted(target) as client:
            assert frames.send_frame(client.conn, *client.go)
            assert await asyncio.get_running_loop().sock_recv(client.tcp, 100) == b""
        assert await talk(*await smcfast.open_smc_connection(*target)) == ("smc-d", None)
        await quiet(server)
