"""Pairs of connected streams, with the path that they took asserted: a silent fallback to TCP proves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import smcfast
from support.addresses import listening, port_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

DUAL = {"[::] from 127.0.0.1": "127.0.0.1", "[::] from ::1": "::1"}
"""Both kinds of client of one IPv6 socket that serves IPv4 as well, and where they connect to."""


class End(NamedTuple):
    """One end of a connection."""

    reader: smcfast.SmcStreamReader
    writer: smcfast.SmcStreamWriter

    @property
    def info(self) -> smcfast.SmcInfo:
        info: smcfast.SmcInfo = self.writer.get_extra_info("smc")
        return info

    async def closed(self) -> None:
        """Wait for the end of a closed end; that the other one was faster is no failure."""
        if self.writer.transport.get_protocol() is not self.writer._protocol:  # type: ignore[attr-defined]
            return  # a test has put another protocol in its place, which hears of the end
        if self.writer._protocol._closed.cancelled():  # type: ignore[attr-defined]
            return  # in asyncio, who cancels one wait_closed cancels all
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Pair(NamedTuple):
    """Both ends of a connection."""

    client: End
    server: End


@contextlib.asynccontextmanager
async def connected(
    host: str = "127.0.0.1",
    *,
    path: str = "smc-d",
    limit: int = 2**16,
    config: smcfast.SmcConfig | None = None,
    server_config: smcfast.SmcConfig | None = None,
) -> AsyncIterator[Pair]:
    """A connection within this loop, by the public API; both ends are closed at the end.

    :param host: a name or a number, which both ends resolve for themselves, or one of `DUAL`.
    """
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def accept(reader: smcfast.SmcStreamReader, writer: smcfast.SmcStreamWriter) -> None:
        arrived.set_result(End(reader, writer))

    server = await _serve(accept, host, limit=limit, config=server_config or config)
    target = DUAL.get(host, host), port_of(server.sockets)
    reader, writer = await smcfast.open_smc_connection(*target, limit=limit, config=config)
    pair = Pair(End(reader, writer), await arrived)
    try:
        assert (pair.client.info.path, pair.server.info.path) == (path, path), writer
        yield pair
    finally:
        server.close()
        for end in pair:
            end.writer.close()
        for end in pair:
            await end.closed()
        await server.wait_closed()


async def _serve(
    accept: Callable[[smcfast.SmcStreamReader, smcfast.SmcStreamWriter], None], host: str, **options: Any
) -> smcfast.SmcServer:
    """A server on all addresses of `host`, with one port."""
    if host in DUAL:
        sock = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        return await smcfast.start_smc_server(accept, sock=sock, **options)
    for _ in range(20):
        with listening(host) as (_, port):
            pass  # It was free a moment ago.
        with contextlib.suppress(OSError):
            return await smcfast.start_smc_server(accept, host, port, **options)
    raise OSError(f"no port of {host} stays free")


def talk_once(host: str, port: int) -> None:
    """For a process of its own: open a connection to a server that echoes, and use it."""

    async def talk() -> None:
        reader, writer = await smcfast.open_smc_connection(host, port)
        assert writer.get_extra_info("smc").path == "smc-d", writer
        writer.write(PATTERN)
        assert await reader.readexactly(len(PATTERN)) == PATTERN
        writer.close()
        await writer.wait_closed()

    asyncio.run(talk())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A handler that sends back what comes."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the loop go on until `condition` holds; the hang guard of the test bounds it."""
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)


async def turns(count: int = 50) -> None:
    """Let the loop go round: whatever is ready, and what follows from it, has been done then."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until_refused(end: End) -> None:
    """Write until the connection refuses."""
    while True:
        end.writer.write(b"x" * 1000)
        await end.writer.drain()
        await asyncio.sleep(0)


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes in which a lost, doubled or misplaced piece shows: every four of them count their place."""
    words = range(seed, seed + size // 4 + 1)
    return b"".join(word.to_bytes(4, "big") for word in words)[:size]


PATTERN = pattern(100_000)
