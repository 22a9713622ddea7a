"""Two real processes: the bytes are exact, and the path is shared memory."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import TYPE_CHECKING, Any

import pytest

import smcfast
from support.addresses import port_of
from support.loops import LOOPS
from support.streams import End, pattern, until_refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.channel import Channel
    from support.child import Child

RING = 16 * 1024
PIECES = [1, 64, 4095, 4096, 4097, RING - 1, RING, RING + 1, 2 * RING + 1, 100_000]


def config_of(spin_us: int) -> smcfast.SmcConfig:
    return smcfast.SmcConfig(rmb_size=RING, spin_us=spin_us, fallback="forbid")


async def serve(channel: Channel, host: str, spin_us: int, handler_name: str, *args: Any) -> None:
    """Serve one connection with one of the handlers below, tell the port, and end with it."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert writer.get_extra_info("smc").path == "smc-d"
            done.set_result(await HANDLERS[handler_name](reader, writer, *args))
        except BaseException as error:
            done.set_exception(error)
            raise

    server = await smcfast.start_smc_server(handle, host, 0, config=config_of(spin_us))
    async with server:
        channel.send((host, port_of(server.sockets)))
        result = await done
    channel.send(result)


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mine: int, theirs: int) -> str:
    """Send random bytes of one seed in pieces of all sizes, receive those of another, both at once; then close."""

    async def send() -> None:
        rng = random.Random(mine)
        for size in rng.sample(PIECES * 10, 10 * len(PIECES)):
            writer.write(rng.randbytes(size))
            if rng.random() < 0.7:
                await writer.drain()
        writer.write_eof()

    async def receive() -> str:
        digest = hashlib.sha256()
        rng = random.Random(theirs + 1)
        while data := await reader.read(rng.choice(PIECES)):
            digest.update(data)
        return digest.hexdigest()

    _, received = await asyncio.gather(send(), receive())
    writer.close()
    await writer.wait_closed()
    return received


def digest_of(seed: int) -> str:
    rng = random.Random(seed)
    digest = hashlib.sha256()
    for size in rng.sample(PIECES * 10, 10 * len(PIECES)):
        digest.update(rng.randbytes(size))
        rng.random()
    return digest.hexdigest()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Send back what comes, to the end."""
    count = 0
    while data := await reader.read(100_000):
        count += len(data)
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()
    return count


async def send_and_close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
    """Write everything at once and close at once."""
    writer.write(pattern(size))
    writer.close()
    await writer.wait_closed()


async def speak_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | str:
    """Greet, as a mail server does."""
    writer.write(b"220 ready\r\n")
    answer = await reader.readline()
    writer.close()
    return answer.decode()


HANDLERS: dict[str, Callable[..., Any]] = {
    "exchange": exchange,
    "echo": echo,
    "send_and_close": send_and_close,
    "speak_first": speak_first,
}


async def connect(child: Child, spin_us: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = await child.areceive()
    reader, writer = await smcfast.open_smc_connection(host, port, config=config_of(spin_us))
    assert writer.get_extra_info("smc").path == "smc-d"
    return reader, writer


async def exchanged(spawn: Callable[..., Child], loop_kind: str, host: str, spin_us: int, seed: int) -> None:
    """Random data both ways at once, with a child on a loop of this kind."""
    child = spawn(serve, host, spin_us, "exchange", seed, seed + 1, loop=loop_kind)
    received = await exchange(*await connect(child, spin_us), seed + 1, seed)
    assert received == digest_of(seed)
    assert await child.areceive() == digest_of(seed + 1)
    child.result()


@pytest.mark.parametrize("spin_us", [0, 50])
async def test_random_data_both_ways_at_once(
    spawn: Callable[..., Child], loop_kind: str, host: str, spin_us: int, seed: int
) -> None:
    await exchanged(spawn, loop_kind, host, spin_us, seed)


@pytest.mark.parametrize("spin_us", [0, 50])
async def test_random_data_between_loops_of_two_kinds(
    spawn: Callable[..., Child], loop_kind: str, spin_us: int, seed: int
) -> None:
    (other,) = set(LOOPS) - {loop_kind}
    await exchanged(spawn, other, "127.0.0.1", spin_us, seed)


@pytest.mark.parametrize("spin_us", [0, 50])
async def test_every_size_comes_back(spawn: Callable[..., Child], loop_kind: str, host: str, spin_us: int) -> None:
    child = spawn(serve, host, spin_us, "echo", loop=loop_kind)
    reader, writer = await connect(child, spin_us)
    total = 0
    for size in PIECES:
        data = pattern(size, size)
        writer.write(data)
        assert await reader.readexactly(size) == data
        total += size
    writer.write_eof()
    assert await reader.read() == b""
    assert await child.areceive() == total
    writer.close()
    child.result()


@pytest.mark.parametrize("size", [1, RING + 1, 20_000_000])
async def test_report_22_close_right_after_a_large_write(
    spawn: Callable[..., Child], loop_kind: str, host: str, size: int
) -> None:
    child = spawn(serve, host, 50, "send_and_close", size, loop=loop_kind)
    reader, writer = await connect(child, 50)
    assert hashlib.sha256(await reader.read()).digest() == hashlib.sha256(pattern(size)).digest()
    await child.areceive()
    writer.close()
    child.result()


async def test_a_server_that_speaks_first(spawn: Callable[..., Child], loop_kind: str, host: str) -> None:
    child = spawn(serve, host, 50, "speak_first", loop=loop_kind)
    reader, writer = await connect(child, 50)
    assert await reader.readline() == b"220 ready\r\n"
    writer.write(b"HELO\r\n")
    assert await child.areceive() == "HELO\r\n"
    assert await reader.read() == b""
    writer.close()
    child.result()


@pytest.mark.parametrize("pending", ["read", "readexactly"])
async def test_report_17_a_killed_peer_ends_a_pending_read(
    spawn: Callable[..., Child], loop_kind: str, pending: str
) -> None:
    child = spawn(serve, "127.0.0.1", 50, "echo", loop=loop_kind)
    reader, writer = await connect(child, 50)
    writer.write(b"alive")
    assert await reader.readexactly(5) == b"alive"
    reading = asyncio.ensure_future(reader.read(1) if pending == "read" else reader.readexactly(10_000))
    await asyncio.sleep(0)
    child.kill()
    with pytest.raises(ConnectionResetError):
        await reading
    with pytest.raises(ConnectionError):
        await until_refused(End(reader, writer))
    writer.close()
