"""Death and silence: whatever becomes of a peer, who is left is told, holds nothing of it, and waits at no cost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

import smcfast
from smcfast import SmcConfig
from soak import kill
from soak.victim import FATES, PHASES
from support.addresses import port_of
from support.process import abstract_names, mappings
from support.streams import End, eventually, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from support.channel import Channel
    from support.child import Child

    Spawn = Callable[..., Child]

ROUNDS: Final = 250


@pytest.mark.parametrize("part", range(4))
@pytest.mark.timeout(300)
def test_a_thousand_peers_that_end_at_any_moment(part: int, seed: int) -> None:
    figures = kill.run(ROUNDS, seed)
    print(f"part {part}: {figures}")
    # The moments were spread over everything that there is to be hit.
    for what, names in (("phases", PHASES), ("fates", FATES), ("pending", kill.PENDING)):
        assert min(figures[what].get(name, 0) for name in names) > ROUNDS // 100, figures[what]
    assert figures["paths"]["smc-d"] > ROUNDS // 3
    first, last = figures["kilobytes"][0], figures["kilobytes"][-1]
    assert last - first < 4 * ROUNDS, "four kilobytes for each round"


CONFIG: Final = SmcConfig(rmb_size=16 * 1024)
kept: list[Any] = []


def stay() -> NoReturn:
    """Hold everything open until somebody makes an end of it, a minute at most."""
    signal.alarm(60)
    while True:
        signal.pause()


async def connect(parent: Channel, port: int, forks: bool) -> None:
    """A peer that connects, and may leave a child behind which holds everything open; then it does what it is told."""
    kept.append(await smcfast.open_smc_connection("127.0.0.1", port, config=CONFIG))
    reader, writer = kept[-1]
    assert writer.get_extra_info("smc").path == "smc-d"
    child = os.fork() if forks else 0
    if forks and child == 0:
        stay()
    parent.send(child)
    while (said := await parent.areceive(30)) != "end":
        if said == "say":
            writer.write(b"hello")
        else:
            parent.send((await reader.readexactly(said)).decode())
    writer.close()
    await writer.wait_closed()


@contextlib.asynccontextmanager
async def peer(spawn: Spawn, loop_kind: str, *, forks: bool = False) -> AsyncIterator[tuple[Child, End]]:
    """A process that has connected to this one, and the own end; its child is killed at the end."""
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    server = await smcfast.start_smc_server(lambda *pair: arrived.set_result(End(*pair)), "127.0.0.1", 0, config=CONFIG)
    process = spawn(connect, port_of(server.sockets), forks, loop=loop_kind)
    grandchild = await process.areceive()
    end = await arrived
    assert end.info.path == "smc-d"
    try:
        yield process, end
    finally:
        if grandchild:
            os.kill(grandchild, signal.SIGKILL)
        end.writer.transport.abort()  # type: ignore[attr-defined]
        await end.closed()
        server.close()
        await server.wait_closed()


async def read(end: End) -> None:
    await end.reader.read(1)


async def read_to_the_end(end: End) -> None:
    await end.reader.read()


async def drain(end: End) -> None:
    end.writer.write(bytes(1_000_000))
    await end.writer.drain()


async def close(end: End) -> None:
    """With more to send than the ring takes."""
    end.writer.write(bytes(1_000_000))
    end.writer.close()
    await end.writer.wait_closed()


async def nothing(end: End) -> None:
    """Nobody waits for anything: the transport hears of it, and the next use tells."""
    await eventually(end.writer.transport.is_closing)
    await end.reader.read(1)


PENDING: Final = {each.__name__: each for each in (read, read_to_the_end, drain, close, nothing)}


@pytest.mark.parametrize("forks", [False, True], ids=["alone", "has forked"])
@pytest.mark.parametrize("pending", PENDING)
async def test_report_17_a_killed_peer_ends_whatever_is_pending(
    spawn: Spawn, loop_kind: str, pending: str, forks: bool
) -> None:
    """Also one whose child holds the TCP connection open: the process itself is watched."""
    async with peer(spawn, loop_kind, forks=forks) as (process, end):
        task = asyncio.ensure_future(PENDING[pending](end))
        await turns()
        assert not task.done()
        process.kill()
        with pytest.raises(ConnectionResetError):
            await task
        with pytest.raises(ConnectionResetError):
            await drain(end)


async def read_and_hear(process: Child, end: End) -> None:
    process.send("say")
    assert await end.reader.readexactly(5) == b"hello"


async def test_report_17_a_stopped_peer_goes_on_where_it_was(spawn: Spawn, loop_kind: str) -> None:
    """With a read and a drain that wait for it, and more written than its ring holds."""
    async with peer(spawn, loop_kind) as (process, end):
        await read_and_hear(process, end)
        os.kill(process.pid, signal.SIGSTOP)
        reading = asyncio.ensure_future(end.reader.readexactly(5))
        size = 1_000_000
        end.writer.write(b"x" * size)
        draining = asyncio.ensure_future(end.writer.drain())  # type: ignore[arg-type]
        process.send("say")
        process.send(size)
        await turns()
        assert not reading.done()
        assert not draining.done()
        os.kill(process.pid, signal.SIGCONT)
        assert await reading == b"hello"
        await draining
        assert await process.areceive() == "x" * size
        process.send("end")
        assert await end.reader.read() == b""
        await process.aresult()


SILENCE: Final = 0.5
"""Seconds for which nothing happens. What a poll every few milliseconds or a loop that spins costs meanwhile is many times as
much as what is allowed: a handful of wake-ups, a tenth of the time."""
WAKE_UPS: Final = 10


async def costs_nothing() -> None:
    """Do nothing for a while, and look at what this thread has been woken for and what this process has used."""
    await turns()
    before, used = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, time.process_time()
    await asyncio.sleep(SILENCE)  # silence is what is measured; nothing waits for it
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before <= WAKE_UPS
    assert time.process_time() - used < SILENCE / 10


async def asleep(waiting: Awaitable[Any]) -> asyncio.Future[Any]:
    """A task of `waiting` that looks no more for what it waits for, and sleeps."""
    task: Any = asyncio.ensure_future(waiting)
    await eventually(lambda: task._fut_waiter is not None)
    return task


@pytest.mark.parametrize("state", ["idle", "stopped", "stopped with a full ring"])
async def test_report_17_a_silent_peer_costs_nothing(spawn: Spawn, loop_kind: str, state: str) -> None:
    async with peer(spawn, loop_kind) as (process, end):
        await read_and_hear(process, end)
        if state != "idle":
            os.kill(process.pid, signal.SIGSTOP)
        waits = [await asleep(end.reader.read(1))]
        if state == "stopped with a full ring":
            end.writer.write(bytes(1_000_000))
            waits.append(await asleep(end.writer.drain()))
        before = end.info.counters
        await costs_nothing()
        assert end.info.counters == before
        assert not any(wait.done() for wait in waits)
        process.kill()
        for wait in waits:
            with pytest.raises(ConnectionResetError):
                await wait


async def connect_and_fork(parent: Channel, port: int) -> None:
    """Leave a child at the first step of the handshake that has a descriptor to inherit, and wait to be killed."""
    from smcfast import negotiate

    async def fork(*_: Any) -> None:
        child = os.fork()
        if child == 0:
            stay()
        parent.send(child)
        await asyncio.Event().wait()

    negotiate._invited = fork  # type: ignore[assignment]
    await smcfast.open_smc_connection("127.0.0.1", port, config=CONFIG)


async def test_a_client_that_forked_and_was_killed_in_its_handshake(spawn: Spawn, loop_kind: str) -> None:
    """Its child holds every connection open: the server gives up in time, keeps nothing and serves the next one."""
    config = SmcConfig(rmb_size=16 * 1024, handshake_timeout=0.5)
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    server = await smcfast.start_smc_server(lambda *pair: arrived.set_result(End(*pair)), "127.0.0.1", 0, config=config)
    process = spawn(connect_and_fork, port_of(server.sockets), loop=loop_kind)
    grandchild = await process.areceive()
    process.kill()
    end = await arrived
    assert end.info.reason == "discovery_timeout"
    assert mappings("smcfast") == 0
    os.kill(grandchild, signal.SIGKILL)
    assert await end.reader.read() == b""
    end.writer.close()
    await end.closed()
    server.close()
    await server.wait_closed()
    assert abstract_names() == set()
