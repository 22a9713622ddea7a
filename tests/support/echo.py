"""Servers that echo, and clients that say something, hear it again and hang up."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import smcfast

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1000):
            writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def echoing(host: str = "127.0.0.1", **options: Any) -> AsyncIterator[smcfast.SmcServer]:
    server = await smcfast.start_smc_server(echo, host, 0, **options)
    try:
        yield server
    finally:
        server.close()
        server.close_clients()
        await server.wait_closed()


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, str | None]:
    """Say something, hear it again, hang up: the path, and the reason."""
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await writer.wait_closed()
    info = writer.get_extra_info("smc")
    return info.path, info.reason
