"""Both ends of every measurement over asyncio streams: smcfast, TCP and unix sockets by the same lines of code.

A connection begins with a line that says what will be measured; the client ends it with EOF, the server answers with a
line of figures. A measurement lasts a time, not a number of messages, so that slow and fast transports cost the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import smcfast
from suite.machine import memory_bytes, percentile, pin, ping, pong

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from support.channel import Channel

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
    Connect = Callable[[], Awaitable[Streams]]
    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
    Figures = dict[str, float]

HOST = "127.0.0.1"
LONG = 3600.0  # seconds that an end waits for the next order; the run has its own limit
CONFIGS: dict[str, dict[str, Any]] = {
    "smcfast": {},
    "smcfast, 4 MiB ring": {"rmb_size": 4 << 20},
    "smcfast, no spinning": {"spin_us": 0},
}
READ = 64 << 10
"""Bytes that a receiver asks for at least: asyncio's own readers hold twice as much at most."""
TICK = 0.001  # seconds
LEAST = 5
"""Round trips that are counted however long they take."""


# The server's process.


async def serve(parent: Channel, cpu: int | None, folder: str, names: list[str]) -> None:
    """Listen by every transport of `names`, tell the addresses, then obey the parent until it says None."""
    pin(cpu)
    handlers: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(answer(reader, writer))
        handlers.add(task)
        task.add_done_callback(handlers.discard)

    async with contextlib.AsyncExitStack() as stack:
        addresses: dict[str, Any] = {}
        for name in names:
            if name == "unix":
                server: Any = await asyncio.start_unix_server(begin, f"{folder}/streams")
                addresses[name] = f"{folder}/streams"
            elif name == "tcp":
                server = await asyncio.start_server(begin, HOST, 0)
                addresses[name] = server.sockets[0].getsockname()[1]
            else:
                server = await smcfast.start_smc_server(begin, HOST, 0, config=config_of(name))
                addresses[name] = server.sockets[0].getsockname()[1]
            await stack.enter_async_context(server)
        parent.send(addresses)
        while order := await parent.areceive(LONG):
            parent.send(pong(order["path"]) if order["work"] == "probe" else await _rest(order["seconds"]))
        if handlers:
            await asyncio.wait(handlers)


