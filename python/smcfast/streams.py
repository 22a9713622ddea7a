"""Stream readers and writers: asyncio's own, that take their bytes from the ring where there is one."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any, cast

from smcfast import _native

if _native.AVAILABLE:
    from smcfast._loop import engine
    from smcfast.transport import RingTransport

if TYPE_CHECKING:
    import socket
    import ssl as ssl_module
    from collections.abc import Awaitable, Callable

    from smcfast import _core
    from smcfast.info import SmcInfo
    from smcfast.transport import Owner

# Taken from the ring at once into the reader's buffer, for the methods that look for something in it.
_PULL_SIZE = 64 * 1024
# A native readexactly reserves its result at once; larger ones grow in the reader's buffer.
_EXACT_MAX = 64 * 1024 * 1024


class SmcStreamReader(asyncio.StreamReader):
    """A StreamReader on the ring. Bytes that are there are returned without a turn of the event loop."""

    def __init__(self, endpoint: _core.Endpoint, *, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        """Read from `endpoint`; `limit` bounds readuntil and readline as in asyncio, in bytes."""
        super().__init__(limit=limit, loop=loop)
        self._endpoint = endpoint
        # Bytes that were taken from the ring and not yet returned lie here, in front of those in the ring.
        self._buffer: bytearray
        self._eof: bool
        self._exception: BaseException | None
        self._limit: int
        endpoint.set_side_buffer(self._buffer)

    async def read(self, n: int = -1) -> bytes:
        """Read up to `n` bytes, at least one unless the stream has ended; all up to its end if `n` is negative."""
        if n > 0 and not self._buffer and not self._eof and self._exception is None:
            # Bytes that are there cost no awaitable of their own.
            data = self._endpoint.read_now(n, False)
            return await self._endpoint.read(n) if data is None else data
        return await (self._read_all() if n < 0 else super().read(n))

    async def readexactly(self, n: int) -> bytes:
        """Read exactly `n` bytes; asyncio.IncompleteReadError if the stream ends before."""
        if 0 < n <= _EXACT_MAX and not self._buffer and not self._eof and self._exception is None:
            data = self._endpoint.read_now(n, True)
            return await self._endpoint.read_exactly(n) if data is None else data
        return await super().readexactly(n)

    async def _read_all(self) -> bytes:
        if self._exception is not None:
            raise self._exception
        # All is collected in the buffer, where a cancelled read leaves it.
        while not self._eof:
            await self._wait_for_data("read")
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    async def _wait_for_data(self, _func_name: str) -> None:
        """asyncio's methods come here when their buffer does not have what they need."""
        now = self._endpoint.read_now(_PULL_SIZE, False)
        data = await self._endpoint.read(_PULL_SIZE) if now is None else now
        if data:
            self._buffer.extend(data)
        else:
            self._eof = True

    def at_eof(self) -> bool:
        """Tell whether the stream has ended and everything was read."""
        return not self._buffer and (self._eof or self._endpoint.at_eof())

    def keep_unread(self, data: bytes) -> None:
        """Keep what was in the ring when this end was closed: it can still be read, as with TCP."""
        self._buffer.extend(data)


class _Lifetime(asyncio.StreamReaderProtocol):
    """Tells the server of the transport's life, and keeps the reader for as long as asyncio's server does."""

    def __init__(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop, owner: Owner | None) -> None:
        super().__init__(reader, loop=loop)
        self._owner = owner
        self._own_transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._owner is not None:
            # uvloop's transports are no subclasses of asyncio's.
            self._own_transport = cast("asyncio.Transport", transport)
            self._owner._attach(self._own_transport)
            # StreamWriter.start_tls knows a server's end by this callback; it was called by the server itself.
            self._client_connected_cb = _called_already

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        owner, transport = self._owner, self._own_transport
        self._owner = self._own_transport = None
        if owner is not None and transport is not None:
            owner._detach(transport)


