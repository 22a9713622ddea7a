"""Field reports about small messages and short connections (section D), as counts; their times are benchmarks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import TYPE_CHECKING

import pytest

import smcfast
from support.addresses import port_of
from support.loops import LOOPS, run_within
from support.process import descriptors, mappings
from support.streams import connected, eventually, pattern

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from support.channel import Channel
    from support.child import Child

MESSAGES = 1_000_000
SHORT = 2_500
"""Connections on each loop and address: 10,000 in all."""


async def write_small(channel: Channel, host: str, messages: int) -> dict[str, int]:
    """A client that writes 64 bytes at a time, drains now and then, and closes; its counters."""
    port = await channel.areceive()
    reader, writer = await smcfast.open_smc_connection(host, port)
    message = pattern(64)
    for number in range(messages):
        writer.write(message)
        if number % 1000 == 0:
            await writer.drain()
    writer.write_eof()
    assert await reader.read() == b"all of it"
    counters = dict(writer.get_extra_info("smc").counters)
    writer.close()
    await writer.wait_closed()
    return counters


async def take_all(reader: asyncio.StreamReader) -> None:
    """Read the million messages, to the end, whatever is there at once, and check them."""
    got, repeated = 0, pattern(64) * 1025
    while data := await reader.read(65536):
        assert data == repeated[got % 64 : got % 64 + len(data)]
        got += len(data)
    assert got == 64 * MESSAGES


async def test_report_43_a_million_small_writes_ring_seldom(spawn: Callable[..., Child], loop_kind: str) -> None:
    """A reader that is awake, or looks before it sleeps, is not rung for: it finds what has come meanwhile."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done.set_result(await take_all(reader))
        writer.write(b"all of it")
        writer.close()
        await writer.wait_closed()

    child = spawn(write_small, "127.0.0.1", MESSAGES, loop=loop_kind)
    async with await smcfast.start_smc_server(handle, "127.0.0.1", 0) as server:
        child.send(port_of(server.sockets))
        await done
    counters = await child.aresult()
    print(f"{MESSAGES} writes: rung {counters['wakeups_sent']} times")
    assert counters["bytes_sent"] == 64 * MESSAGES
    assert counters["wakeups_sent"] < MESSAGES / 10


async def test_report_43_the_first_message_is_not_delayed(host: str) -> None:
    """It rings and can be read when write() returns: no timer, no turn of the loop, no second write."""
    async with connected(host, config=smcfast.SmcConfig(spin_us=0)) as (client, server):
        for number in range(1, 100):
            reading = asyncio.ensure_future(server.reader.read(100))
            await eventually(lambda number=number: server.info.counters["stalls_received"] == number)  # type: ignore[misc]
            client.writer.write(b"x" * number)
            assert client.info.counters["wakeups_sent"] == number
            assert server.reader._endpoint.take(1000) == b"x" * number  # type: ignore[attr-defined]
            client.writer.write(b"for the reader")
            assert await reading == b"for the reader"


@contextlib.asynccontextmanager
async def greeting(host: str) -> AsyncIterator[tuple[str, int]]:
    """A server that says a word to everybody and hangs up."""

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()
        await writer.wait_closed()

    async with await smcfast.start_smc_server(handle, host, 0) as server:
        yield host, port_of(server.sockets)


async def visit(target: tuple[str, int]) -> int:
    """One short connection: its link group."""
    reader, writer = await smcfast.open_smc_connection(*target)
    assert await reader.read() == b"hello"
    info = writer.get_extra_info("smc")
    assert info.path == "smc-d"
    writer.close()
    await writer.wait_closed()
    assert info.link_group is not None
    return int(info.link_group)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("kind", LOOPS)
def test_report_44_thousands_of_short_connections_leave_nothing_and_share_a_link_group(kind: str, address: str) -> None:
    async def main() -> None:
        async with connected(address), greeting(address) as target:
            group = await visit(target)
            gc.collect()
            before, rings = len(descriptors()), mappings("smcfast")
            for _ in range(SHORT):
                assert await visit(target) == group
            gc.collect()
            await eventually(lambda: (len(descriptors()), mappings("smcfast")) == (before, rings))

    run_within(100, kind, main)
