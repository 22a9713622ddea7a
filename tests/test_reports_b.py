"""Field reports of section B: closes, half-closes and peers that die. More of them are in test_streams.py and test_death.py."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from smcfast import SmcConfig
from smcfast.server import WAIT_CLOSED_WAITS
from support.addresses import port_of
from support.process import descriptors, mappings
from support.streams import End, Pair, connected, echo, eventually, turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.channel import Channel
    from support.child import Child

CONFIG = SmcConfig(rmb_size=16 * 1024)


async def idle(_: Pair) -> list[asyncio.Task[Any]]:
    return []


async def unread(pair: Pair) -> list[asyncio.Task[Any]]:
    """Both have something that nobody has read."""
    for end in pair:
        end.writer.write(b"x" * 1000)
        await end.writer.drain()
    return []


async def full(pair: Pair) -> list[asyncio.Task[Any]]:
    """Both have more to send than there is room for, and nobody reads."""
    for end in pair:
        end.writer.write(bytes(3_000_000))
    return []


async def waiting(pair: Pair) -> list[asyncio.Task[Any]]:
    """Both wait for data."""
    reads = [asyncio.ensure_future(end.reader.read(1)) for end in pair]
    await turns()
    return reads


async def transfer(pair: Pair) -> list[asyncio.Task[Any]]:
    """Both send and receive without an end."""

    async def send(end: End) -> None:
        while True:
            end.writer.write(bytes(10_000))
            await end.writer.drain()
            await asyncio.sleep(0)

    async def receive(end: End) -> None:
        while await end.reader.read(5000):
            pass

    tasks = [asyncio.ensure_future(work(end)) for end in pair for work in (send, receive)]
    await turns()
    return tasks


STATES: dict[str, Callable[[Pair], Awaitable[list[asyncio.Task[Any]]]]] = {
    each.__name__: each for each in (idle, unread, full, waiting, transfer)
}


async def gone(end: End) -> None:
    """Wait for the end of a stream, whatever is left in it, and close it."""
    with contextlib.suppress(ConnectionError):
        while await end.reader.read(2**16):
            pass
    end.writer.close()
    with contextlib.suppress(ConnectionError):
        await end.writer.wait_closed()


@pytest.mark.parametrize("first", ["client", "server", "both"])
@pytest.mark.parametrize("how", ["close", "abort"])
@pytest.mark.parametrize("state", STATES)
async def test_report_13_no_order_of_closing_hangs(state: str, how: str, first: str) -> None:
    async with connected(config=CONFIG) as pair:
        tasks = await STATES[state](pair)
        for end in {"client": pair[:1], "server": pair[1:], "both": pair}[first]:
            end_of(end, how)
        for task in tasks:
            with contextlib.suppress(ConnectionError):
                await task
        await asyncio.gather(*map(gone, pair))


def end_of(end: End, how: str) -> None:
    if how == "close":
        end.writer.close()
    else:
        end.writer.transport.abort()  # type: ignore[attr-defined]


READS: dict[str, Callable[[asyncio.StreamReader], Awaitable[Any]]] = {
    "read": lambda reader: reader.read(10),
    "read all": lambda reader: reader.read(),
    "readexactly": lambda reader: reader.readexactly(10),
    "readline": lambda reader: reader.readline(),
    "readuntil": lambda reader: reader.readuntil(b"x"),
}


async def outcome(read: Awaitable[Any]) -> str:
    try:
        return repr(await read)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        return type(error).__name__


@pytest.mark.parametrize("how", ["close", "abort"])
@pytest.mark.parametrize("asleep", [False, True])
@pytest.mark.parametrize("read", READS)
async def test_report_14_the_close_of_the_peer_ends_any_read(read: str, asleep: bool, how: str, host: str) -> None:
    async with connected(host, config=CONFIG) as (client, server):
        reading = asyncio.ensure_future(READS[read](client.reader)) if asleep else None
        if asleep:
            await eventually(lambda: client.info.counters["stalls_received"] > 0)
        end_of(server, how)
        said = await outcome(reading or READS[read](client.reader))
        clean = "IncompleteReadError" if read in ("readexactly", "readuntil") else "b''"
        assert said == (clean if how == "close" else "ConnectionResetError")


async def exit_early(parent: Channel, port: int, how: str) -> None:
    """Connect, and end the process without a word."""
    kept.append(await smcfast.open_smc_connection("127.0.0.1", port, config=CONFIG))
    parent.send(kept[-1][1].get_extra_info("smc").path)
    await parent.areceive()
    if how == "os._exit":
        os._exit(0)
    sys.exit(0)


kept: list[Any] = []


@pytest.mark.parametrize("how", ["os._exit", "sys.exit"])
@pytest.mark.parametrize("read", READS)
async def test_report_14_a_peer_that_exits_without_a_close_ends_any_read(
    spawn: Callable[..., Child], loop_kind: str, read: str, how: str
) -> None:
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    server = await smcfast.start_smc_server(lambda *pair: arrived.set_result(End(*pair)), "127.0.0.1", 0, config=CONFIG)
    child = spawn(exit_early, port_of(server.sockets), how, loop=loop_kind)
    assert await child.areceive() == "smc-d"
    end = await arrived
    reading = asyncio.ensure_future(READS[read](end.reader))
    await turns()
    child.send("go")
    assert await outcome(reading) == "ConnectionResetError"
    await gone(end)
    server.close()
    await server.wait_closed()


async def hold(parent: Channel) -> None:
    """Serve until the end."""
    server = await smcfast.start_smc_server(echo, "127.0.0.1", 0, config=CONFIG)
    parent.send(port_of(server.sockets))
    await asyncio.Event().wait()


async def outlive(parent: Channel, ports: list[int], count: int) -> list[str]:
    """Have connections to two peers, of which one is killed: say what becomes of both, and end well."""
    doomed, steady = [
        await asyncio.gather(*(smcfast.open_smc_connection("127.0.0.1", port) for _ in range(count))) for port in ports
    ]
    reads = [asyncio.ensure_future(outcome(reader.readexactly(1))) for reader, _ in doomed]
    parent.send("ready")
    ends = await asyncio.gather(*reads)
    for reader, writer in steady:
        writer.write(b"hello")
        ends.append((await reader.readexactly(5)).decode())
    for _, writer in doomed + steady:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return ends


async def test_report_18_a_killed_peer_takes_nobody_with_it(spawn: Callable[..., Child], loop_kind: str) -> None:
    count = 20
    peers = [spawn(hold, loop=loop_kind) for _ in range(2)]
    survivor = spawn(outlive, [await peer.areceive() for peer in peers], count, loop=loop_kind)
    assert await survivor.areceive() == "ready"
    peers[0].kill()
    assert await survivor.aresult() == ["ConnectionResetError"] * count + ["hello"] * count


@pytest.mark.parametrize("how", ["close_clients", "abort_clients"])
async def test_report_25_a_servers_wait_closed_is_that_of_its_interpreter(how: str, host: str) -> None:
    """Since Python 3.12 it waits for the connections, and these end by close_clients or abort_clients on every version."""
    server = await smcfast.start_smc_server(echo, host, 0)
    streams = [await smcfast.open_smc_connection(host, port_of(server.sockets)) for _ in range(3)]
    assert {writer.get_extra_info("smc").path for _, writer in streams} == {"smc-d"}
    await eventually(lambda: len(server._clients) == 3)
    server.close()
    waiting = asyncio.ensure_future(server.wait_closed())
    await turns()
    assert waiting.done() != WAIT_CLOSED_WAITS
    getattr(server, how)()
    await waiting
    for reader, writer in streams:
        await gone(End(reader, writer))
    await server.wait_closed()


@pytest.mark.parametrize("how", ["close", "abort"])
@pytest.mark.parametrize("who", ["here", "there"])
async def test_report_25_a_writers_wait_closed_ends_whatever_ends_the_stream(who: str, how: str) -> None:
    async with connected(config=CONFIG) as (client, server):
        waits = [asyncio.ensure_future(client.writer.wait_closed()) for _ in range(2)]
        await turns()
        assert not any(wait.done() for wait in waits)
        end_of(client if who == "here" else server, how)
        if who == "there" and how == "close":
            assert await client.reader.read() == b""
            await turns()
            assert not any(wait.done() for wait in waits), "a half-closed stream is still there to be written to"
            client.writer.close()
        for wait in waits:
            with contextlib.suppress(ConnectionResetError):
                await wait
            assert wait.done()
        if who == "here":
            await client.writer.wait_closed()


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_who_closes_is_told_that_the_peer_did_not_take_what_waited(how: str) -> None:
    """As over TCP: bytes that were written and cannot be delivered any more are no good end."""
    async with connected(config=CONFIG) as (client, server):
        client.writer.write(bytes(1_000_000))
        client.writer.close()
        assert client.writer.transport.get_write_buffer_size()  # type: ignore[attr-defined]
        end_of(server, how)
        with pytest.raises(ConnectionResetError):
            await client.writer.wait_closed()


async def test_report_26_a_forgotten_stream_is_told_of_and_gives_its_memory_back() -> None:
    await abandoned(1)  # what the engine keeps is there then
    gc.collect()
    before = descriptors(), mappings("smcfast")
    gone = await abandoned(20)
    assert [ref() for ref in gone] == [None] * len(gone)
    assert (descriptors(), mappings("smcfast")) == before


async def abandoned(count: int) -> list[weakref.ref[Any]]:
    """Open connections and forget them; references to what they were made of, once the other ends have heard of it."""
    arrived: list[End] = []
    server = await smcfast.start_smc_server(lambda *pair: arrived.append(End(*pair)), "127.0.0.1", 0, config=CONFIG)
    refs: list[weakref.ref[Any]] = []
    for _ in range(count):
        reader, writer = await smcfast.open_smc_connection(*server.sockets[0].getsockname(), config=CONFIG)
        assert writer.get_extra_info("smc").path == "smc-d"
        writer.write(b"x" * 1000)
        refs += [weakref.ref(each) for each in (reader, writer, writer.transport, reader._endpoint)]  # type: ignore[attr-defined]
        dropped = [reader, writer]
        del reader, writer
        with pytest.warns(ResourceWarning, match="unclosed <RingStreamWriter"):
            dropped.clear()
    for end in arrived:
        assert await end.reader.read() == b"x" * 1000
        await gone(end)
    server.close()
    await server.wait_closed()
    await turns()
    arrived.clear()
    gc.collect()
    return refs
