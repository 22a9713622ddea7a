"""Field reports about event loops: busy polling, lost wake-ups, writers that wait for ever (section C)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import select
import selectors
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import _loop
from support.addresses import port_of
from support.loops import LOOPS, new_loop
from support.streams import End, connected, eventually, pattern, turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel
    from support.child import Child

RING = 16 * 1024
SMALL = smcfast.SmcConfig(rmb_size=RING, fallback="forbid")
IDLE = 0.4
"""Seconds of doing nothing, in which whatever polls would be seen many times."""


def switches() -> int:
    """How often this process has given up its processor to wait for something, so far."""
    lines = Path("/proc/self/task").glob("*/status")
    counted = [line for path in lines for line in path.read_text().splitlines() if line.startswith("voluntary_ctxt")]
    return sum(int(line.split()[1]) for line in counted)


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


async def idle(channel: Channel, connections: int) -> list[int]:
    """Wait in a read on each of some connections, and sleep once: what that costs in wake-ups, and in threads."""
    await asyncio.get_running_loop().getaddrinfo("localhost", 0)  # for which the loops have threads of their own
    few = threads()
    async with contextlib.AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(connected()) for _ in range(connections)]
        for client, server in pairs:
            client.writer.write(b"x")
            assert await server.reader.readexactly(1) == b"x"
        reads = [asyncio.ensure_future(pair.server.reader.read(1)) for pair in pairs]
        await eventually(lambda: all(pair.server.info.counters["stalls_received"] for pair in pairs))
        await turns()
        counters, before = [dict(pair.server.info.counters) for pair in pairs], switches()
        await asyncio.sleep(IDLE)
        cost, more = switches() - before, threads() - few
        assert [dict(pair.server.info.counters) for pair in pairs] == counters
        for client, _ in pairs:
            client.writer.write(b"y")
        assert await asyncio.gather(*reads) == [b"y"] * connections
        return [cost, more]


@pytest.mark.parametrize("connections", [1, 20])
async def test_reports_28_and_34_idle_connections_cost_no_wake_up_no_timer_and_no_thread(
    spawn: Callable[..., Child], loop_kind: str, connections: int
) -> None:
    """The kernel counts: one sleep of the loop, whatever the number of connections."""
    child = spawn(idle, connections, loop=loop_kind)
    cost, more = await child.aresult()
    assert cost <= 3
    assert more == 0


class Pushed(asyncio.Protocol):
    """Gets data until its transport is paused."""


async def written_and_not_read(client: End, server: End) -> None:
    client.writer.write(bytes(RING // 2))


async def more_than_fits(client: End, server: End) -> None:
    client.writer.write(bytes(5 * RING))


async def half_closed(client: End, server: End) -> None:
    client.writer.write_eof()
    assert await server.reader.read() == b""


async def closed_behind_what_waits(client: End, server: End) -> None:
    client.writer.write(bytes(5 * RING))
    client.writer.close()


async def closed_by_the_peer(client: End, server: End) -> None:
    server.writer.close()
    assert await client.reader.read() == b""


async def closed_by_the_peer_while_bytes_wait(client: End, server: End) -> None:
    client.writer.write(bytes(2 * RING))
    reading = asyncio.ensure_future(client.reader.read())
    await asyncio.sleep(0)
    server.writer.close()
    assert await reading == b""


async def reset_by_the_peer(client: End, server: End) -> None:
    client.writer.write(bytes(2 * RING))
    server.writer.transport.abort()
    with pytest.raises(ConnectionResetError):
        await client.reader.read()


async def paused(client: End, server: End) -> None:
    server.writer.transport.set_protocol(Pushed())
    server.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.writer.write(bytes(RING // 2))


async def lost(client: End, server: End) -> None:
    """Its TCP connection has ended, which is what a peer's death looks like."""
    client.writer.write(bytes(2 * RING))
    server.writer.get_extra_info("socket")._sock.shutdown(socket.SHUT_RDWR)


