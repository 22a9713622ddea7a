"""The test tools themselves: a guard that never bites guards nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support.addresses import listening, refusing
from support.child import Child, ChildFailedError
from support.loops import HangError, LoopComplaintError, run_on, run_within

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from support.channel import Channel

    Spawn = Callable[..., Child]


async def test_a_coroutine_runs_on_the_loop_of_its_kind(loop_kind: str) -> None:
    assert type(asyncio.get_running_loop()).__module__.startswith("uvloop") == (loop_kind == "uvloop")


def test_a_hang_is_an_error_and_shows_the_stack(loop_kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(HangError):
        run_within(0.05, loop_kind, hang)
    assert "asyncio.Event().wait()" in capfd.readouterr().err


def test_an_exception_in_a_callback_is_an_error(loop_kind: str) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with pytest.raises(LoopComplaintError, match="ZeroDivisionError"):
        run_on(loop_kind, main)


def test_an_exception_that_nobody_retrieves_is_an_error(loop_kind: str) -> None:
    async def fail() -> None:
        raise ValueError("lost")

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.wait([task])

    with pytest.raises(LoopComplaintError, match="lost"):
        run_on(loop_kind, main)


def test_one_port_on_all_addresses(host: str) -> None:
    with listening(host) as (sockets, port):
        assert {each.getsockname()[1] for each in sockets} == {port}
        socket.create_connection((host, port), timeout=5).close()


def test_a_refusing_port_refuses(host: str) -> None:
    with refusing(host) as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, port), timeout=5)


async def echo(parent: Channel, host: str, port: int) -> int:
    """Child: send back what the parent's server says, return how much it was."""
    reader, writer = await asyncio.open_connection(host, port)
    data = await reader.readexactly(100_000)
    writer.write(data)
    await writer.drain()
    parent.send("sent")
    assert await parent.areceive() == "go on"
    writer.close()
    await writer.wait_closed()
    return len(data)


async def test_two_processes(spawn: Spawn, host: str, loop_kind: str, rng: random.Random) -> None:
    data = rng.randbytes(100_000)
    returned: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        returned.set_result(await reader.readexactly(len(data)))
        writer.close()
        await writer.wait_closed()

    with listening(host) as (sockets, port):
        servers = [await asyncio.start_server(serve, sock=each) for each in sockets]
        child = spawn(echo, host, port, loop=loop_kind)
        assert await child.areceive() == "sent"
        assert await returned == data
        child.send("go on")
        assert await child.aresult() == len(data)
        assert child.pid != os.getpid()
        for server in servers:
            server.close()
            await server.wait_closed()


def misbehave(_: Channel, how: str) -> None:
    """Child: end badly in the way that is asked for."""
    if how == "raise":
        raise ValueError("so be it")
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "warn":
        print("a complaint", file=sys.stderr)
    if how == "hang":
        signal.pause()


@pytest.mark.parametrize(
    ("how", "said"), [("raise", "so be it"), ("die", "status -9"), ("warn", "a complaint"), ("hang", "hangs")]
)
def test_a_child_that_ends_badly_is_an_error(spawn: Spawn, how: str, said: str) -> None:
    child = spawn(misbehave, how)
    limit: dict[str, Any] = {"limit": 0.5} if how == "hang" else {}
    with pytest.raises(ChildFailedError, match=said):
        child.result(**limit)


def test_a_child_that_returns_early_is_an_error(spawn: Spawn) -> None:
    child = spawn(misbehave, "not at all")
    with pytest.raises(ChildFailedError, match="returned None"):
        child.receive()


def test_seeds_repeat(request: pytest.FixtureRequest, seed: int, rng: random.Random) -> None:
    assert request.getfixturevalue("seed") == seed
    assert rng.random() == __import__("random").Random(seed).random()
