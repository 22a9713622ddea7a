"""Two processes move data by smcfast and by plain asyncio TCP, check every byte, and compare."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import smcfast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

HELP = "move 1 GiB between two processes over shared memory and over TCP, and compare"

CHUNK = 64 * 1024
"""Bytes written at once; each chunk begins with its number, so that a lost or doubled one shows."""
MESSAGE = 64
ROUND_TRIPS = 5000
WARM_UP = 200
HOST = "127.0.0.1"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Result(NamedTuple):
    """What one transport did."""

    path: str
    reason: str
    bytes_per_second: float
    round_trip_us: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--bytes", type=_count, default=1 << 30, metavar="N", help="bytes to move, in chunks of 64 KiB (default: 1 GiB)"
    )
    parser.add_argument("--uvloop", action="store_true", help="run both processes on uvloop, which must be installed")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return count


def run(options: argparse.Namespace) -> int:
    """Run the demo: 0 if the data went through shared memory, 1 if it had to be TCP."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if options.uvloop:
        try:
            uvloop = importlib.import_module("uvloop")  # Not a dependency: only where the user has it.
        except ImportError:
            print("uvloop is not installed", file=sys.stderr)
            return 2
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        if options.serve:
            return runner.run(_serve())
        with server(options.uvloop) as ports:
            return runner.run(_compare(options.bytes, *ports))


@contextlib.contextmanager
def server(uvloop: bool) -> Iterator[list[int]]:
    """The other process, and the ports of its two servers."""
    command = [sys.executable, "-m", "smcfast", "demo", "--serve", *(["--uvloop"] if uvloop else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


# The server's process.


async def _serve() -> int:
    """Serve both kinds, tell the ports on stdout, end with stdin."""
    smc = await smcfast.start_smc_server(_handle, HOST, 0)
    tcp = await asyncio.start_server(_handle, HOST, 0)
    ports = [server.sockets[0].getsockname()[1] for server in (smc, tcp)]
    print(json.dumps(ports), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    return 0


async def _handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The request: how many chunks will come, and how many messages to send back; then both."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        chunks, messages = json.loads(await reader.readline())
        for _ in range(messages):
            writer.write(await reader.readexactly(MESSAGE))
        body = bytes(CHUNK - 8)
        wrong = 0
        for number in range(chunks):
            wrong += await reader.readexactly(CHUNK) != number.to_bytes(8) + body
        writer.write(json.dumps(wrong).encode() + b"\n")
        await reader.read()
    writer.close()


# The client's process.


async def _compare(size: int, smc_port: int, tcp_port: int) -> int:
    chunks = -(-size // CHUNK)
    smc = await measure(lambda: smcfast.open_smc_connection(HOST, smc_port), chunks)
    tcp = await measure(lambda: asyncio.open_connection(HOST, tcp_port), chunks)
    _report(smc, tcp, chunks * CHUNK, type(asyncio.get_running_loop()).__module__.partition(".")[0])
    return 0 if smc.path == "smc-d" else 1


async def measure(connect: Callable[[], Awaitable[Streams]], chunks: int) -> Result:
    """Measure one connection to a server of this module: round trips, then so many chunks of 64 KiB."""
    reader, writer = await connect()
    info: smcfast.SmcInfo | None = writer.get_extra_info("smc")
    writer.write(json.dumps([chunks, ROUND_TRIPS + WARM_UP]).encode() + b"\n")
    round_trip = await _round_trips(reader, writer)
    rate = await _stream(reader, writer, chunks)
    writer.close()
    await writer.wait_closed()
    reason = "" if info is None or info.fallback is None else str(info.fallback)
    return Result("tcp" if info is None else info.path, reason, rate, round_trip)


async def _round_trips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    """The median round trip of a message, in microseconds."""
    message = bytes(range(MESSAGE))
    times = []
    for _ in range(ROUND_TRIPS + WARM_UP):
        start = time.perf_counter_ns()
        writer.write(message)
        echo = await reader.readexactly(MESSAGE)
        times.append(time.perf_counter_ns() - start)
        if echo != message:
            raise SystemExit("a message came back changed")
    return statistics.median(times[WARM_UP:]) / 1000


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chunks: int) -> float:
    """Bytes per second, from the first byte to the server's word that all were right."""
    body = bytes(CHUNK - 8)
    start = time.perf_counter()
    for number in range(chunks):
        writer.write(number.to_bytes(8) + body)
        await writer.drain()
    wrong = json.loads(await reader.readline())
    elapsed = time.perf_counter() - start
    if wrong:
        raise SystemExit(f"{wrong} of {chunks} chunks arrived wrong")
    return chunks * CHUNK / elapsed


def _report(smc: Result, tcp: Result, size: int, loop: str) -> None:
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = f"Python {platform.python_version()}, {loop}, {platform.system()} {platform.release()}, {cpus} CPUs"
    print(f"smcfast {smcfast.__version__}, {machine}; {size / 2**20:.0f} MiB, every byte checked\n")
    print(f"{'path':8}{'throughput':>14}{'round trip 64 B':>20}")
    for row in (smc, tcp):
        print(f"{row.path:8}{row.bytes_per_second / 1e9:>9.2f} GB/s{row.round_trip_us:>17.1f} us")
    faster = smc.bytes_per_second / tcp.bytes_per_second
    quicker = tcp.round_trip_us / smc.round_trip_us
    print(f"{'ratio':8}{faster:>12.1f} x{quicker:>18.1f} x")
    if smc.reason:
        print(f"\nsmcfast took TCP: {smc.reason}")
