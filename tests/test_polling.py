"""Protocols that wait for data: the loop looks for it a while before it sleeps, and the rules of protocols hold meanwhile."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from support.addresses import port_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel
    from support.child import Child

ROUNDS = 600
LOOKS = smcfast.SmcConfig(spin_us=10_000, fallback="forbid")
"""So long that a peer on another core answers meanwhile, now and then at least, also on a busy machine."""
IDLE = 0.5  # seconds


class Rules(asyncio.Protocol):
    """Answers each byte, and by and by pauses, goes on, and changes its protocol; its loop does not sleep."""

    transport: asyncio.Transport

    def __init__(self, over: asyncio.Future[None]) -> None:
        self.over = over
        self.count = 0
        self.paused = False
        self.broken: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._tick()

    def _tick(self) -> None:
        if not self.over.done():
            asyncio.get_running_loop().call_soon(self._tick)

    def data_received(self, data: bytes) -> None:
        if self.paused:
            self.broken.append(f"handed over while paused, at {self.count}")
        self.count += len(data)
        self.transport.write(data)
        if self.count % 100 == 50:
            self.paused = True
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on, 20)
        if self.count % 100 == 0:
            self.transport.set_protocol(Next(self))

    def _go_on(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._go_on, turns - 1)
        else:
            self.paused = False
            self.transport.resume_reading()

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set_result(None)


class Next(asyncio.Protocol):
    """Takes one byte in the place of another protocol, which goes on behind it."""

    def __init__(self, first: Rules) -> None:
        self.first = first

    def data_received(self, data: bytes) -> None:
        self.first.transport.set_protocol(self.first)
        self.first.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.first.connection_lost(exc)


async def serve(channel: Channel, cpu: int) -> dict[str, Any]:
    """One connection for `Rules`; then whether they held, and what its end counted."""
    os.sched_setaffinity(0, {cpu})
    protocol = Rules(asyncio.get_running_loop().create_future())
    server = await smcfast.create_smc_server(lambda: protocol, "127.0.0.1", 0, config=LOOKS)
    channel.send(port_of(server.sockets))
    await protocol.over
    server.close()
    await server.wait_closed()
    info = protocol.transport.get_extra_info("smc")
    return {"broken": protocol.broken, "count": protocol.count, "spins": info.counters["spins"]}


class Bounce(asyncio.Protocol):
    """Sends a byte, waits for it, and so on."""

    transport: asyncio.Transport

    def __init__(self, left: int) -> None:
        self.left = left
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.write(b"x")

    def data_received(self, data: bytes) -> None:
        assert data == b"x"
        self.left -= 1
        if self.left:
            self.transport.write(b"x")
        else:
            self.over.set_result(None)


async def ask(_: Channel, cpu: int, port: int) -> dict[str, Any]:
    """As many round trips as there are rounds, then the CPU seconds of half a second in which nothing happens."""
    os.sched_setaffinity(0, {cpu})
    transport, protocol = await smcfast.create_smc_connection(lambda: Bounce(ROUNDS), "127.0.0.1", port, config=LOOKS)
    await protocol.over
    before = time.process_time()
    await asyncio.sleep(IDLE)
    idle = time.process_time() - before
    counters = transport.get_extra_info("smc").counters
    transport.close()
    return {"idle": idle, "spins": counters["spins"], "bells": counters["wakeups_received"]}


def test_the_loop_looks_for_protocols_and_their_rules_hold(spawn: Callable[..., Child], loop_kind: str) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("nobody looks on one core")
    server = spawn(serve, cpus[0], loop=loop_kind)
    client = spawn(ask, cpus[1], server.receive(), loop=loop_kind)
    asked, served = client.result(), server.result()
    assert (served["broken"], served["count"]) == ([], ROUNDS)
    assert served["spins"] > 0, "the loop never found what it looked for"
    assert asked["spins"] + asked["bells"] > 0
    assert asked["idle"] < IDLE / 2, "the loop still looks, though nothing comes"