STATES = [
    written_and_not_read,
    more_than_fits,
    half_closed,
    closed_behind_what_waits,
    closed_by_the_peer,
    closed_by_the_peer_while_bytes_wait,
    reset_by_the_peer,
    paused,
    lost,
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
async def test_report_28_no_state_of_a_connection_keeps_the_loop_busy(state: Callable[..., Any]) -> None:
    """A busy loop would take all of the processor's time while everybody waits; this one takes none."""
    async with connected(config=SMALL) as (client, server):
        await state(client, server)
        await turns()
        before = time.process_time()
        await asyncio.sleep(IDLE)
        assert time.process_time() - before < IDLE / 2
        for end in (client, server):
            end.writer.transport.abort()  # type: ignore[attr-defined]


async def test_report_29_polling_ends_after_its_time_and_by_default_it_is_short(host: str) -> None:
    """Each wait looks for `spin_us` at most and then sleeps; with 0 it never looks."""
    assert smcfast.SmcConfig().spin_us <= 100
    for spin_us in (0, 50, 10_000):
        async with connected(host, config=smcfast.SmcConfig(spin_us=spin_us)) as (client, server):
            reading = asyncio.ensure_future(server.reader.read(1))
            await eventually(lambda server=server: server.info.counters["stalls_received"] == 1)  # type: ignore[misc]
            turned = server.info.counters
            await turns(1000)
            assert server.info.counters == turned
            client.writer.write(b"x")
            assert await reading == b"x"
            if spin_us == 0:
                assert server.info.counters["spins"] == client.info.counters["spins"] == 0


async def flood(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seed: int, total: int, largest: int
) -> None:
    """Write `total` bytes in pieces of any size and read as many, both at once, and check them."""
    data = pattern(total)

    async def send() -> None:
        rng, sent = random.Random(seed), 0
        while sent < total:
            size = min(total - sent, int(2 ** rng.uniform(0, largest.bit_length())))
            writer.write(data[sent : sent + size])
            sent += size
            if rng.random() < 0.8:
                await writer.drain()

    async def receive() -> None:
        rng, got = random.Random(seed + 1), 0
        while got < total:
            wanted = int(2 ** rng.uniform(0, largest.bit_length()))
            piece = await reader.read(wanted)
            assert piece
            assert piece == data[got : got + len(piece)]
            got += len(piece)

    await asyncio.gather(send(), receive())


async def flooded(channel: Channel, host: str, spin_us: int, seed: int, total: int, largest: int) -> None:
    """The other process: one connection, flooded from this side too."""
    done = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await flood(reader, writer, seed, total, largest)
        writer.close()
        await writer.wait_closed()
        done.set_result(None)

    config = smcfast.SmcConfig(rmb_size=RING, spin_us=spin_us, fallback="forbid")
    async with await smcfast.start_smc_server(handle, host, 0, config=config) as server:
        channel.send(port_of(server.sockets))
        await done


@pytest.mark.parametrize("largest", [1, 1000, RING, 1 << 20])
@pytest.mark.parametrize("spin_us", [0, 50])
async def test_report_30_a_flood_both_ways_through_small_windows_never_stalls(
    spawn: Callable[..., Child], loop_kind: str, spin_us: int, largest: int, seed: int
) -> None:
    """Two processes; the other one is on a loop of the other kind. The long form of this is the traffic of the soak."""
    (other,) = set(LOOPS) - {loop_kind}
    total = min(2 << 20, 5_000 * largest)
    host = random.Random(seed).choice(("127.0.0.1", "::1"))
    child = spawn(flooded, host, spin_us, seed + 7, total, largest, loop=other)
    port = await child.areceive()
    config = smcfast.SmcConfig(rmb_size=RING, spin_us=spin_us, fallback="forbid")
    reader, writer = await smcfast.open_smc_connection(host, port, config=config)
    assert writer.get_extra_info("smc").path == "smc-d"
    await flood(reader, writer, seed, total, largest)
    assert await reader.read(1) == b""
    writer.close()
    await child.aresult()


@pytest.mark.parametrize("spin_us", [0, 50])
async def test_report_33_every_writer_that_waits_for_room_is_told_of_it(host: str, spin_us: int) -> None:
    """Nothing else goes on: no byte comes back, no other connection, no timer. The reader takes one piece at a time."""
    config = smcfast.SmcConfig(rmb_size=RING, spin_us=spin_us)
    async with connected(host, config=config) as (client, server):
        client.writer.transport.set_write_buffer_limits(high=0)
        total = 20 * RING
        client.writer.write(bytes(total))
        draining = asyncio.ensure_future(client.writer.drain())
        await eventually(lambda: client.info.counters["stalls_sent"] > 0)
        for _ in range(20):
            assert not draining.done() or client.writer.transport.get_write_buffer_size() == 0
            assert len(await server.reader.readexactly(RING)) == RING
        await draining
        assert client.info.counters["bytes_received"] == 0


def engine_fd(loop: asyncio.AbstractEventLoop) -> int:
    return _loop.engine(loop).core.fileno()


@pytest.mark.parametrize("outer", ["epoll", "selectors", *LOOPS])
def test_report_36_the_descriptor_works_inside_another_poll(outer: str, loop_kind: str) -> None:
    """Readable exactly when somebody who sleeps was rung for; polled from the outside it loses nothing."""
    loop = new_loop(loop_kind)
    try:
        loop.run_until_complete(asyncio.wait_for(_polled_from_outside(outer), 30))
    finally:
        loop.close()


async def _polled_from_outside(outer: str) -> None:
    loop = asyncio.get_running_loop()
    async with connected(config=smcfast.SmcConfig(spin_us=0)) as (client, server):
        fd = engine_fd(loop)
        with contextlib.ExitStack() as stack:
            is_readable = poller(stack, outer, fd)
            assert not is_readable(0)
            reading = asyncio.ensure_future(server.reader.read(10))
            await eventually(lambda: server.info.counters["stalls_received"] == 1)
            assert not is_readable(0)
            client.writer.write(b"wake up")
            assert is_readable(30)
            assert await reading == b"wake up"
            assert not is_readable(0)


def poller(stack: contextlib.ExitStack, outer: str, fd: int) -> Callable[[float], bool]:
    """Whether another poll, which knows nothing of our loop, finds `fd` readable within some seconds."""
    if outer == "epoll":
        inner, outside = stack.enter_context(select.epoll()), stack.enter_context(select.epoll())
        inner.register(fd, select.EPOLLIN)
        outside.register(inner.fileno(), select.EPOLLIN)  # nested once more
        return lambda seconds: bool(outside.poll(seconds))
    if outer == "selectors":
        selector = stack.enter_context(selectors.DefaultSelector())
        selector.register(fd, selectors.EVENT_READ)
        return lambda seconds: bool(selector.select(seconds))
    return lambda seconds: _another_loop_sees(outer, fd, seconds)


def _another_loop_sees(kind: str, fd: int, seconds: float) -> bool:
    """A whole loop of its own in another thread, watching the same descriptor."""
    from concurrent.futures import ThreadPoolExecutor

    async def watch() -> bool:
        loop = asyncio.get_running_loop()
        seen = asyncio.Event()
        loop.add_reader(fd, seen.set)
        try:
            await asyncio.wait_for(seen.wait(), seconds or 0.05)
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(fd)
        return True

    def run() -> bool:
        loop = new_loop(kind)
        try:
            return loop.run_until_complete(watch())
        finally:
            loop.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


async def test_report_38_writes_without_reads_are_held_back_and_the_peer_is_who_tcp_says(stream_host: str) -> None:
    """10,000 writes are taken and kept in order, drain waits, reads in the other direction go on; names are TCP's."""
    async with connected(stream_host, config=SMALL) as (client, server):
        for number in range(10_000):
            client.writer.write(number.to_bytes(4, "big"))
        assert client.writer.transport.get_write_buffer_size() == 40_000 - RING
        client.writer.write(bytes(70_000))
        draining = asyncio.ensure_future(client.writer.drain())
        server.writer.write(b"meanwhile")
        assert await client.reader.readexactly(9) == b"meanwhile"
        assert not draining.done()
        assert await server.reader.readexactly(40_000) == pattern(40_000)
        assert await server.reader.readexactly(70_000) == bytes(70_000)
        await draining
        for end in (client, server):
            sock: Any = end.writer.get_extra_info("socket")
            assert end.writer.get_extra_info("peername") == sock.getpeername()
            assert end.writer.get_extra_info("sockname") == sock.getsockname()
