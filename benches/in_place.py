"""What readinto, views and reservations save against read and write: chunks of 1 MiB between two processes over SMC-D.

The sender fills each chunk by one copy, as whoever makes bytes does; the receiver does not look at them. Each way has its turn
in each round, and what counts is its ratio to write and read in the same round. `in_place.py [ROUNDS]`
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from statistics import median
from typing import TYPE_CHECKING

import smcfast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Send = Callable[[smcfast.SmcStreamWriter], Awaitable[None]]
    Take = Callable[[smcfast.SmcStreamReader], Awaitable[int]]

CHUNK, COUNT = 1 << 20, 512
MADE = bytes(range(256)) * (CHUNK // 256)
CONFIG = smcfast.SmcConfig(fallback="forbid", rmb_size=4 * CHUNK)
FIRST = "write, read"
WAYS = (FIRST, "write, readinto", "write, view", "reserve, read", "reserve, readinto", "reserve, view")

made = bytearray(CHUNK)
taken = bytearray(CHUNK)


async def write(writer: smcfast.SmcStreamWriter) -> None:
    """Make a chunk, and write it."""
    made[:] = MADE
    writer.write(made)
    await writer.drain()


async def reserve(writer: smcfast.SmcStreamWriter) -> None:
    """Make a chunk where it is sent from."""
    place = 0
    while place < CHUNK:
        with await writer.reserve(CHUNK - place) as room:
            room[:] = memoryview(MADE)[place : place + len(room)]
            place += len(room)
            room.commit()


async def read(reader: smcfast.SmcStreamReader) -> int:
    """A chunk as bytes."""
    return len(await reader.read(CHUNK))


async def readinto(reader: smcfast.SmcStreamReader) -> int:
    """A chunk into the same buffer each time."""
    return await reader.readinto(taken)


async def view(reader: smcfast.SmcStreamReader) -> int:
    """A chunk where it lies."""
    with await reader.view(CHUNK) as seen:
        seen.consume()
        return len(seen)


SENDS: dict[str, Send] = {"write": write, "reserve": reserve}
TAKES: dict[str, Take] = {"read": read, "readinto": readinto, "view": view}


async def send(port: int, rounds: int) -> None:
    """The sender's process."""
    for _ in range(rounds):
        for way in WAYS:
            reader, writer = await smcfast.open_smc_connection("127.0.0.1", port, config=CONFIG)
            step = SENDS[way.split(", ")[0]]
            for _ in range(COUNT):
                await step(writer)
            writer.write_eof()
            await reader.read()
            writer.close()
            await writer.wait_closed()


async def receive(listener: asyncio.Future[int], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round."""
    arrived: asyncio.Queue[tuple[smcfast.SmcStreamReader, smcfast.SmcStreamWriter]] = asyncio.Queue()
    server = await smcfast.start_smc_server(
        lambda reader, writer: arrived.put_nowait((reader, writer)), "127.0.0.1", 0, config=CONFIG
    )
    listener.set_result(server.sockets[0].getsockname()[1])
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    async with server:
        for _ in range(rounds):
            for way in WAYS:
                reader, writer = await arrived.get()
                step = TAKES[way.split(", ")[1]]
                began, got = time.perf_counter(), 0
                while size := await step(reader):
                    got += size
                found[way].append(time.perf_counter() - began)
                assert got == CHUNK * COUNT
                writer.close()
                await writer.wait_closed()
    return found


async def main(to_child: int, rounds: int) -> None:
    """The receiver's process, which prints."""
    listener: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    receiving = asyncio.create_task(receive(listener, rounds))
    os.write(to_child, str(await listener).encode())
    os.close(to_child)
    found = await receiving
    print(f"{'way':20}{'GiB/s':>8}{'times write, read':>20}")
    for way, seconds in found.items():
        rate = median(COUNT * CHUNK / (1 << 30) / one for one in seconds)
        gain = median(first / one for first, one in zip(found[FIRST], seconds, strict=True))
        print(f"{way:20}{rate:8.2f}{gain:20.2f}")


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child)
        asyncio.run(send(int(os.read(from_parent, 16)), rounds))
        os._exit(0)
    os.close(from_parent)
    asyncio.run(main(to_child, rounds))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
