"""Stream readers and writers: asyncio's own, that take their bytes from the ring where there is one."""

from __future__ import annotations

import asyncio
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from smcfast import _core
    from smcfast.delivery import Delivered, Make
    from smcfast.info import SmcInfo

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
        self._endpoint.check()
        return await (self._read_all() if n < 0 else super().read(n))

    async def readexactly(self, n: int) -> bytes:
        """Read exactly `n` bytes; asyncio.IncompleteReadError if the stream ends before."""
        if 0 < n <= _EXACT_MAX and not self._buffer and not self._eof and self._exception is None:
            data = self._endpoint.read_now(n, True)
            return await self._endpoint.read_exactly(n) if data is None else data
        self._endpoint.check()
        return await super().readexactly(n)

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """Read up to and including `separator`, as asyncio does; readline and iteration come here too."""
        self._endpoint.check()
        return await super().readuntil(separator)

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
        ended = self._endpoint.at_eof()
        return not self._buffer and (self._eof or ended)

    def _check_idle(self) -> None:
        """:raises RuntimeError: a read waits for the ring, and would take bytes that are for others."""
        if self._endpoint.reading:
            raise RuntimeError("the protocol cannot be changed while a read waits for data")

    def _release(self) -> None:
        """Let go of the ring: from now on this is asyncio's reader, and is handed its bytes."""
        self._check_idle()
        self.__class__ = asyncio.StreamReader  # type: ignore[assignment]

    def keep_unread(self, data: bytes) -> None:
        """Keep what was in the ring when this end was closed: it can still be read, as with TCP."""
        self._buffer.extend(data)


class _StreamProtocol(asyncio.StreamReaderProtocol):
    """The protocol of a reader that is handed its bytes."""

    def __init__(self, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop, server_side: bool) -> None:
        super().__init__(reader, loop=loop)
        # asyncio's protocol holds it weakly, and until `pair` nobody else holds it at all.
        self._reader: asyncio.StreamReader | None = reader
        self._server_side = server_side

    def take_reader(self) -> asyncio.StreamReader:
        """Hand out the reader, once."""
        reader, self._reader = self._reader, None
        assert reader is not None
        return reader

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._server_side:
            # StreamWriter.start_tls knows a server's end by this callback; it is called by the server itself.
            self._client_connected_cb = _called_already


def _called_already(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    raise AssertionError("a connection is made only once")


class _RingProtocol(_StreamProtocol):
    """The protocol of a reader that takes its bytes from the ring by itself."""

    pulls_from_ring = True

    def stop_pulling(self) -> None:
        """Another protocol is handed the bytes from now on; what it hands on is for the same reader."""
        reader = self._stream_reader  # type: ignore[attr-defined]
        if reader is not None:
            reader._release()
        self.pulls_from_ring = False

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
        if exc is not None and self.pulls_from_ring:
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
        self._endpoint = endpoint
        super().__init__(*args)
        # One call less for each write.
        self.write = self._transport.write  # type: ignore[attr-defined,method-assign]

    def __del__(self, *_: Any, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close and warn of what nobody has closed, as the newer asyncio does, in whatever thread garbage is collected."""
        if not hasattr(self, "_transport"):
            return  # It was not made whole: Ctrl-C.
        transport, loop = self._transport, self._loop  # type: ignore[attr-defined]
        # A forked child's copy is its parent's. And who ends the program without a close has not declared an end.
        if not transport.is_ours or _is_finalizing() or transport.is_closing() or loop.is_closed():
            return
        try:
            self._endpoint.check()
        except RuntimeError:
            loop.call_soon_threadsafe(transport.close)
        else:
            transport.close()
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    async def start_tls(self, sslcontext: ssl.SSLContext, **options: Any) -> None:
        """Go on in TLS, as asyncio's does; this writer and its reader are asyncio's own from then on."""
        transport: Any = self._transport  # type: ignore[attr-defined]
        reader: SmcStreamReader = self._reader  # type: ignore[attr-defined]
        reader._check_idle()
        await self.drain()
        # What was read ahead is the beginning of the peer's TLS: in the clear nobody may read it any more.
        transport.unread(reader._buffer)
        reader._buffer.clear()
        await super().start_tls(sslcontext, **options)
        del self.write
        self.__class__ = SmcStreamWriter  # type: ignore[assignment]

    async def wait_closed(self) -> None:
        """Wait until the transport is closed."""
        self._endpoint.check()
        await super().wait_closed()

    def drain(self) -> Awaitable[None]:  # type: ignore[override]
        """Wait until little enough is waiting to be taken by the peer."""
        return self._endpoint.drain()


def maker(loop: asyncio.AbstractEventLoop, limit: int, *, server_side: bool) -> Make:
    """What makes the protocols of streams whose readers have this `limit`."""

    def make(endpoint: _core.Endpoint | None) -> asyncio.BaseProtocol:
        if endpoint is None:
            return _StreamProtocol(asyncio.StreamReader(limit=limit, loop=loop), loop, server_side)
        return _RingProtocol(SmcStreamReader(endpoint, limit=limit, loop=loop), loop, server_side)

    return make


def pair(loop: asyncio.AbstractEventLoop, delivered: Delivered) -> tuple[asyncio.StreamReader, SmcStreamWriter]:
    """The streams of a connection whose protocol comes from `maker`."""
    transport, protocol, info = delivered
    assert isinstance(protocol, _StreamProtocol)
    reader = protocol.take_reader()
    if isinstance(reader, SmcStreamReader):
        return reader, RingStreamWriter(reader._endpoint, transport, protocol, reader, loop, info)
    return reader, SmcStreamWriter(transport, protocol, reader, loop, info)
