"""An asyncio transport over a connection on rings, in shared memory or behind an RDMA link.

The bytes go through the endpoint's rings. The TCP connection stays open beside them and stays silent: it is the
application's `get_extra_info("socket")`, and a witness: when it ends, the peer has closed or is gone. In shared memory
its end is the last word. Behind a link it may come first: then the endpoint waits for the other, and for how long.
"""

from __future__ import annotations

import asyncio
import warnings
from asyncio import trsock
from typing import TYPE_CHECKING, Any

from smcfast.log import logger

if TYPE_CHECKING:
    import collections.abc
    import socket
    from collections.abc import Awaitable, Callable

    from smcfast import _core
    from smcfast._loop import LoopEngine
    from smcfast.info import SmcInfo

# As asyncio's selector transports: writes to a lost connection are counted, and logged from this one on.
_LOG_LOST_WRITES_FROM = 5
# Bytes handed to a protocol at once.
_PUSH_SIZE = 256 * 1024


def _peername(sock: socket.socket) -> Any:
    try:
        return sock.getpeername()
    except OSError:
        return None  # The peer has closed already; its name is not to be had any more.


write_high: int | None = None
"""The high mark of the write buffers of new transports; None is asyncio's 64 KiB."""


class RingTransport(asyncio.Transport):
    """A stream transport whose bytes go through rings.

    With a protocol that pulls (`pulls_from_ring` is true) nobody is called with data: the stream reader takes it from
    the endpoint. Any other protocol gets `data_received` and `eof_received`, or the calls of a BufferedProtocol.
    """

    # asyncio's word for transports whose connection can change to TLS.
    _start_tls_compatible = True

    _sock: socket.socket | None = None
    _witness: int | None = None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: LoopEngine,
        sock: socket.socket,
        endpoint: _core.Endpoint,
        protocol: asyncio.BaseProtocol,
        extra: dict[str, Any],
    ) -> None:
        """Take over `sock`, which is connected, and `endpoint`, and call the protocol's connection_made."""
        super().__init__(
            {
                "socket": trsock.TransportSocket(sock),
                "sockname": sock.getsockname(),
                "peername": _peername(sock),
                **extra,
            }
        )
        self._loop = loop
        self._engine = engine
        self._sock = sock
        self._endpoint = endpoint
        self._closing = False
        self._eof_written = False
        self._eof_seen = False
        self._tcp_ended = False
        self._lost_writes = 0
        self._finished = False
        self._protocol_paused = False
        self._reading_paused = False
        self._protocol = protocol
        self._pulls = False
        self._calls: list[Callable[[], object]] = []
        self._ahead = bytearray()
        try:
            # The engine's way: to the loop it is nothing, and uvloop's own readers cost ten system calls each.
            self._witness = engine.core.call_when_readable(sock.fileno(), self._on_tcp)
            engine.attach(self, endpoint.group)
            endpoint.set_on_progress(self._on_progress)
            if write_high is not None:
                endpoint.set_write_limits(write_high, write_high // 4)
            self._tell(protocol.connection_made, self)
            self.set_protocol(self._protocol)
        except BaseException:
            # The socket is the caller's again, who closes it: it must not be watched any more.
            self._finished = True
            self._sock = None
            self._forget_witnesses()
            raise

    def _forget_witnesses(self) -> None:
        self._engine.detach(self, self._endpoint.group)
        self._unwatch()

    def _unwatch(self) -> None:
        if self._witness is not None:
            self._engine.core.unwatch(self._witness)
            self._witness = None

    def __repr__(self) -> str:
        """State, path and the fd of the TCP connection."""
        closing = "closing " if self._closing else ""
        state = "closed" if self._sock is None else f"{closing}fd={self._sock.fileno()}"
        return f"<{type(self).__name__} {self._endpoint.path} {state}>"

    def __del__(self, _warn: Any = warnings.warn) -> None:
        """Warn of a transport that nobody closed, and free what it holds."""
        if self._sock is not None:
            # A forked child only closes its descriptor: the connection is its parent's.
            if self.is_ours:
                _warn(f"unclosed transport {self!r}", ResourceWarning, source=self)
            self._sock.close()

    @property
    def is_ours(self) -> bool:
        """False in a forked child of the process that made the connection."""
        return self._engine.core.is_ours

    def tell(self, info: SmcInfo) -> None:
        """Have get_extra_info("smc") answer `info`."""
        self._extra["smc"] = info  # type: ignore[attr-defined]

    def when_closed(self, call: Callable[[], object]) -> None:
        """Have `call()` called when the connection is lost and the protocol was told, at once if that is over."""
        if self._sock is None:
            call()
        else:
            self._calls.append(call)

    # The protocol.

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Switch to another protocol; from now on it gets the data, or its reader takes it."""
        self._endpoint.check()
        if self._pulls and protocol is not self._protocol:
            self._protocol.stop_pulling()  # type: ignore[attr-defined]
        self._protocol = protocol
        self._pulls = getattr(protocol, "pulls_from_ring", False)
        self._watch_soon()

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the current protocol."""
        return self._protocol

    # Reading.

    def is_reading(self) -> bool:
        """Tell whether data is being handed to the protocol."""
        return not self._closing and not self._reading_paused

    def pause_reading(self) -> None:
        """Hand no more data to the protocol until `resume_reading`."""
        self._endpoint.check()
        if self.is_reading():
            self._reading_paused = True
            self._watch()

    def resume_reading(self) -> None:
        """Hand data to the protocol again."""
        self._endpoint.check()
        if self._reading_paused and not self._closing:
            self._reading_paused = False
            self._watch_soon()

    def _watch_soon(self) -> None:
        """Never call a protocol from within its own call: what is there is handed over in the loop's next round."""
        self._endpoint.set_on_readable(None)
        self._loop.call_soon(self._watch)

    def _watch(self) -> None:
        if self._sock is None:
            return
        pushes = not self._pulls and not self._eof_seen and self.is_reading()
        self._endpoint.set_on_readable(self._on_readable if pushes else None)
        if pushes and self._ahead:
            self._on_readable()

    def unread(self, data: bytes | bytearray) -> None:
        """Put `data`, which a protocol has taken, back in front of the stream: it is for the next one that is handed data."""
        self._ahead[:0] = data

    def _on_readable(self) -> None:
        """Hand to the protocol what is there; the loop gets its turn after each piece."""
        try:
            more = self._push()
        except OSError as exc:
            self._force_close(exc)
        except (SystemExit, KeyboardInterrupt):
            self._loop.call_soon(self._watch)  # for a loop that is run again
            raise
        except BaseException as exc:  # noqa: BLE001 - whatever a protocol raises, as asyncio does
            self._fatal_error(exc, "Fatal error: protocol failed to take received data.")
        else:
            # The doorbell rings only for what is new: what is there already is handed over in the loop's next round.
            if more and (self._ahead or self._endpoint.await_more()):
                self._loop.call_soon(self._watch)

    def _push(self) -> bool:
        protocol = self._protocol
        if self._pulls or not self.is_reading():
            return False
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = protocol.get_buffer(-1)
            if not memoryview(buffer).nbytes:
                raise RuntimeError("get_buffer() returned an empty buffer")
            count = self._take_ahead_into(buffer) if self._ahead else self._endpoint.take_into(buffer)
            if count:
                protocol.buffer_updated(count)
        else:
            data = self._take_ahead() if self._ahead else self._endpoint.take(_PUSH_SIZE)
            count = None if data is None else len(data)
            if data:
                protocol.data_received(data)  # type: ignore[attr-defined]
        if count == 0:
            self._eof_seen = True
            self._watch()
            if not protocol.eof_received():  # type: ignore[attr-defined]
                self.close()
            return False
        return count is not None

    def _take_ahead(self) -> bytes:
        data = bytes(self._ahead)
        self._ahead.clear()
        return data

    def _take_ahead_into(self, buffer: collections.abc.Buffer) -> int:  # type: ignore[name-defined,unused-ignore]
        with memoryview(buffer) as view, view.cast("B") as target:
            count = min(len(target), len(self._ahead))
            target[:count] = self._ahead[:count]
        del self._ahead[:count]
        return count

    # Writing.

    def write(self, data: collections.abc.Buffer) -> None:  # type: ignore[override,name-defined,unused-ignore]
        """Write any C-contiguous buffer; its bytes are taken before this returns."""
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing:
            if self._lost_writes >= _LOG_LOST_WRITES_FROM:
                logger.warning("write() on a closed connection.")
            self._lost_writes += 1
            return
        try:
            waiting = self._endpoint.write(data)
        except ConnectionError as exc:
            self._force_close(exc)
            return
        if waiting and not self._protocol_paused and self._endpoint.paused:
            self._pause_protocol()

    def writelines(self, list_of_data: Any) -> None:
        """Write the buffers one behind the other."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return true: half-close works."""
        return True

    def write_eof(self) -> None:
        """End the own stream behind what was written; reading goes on."""
        if self._closing or self._eof_written:
            return
        self._endpoint.check()
        self._eof_written = True
        self._endpoint.write_eof()

    def get_write_buffer_size(self) -> int:
        """Bytes written that are not yet in the peer's ring."""
        return self._endpoint.backlog

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and the high mark, in bytes."""
        return self._endpoint.write_limits

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks as asyncio does: high defaults to 64 KiB or 4 x low, low to a quarter of high."""
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._endpoint.set_write_limits(high, low)
        self._on_progress()

    def drained(self) -> Awaitable[None]:
        """Wait until little enough is waiting to be taken by the peer.

        :raises ConnectionError: it is lost, or the peer has closed.
        """
        return self._endpoint.drain()

    def _pause_protocol(self) -> None:
        self._protocol_paused = True
        self._tell(self._protocol.pause_writing)

    def _tell(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except Exception as exc:  # noqa: BLE001 - whatever a protocol raises, as asyncio does
            message = f"protocol.{call.__name__}() failed"
            context = {"message": message, "exception": exc, "transport": self, "protocol": self._protocol}
            self._loop.call_exception_handler(context)

    def _on_progress(self) -> None:
        """Pausing has begun or ended, the own end was published, or writing has become impossible."""
        if self._sock is None:
            return
        paused = self._endpoint.paused
        if paused and not self._protocol_paused:
            self._pause_protocol()
        elif self._protocol_paused and not paused:
            self._protocol_paused = False
            self._tell(self._protocol.resume_writing)
        if not self._closing:
            if self._tcp_ended:
                self._end_if_broken()
            return
        if self._endpoint.closed:
            # Who closed with bytes that waited, and lost the peer before they were taken, is told.
            told = self._endpoint.broken or self._endpoint.cut_short
            self._finish(self._endpoint.write_fault() if told else None)
        elif (fault := self._endpoint.write_fault()) is not None:
            self._finish(fault)

    # The end.

    def is_closing(self) -> bool:
        """Tell whether the transport is closing or closed."""
        return self._closing

    def close(self) -> None:
        """Close behind what was written. What was received and not read does not disturb the peer up to asyncio's limit."""
        if self._closing:
            return
        self._endpoint.check()
        self._closing = True
        limit = getattr(self._protocol, "unread_limit", 0)
        unread = self._endpoint.close(limit)
        if unread:
            self._protocol.keep_unread(unread)  # type: ignore[attr-defined]
        self._watch()
        if self._endpoint.closed:
            self._finish(None)

    def abort(self) -> None:
        """Close at once: what was not yet taken by the peer is lost, and it sees a reset."""
        self._force_close(None)

    def peer_lost(self) -> None:
        """A witness tells that the peer, or the link to it, is gone."""
        self._endpoint.lost()
        self._end_if_broken()

    def _end_if_broken(self) -> None:
        # A peer that has closed in good order leaves the stream to be read to its end.
        if self._endpoint.broken:
            self._force_close(self._endpoint.write_fault())

    def _on_tcp(self) -> None:
        """The TCP connection, silent until now, has an end or a fault or, against all agreements, data."""
        assert self._sock is not None
        reset = False
        try:
            data = self._sock.recv(1)
        except (BlockingIOError, InterruptedError):
            self._unwatch()
            self._witness = self._engine.core.call_when_readable(self._sock.fileno(), self._on_tcp)
            return
        except OSError:
            data, reset = b"", True
        if data:
            self._endpoint.bypassed()
            self._force_close(self._endpoint.write_fault())
        else:
            self._tcp_ended = True
            self._endpoint.tcp_ended(reset)
            self._end_if_broken()

    def _fatal_error(self, exc: BaseException, message: str) -> None:
        context = {"message": message, "exception": exc, "transport": self, "protocol": self._protocol}
        self._loop.call_exception_handler(context)
        self._force_close(exc)  # type: ignore[arg-type]

    def _force_close(self, exc: Exception | None) -> None:
        """End without waiting for anything. The reader still gets what the peer wrote before it was lost."""
        if self._finished:
            return
        self._endpoint.check()
        self._closing = True
        self._endpoint.set_on_progress(None)
        if exc is None or self._endpoint.write_fault() is None:
            self._endpoint.abort()
        self._watch()
        self._finish(exc)

    def _finish(self, exc: Exception | None) -> None:
        """Tell the protocol in the loop's next round that the connection is lost."""
        if self._finished or self._sock is None:
            return
        self._finished = True
        self._endpoint.set_on_progress(None)
        self._unwatch()
        self._loop.call_soon(self._connection_lost, exc)

    def _connection_lost(self, exc: Exception | None) -> None:
        if self._sock is None:
            return
        try:
            self._protocol.connection_lost(exc)
        finally:
            self._sock.close()
            self._sock = None
            self._engine.detach(self, self._endpoint.group)
            # Not left to whoever is in a cycle with this transport, as most protocols are.
            self._endpoint.leave_group()
            # Here and not in the protocol, which may be another one by now.
            calls, self._calls = self._calls, []
            for call in calls:
                call()
            # What was raised along the way may hold frames of this transport: no cycle through them.
            self._endpoint.set_on_readable(None)
            del exc
