"""Both ends of the measurements over blocking sockets, TCP, unix and smcfast's: no event loop."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import smcfast
from suite.cases import SMC
from suite.machine import percentile, pin
from suite.streams import HOST, LEAST, LONG, READ, config_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel

    Figures = dict[str, float]


def serve(parent: Channel, cpu: int | None, folder: str, names: list[str]) -> None:
    """As the server of :mod:`suite.streams`: a thread for each listener, which serves one connection at a time."""
    pin(cpu)
    addresses: dict[str, Any] = {}
    for name in names:
        listener = _listening(name, folder)
        addresses[name] = listener.getsockname() if name == "unix" else listener.getsockname()[1]
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
    parent.send(addresses)
    parent.receive(LONG)


def _listening(name: str, folder: str) -> Any:
    if name == SMC:
        return smcfast.create_server((HOST, 0), config=config_of(name))
    listener = socket.socket(socket.AF_UNIX if name == "unix" else socket.AF_INET)
    listener.bind(f"{folder}/blocking" if name == "unix" else (HOST, 0))
    listener.listen()
    return listener


def _connected(name: str, address: Any) -> Any:
    if name == SMC:
        return smcfast.create_connection((HOST, address), config=config_of(name))
    connection = socket.socket(socket.AF_UNIX if name == "unix" else socket.AF_INET)
    connection.connect(address if name == "unix" else (HOST, address))
    return connection


def accept(listener: socket.socket) -> None:
    """Serve one connection after the other, until the process ends."""
    while True:
        with listener.accept()[0] as connection:
            nodelay(connection)
            line = b""
            while not line.endswith(b"\n"):
                line += connection.recv(1)
            order = json.loads(line)
            total = _echo_back(connection, order["size"]) if order["work"] == "echo" else _take(connection, order)
            connection.sendall(json.dumps(total).encode() + b"\n")


def nodelay(connection: socket.socket) -> None:
    """Without delay, as asyncio has each of its TCP sockets."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _echo_back(connection: socket.socket, size: int) -> int:
    with memoryview(bytearray(size)) as buffer:
        while _fill(connection, buffer):
            connection.sendall(buffer)
    return 0


def _fill(connection: socket.socket, buffer: memoryview) -> bool:
    """Read until the buffer is full; False at the end of the stream."""
    got = connection.recv_into(buffer)
    while 0 < got < len(buffer):
        more = connection.recv_into(buffer[got:])
        if not more:
            return False
        got += more
    return got > 0


def _take(connection: socket.socket, order: dict[str, Any]) -> int:
    total, buffer = 0, bytearray(max(order["chunk"], READ))
    while got := connection.recv_into(buffer):
        total += got
    return total


def drive(parent: Channel, cpu: int | None) -> None:
    """As the client of :mod:`suite.streams`."""
    pin(cpu)
    works: dict[str, Callable[..., Figures]] = {"echo": echo, "stream": stream}
    while order := parent.receive(LONG):
        work = order.pop("work")
        over, address = order.pop("over"), order.pop("address")
        with _connected(over, address) as connection:
            nodelay(connection)
            parent.send(works[work](connection, **order))


def _begin(connection: socket.socket, work: str, **details: Any) -> None:
    connection.sendall(json.dumps({"work": work, **details}).encode() + b"\n")


def _end(connection: socket.socket) -> Any:
    connection.shutdown(socket.SHUT_WR)
    line = b""
    while data := connection.recv(4096):
        line += data
    return json.loads(line)


def echo(connection: socket.socket, size: int, seconds: float) -> Figures:
    """As `suite.streams.echo`, on a connected socket."""
    _begin(connection, "echo", size=size)
    message, now = bytes(size), time.perf_counter_ns
    times: list[int] = []
    counted_from = now() + int(seconds * 1e8)
    end = counted_from + int(seconds * 9e8)
    with memoryview(bytearray(size)) as buffer:
        start = now()
        while start < end or len(times) < LEAST:
            connection.sendall(message)
            _fill(connection, buffer)
            stop = now()
            if start >= counted_from:
                times.append(stop - start)
            start = now()
    _end(connection)
    return {"p50_us": percentile(times, 50) / 1e3, "p99_us": percentile(times, 99) / 1e3, "messages": len(times)}


def stream(connection: socket.socket, chunk: int, seconds: float) -> Figures:
    """As `suite.streams.stream`, on a connected socket."""
    _begin(connection, "stream", chunk=chunk)
    data, batch, sent, now = bytes(chunk), max(1, READ // chunk // 4), 0, time.perf_counter
    start = now()
    end = start + seconds
    while now() < end:
        for _ in range(batch):
            connection.sendall(data)
        sent += batch
    assert _end(connection) == sent * chunk, "bytes were lost"
    elapsed = now() - start
    return {"bytes_per_s": sent * chunk / elapsed, "writes_per_s": sent / elapsed}
