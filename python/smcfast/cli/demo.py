"""Two processes move data by smcfast and by plain asyncio TCP, check every byte, and compare."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import smcfast
from smcfast import setting
from smcfast.cli import loops

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

HELP = "move 1 GiB between two processes over shared memory and over TCP, and compare"

CHUNK = 64 * 1024
"""Bytes written at once; each chunk begins with its number, so that a lost or doubled one shows."""
MESSAGE = 64
ROUND_TRIPS = 5000
WARM_UP = 200
CONNECTS = 50
CONNECTS_WARM_UP = 5
RATIO_MIN = 1 << 20
"""Bytes below which a throughput is mostly that of starting and ending, and not worth comparing."""
ASLEEP = "the two processes shared a CPU, none was free, or spin_us is short"
HOST = "127.0.0.1"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Result(NamedTuple):
    """What one transport did."""

    path: str
    reason: str
    bytes_per_second: float
    round_trip_us: float
    looked: int
    """Waits of the round trips that ended while this end looked, before it slept."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--bytes", type=_count, default=1 << 30, metavar="N", help="bytes to move, K, M or G may follow (default: 1G)"
    )
    parser.add_argument("--uvloop", action="store_true", help="run both processes on uvloop, which must be installed")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)


def _count(text: str) -> int:
    try:
        count = setting.parse_size(text)
    except setting.Refused:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be 1 or more bytes, with K, M or G (powers of 1024) or without"
        )
    return count


def run(options: argparse.Namespace) -> int:
    """Run the demo: 0 if the data went through shared memory, 1 if it could not, 2 if a setting is wrong."""
    factory = loops.factory(options.uvloop)
    if factory is None:
        return 2
    try:
        smcfast.SmcConfig()
        with contextlib.ExitStack() as both:
            ports = None if options.serve else both.enter_context(server(options.uvloop))
            runner = both.enter_context(asyncio.Runner(loop_factory=factory))
            return runner.run(_serve() if ports is None else _compare(options.bytes, *ports))
    except smcfast.SmcConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"the demo failed: {error.strerror or error}", file=sys.stderr)
        return 1


@contextlib.contextmanager
def server(uvloop: bool) -> Iterator[list[int]]:
    """The other process, and the ports of its two servers."""
    command = [sys.executable, "-m", "smcfast", "demo", "--serve", *(["--uvloop"] if uvloop else [])]
    # A session of its own: Ctrl-C is for this process, and the other one ends with its stdin.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(process.wait() or 1)  # It has said why.
            yield json.loads(line)
        finally:
            process.stdin.close()


# The server's process.


async def _serve() -> int:
    """Serve both kinds, tell the ports on stdout, end with stdin."""
    loop = asyncio.get_running_loop()
    handlers: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not left to asyncio, which complains of a handler that is cancelled at the end.
        task = loop.create_task(_handle(reader, writer))
        handlers.add(task)
        task.add_done_callback(handlers.discard)

    smc = await smcfast.start_smc_server(serve, HOST, 0)
    tcp = await asyncio.start_server(serve, HOST, 0)
    ports = [server.sockets[0].getsockname()[1] for server in (smc, tcp)]
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    if handlers:
        # Their clients are gone, so they end by themselves; some may not even have begun.
        await asyncio.wait(handlers, timeout=5)
    return 0


async def _handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The request: how many bytes will come, and how many messages to send back; then both. No request is none."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        if request := await reader.readline():
            size, messages = json.loads(request)
            for _ in range(messages):
                writer.write(await reader.readexactly(MESSAGE))
            wrong = 0
            for chunk in chunks(size):
                wrong += await reader.readexactly(len(chunk)) != chunk
            writer.write(json.dumps(wrong).encode() + b"\n")
            await reader.read()
    writer.close()


