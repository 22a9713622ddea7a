"""Reads and drains cancelled at every point where they can wait: no byte is lost, none comes twice."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from support.interrupt import cancelled_at
from support.streams import End, connected, eventually, pattern, turns

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

RING = 16 * 1024
TOTAL = 1_500_000


@pytest.fixture
def host(stream_host: str) -> str:
    """Streams are the same on every listener."""
    return stream_host


async def send(end: End, data: bytes, rng: random.Random) -> None:
    """Write in random pieces; drains are cancelled at random too."""
    place = 0
    while place < len(data):
        size = rng.choice([1, 10, 1000, RING // 2, RING, 3 * RING])
        end.writer.write(data[place : place + size])
        place += size
        if rng.random() < 0.5:
            with contextlib.suppress(asyncio.TimeoutError):
                await cancelled_after(rng, end.writer.drain())
        else:
            await end.writer.drain()
    end.writer.write_eof()


async def cancelled_after(rng: random.Random, awaitable: object) -> bytes | None:
    """The result, or TimeoutError if it was cancelled first: after some turns of the loop, or while it sleeps."""
    task = asyncio.ensure_future(awaitable)  # type: ignore[arg-type]
    for _ in range(rng.choice([0, 1, 2, 5, 50])):
        await asyncio.sleep(0)
    if rng.random() < 0.2:
        await asyncio.sleep(0.0005)  # long enough that polling has given up and the read sleeps; not a synchronisation
    task.cancel()
    try:
        return await task  # type: ignore[no-any-return]
    except asyncio.CancelledError:
        raise TimeoutError from None


async def receive(end: End, rng: random.Random) -> bytes:
    """Read by all methods, most of them cancelled now and then."""
    got = bytearray()
    while not end.reader.at_eof():
        size = rng.choice([1, 100, RING // 2, RING, RING + 1, 4 * RING])
        method = rng.choice(["read", "readexactly", "readuntil", "read_all"])
        awaitable: object
        if method == "read":
            awaitable = end.reader.read(size)
        elif method == "readexactly":
            awaitable = end.reader.readexactly(size)
        elif method == "readuntil":
            awaitable = end.reader.readuntil(b"\x00\x07")
        elif rng.random() < 0.01:
            awaitable = end.reader.read()
        else:
            continue
        try:
            data = await cancelled_after(rng, awaitable)
        except TimeoutError:
            continue
        except asyncio.IncompleteReadError as error:
            data = error.partial
        except asyncio.LimitOverrunError as error:
            data = await end.reader.readexactly(error.consumed)
        got += data or b""
    return bytes(got)


@pytest.mark.parametrize("spin_us", [0, 50])
async def test_no_byte_is_lost_or_doubled_by_cancelling(spin_us: int, rng: random.Random, host: str) -> None:
    data = pattern(TOTAL)
    config = smcfast.SmcConfig(rmb_size=RING, spin_us=spin_us)
    async with connected(host, config=config) as (client, server):
        sending = asyncio.create_task(send(client, data, rng))
        got = await receive(server, rng)
        await sending
        assert got == data


LINES = pattern(2 * RING).replace(b"\n", b"\r") + b"\n" + pattern(3 * RING)
READS: dict[str, tuple[bytes, Callable[[asyncio.StreamReader], Any]]] = {
    "read": (pattern(3 * RING), lambda reader: reader.read(1000)),
    "read all": (pattern(3 * RING), lambda reader: reader.read(-1)),
    "readexactly": (pattern(3 * RING), lambda reader: reader.readexactly(1000)),
    "readexactly more than the ring": (pattern(3 * RING), lambda reader: reader.readexactly(5 * RING // 2)),
    "readexactly more than there is": (pattern(2 * RING), lambda reader: reader.readexactly(3 * RING)),
    "readuntil": (LINES, lambda reader: reader.readuntil(b"\n")),
    "readuntil what never comes": (pattern(2 * RING), lambda reader: reader.readuntil(b"no such bytes")),
    "readline": (LINES, lambda reader: reader.readline()),
}


async def finished(call: Callable[[], Any]) -> Any:
    """What awaiting the call gives; the partial bytes where the stream ended first."""
    try:
        return await call()
    except asyncio.IncompleteReadError as error:
        return error.partial


async def interrupted(point: int, woken: bool, call: Callable[[], Any]) -> tuple[bool, Any]:
    """The call in a task of its own, cancelled at this point: was it, and if not, what did it give?"""

    async def run() -> Any:
        return await cancelled_at(point, finished(call), woken=woken)

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    return (True, b"") if task.cancelled() else (False, task.result())


async def trickle(end: End, data: bytes, rng: random.Random) -> None:
    """Write in pieces, some turns of the loop apart, so that the reader waits again and again."""
    place = 0
    while place < len(data):
        size = rng.choice([1, 500, RING // 2])
        end.writer.write(data[place : place + size])
        place += size
        await turns(rng.randrange(10))
    end.writer.write_eof()


@pytest.mark.parametrize("woken", [False, True], ids=["asleep", "woken"])
@pytest.mark.parametrize("spin_us", [0, 50])
@pytest.mark.parametrize("read", READS)
async def test_a_read_cancelled_at_every_await_takes_nothing(
    read: str, spin_us: int, woken: bool, rng: random.Random
) -> None:
    """What comes after it is what would have come without it."""
    config = smcfast.SmcConfig(rmb_size=RING, spin_us=spin_us)
    data, call = READS[read]
    cancelled, point = True, 0
    while cancelled:
        async with connected(config=config) as (client, server):
            reading = asyncio.create_task(interrupted(point, woken, functools.partial(call, server.reader)))
            await turns(3)
            sending = asyncio.create_task(trickle(client, data, rng))
            cancelled, got = await reading
            assert got + await server.reader.read() == data, point
            await sending
        point += 1
    assert point > 1, "it never waited"


@pytest.mark.parametrize("woken", [False, True], ids=["asleep", "woken"])
@pytest.mark.parametrize("spin_us", [0, 50])
@pytest.mark.parametrize("method", ["drain", "wait_closed"])
async def test_a_writer_cancelled_at_every_await_sends_everything(method: str, spin_us: int, woken: bool) -> None:
    config = smcfast.SmcConfig(rmb_size=RING, spin_us=spin_us)
    data = pattern(10 * RING)
    cancelled, point = True, 0
    while cancelled:
        async with connected(config=config) as (client, server):
            client.writer.write(data)
            if method == "wait_closed":
                client.writer.close()
            waiting = asyncio.create_task(interrupted(point, woken, getattr(client.writer, method)))
            await turns(3)
            got = await server.reader.readexactly(9 * RING)
            cancelled, _ = await waiting
            if method == "drain":
                await client.writer.drain()
                client.writer.write_eof()
            assert got + await server.reader.read() == data, point
        point += 1
    assert point > 1, "it never waited"


async def test_a_cancelled_readexactly_puts_back_what_it_has(host: str) -> None:
    async with connected(host, config=smcfast.SmcConfig(rmb_size=RING)) as (client, server):
        data = pattern(5 * RING)
        client.writer.write(data[: 3 * RING])
        reading = asyncio.ensure_future(server.reader.readexactly(5 * RING))
        await eventually(lambda: not client.writer.transport.get_write_buffer_size())
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        client.writer.write(data[3 * RING :])
        assert await server.reader.readexactly(5 * RING) == data


async def test_a_read_that_was_resolved_and_then_cancelled_takes_nothing(host: str) -> None:
    """The wake-up resolves the waiter with nothing: the bytes stay in the ring until the step that returns them."""
    async with connected(host, config=smcfast.SmcConfig(spin_us=0)) as (client, server):
        reading = asyncio.ensure_future(server.reader.read(10))
        for _ in range(3):
            await asyncio.sleep(0)
        client.writer.write(b"kept")
        await eventually(lambda: reading._fut_waiter.done())  # type: ignore[attr-defined]
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await server.reader.read(10) == b"kept"


async def test_after_a_cancelled_read_another_may_wait(host: str) -> None:
    async with connected(host) as (client, server):
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(server.reader.read(1), 0.001)
        client.writer.write(b"x")
        assert await server.reader.read(1) == b"x"


async def test_a_read_that_is_dropped_without_an_end_gives_its_place_back(host: str) -> None:
    async with connected(host, config=smcfast.SmcConfig(spin_us=0)) as (client, server):
        reading = server.reader.read(1)
        assert reading.send(None) is not None  # type: ignore[attr-defined]
        del reading
        client.writer.write(b"x")
        assert await server.reader.read(1) == b"x"
