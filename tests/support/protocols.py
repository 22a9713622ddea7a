"""Pairs of connected transports with protocols, on the path that was asked for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import smcfast
from support.addresses import port_of
from support.streams import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PATHS = ("smc-d", "tcp")


def config_of(path: str, **fields: Any) -> smcfast.SmcConfig:
    """A configuration with which a connection takes this path."""
    return smcfast.SmcConfig(paths=("smc-d",) if path == "smc-d" else (), **fields)


class Recorder(asyncio.Protocol):
    """Notes all that it is told, and collects what it is handed."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.data = bytearray()
        self.exc: Exception | None = None
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.keeps_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.calls.append("made")
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        assert self.calls[0] == "made"
        assert data
        self.data += data

    def eof_received(self) -> bool:
        self.calls.append("eof")
        return self.keeps_open

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")
        self.exc = exc

    @property
    def is_lost(self) -> bool:
        return "lost" in self.calls


class BufferedRecorder(Recorder, asyncio.BufferedProtocol):
    """The same through a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._space = bytearray(5000)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._space)  # in TLS, asyncio would read into copies of a bytearray's slices

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._space[:nbytes]))


class Ends(NamedTuple):
    """Both ends of a connection, and the server."""

    client: Recorder
    server: Recorder
    listener: smcfast.SmcServer


@contextlib.asynccontextmanager
async def joined(
    path: str,
    host: str = "127.0.0.1",
    *,
    client: Callable[[], Recorder] = Recorder,
    server: Callable[[], Recorder] = Recorder,
    config: smcfast.SmcConfig | None = None,
    client_tls: dict[str, Any] | None = None,
    server_tls: dict[str, Any] | None = None,
) -> AsyncIterator[Ends]:
    """A connection within this loop, by the public API; at the end it is closed, and each end was told so exactly once."""
    config = config or config_of(path)
    arrived: list[Recorder] = []

    def arrive() -> Recorder:
        arrived.append(server())
        return arrived[-1]

    listener = await smcfast.create_smc_server(arrive, host, 0, config=config, **(server_tls or {}))
    target = host, port_of(listener.sockets)
    transport, protocol = await smcfast.create_smc_connection(client, *target, config=config, **(client_tls or {}))
    try:
        await eventually(lambda: bool(arrived) and arrived[0].transport is not None)
        ends = Ends(protocol, arrived[0], listener)
        assert transport is protocol.transport
        for end in (protocol, arrived[0]):
            info = smcfast.smc_info(end.transport)
            assert info is not None
            assert info.path == path
        yield ends
    finally:
        listener.close()
        for end in (protocol, *arrived):
            end.transport.close()
        await eventually(lambda: all(end.is_lost for end in (protocol, *arrived)))
        await listener.wait_closed()
    for end in (protocol, *arrived):
        assert end.calls.count("made") == end.calls.count("lost") == 1, end.calls
        assert end.calls[-1] == "lost", end.calls
        assert end.calls.count("eof") <= 1, end.calls
