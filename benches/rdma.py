"""SMC-R over software RoCE: the kernel's, smcfast's, the raw verbs and TCP on the same cable, in one boot of the machine.

``make bench-rdma`` boots it. Rounds in which every row is measured once, beginning with another one each time. Emulated figures
say nothing by themselves: what counts are the ratios within one round, which `suite.roce` judges.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import smcfast
from suite import blocking, machine, streams
from suite.roce import CHUNK, KERNEL, MESSAGE, SPINS, STREAMS, TCP, VERBS
from vm.support import perftest, smc
from vm.support.forked import ForkedChild, Nursery
from vm.support.hosts import A, B

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.channel import Channel

    Figures = dict[str, float]
    Row = Callable[[], Figures]
    Start = Callable[..., ForkedChild]

EID: Final = "SMCFAST"
ROUNDS: Final = 5
SECONDS: Final = 2.0
"""How long a measurement lasts."""
ANSWER: Final = 120.0
"""Seconds until a process must have answered."""


class Unavailable(Exception):
    """A row cannot be measured: why."""


# The kernel's sockets, SMC and TCP: blocking ones, nothing but system calls.


def serve_sockets(parent: Channel, protocol: int) -> None:
    """Child: listen on host b, until the parent says something."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol) as listener:
        listener.bind((B.address, 0))
        listener.listen()
        threading.Thread(target=blocking.accept, args=(listener,), daemon=True).start()
        parent.send(listener.getsockname()[1])
        parent.receive(streams.LONG)


def drive_sockets(parent: Channel, protocol: int, port: int) -> None:
    """Child: a measurement from host a for each word of the parent's."""
    while parent.receive(streams.LONG):
        with _connected(protocol, port) as sock:
            round_trips = blocking.echo(sock, MESSAGE, SECONDS)
        with _connected(protocol, port) as sock:
            stream = blocking.stream(sock, CHUNK, SECONDS)
        parent.send(_figures(round_trips, stream))