def chunks(size: int) -> Iterator[bytes]:
    """What is moved: `size` bytes in numbered chunks."""
    body = bytes(CHUNK - 8)
    for number in range(size // CHUNK):
        yield number.to_bytes(8) + body
    if size % CHUNK:
        yield ((size // CHUNK).to_bytes(8) + body)[: size % CHUNK]


# The client's process.


async def _compare(size: int, smc_port: int, tcp_port: int) -> int:
    def by_smc() -> Awaitable[Streams]:
        return smcfast.open_smc_connection(HOST, smc_port)

    def by_tcp() -> Awaitable[Streams]:
        return asyncio.open_connection(HOST, tcp_port)

    smc, tcp = await measure(by_smc, size), await measure(by_tcp, size)
    _report(size, (smc, tcp), (await connects(by_smc), await connects(by_tcp)))
    return 0 if smc.path == "smc-d" else 1


async def measure(connect: Callable[[], Awaitable[Streams]], size: int) -> Result:
    """Measure one connection to a server of this module: round trips, then `size` bytes in chunks of 64 KiB."""
    reader, writer = await connect()
    try:
        writer.write(json.dumps([size, ROUND_TRIPS + WARM_UP]).encode() + b"\n")
        round_trip = await _round_trips(reader, writer)
        info: smcfast.SmcInfo | None = writer.get_extra_info("smc")
        looked = 0 if info is None else info.counters.get("spins", 0)
        rate = await _stream(reader, writer, size)
    finally:
        writer.close()
    await writer.wait_closed()
    reason = "" if info is None or info.fallback is None else str(info.fallback)
    return Result("tcp" if info is None else info.path, reason, rate, round_trip, looked)


async def connects(connect: Callable[[], Awaitable[Streams]]) -> float:
    """The median time until a connection is there, one after the other, in microseconds."""
    times = []
    for _ in range(CONNECTS_WARM_UP + CONNECTS):
        start = time.perf_counter_ns()
        _, writer = await connect()
        times.append(time.perf_counter_ns() - start)
        writer.close()
        await writer.wait_closed()
    return statistics.median(times[CONNECTS_WARM_UP:]) / 1000


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


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> float:
    """Bytes per second, from the first byte to the server's word that all were right."""
    start = time.perf_counter()
    for chunk in chunks(size):
        writer.write(chunk)
        await writer.drain()
    wrong = json.loads(await reader.readline())
    elapsed = time.perf_counter() - start
    if wrong:
        raise SystemExit(f"{wrong} chunks arrived wrong")
    return size / elapsed


def _report(size: int, results: tuple[Result, Result], connect_us: tuple[float, float]) -> None:
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = f"Python {platform.python_version()}, {loop}, {platform.system()} {platform.release()}, {cpus} CPUs"
    print(f"smcfast {smcfast.__version__}, {machine}; {amount(size)}, every byte checked\n")
    print(f"{'path':8}{'throughput':>14}{'round trip 64 B':>20}{'connect':>14}")
    for row, us in zip(results, connect_us, strict=True):
        print(f"{row.path:8}{rate(row.bytes_per_second):>14}{row.round_trip_us:>17.1f} us{us:>11.0f} us")
    smc, tcp = results
    if smc.reason:
        print(f"\nsmcfast took TCP: {smc.reason}")
        return
    faster = f"{smc.bytes_per_second / tcp.bytes_per_second:.1f} x" if size >= RATIO_MIN else ""
    quicker = tcp.round_trip_us / smc.round_trip_us
    print(f"{'ratio':8}{faster:>14}{quicker:>18.1f} x{connect_us[1] / connect_us[0]:>12.2f} x")
    print("\nOne run. Other load on the machine and fewer than two CPUs change these figures, by several times.")
    if smc.looked < ROUND_TRIPS // 2:
        print(f"Only {smc.looked} of {ROUND_TRIPS + WARM_UP} round trips were done without sleep: {ASLEEP}.")


def amount(size: int) -> str:
    """Bytes for people, in the greatest unit that they fill."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.1f}".removesuffix(".0") + f" {unit}"
    return "1 byte" if size == 1 else f"{size} bytes"


def rate(bytes_per_second: float) -> str:
    """A throughput for people."""
    if bytes_per_second >= 1e8:
        return f"{bytes_per_second / 1e9:.2f} GB/s"
    return f"{bytes_per_second / 1e6:.2f} MB/s"