def config_of(name: str) -> smcfast.SmcConfig:
    """That of a transport by its name."""
    return smcfast.SmcConfig(fallback="forbid", **CONFIGS[name])


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection: what its first line asks for."""
    with contextlib.suppress(ConnectionError):
        if line := await reader.readline():
            order = json.loads(line)
            began = time.process_time()
            figures = await _ANSWERS[order["work"]](reader, writer, order)
            figures["cpu_s"] = time.process_time() - began
            writer.write(json.dumps(figures).encode() + b"\n")
            await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _echo_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, order: dict[str, Any]) -> Figures:
    size = order["size"]
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            writer.write(await reader.readexactly(size))
    return {}


async def _take(reader: asyncio.StreamReader, _: asyncio.StreamWriter, order: dict[str, Any]) -> Figures:
    size, total = max(order["chunk"], READ), 0
    async with _ticking(order["ticker"]) as late:
        while data := await reader.read(size):
            total += len(data)
    return {"total": total, "late_us": percentile(late, 99)}


async def _at_once(*_: Any) -> Figures:
    return {}


_ANSWERS = {"echo": _echo_back, "stream": _take, "once": _at_once}


@contextlib.asynccontextmanager
async def _ticking(wanted: bool) -> Any:
    """A timer beside the others that is due every millisecond: how late it was each time, in microseconds."""
    late: list[float] = []
    due = time.perf_counter() + TICK
    timer: asyncio.TimerHandle | None = None

    def tick() -> None:
        nonlocal due, timer
        late.append((time.perf_counter() - due) * 1e6)
        due, timer = time.perf_counter() + TICK, loop.call_later(TICK, tick)

    loop = asyncio.get_running_loop()
    timer = loop.call_later(TICK, tick) if wanted else None
    try:
        yield late
    finally:
        if timer is not None:
            timer.cancel()
            late.append(max(0.0, time.perf_counter() - due) * 1e6)  # A loop that never ran it is late too.


async def _rest(seconds: float) -> Figures:
    """Do nothing, and what CPU time that took."""
    began = time.process_time()
    await asyncio.sleep(seconds)
    return {"cpu_s": time.process_time() - began}


# The client's process.


async def drive(parent: Channel, cpu: int | None) -> None:
    """Measure what the parent asks for, one order after the other, until it says None."""
    pin(cpu)
    held: list[asyncio.StreamWriter] = []
    while order := await parent.areceive(LONG):
        work = order.pop("work")
        if work == "probe":
            parent.send(ping(**order))
        elif work == "rest":
            parent.send(await _rest(**order))
        else:
            connect = functools.partial(_connect, order.pop("over"), order.pop("address"))
            figures = await (_hold(held, connect, **order) if work == "hold" else _WORKS[work](connect, **order))
            parent.send(figures)
    for writer in held:
        writer.close()
    for writer in held:
        await writer.wait_closed()


async def _connect(name: str, address: Any) -> Streams:
    if name == "unix":
        return await asyncio.open_unix_connection(address)
    if name == "tcp":
        return await asyncio.open_connection(HOST, address)
    reader, writer = await smcfast.open_smc_connection(HOST, address, config=config_of(name))
    assert writer.get_extra_info("smc").path == "smc-d"
    return reader, writer


@contextlib.asynccontextmanager
async def _order(connect: Connect, work: str, **details: Any) -> Any:
    """A connection on which the server does `work`; what it answered at the end is added to the yielded figures."""
    reader, writer = await connect()
    try:
        writer.write(json.dumps({"work": work, **details}).encode() + b"\n")
        figures: Figures = {}
        yield reader, writer, figures
        writer.write_eof()
        figures.update({f"server_{name}": value for name, value in json.loads(await reader.readline()).items()})
    finally:
        writer.close()
    await writer.wait_closed()


async def echo(connect: Connect, size: int, seconds: float) -> Figures:
    """Round trips of one message at a time, for `seconds`, the first tenth not counted; in microseconds."""
    message = bytes(size)
    now = time.perf_counter_ns
    times: list[int] = []
    async with _order(connect, "echo", size=size) as (reader, writer, _):
        write, read = writer.write, reader.readexactly
        counted_from = now() + int(seconds * 1e8)
        end = counted_from + int(seconds * 9e8)
        start = now()
        while start < end or len(times) < LEAST:
            write(message)
            await read(size)
            stop = now()
            if start >= counted_from:
                times.append(stop - start)
            start = now()
    return {"p50_us": percentile(times, 50) / 1e3, "p99_us": percentile(times, 99) / 1e3, "messages": len(times)}


async def stream(connect: Connect, chunk: int, seconds: float, ticker: bool = False) -> Figures:
    """Bytes one way, in chunks, as fast as they go: until the server says that it has all."""
    data, batch = bytes(chunk), max(1, READ // chunk // 4)
    now, sent = time.perf_counter, 0
    async with (
        _order(connect, "stream", chunk=chunk, ticker=ticker) as (_, writer, figures),
        _ticking(ticker) as late,
    ):
        await asyncio.sleep(0)
        write, drain = writer.write, writer.drain
        start = now()
        end = start + seconds
        while now() < end:
            for _ in range(batch):
                write(data)
                await drain()
            sent += batch
    elapsed = now() - start
    assert figures["server_total"] == sent * chunk, "bytes were lost"
    return {
        "bytes_per_s": sent * chunk / elapsed,
        "writes_per_s": sent / elapsed,
        "late_us": max(percentile(late, 99), figures["server_late_us"]),
        "late_here_us": percentile(late, 99),
        "late_there_us": figures["server_late_us"],
    }


async def many(connect: Connect, size: int, seconds: float, connections: int) -> Figures:
    """Round trips on several connections at once, by a task each: messages a second over all."""

    async def one(stop: asyncio.Event) -> int:
        count, message = 0, bytes(size)
        async with _order(connect, "echo", size=size) as (reader, writer, _):
            ready.release()
            await begin.wait()
            while not stop.is_set():
                writer.write(message)
                await reader.readexactly(size)
                count += 1
        return count

    begin, stop, ready = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(0)
    tasks = [asyncio.create_task(one(stop)) for _ in range(connections)]
    for _ in tasks:
        await ready.acquire()
    start = time.perf_counter()
    begin.set()
    await asyncio.sleep(seconds)
    stop.set()
    elapsed = time.perf_counter() - start
    return {"messages_per_s": sum(await asyncio.gather(*tasks)) / elapsed}


async def paced(connect: Connect, size: int, seconds: float, interval: float) -> Figures:
    """Round trips of one message every `interval` seconds: how long they take, and the CPU time of both ends."""
    message, times = bytes(size), []
    async with _order(connect, "echo", size=size) as (reader, writer, figures):
        began, due = time.process_time(), time.perf_counter()
        for _ in range(int(seconds / interval)):
            start = time.perf_counter_ns()
            writer.write(message)
            await reader.readexactly(size)
            times.append(time.perf_counter_ns() - start)
            due += interval
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        cpu = time.process_time() - began
    cpu_us = (cpu + figures["server_cpu_s"]) * 1e6 / len(times)
    return {"p50_us": percentile(times, 50) / 1e3, "p99_us": percentile(times, 99) / 1e3, "cpu_us": cpu_us}


async def connects(connect: Connect, count: int) -> Figures:
    """The client's opening of a connection alone, which for TCP ends before the server has accepted; by the median."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        _, writer = await connect()
        times.append(time.perf_counter() - start)
        writer.close()
        await writer.wait_closed()
    return {"per_s": 1 / median(times[count // 10 :])}


async def cycles(connect: Connect, count: int) -> Figures:
    """Connections one after the other: open, ask, have the answer (so both ends have it), close; by the median."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        reader, writer = await connect()
        writer.write(b'{"work": "once"}\n')
        await reader.readline()
        writer.close()
        await writer.wait_closed()
        times.append(time.perf_counter() - start)
    return {"per_s": 1 / median(times[count // 10 :])}


async def _hold(held: list[asyncio.StreamWriter], connect: Connect, count: int) -> Figures:
    """Open connections and keep them; the memory of this process that each took."""
    before = memory_bytes()
    for _ in range(count):
        _, writer = await connect()
        held.append(writer)
    return {"memory_bytes": (memory_bytes() - before) / count}


_WORKS: dict[str, Callable[..., Coroutine[Any, Any, Figures]]] = {
    "echo": echo,
    "stream": stream,
    "many": many,
    "paced": paced,
    "connects": connects,
    "cycles": cycles,
}
