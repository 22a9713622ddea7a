"""Whatever can be awaited, cancelled at any moment: no byte is lost or comes twice, and nothing is left behind.

Both ends are in this process. A round is one connection: how it is made, which of its calls are cancelled and after how many
turns of the loop is drawn from the seed. A call that was cancelled is made again, and the bytes must be those that come next.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import random
from typing import TYPE_CHECKING, Any, Final

import smcfast
from support.addresses import port_of
from support.loops import LOOPS, run_within
from support.process import descriptors, resident
from support.streams import eventually, pattern
from support.tls import client_context, server_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

HOSTS: Final = ("127.0.0.1", "::1")
PATHS: Final = ("smc-d", "smc-d", "tcp")
KINDS: Final = ("streams", "streams", "protocol", "tls", "start_tls")
LENGTH: Final = 40_000
"""Bytes that a connection carries each way, at most."""
RING: Final = 16_384
GUARD: Final = 60.0
"""Seconds after which a round counts as hung."""
CHUNK: Final = 250
"""Rounds on one loop."""
SETTLING: Final = 8
"""Chunks behind which a process has what it needs: allocators keep what they had once."""
GAIN_MAX: Final = 1 << 20
"""Bytes that may be gained by all rounds behind those."""
DATA: Final = pattern(LENGTH)


class RoundError(AssertionError):
    """Something that must not be; the message has the seed of the round."""


def run(rounds: int, seed: int) -> dict[str, Any]:
    """So many rounds under seeds that begin with `seed`; the figures.

    :raises RoundError: one of them went wrong.
    """
    figures: dict[str, Any] = {"rounds": 0, "cancelled": 0, **dict.fromkeys(PATHS, 0)}
    before = settled = None
    for number, first in enumerate(range(seed, seed + rounds, CHUNK)):
        play = functools.partial(_play, first, min(CHUNK, seed + rounds - first), figures)
        run_within(GUARD * CHUNK, LOOPS[number % 2], play)
        gc.collect()
        if number == SETTLING - 1:
            before, settled = descriptors(), resident()
    if before is not None and settled is not None:
        figures["gained"] = resident() - settled
        if figures["gained"] > GAIN_MAX or set(descriptors()) - set(before):
            raise RoundError(f"{figures['gained']} bytes gained, {set(descriptors()) - set(before)} open; seed {seed}")
    return figures


async def _play(first: int, rounds: int, figures: dict[str, Any]) -> None:
    """Rounds on one loop."""
    async with contextlib.AsyncExitStack() as stack:
        servers = {
            (kind, path, host): await stack.enter_async_context(await _serve(kind, path, host))
            for kind in set(KINDS)
            for path in set(PATHS)
            for host in HOSTS
        }
        others = asyncio.all_tasks()
        for seed in range(first, first + rounds):
            one = _Round(random.Random(seed), servers, figures)
            try:
                async with asyncio.timeout(GUARD):
                    await one.play()
                    await eventually(lambda: asyncio.all_tasks() <= others)
            except Exception as error:
                raise RoundError(f"seed {seed}: {one.what}") from error
            figures["rounds"] += 1


def _config(path: str) -> smcfast.SmcConfig:
    return smcfast.SmcConfig(paths=(path,) if path != "tcp" else (), rmb_size=RING)


async def _serve(kind: str, path: str, host: str) -> smcfast.SmcServer:
    if kind == "protocol":
        return await smcfast.create_smc_server(_EchoProtocol, host, 0, config=_config(path))
    tls = server_context() if kind == "tls" else None
    return await smcfast.start_smc_server(_echo, host, 0, config=_config(path), ssl=tls)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes; TLS begins behind a line that asks for it."""
    try:
        with contextlib.closing(writer):
            if (data := await reader.readexactly(1)) == b"s":
                writer.write(b"y")
                await writer.start_tls(server_context())
            while data := await reader.read(RING):
                writer.write(data)
                await writer.drain()
        await writer.wait_closed()
    except (OSError, asyncio.IncompleteReadError):
        pass  # A client that gives up. Behind a start_tls that came to nothing, asyncio's wait_closed would wait for ever.


class _EchoProtocol(asyncio.Protocol):
    def __init__(self) -> None:
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data if self._begun else data[1:])
        self._begun = True


