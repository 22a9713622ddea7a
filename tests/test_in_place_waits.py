"""Waiting for bytes and for room in their place, and waits that are cancelled."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

from smcfast import SmcConfig
from support.in_place import RING, connected_by, send
from support.interrupt import cancelled_at
from support.streams import End, Pair, connected, pattern, turns

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    Connect = Callable[..., AbstractAsyncContextManager[Pair]]


@pytest.fixture(params=["smc-d", "tcp"])
def path(request: pytest.FixtureRequest) -> str:
    """Where the bytes go."""
    taken: str = request.param
    return taken


@pytest.fixture
def connect(path: str) -> Connect:
    """`connect(host)`: both ends of a connection that takes the path."""
    return functools.partial(connected_by, path)


@pytest.mark.parametrize("spin_us", [0, 50])
async def test_a_reservation_waits_for_room(spin_us: int) -> None:
    async with connected(config=SmcConfig(rmb_size=RING, spin_us=spin_us)) as (client, server):
        data = pattern(RING)
        client.writer.write(data)
        waiting = asyncio.create_task(client.writer.reserve(5))
        await turns()
        assert not waiting.done()
        with pytest.raises(RuntimeError, match="already waiting for room"):
            await client.writer.reserve(1)
        assert await server.reader.readexactly(RING) == data
        with await waiting as room:
            room[:] = b"after"
            room.commit()
        assert await server.reader.readexactly(5) == b"after"


async def test_a_reservation_comes_behind_what_waits(connect: Connect) -> None:
    async with connect() as (client, server):
        data = pattern(3 * RING)
        client.writer.write(data)
        sending = asyncio.create_task(send(client, b"after"))
        await turns()
        assert await server.reader.readexactly(len(data)) == data
        assert await server.reader.readexactly(5) == b"after"
        await sending


@pytest.mark.parametrize("ending", ["close", "abort", "write_eof"])
async def test_who_waits_for_room_hears_of_the_own_end(ending: str) -> None:
    async with connected(config=SmcConfig(rmb_size=RING, spin_us=0)) as (client, _):
        client.writer.write(bytes(RING))
        waiting = asyncio.create_task(client.writer.reserve(5))
        await turns()
        getattr(client.writer.transport, ending)()
        with pytest.raises(ConnectionResetError):
            await waiting


@pytest.mark.parametrize("ending", ["close", "abort"])
@pytest.mark.parametrize("spin_us", [0, 50])
async def test_who_waits_for_room_hears_of_the_peers_end(ending: str, spin_us: int) -> None:
    async with connected(config=SmcConfig(rmb_size=RING, spin_us=spin_us)) as (client, server):
        client.writer.write(bytes(RING))
        waiting = asyncio.create_task(client.writer.reserve(5))
        await turns()
        getattr(server.writer.transport, ending)()
        with pytest.raises(ConnectionResetError):
            await waiting


async def into(end: End, size: int) -> bytes:
    buffer = bytearray(size)
    return bytes(buffer[: await end.reader.readinto(buffer)])


async def viewed(end: End, at_least: int) -> bytes:
    with await end.reader.view(at_least=at_least) as view:
        got = bytes(view)
        view.consume()
        return got


CALLS: dict[str, Callable[[End], Any]] = {
    "readinto": lambda end: into(end, 1000),
    "view": lambda end: viewed(end, 1),
    "view of at least": lambda end: viewed(end, 1000),
    "view of more than the ring": lambda end: viewed(end, 2 * RING),
}


@pytest.mark.parametrize("woken", [False, True], ids=["asleep", "woken"])
@pytest.mark.parametrize("spin_us", [0, 50])
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_cancelled_at_every_await_takes_nothing(
    call: str, spin_us: int, woken: bool, connect: Connect, rng: random.Random
) -> None:
    data = pattern(3 * RING)
    cancelled, point = True, 0
    while cancelled:
        async with connect(spin_us=spin_us) as (client, server):
            taking = asyncio.create_task(run(cancelled_at(point, CALLS[call](server), woken=woken)))
            await turns(3)
            sending = asyncio.create_task(trickle(client, data, rng))
            await asyncio.wait([taking])
            cancelled = taking.cancelled()
            got = b"" if cancelled else taking.result()
            del taking
            assert got + await server.reader.read() == data, point
            await sending
        point += 1
    assert point > 1, "it never waited"


async def run(call: Awaitable[Any]) -> Any:
    """`cancelled_at` is no coroutine to every event loop."""
    return await call


async def trickle(end: End, data: bytes, rng: random.Random) -> None:
    place = 0
    while place < len(data):
        size = rng.choice([1, 500, RING // 2])
        end.writer.write(data[place : place + size])
        place += size
        await turns(rng.randrange(10))
    end.writer.write_eof()


@pytest.mark.parametrize("woken", [False, True], ids=["asleep", "woken"])
@pytest.mark.parametrize("spin_us", [0, 50])
async def test_a_reservation_cancelled_at_every_await_leaves_the_way_free(spin_us: int, woken: bool) -> None:
    cancelled, point = True, 0
    while cancelled:
        async with connected(config=SmcConfig(rmb_size=RING, spin_us=spin_us)) as (client, server):
            data = pattern(2 * RING)
            client.writer.write(data)

            async def reserve(writer: Any = client.writer) -> None:
                with await writer.reserve(10) as room:
                    room[:] = b"0123456789"
                    room.commit()

            reserving = asyncio.create_task(run(cancelled_at(point, reserve(), woken=woken)))
            await turns(3)
            assert await server.reader.readexactly(len(data)) == data
            await asyncio.wait([reserving])
            cancelled = reserving.cancelled()
            await send(client, b"after")
            client.writer.write_eof()
            assert await server.reader.read() == (b"" if cancelled else b"0123456789") + b"after", point
        point += 1
    assert point > 1, "it never waited"


async def test_the_loop_has_its_turn_between_views_that_are_there() -> None:
    """A reader that never waits does not keep all others from running."""
    async with connected() as (client, server):
        client.writer.write(bytes(1000))
        await server.reader.view()  # dropped at once
        others = asyncio.create_task(turns(3))
        for _ in range(1000):
            (await server.reader.view(1)).consume()
        assert others.done()
