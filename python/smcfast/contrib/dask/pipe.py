"""`Pipe`: the bytes of a comm, read straight into the memory that they are for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

from smcfast import smc_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from smcfast import SmcInfo

SPACE: Final = 64 * 1024
"""Bytes that are read ahead of what is asked for; what is longer goes straight to where it is for."""
SLICE: Final = 128 * 1024
"""Bytes given to the transport at once: what does not fit into the peer's ring is copied, and no more than this."""


class Pipe(asyncio.BufferedProtocol):
    """Both directions of one connection; one task may read and one may write."""

    transport: asyncio.Transport
    peer: tuple[str, int]
    own: tuple[str, int]
    info: SmcInfo | None

    def __init__(self, on_made: Callable[[Pipe], object] | None = None) -> None:
        """:param on_made: called when the connection is there."""
        self._loop = asyncio.get_running_loop()
        self._on_made = on_made
        self._space = memoryview(bytearray(SPACE))
        self._begin = self._end = 0  # what was read ahead lies between them
        self._target: memoryview | None = None
        self._has_paused = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_full = False
        self._has_ended = False  # at the peer, or altogether
        self._is_closed = False
        self._fault: Exception | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = transport = cast("asyncio.Transport", transport)  # uvloop's are of no class of asyncio's
        transport.set_write_buffer_limits(0)
        self.info = smc_info(transport)
        self.own = transport.get_extra_info("sockname")[:2]
        self.peer = (transport.get_extra_info("peername") or ("?", 0))[:2]
        if self._on_made is not None:
            self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes are for."""
        if self._target is not None:
            return self._target
        if self._begin == self._end:
            self._begin = self._end = 0
        return self._space[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Note that they are there."""
        if self._target is not None:
            left = self._target[nbytes:]
            self._target = left if left.nbytes else None
            if self._target is None:
                _wake(self._reader)
            return
        self._end += nbytes
        if self._end == SPACE:
            self._make_room()
        _wake(self._reader)

    def eof_received(self) -> None:
        """The peer has closed. So does the transport, as no comm is open in one direction only; what was read ahead stays."""
        self._has_ended = True
        _wake(self._reader)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake whoever waits."""
        self._has_ended = True
        self._fault = exc
        for waiter in (self._reader, self._writer, self.lost):
            _wake(waiter)

    def pause_writing(self) -> None:
        """Bytes wait for room."""
        self._is_full = True

    def resume_writing(self) -> None:
        """None wait any more."""
        self._is_full = False
        _wake(self._writer)

    # What the comm calls.

    @property
    def is_over(self) -> bool:
        """Is this end closed, or the peer's, and all that it had sent was read?"""
        return self._is_closed or (self._has_ended and self._begin == self._end)

    async def read_into(self, view: memoryview) -> None:
        """Fill `view`, which is writable, flat and of bytes.

        :raises ConnectionError: the connection ends before.
        """
        filled = self._take(view)
        while filled < view.nbytes:
            left = view[filled:]
            if left.nbytes > SPACE:
                await self._read_straight(left)
                return
            await self._more()
            filled += self._take(left)

    async def _read_straight(self, view: memoryview) -> None:
        self._target = view
        try:
            await self._more()
            if self._target is not None:
                raise self._error()
        finally:
            self._target = None

    def _take(self, view: memoryview) -> int:
        """Copy what was read ahead into `view`; how many bytes that was."""
        count = min(view.nbytes, self._end - self._begin)
        view[:count] = self._space[self._begin : self._begin + count]
        self._begin += count
        return count

    def _make_room(self) -> None:
        """The space is filled to its last byte."""
        count = self._end - self._begin
        if self._begin:
            self._space[:count] = bytes(self._space[self._begin : self._end])
            self._begin, self._end = 0, count
        else:
            self._has_paused = True
            self.transport.pause_reading()

    async def _more(self) -> None:
        """Wait for bytes, or until the target is full."""
        if self._has_ended:
            raise self._error()
        if self._has_paused:
            self._has_paused = False
            self.transport.resume_reading()
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    async def write(self, pieces: Iterable[memoryview]) -> None:
        """Write `pieces`, which are flat and of bytes; they may be changed when this returns.

        :raises ConnectionError: the connection is lost or closed.
        """
        for piece in pieces:
            for begin in range(0, piece.nbytes, SLICE):
                if self.transport.is_closing():
                    raise self._error()
                self.transport.write(piece[begin : begin + SLICE])
                if self._is_full:
                    await self._room()

    async def _room(self) -> None:
        self._writer = self._loop.create_future()
        try:
            await self._writer
        finally:
            self._writer = None

    def _error(self) -> Exception:
        return self._fault or ConnectionResetError("the connection is closed")

    async def close(self) -> None:
        """Close behind what was written, and wait while bytes wait for the peer."""
        self._is_closed = True
        self.transport.close()
        if not self.lost.done() and self.transport.get_write_buffer_size():
            await asyncio.shield(self.lost)

    def abort(self) -> None:
        """Close at once."""
        self._is_closed = True
        if not self.lost.done():  # asyncio's transports may mind
            self.transport.abort()


def _wake(waiter: asyncio.Future[Any] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def drop(pipe: Pipe) -> None:
    """Close what nobody has closed, from whatever thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed
        pipe._loop.call_soon_threadsafe(pipe.abort)
