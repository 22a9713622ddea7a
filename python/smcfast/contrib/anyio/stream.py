"""`SmcStream`: a byte stream of anyio over any path."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint, checkpoint_if_cancelled

from smcfast.contrib.anyio.address import short
from smcfast.info import SmcInfo  # noqa: TC001 - anyio wants the annotation of a typed attribute

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping


class SmcAttribute(anyio.TypedAttributeSet):
    """What `SmcStream.extra` answers beside all of anyio's `SocketAttribute`."""

    smc_info: SmcInfo = anyio.typed_attribute()
    """The path, the reason if it is "tcp", and what was agreed."""


class SmcStream(ByteStream):
    """A connection, with the rules of anyio's own TCP streams.

    A receive that is cancelled has taken nothing. A send that is cancelled before its first bytes are written sends
    nothing, later it sends all.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take over both streams, which smcfast has made."""
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        self._reading = anyio.ResourceGuard("reading from")
        self._writing = anyio.ResourceGuard("writing to")
        self._closed = False
        # A send is done when nothing waits in this process any more.
        self._transport.set_write_buffer_limits(0)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Up to `max_bytes` bytes, at least one.

        :raises EndOfStream: the peer has ended its stream, and all of it was received.
        :raises ClosedResourceError: this end is closed.
        :raises BrokenResourceError: the connection is lost, and all that had come before was received.
        :raises BusyResourceError: another task is receiving.
        """
        if max_bytes < 1:
            raise ValueError("max_bytes must be a positive integer")
        with self._reading:
            await checkpoint()
            data = b"" if self._closed else await self._read(max_bytes)
        if data:
            return data
        if self._closed:
            raise anyio.ClosedResourceError
        raise anyio.EndOfStream

    async def _read(self, max_bytes: int) -> bytes:
        try:
            return await self._reader.read(max_bytes)
        except OSError as error:
            if self._closed:
                return b""
            # asyncio's own reader does not hand out any more what came before a reset; those on rings do by themselves.
            buffer: bytearray = self._reader._buffer  # type: ignore[attr-defined]
            if not buffer:
                raise anyio.BrokenResourceError from error
            data = bytes(buffer[:max_bytes])
            del buffer[:max_bytes]
            return data

    async def send(self, item: bytes) -> None:
        """Send all of `item`; this returns when nothing of it waits in this process.

        :raises ClosedResourceError: this end is closed, perhaps while bytes waited: these are lost.
        :raises BrokenResourceError: the connection is lost.
        :raises BusyResourceError: another task is sending.
        :raises RuntimeError: this end has sent its end.
        """
        with self._writing:
            await checkpoint_if_cancelled()
            if self._closed:
                raise anyio.ClosedResourceError
            if self._transport.is_closing():  # uvloop's would raise a RuntimeError of its own
                raise anyio.BrokenResourceError
            self._writer.write(item)
            waits = self._transport.get_write_buffer_size() > 0
            await self._drain()
            if not waits:
                await cancel_shielded_checkpoint()

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError as error:
            if not self._closed:
                raise anyio.BrokenResourceError from error
        if self._closed:
            raise anyio.ClosedResourceError

    async def send_eof(self) -> None:
        """End the own stream behind what was sent; receiving goes on. A second call does nothing."""
        if not self._transport.is_closing():
            with contextlib.suppress(OSError):  # the connection is lost, which the next call tells
                self._writer.write_eof()
        await checkpoint()

    def reset(self) -> None:
        """Close at once; the peer gets a reset."""
        self._closed = True
        self._transport.abort()

    async def aclose(self) -> None:
        """Close. The peer gets all that was sent and an end, or a reset if a send was given up with bytes that wait."""
        if not self._closed:
            self._closed = True
            if self._transport.get_write_buffer_size():
                self._transport.abort()
            else:
                self._writer.close()
        await checkpoint()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """All of them. `raw_socket` is the TCP socket, silent on every path but "tcp"; those of a peer that was gone already when the connection was made are missing."""
        get = self._writer.get_extra_info
        sock, local, remote = get("socket"), get("sockname"), get("peername")
        attributes: dict[Any, Callable[[], Any]] = {
            SmcAttribute.smc_info: lambda: get("smc"),
            SocketAttribute.raw_socket: lambda: sock,
            SocketAttribute.family: lambda: sock.family,
            SocketAttribute.local_address: lambda: short(local),
            SocketAttribute.local_port: lambda: local[1],
        }
        if remote is not None:
            attributes[SocketAttribute.remote_address] = lambda: short(remote)
            attributes[SocketAttribute.remote_port] = lambda: remote[1]
        return attributes