def _called_already(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    raise AssertionError("a connection is made only once")


class _RingProtocol(_Lifetime):
    """The protocol of a reader that takes its bytes from the ring by itself."""

    pulls_from_ring = True

    @property
    def unread_limit(self) -> int:
        """asyncio reads ahead up to twice the limit; a close with no more unread than that is no reset for the peer."""
        reader = self._stream_reader  # type: ignore[attr-defined]
        return 0 if reader is None else 2 * reader._limit

    def keep_unread(self, data: bytes) -> None:
        reader = self._stream_reader  # type: ignore[attr-defined]
        if reader is not None:
            reader.keep_unread(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            # The reader finds the fault by itself, behind the bytes that are still there.
            self._stream_reader_wr = None
        super().connection_lost(exc)


class SmcStreamWriter(asyncio.StreamWriter):
    """A StreamWriter that knows its path: get_extra_info("smc") is an SmcInfo."""

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        protocol: asyncio.StreamReaderProtocol,
        reader: asyncio.StreamReader,
        loop: asyncio.AbstractEventLoop,
        info: SmcInfo,
    ) -> None:
        """Write to `transport`, as asyncio.StreamWriter does."""
        super().__init__(transport, protocol, reader, loop)
        self._smc_info = info

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the SmcInfo for "smc", everything else as the transport has it."""
        return self._smc_info if name == "smc" else super().get_extra_info(name, default)

    def __repr__(self) -> str:
        """The path, the reason if it is TCP, and the transport."""
        info = self._smc_info
        reason = "" if info.fallback is None else f" ({info.fallback.name}: {info.fallback.text})"
        return f"<{type(self).__name__} path={info.path}{reason} transport={self._transport!r}>"  # type: ignore[attr-defined]


class RingStreamWriter(SmcStreamWriter):
    """A writer on the ring: drain() does not take a turn of the event loop unless it must wait."""

    def __init__(self, endpoint: _core.Endpoint, *args: Any) -> None:
        super().__init__(*args)
        self._endpoint = endpoint
        # One call less for each write.
        self.write = self._transport.write  # type: ignore[attr-defined,method-assign]

    async def start_tls(self, *_args: Any, **_options: Any) -> None:
        """Refuse: TLS runs over TCP, so it must be asked for when the connection is opened."""
        raise NotImplementedError(
            'start_tls() does not work on path "smc-d" yet: open the connection with ssl=, or with SmcConfig(paths=())'
        )

    def drain(self) -> Awaitable[None]:  # type: ignore[override]
        """Wait until little enough is waiting to be taken by the peer."""
        return self._endpoint.drain()


def ring_streams(
    loop: asyncio.AbstractEventLoop,
    sock: socket.socket,
    endpoint: _core.Endpoint,
    info: SmcInfo,
    *,
    limit: int,
    server: Owner | None = None,
) -> tuple[SmcStreamReader, SmcStreamWriter]:
    """Make the streams of an established endpoint; `sock` is its TCP connection, which the transport takes over."""
    reader = SmcStreamReader(endpoint, limit=limit, loop=loop)
    protocol = _RingProtocol(reader, loop, None)
    transport = RingTransport(loop, engine(loop), sock, endpoint, protocol, {"smc": info}, server)
    return reader, RingStreamWriter(endpoint, transport, protocol, reader, loop, info)


async def tcp_streams(
    loop: asyncio.AbstractEventLoop,
    sock: socket.socket,
    info: SmcInfo,
    elapsed_us: Callable[[], int],
    *,
    limit: int,
    ssl: ssl_module.SSLContext | bool | None = None,
    server_hostname: str | None = None,
    ssl_handshake_timeout: float | None = None,
    ssl_shutdown_timeout: float | None = None,
    server_side: bool = False,
    server: Owner | None = None,
) -> tuple[asyncio.StreamReader, SmcStreamWriter]:
    """Make streams over the connected `sock`: asyncio's own transport does all the work, TLS included.

    :param elapsed_us: for `SmcInfo.setup_us`, asked when the streams are ready.
    """
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = _Lifetime(reader, loop, server)
    options: dict[str, Any] = {}
    if ssl:
        options = {
            "ssl": ssl,
            "ssl_handshake_timeout": ssl_handshake_timeout,
            "ssl_shutdown_timeout": ssl_shutdown_timeout,
        }
    if server_side:
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, **options)
    else:
        if ssl:
            options["server_hostname"] = server_hostname
        transport, _ = await loop.create_connection(lambda: protocol, sock=sock, **options)
    info = dataclasses.replace(info, setup_us=elapsed_us())
    return reader, SmcStreamWriter(transport, protocol, reader, loop, info)
