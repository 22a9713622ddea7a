"""Connections and listeners of anyio: ours on a path, and anyio's own, which show that an expectation is anyio's."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.abc import SocketAttribute

from smcfast.contrib.anyio import SmcAttribute, connect_smc, create_smc_listener
from support.protocols import config_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

KINDS: Final = ("smc-d", "tcp", "anyio")
"""Our paths, and anyio's own streams over TCP."""
OURS: Final = ("smc-d", "tcp")


async def listen(kind: str, host: str | None, **options: Any) -> Any:
    """A listener with one port on `host`."""
    if kind == "anyio":
        return await anyio.create_tcp_listener(local_host=host, **options)
    return await create_smc_listener(local_host=host, config=config_of(kind), **options)


async def connect(kind: str, host: str, port: int, **options: Any) -> Any:
    """A client's stream, on the path that was asked for."""
    if kind == "anyio":
        return await anyio.connect_tcp(host, port, **options)
    stream = await connect_smc(host, port, config=config_of(kind), **options)
    assert stream.extra(SmcAttribute.smc_info).path == kind
    return stream


def one(listener: Any) -> Any:
    """Of anyio's own, which may be several, the first."""
    return getattr(listener, "listeners", [listener])[0]


async def accept(kind: str, listener: Any) -> Any:
    """The next connection of a listener with one address, on the path that was asked for."""
    stream = await one(listener).accept()
    assert kind == "anyio" or stream.extra(SmcAttribute.smc_info).path == kind
    return stream


@contextlib.asynccontextmanager
async def joined(kind: str, host: str) -> AsyncIterator[tuple[Any, Any]]:
    """A client's end and a server's, both closed at the end."""
    async with await listen(kind, host) as listener:
        client = await connect(kind, host, listener.extra(SocketAttribute.local_port))
        async with client, await accept(kind, listener) as server:
            yield client, server


async def received(stream: Any, size: int) -> bytes:
    """The next `size` bytes."""
    data = bytearray()
    while len(data) < size:
        data += await stream.receive(size - len(data))
    return bytes(data)


async def rest(stream: Any) -> bytes:
    """All bytes up to the end."""
    return b"".join([chunk async for chunk in stream])


def family_of(host: str) -> socket.AddressFamily:
    """Of an address in numbers."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def in_task(call: Callable[[], Awaitable[Any]], result: list[Any]) -> None:
    """Run a call that is to fail; what it raised goes into `result`."""
    try:
        result.append(await call())
    except Exception as error:  # noqa: BLE001 - to be looked at
        result.append(error)