def _connected(protocol: int, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    sock.bind((A.address, 0))
    sock.connect((B.address, port))
    blocking.nodelay(sock)
    if protocol == smc.IPPROTO_SMC:
        found = smc.connection(sock.getsockname()[1], port)
        assert found.mode is smc.Mode.SMC_R, found
    return sock


# smcfast's streams.


def _config(spin_us: int | None) -> smcfast.SmcConfig:
    """SMC-R and nothing else, although both hosts are one."""
    peers = (f"{A.address}:*", f"{B.address}:*")
    settings: dict[str, Any] = {} if spin_us is None else {"spin_us": spin_us}
    return smcfast.SmcConfig(paths=("smc-r",), discovery=(), assume=peers, ueids=(EID,), fallback="forbid", **settings)


async def serve_smcfast(parent: Channel, spin_us: int | None) -> None:
    """Child: listen on host b, until the parent says something; the text of an error where there is no SMC-R."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await streams.answer(reader, writer)

    try:
        server = await smcfast.start_smc_server(answer, B.address, 0, config=_config(spin_us))
    except (OSError, ValueError) as error:
        parent.send(f"{type(error).__name__}: {error}")
        return
    parent.send(server.sockets[0].getsockname()[1])
    await parent.areceive(streams.LONG)
    server.close()
    await server.wait_closed()


async def drive_smcfast(parent: Channel, spin_us: int | None, port: int) -> None:
    """Child: a measurement from host a for each word of the parent's; the text of an error where there is no SMC-R."""

    async def connect() -> streams.Streams:
        config = _config(spin_us)
        reader, writer = await smcfast.open_smc_connection(B.address, port, local_addr=(A.address, 0), config=config)
        assert writer.get_extra_info("smc").path == "smc-r", writer.get_extra_info("smc")
        return reader, writer

    await _drive(parent, connect)


async def _drive(parent: Channel, connect: streams.Connect) -> None:
    while await parent.areceive(streams.LONG):
        try:
            round_trips = await streams.echo(connect, MESSAGE, SECONDS)
            stream = await streams.stream(connect, CHUNK, SECONDS)
        except OSError as error:
            parent.send(f"{type(error).__name__}: {error}")
        else:
            parent.send(_figures(round_trips, stream))


# TCP on the same event loop: what of the difference is the loop's.


async def serve_streams(parent: Channel) -> None:
    """Child: listen on host b, until the parent says something."""
    async with await asyncio.start_server(streams.answer, B.address, 0) as server:
        parent.send(server.sockets[0].getsockname()[1])
        await parent.areceive(streams.LONG)


async def drive_streams(parent: Channel, port: int) -> None:
    """Child: a measurement from host a for each word of the parent's."""

    async def connect() -> streams.Streams:
        return await asyncio.open_connection(B.address, port, local_addr=(A.address, 0))

    await _drive(parent, connect)


def _figures(round_trips: Figures, stream: Figures) -> Figures:
    return {"rtt_us": round_trips["p50_us"], "mb_s": stream["bytes_per_s"] / 1e6}


# The rows.


class Pair:
    """A server and a client in processes of their own; a call is one measurement."""

    def __init__(self, start: Start, serve: Callable[..., Any], drive: Callable[..., Any], *args: Any) -> None:
        """:raises Unavailable: the server says why it cannot listen."""
        self._server = start(serve, *args)
        port: int | str = self._server.receive(ANSWER)
        if isinstance(port, str):
            raise Unavailable(port)
        self._client = start(drive, *args, port)

    def __call__(self) -> Figures:
        self._client.send("measure")
        answer: Figures | str = self._client.receive(ANSWER)
        if isinstance(answer, str):
            raise Unavailable(answer)
        return answer


def measure_verbs() -> Figures:
    """What the devices can do, without SMC and without Python."""
    return {"rtt_us": perftest.round_trip_us(size=MESSAGE), "mb_s": perftest.rate_mb_s(size=CHUNK)}


def measure(start: Start, rounds: int) -> tuple[list[dict[str, Figures]], dict[str, str]]:
    """The rounds, each with the figures of its rows, and why rows are missing."""
    missing: dict[str, str] = {}
    rows: dict[str, Row] = {
        KERNEL: Pair(start, serve_sockets, drive_sockets, smc.IPPROTO_SMC),
        TCP: Pair(start, serve_sockets, drive_sockets, socket.IPPROTO_TCP),
        VERBS: measure_verbs,
    }
    rows[STREAMS] = Pair(start, serve_streams, drive_streams)
    for name, spin_us in SPINS.items():
        try:
            rows[name] = Pair(start, serve_smcfast, drive_smcfast, spin_us)
        except Unavailable as error:
            missing[name] = str(error)
    found = []
    for number in range(rounds):
        names = list(rows)
        shift = number % len(names)
        figures = {}
        for name in names[shift:] + names[:shift]:
            try:
                figures[name] = rows[name]()
            except Unavailable as error:
                missing[name] = str(error)
                del rows[name]
        found.append(figures)
        print(f"round {number + 1} of {rounds}: {json.dumps(figures)}", flush=True)
    return found, missing


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure SMC-R over software RoCE, inside the machine.")
    parser.add_argument("--into", type=Path, required=True, help="the file for all figures, as JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    nursery = Nursery()
    smc.set_eids([EID])
    with contextlib.ExitStack() as stack:
        stack.callback(nursery.close)

        def start(*args: Any) -> ForkedChild:
            child = ForkedChild(nursery, *args, loop="uvloop", limit=streams.LONG)
            stack.callback(child.close)
            return child

        rounds, missing = measure(start, options.rounds)
    facts = {
        "machine": machine.facts(),
        "date": datetime.date.today().isoformat(),
        "rounds": rounds,
        "missing": missing,
    }
    options.into.write_text(json.dumps(facts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
