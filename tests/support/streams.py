"""Pairs of connected streams, with the path that they took asserted: a silent fallback to TCP proves nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

import smcfast
from support.addresses import listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class End(NamedTuple):
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def info(self) -> smcfast.SmcInfo:
        info: smcfast.SmcInfo = self.writer.get_extra_info("smc")
        return info

    async def closed(self) -> None:
        """Wait for the end of a closed end; that the other one was faster is no failure."""
        if self.writer.transport.get_protocol() is not self.writer._protocol:  # type: ignore[attr-defined]
            return  # a test has put another protocol in its place, which hears of the end
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
    """A connection within this loop, by the public API; both ends are closed at the end."""
    arrived: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set_result(End(reader, writer))

    with listening(host) as (sockets, port):
        server = await smcfast.start_smc_server(accept, sock=sockets[0], limit=limit, config=server_config or config)
        reader, writer = await smcfast.open_smc_connection(
            sockets[0].getsockname()[0], port, limit=limit, config=config
        )
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


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the loop go on until `condition` holds; the hang guard of the test bounds it."""
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
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
