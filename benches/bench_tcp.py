"""asyncio over loopback TCP: the row that every other one is compared with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchmark.fixture import BenchmarkFixture

ROUND_TRIPS = 200  # in one measured call, so that starting the loop does not count


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


@pytest.fixture
def pair() -> Iterator[tuple[asyncio.Runner, Any]]:
    """A running loop with an echo server, and a client's streams."""
    with asyncio.Runner() as runner:

        async def connect() -> tuple[asyncio.Server, asyncio.StreamReader, asyncio.StreamWriter]:
            server = await asyncio.start_server(_echo, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            return server, reader, writer

        server, reader, writer = runner.run(connect())
        yield runner, (reader, writer)

        async def close() -> None:
            writer.close()
            await writer.wait_closed()
            server.close()
            await server.wait_closed()

        runner.run(close())


@pytest.mark.parametrize("size", [64, 65536])
def bench_round_trips_tcp(benchmark: BenchmarkFixture, pair: Any, size: int) -> None:
    runner, (reader, writer) = pair
    message = bytes(size)

    async def round_trips() -> None:
        for _ in range(ROUND_TRIPS):
            writer.write(message)
            await reader.readexactly(size)

    benchmark(lambda: runner.run(round_trips()))
