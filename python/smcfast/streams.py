"""Stream readers and writers: asyncio's own, that take their bytes from the ring where there is one."""

from __future__ import annotations

import asyncio
import io
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from smcfast.loans import CopiedReservation, CopiedView

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from smcfast import _core
    from smcfast.delivery import Delivered, Make
    from smcfast.info import SmcInfo
    from smcfast.loans import Buffer, Reservation, View

# Taken from the ring at once into the reader's buffer, for the methods that look for something in it.
_PULL_SIZE = 64 * 1024
# A native readexactly reserves its result at once; larger ones grow in the reader's buffer.
_EXACT_MAX = 64 * 1024 * 1024
# A reservation that is a copy is no longer.
_COPIED_MAX = 1024 * 1024


def _writable(buffer: Buffer) -> memoryview:
    """The buffer, held: its owner can neither resize nor free it until the memoryview is released.

    :raises TypeError: it cannot be written, or is no buffer.
    :raises BufferError: it is not contiguous.
    """
    held = memoryview(buffer)
    if held.readonly:
        raise TypeError(f"readinto() needs a buffer that can be written, not {type(buffer).__name__}")
    if not held.c_contiguous:
        raise BufferError("readinto() needs a buffer that is contiguous")
    return held


class SmcStreamReader(asyncio.StreamReader):
    """A StreamReader that can also read into a buffer of the caller, and show bytes before they are consumed.

    This one is handed its bytes, by TCP or TLS, and copies; `RingStreamReader` does not.
    """

    # asyncio's own.
    _buffer: bytearray
    _eof: bool
    _exception: BaseException | None
    _limit: int

    _viewed: weakref.ref[CopiedView] | None = None

    def _check_unviewed(self, name: str) -> None:
        view = None if self._viewed is None else self._viewed()
        if view is not None and not view.closed:
            raise RuntimeError(f"{name}() called while a view of received bytes is open: consume or close it")

    async def read(self, n: int = -1) -> bytes:
        """Read up to `n` bytes, at least one unless the stream has ended; all up to its end if `n` is negative."""
        self._check_unviewed("read")
        return await super().read(n)

    async def readexactly(self, n: int) -> bytes:
        """Read exactly `n` bytes; asyncio.IncompleteReadError if the stream ends before."""
        self._check_unviewed("readexactly")
        return await super().readexactly(n)

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """Read up to and including `separator`, as asyncio does; readline and iteration come here too."""
        self._check_unviewed("readuntil")
        return await super().readuntil(separator)

    async def readinto(self, buffer: Buffer) -> int:
        """Read into any writable, contiguous buffer: as many bytes as are there and fit, at least one.

        The buffer is held meanwhile: who would resize it gets a BufferError. A cancelled call has taken nothing.

        :returns: the number of bytes; 0 at the end of the stream, or for an empty buffer.
        :raises TypeError: it cannot be written.
        :raises BufferError: it is not contiguous.
        """
        with _writable(buffer) as held:
            data = await self.read(held.nbytes)
            return io.BytesIO(data).readinto(held)

    async def view(self, n: int = -1, *, at_least: int = 1) -> View:
        """Wait until `at_least` bytes are there, and show up to `n` of them (all in one piece if negative) without taking them.

        One piece ends where the ring does: ask for the next one when this is consumed. Only when fewer than `at_least` lie in
        one piece is the view one of a copy. Fewer are shown only at the end of the stream; the view is empty if none is left.

        :raises ValueError: `at_least` is not positive, or more than `n`.
        :raises RuntimeError: another view is open, or somebody waits for data.
        """
        if at_least < 1 or 0 <= n < at_least:
            raise ValueError(f"at_least ({at_least}) must be at least 1 and at most n ({n})")
        return await self._view(n, at_least)

    async def _view(self, n: int, at_least: int) -> View:
        self._check_unviewed("view")
        if self._exception is not None:
            raise self._exception
        while len(self._buffer) < at_least and not self._eof:
            await self._wait_for_data("view")
        self._check_unviewed("view")  # another task may have been faster
        with memoryview(self._buffer) as there, there[: None if n < 0 else n] as part:
            view = CopiedView(part, self._consume)
        self._viewed = weakref.ref(view) if view else None
        return view

    def _consume(self, n: int) -> None:
        del self._buffer[:n]
        self._maybe_resume_transport()  # type: ignore[attr-defined]

    if TYPE_CHECKING:  # asyncio's

        async def _wait_for_data(self, func_name: str) -> None: ...