class _Collector(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = bytearray()
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class _Round:
    """One connection."""

    def __init__(self, rng: random.Random, servers: dict[Any, smcfast.SmcServer], figures: dict[str, Any]) -> None:
        self._rng = rng
        self._figures = figures
        self._kind, self._path, self._host = rng.choice(KINDS), rng.choice(PATHS), rng.choice(HOSTS)
        self.what = f"{self._kind} over {self._path} to {self._host}"
        self._port = port_of(servers[self._kind, self._path, self._host].sockets)
        self._length = rng.randrange(1, LENGTH)

    async def play(self) -> None:
        options: dict[str, Any] = {"config": _config(self._path)}
        tls = {"ssl": client_context(), "server_hostname": "localhost"}
        if self._kind == "protocol":
            made = await self._tried(
                lambda: smcfast.create_smc_connection(_Collector, self._host, self._port, **options)
            )
            if made is not None:
                await self._by_protocol(*made)
            return
        if self._kind == "tls":
            options |= tls
        streams = await self._tried(lambda: smcfast.open_smc_connection(self._host, self._port, **options))
        if streams is None:
            return
        reader, writer = streams
        with contextlib.closing(writer):
            self._took(writer.get_extra_info("smc"))
            if self._kind != "start_tls":
                writer.write(b"x")
            elif not await self._upgraded(reader, writer, tls):
                return
            await self._exchanged(reader, writer)
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    def _took(self, info: smcfast.SmcInfo) -> None:
        assert info.path == self._path, info
        self._figures[self._path] += 1

    async def _tried(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """What comes of the call, None if it was cancelled before."""
        task = asyncio.ensure_future(call())
        for _ in range(self._rng.choice((0, 1, 2, 3, 5, 8, 13, 40, 400))):
            if task.done():
                break
            await asyncio.sleep(0)
        if self._rng.random() < 0.6 and not task.done():
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            self._figures["cancelled"] += 1
            return None

    async def _insisted(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """What comes of the call, made again as often as it was cancelled."""
        while (found := await self._tried(lambda: _boxed(call))) is None:
            pass
        return found[0]

    async def _upgraded(self, reader: Any, writer: Any, tls: dict[str, Any]) -> bool:
        """TLS from here on; False if that was cancelled, which ends the connection."""
        writer.write(b"s")
        assert await reader.readexactly(1) == b"y"
        hostname = {"server_hostname": tls["server_hostname"]}
        return (
            await self._tried(lambda: _boxed(functools.partial(writer.start_tls, tls["ssl"], **hostname))) is not None
        )

    async def _by_protocol(self, transport: Any, protocol: _Collector) -> None:
        info = smcfast.smc_info(transport)
        assert info is not None
        self._took(info)
        transport.write(b"x" + DATA[: self._length])
        await eventually(lambda: len(protocol.data) == self._length)
        assert protocol.data == DATA[: self._length]
        transport.abort()
        await eventually(lambda: protocol.lost)

    async def _exchanged(self, reader: Any, writer: Any) -> None:
        """The bytes there and back, by calls that are cancelled now and then."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sent(writer))
            got = await self._received(reader)
        assert got == DATA[: self._length]

    async def _sent(self, writer: Any) -> None:
        place = 0
        while place < self._length:
            n = min(self._rng.choice((1, 100, 5000, RING)), self._length - place)
            if self._rng.random() < 0.5:
                with await self._insisted(functools.partial(writer.reserve, n)) as room:
                    n = min(n, len(room))
                    with memoryview(room) as there:
                        there[:n] = DATA[place : place + n]
                    room.commit(n)
            else:
                writer.write(DATA[place : place + n])
                await self._insisted(writer.drain)
            place += n

    async def _received(self, reader: Any) -> bytes:
        got = bytearray()
        while len(got) < self._length:
            left = self._length - len(got)
            method = self._rng.choice(("read", "readexactly", "readinto", "view"))
            n = min(self._rng.choice((1, 100, 5000, RING)), left)
            if method == "view":
                with await self._insisted(functools.partial(reader.view, n)) as view:
                    with memoryview(view) as there:
                        got += there
                    view.consume(len(view))
            elif method == "readinto":
                into = bytearray(n)
                got += into[: await self._insisted(functools.partial(reader.readinto, into))]
            else:
                got += await self._insisted(functools.partial(getattr(reader, method), n))
        return bytes(got)


async def _boxed(call: Callable[[], Awaitable[Any]]) -> tuple[Any]:
    """So that None is a result, too; and nothing is called by a task that is cancelled before it begins."""
    return (await call(),)