class RingStreamReader(SmcStreamReader):
    """A reader on the ring. Bytes that are there are returned without a turn of the event loop."""

    def __init__(self, endpoint: _core.Endpoint, *, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        """Read from `endpoint`; `limit` bounds readuntil and readline as in asyncio, in bytes."""
        super().__init__(limit=limit, loop=loop)
        self._endpoint = endpoint
        # Bytes that were taken from the ring and not yet returned lie in the buffer, in front of those in the ring.
        endpoint.set_side_buffer(self._buffer)

    async def read(self, n: int = -1) -> bytes:
        """Read up to `n` bytes, at least one unless the stream has ended; all up to its end if `n` is negative."""
        if n > 0 and not self._buffer and not self._eof and self._exception is None:
            # Bytes that are there cost no awaitable of their own.
            data = self._endpoint.read_now(n, False)
            return await self._endpoint.read(n) if data is None else data
        self._endpoint.check()
        self._check_unviewed("read")
        return await (self._read_all() if n < 0 else asyncio.StreamReader.read(self, n))

    async def readexactly(self, n: int) -> bytes:
        """Read exactly `n` bytes; asyncio.IncompleteReadError if the stream ends before."""
        if 0 < n <= _EXACT_MAX and not self._buffer and not self._eof and self._exception is None:
            data = self._endpoint.read_now(n, True)
            return await self._endpoint.read_exactly(n) if data is None else data
        self._endpoint.check()
        self._check_unviewed("readexactly")
        return await asyncio.StreamReader.readexactly(self, n)

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """Read up to and including `separator`, as asyncio does; readline and iteration come here too."""
        self._endpoint.check()
        if self._viewed is not None:
            self._check_unviewed("readuntil")
        return await asyncio.StreamReader.readuntil(self, separator)

    async def readinto(self, buffer: Buffer) -> int:
        """Read into any writable, contiguous buffer, straight from the ring; see SmcStreamReader.readinto."""
        with _writable(buffer) as held:
            self._endpoint.check()
            if not held.nbytes or self._buffer or self._eof or self._exception is not None:
                return await super().readinto(held)
            await self._endpoint.ready(1)
            return self._endpoint.take_into(held) or 0

    async def _view(self, n: int, at_least: int) -> View:
        self._endpoint.check()
        if not self._buffer and not self._eof and self._exception is None:
            await self._endpoint.ready(at_least)
            view = self._endpoint.view(sys.maxsize if n < 0 else n)
            if view is not None and len(view) >= at_least:
                return view
            if view is not None:
                # They lie around the end of the ring, it cannot hold so many, or the stream ends before.
                view.close()
                self._buffer.extend(self._endpoint.take(at_least) or b"")
        return await super()._view(n, at_least)

    async def _read_all(self) -> bytes:
        if self._exception is not None:
            raise self._exception
        # All is collected in the buffer, where a cancelled read leaves it.
        while not self._eof:
            await self._wait_for_data("read")
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    async def _wait_for_data(self, func_name: str) -> None:
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
        if self._endpoint.viewed:
            raise RuntimeError("the protocol cannot be changed while a view of received bytes is open")
        self._check_unviewed("set_protocol")

    def _release(self) -> None:
        """Let go of the ring: from now on this reader is handed its bytes."""
        self._check_idle()
        self.__class__ = SmcStreamReader  # type: ignore[assignment]

    def keep_unread(self, data: bytes) -> None:
        """Keep what was in the ring when this end was closed: it can still be read, as with TCP."""
        self._buffer.extend(data)


class _StreamProtocol(asyncio.StreamReaderProtocol):
    """The protocol of a reader that is handed its bytes."""

    def __init__(self, reader: SmcStreamReader, loop: asyncio.AbstractEventLoop, server_side: bool) -> None:
        super().__init__(reader, loop=loop)
        # asyncio's protocol holds it weakly, and until `pair` nobody else holds it at all.
        self._reader: SmcStreamReader | None = reader
        self._server_side = server_side

    def take_reader(self) -> SmcStreamReader:
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
    """A StreamWriter that knows its path: get_extra_info("smc") is an SmcInfo. And one that lends out room to write in.

    The room is memory of its own here, and written when it is committed; `RingStreamWriter` has it in the ring.
    """

    _reserved: weakref.ref[CopiedReservation] | None = None
    _ended = False

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

    def _check_unreserved(self, name: str) -> None:
        room = None if self._reserved is None else self._reserved()
        if room is not None and not room.closed:
            raise RuntimeError(f"{name}() called while a reservation is open: commit or close it")

    def write(self, data: Any) -> None:
        """Write, or keep what cannot be written now, as asyncio does."""
        self._check_unreserved("write")
        super().write(data)

    def writelines(self, data: Any) -> None:
        """Write the buffers one behind the other."""
        self._check_unreserved("writelines")
        super().writelines(data)

    def write_eof(self) -> None:
        """End the own stream behind what was written; an open reservation ends as well."""
        super().write_eof()
        self._ended = True

    async def reserve(self, n: int, *, at_least: int = 1) -> Reservation:
        """Wait until there is room, and reserve up to `n` bytes of it, in one piece, `at_least` so many.

        What was written before comes before it. One piece ends where the ring does. Only where fewer than `at_least` bytes
        can be had in one piece is it memory of its own, which is copied when it is committed.

        :raises ValueError: `at_least` is not positive, or more than `n`.
        :raises RuntimeError: another reservation is open or waited for, or the own stream was ended.
        :raises ConnectionError: nothing more can be written.
        """
        if not 1 <= at_least <= n:
            raise ValueError(f"at_least ({at_least}) must be at least 1 and at most n ({n})")
        if self._ended:
            raise RuntimeError("Cannot call reserve() after write_eof()")
        return await self._reserve(n, at_least)

    async def _reserve(self, n: int, at_least: int) -> Reservation:
        self._check_unreserved("reserve")
        await self.drain()
        self._check_unreserved("reserve")  # another task may have been faster
        return self._copied(max(at_least, min(n, _COPIED_MAX)))

    def _copied(self, n: int, held: _core.Reservation | None = None) -> CopiedReservation:
        room = CopiedReservation(n, self.write, held)
        self._reserved = weakref.ref(room)
        return room

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
        vars(self)["write"] = self._transport.write  # type: ignore[attr-defined]

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

    async def _reserve(self, n: int, at_least: int) -> Reservation:
        await self._endpoint.room(n, at_least)
        room = self._endpoint.reserve(n)
        assert room is not None
        if len(room) >= at_least:
            return room
        # There is room around the end of the ring, or it cannot hold so many. Nobody else writes while its rest is held.
        return self._copied(at_least, room)

    async def start_tls(self, sslcontext: ssl.SSLContext, **options: Any) -> None:
        """Go on in TLS, as asyncio's does; this writer and its reader are handed their bytes from then on."""
        transport: Any = self._transport  # type: ignore[attr-defined]
        reader: RingStreamReader = self._reader  # type: ignore[attr-defined]
        reader._check_idle()
        if self._endpoint.reserved:
            raise RuntimeError("TLS cannot begin while a reservation is open")
        await self.drain()
        # What was read ahead is the beginning of the peer's TLS: in the clear nobody may read it any more.
        transport.unread(reader._buffer)
        reader._buffer.clear()
        await super().start_tls(sslcontext, **options)
        del vars(self)["write"]
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
            return _StreamProtocol(SmcStreamReader(limit=limit, loop=loop), loop, server_side)
        return _RingProtocol(RingStreamReader(endpoint, limit=limit, loop=loop), loop, server_side)

    return make


def pair(loop: asyncio.AbstractEventLoop, delivered: Delivered) -> tuple[SmcStreamReader, SmcStreamWriter]:
    """The streams of a connection whose protocol comes from `maker`."""
    transport, protocol, info = delivered
    assert isinstance(protocol, _StreamProtocol)
    reader = protocol.take_reader()
    if isinstance(reader, RingStreamReader):
        return reader, RingStreamWriter(reader._endpoint, transport, protocol, reader, loop, info)
    return reader, SmcStreamWriter(transport, protocol, reader, loop, info)
