"""The blocking socket of a connection on rings in shared memory."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from smcfast import _native, counts, log, page
from smcfast.timeouts import Timeouts

if _native.AVAILABLE:
    from smcfast import _core

if TYPE_CHECKING:
    from collections.abc import Buffer, Callable  # type: ignore[attr-defined,unused-ignore]
    from typing import Self

    from smcfast._core import Endpoint
    from smcfast.info import SmcInfo

_DONT_WAIT: Final = socket.MSG_DONTWAIT
_HARMLESS: Final = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
_NO_TLS: Final = (
    "a socket on a ring has no descriptor that the ssl module could read from; wrap it with an ssl.MemoryBIO, or connect "
    "with paths=()"
)
_NO_DETACH: Final = "the bytes of a socket on a ring do not go through a descriptor that could be given away"

_lock = threading.Lock()
_lamps: _core.Lamps | None = None


def _renew() -> None:
    """A child has no thread that changes its lamps, and another one may have held the lock when it was forked."""
    global _lock, _lamps
    _lock, _lamps = threading.Lock(), None


os.register_at_fork(after_in_child=_renew)


def _shared_lamps() -> _core.Lamps:
    """:raises OSError: no thread or no descriptor is left."""
    global _lamps
    with _lock:
        if _lamps is None:
            _lamps = _core.Lamps()
        return _lamps


class _ClosedChannel:
    """Stands where a socket is closed."""

    def _refuse(self, *_: object) -> NoReturn:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    recv = recv_into = send = sendall = shutdown_read = shutdown_write = _refuse


class RingSocket(Timeouts):
    """A connected stream socket whose bytes go through rings, with the methods of `socket.socket`.

    Each call works in the thread that makes it, and gives the interpreter's lock up while it waits. One thread may send while
    another receives. Errors are those of a socket: `TimeoutError`, `BlockingIOError`, `ConnectionResetError`,
    `BrokenPipeError`, and EBADF once it is closed; `PeerMisbehaved` of a peer that breaks the protocol. In a forked child
    everything but `close` raises `RuntimeError`.
    """

    def __init__(self, tcp: socket.socket, endpoint: Endpoint, info: SmcInfo, timeout: float | None) -> None:
        """Take over `tcp`, the connection beside the rings, also if this raises."""
        self._closed = True
        self._closing = threading.Lock()
        try:
            tcp.setblocking(False)
            self._channel: _core.Channel | _ClosedChannel = _core.Channel(endpoint, tcp.fileno())
            self._names = tcp.getsockname(), _peername(tcp)
        except BaseException:
            tcp.close()
            raise
        self._tcp = tcp
        self._closed = False
        self._io_refs = 0
        self._timeout = timeout
        self._pid = os.getpid()
        self.smc_info: SmcInfo = info
        """The path and what was agreed, an `SmcInfo`."""

    @classmethod
    def over(cls, tcp: socket.socket, endpoint: Endpoint, info: SmcInfo, role: str, timeout: float | None) -> Self:
        """A new connection, which is counted and shown; `role` is "client" or "server"."""
        ring = cls(tcp, endpoint, info, timeout)
        page.show_ring(None, endpoint, *ring._names)
        counts.count_connection(info.path)
        log.established(role, tcp, info)
        return ring

    def __repr__(self) -> str:
        """State, path and both ends."""
        if self._closed:
            return f"<{type(self).__name__} closed>"
        return f"<{type(self).__name__} {self.smc_info.path} laddr={self._names[0]} raddr={self._names[1]}>"

    def __getstate__(self) -> NoReturn:
        """As the standard library's: a copy that went would close the descriptors of the other."""
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Warn of a socket that nobody closed, and close it."""
        if self._closed or self._tcp.fileno() < 0:
            return
        if os.getpid() == self._pid and not sys.is_finalizing():
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)
        self._io_refs = 0
        self.close()

    # What it is.

    @property
    def family(self) -> socket.AddressFamily:
        """Of the TCP connection beside the rings."""
        return socket.AddressFamily(self._tcp.family)

    @property
    def type(self) -> socket.SocketKind:
        """SOCK_STREAM."""
        return socket.SocketKind(self._tcp.type)

    @property
    def proto(self) -> int:
        """Of the TCP connection beside the rings."""
        return self._tcp.proto

    def getsockname(self) -> Any:
        """The own address."""
        self._check()
        return self._names[0]

    def getpeername(self) -> Any:
        """The peer's address.

        :raises OSError: ENOTCONN: it was gone when the connection was made.
        """
        self._check()
        if self._names[1] is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._names[1]

    def getsockopt(self, level: int, optname: int, *args: Any) -> Any:
        """An option of the TCP connection beside the rings.

        :raises OSError: EOPNOTSUPP for SO_TYPE, by which the ssl module asks for a descriptor that it can read from.
        """
        self._check()
        if (level, optname) == (socket.SOL_SOCKET, socket.SO_TYPE):
            raise OSError(errno.EOPNOTSUPP, _NO_TLS)
        return self._tcp.getsockopt(level, optname, *args)

    def setsockopt(self, level: int, optname: int, *args: Any) -> None:
        """Set an option of the TCP connection beside the rings: keep-alives work, what is about bytes has no effect."""
        self._check()
        self._tcp.setsockopt(level, optname, *args)

    def fileno(self) -> int:
        """A descriptor for selectors, select, poll and epoll: readable while `recv` would not wait, writable while `send` would not.

        It can do nothing else: never read from it, write to it or close it. From the first call on, a thread of the process
        looks after it. -1 once the socket is closed.

        :raises OSError: no descriptor or no thread is left.
        """
        channel = self._channel
        return -1 if isinstance(channel, _ClosedChannel) else channel.fileno(_shared_lamps())

    # Bytes.

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Receive 1 to `bufsize` bytes, b"" at the end of the stream.

        :param flags: 0 or MSG_DONTWAIT.
        """
        if bufsize < 0:
            raise ValueError("negative buffersize in recv")
        return self._channel.recv(bufsize, self._timeout if not flags else self._flagged(flags))

    def recv_into(self, buffer: Buffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive up to `nbytes` bytes (0: as many as it has) into `buffer`: so many, 0 at the end of the stream."""
        if nbytes < 0:
            raise ValueError("negative buffersize in recv_into")
        return self._channel.recv_into(buffer, nbytes, self._timeout if not flags else self._flagged(flags))

    def send(self, data: Buffer, flags: int = 0, /) -> int:
        """Send at least one byte of `data`, as many as there is room for: so many."""
        return self._channel.send(data, self._timeout if not flags else self._flagged(flags))

    def sendall(self, data: Buffer, flags: int = 0, /) -> None:
        """Send all of `data`; the timeout is for all of it. After an error nobody knows how much was sent."""
        self._channel.sendall(data, self._timeout if not flags else self._flagged(flags))

    def _flagged(self, flags: int) -> float | None:
        if flags & ~_HARMLESS:
            raise OSError(errno.EOPNOTSUPP, "a socket on a ring knows no flags but MSG_DONTWAIT and MSG_NOSIGNAL")
        return 0.0 if flags & _DONT_WAIT else self._timeout

    def makefile(self, *args: Any, **options: Any) -> Any:
        """A file over the socket, as the standard library makes it: it counts its references in `_io_refs`."""
        return socket.socket.makefile(self, *args, **options)  # type: ignore[call-overload]

    def _decref_socketios(self) -> None:
        if self._io_refs > 0:
            self._io_refs -= 1
        if self._closed:
            self.close()

    # The end.

    def shutdown(self, how: int, /) -> None:
        """End reading (SHUT_RD), writing (SHUT_WR) or both (SHUT_RDWR); threads that wait for it go on."""
        if how not in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if how != socket.SHUT_WR:
            self._channel.shutdown_read()
        if how != socket.SHUT_RD:
            self._channel.shutdown_write()

    def close(self) -> None:
        """Close the socket, when the last file of `makefile` is closed too. With bytes unread, the peer sees a reset.

        Threads that wait in it get EBADF. In a forked child it closes the child's descriptors alone.
        """
        self._closed = True
        if self._io_refs > 0 or self._tcp.fileno() < 0:
            return
        if os.getpid() != self._pid:
            # The lock may be that of a thread of the parent.
            self._channel = _ClosedChannel()
            self.smc_info = replace(self.smc_info, read_counters=None)
            self._tcp.close()
        elif self._closing.acquire(blocking=False):
            # Otherwise who has it closes all; a signal handler must not wait for the call that it has interrupted.
            try:
                self._close()
            finally:
                self._closing.release()

    def _close(self) -> None:
        # Who is in a call still has the channel; memory and descriptors go with it.
        channel, self._channel = self._channel, _ClosedChannel()
        try:
            if not isinstance(channel, _ClosedChannel):
                channel.close()
                counters = dict(self.smc_info.counters)
                self.smc_info = replace(self.smc_info, read_counters=counters.copy)
        finally:
            # Last, and by nobody else: the channel knows it by its number.
            self._tcp.close()

    def detach(self) -> int:
        """:raises OSError: EOPNOTSUPP, always."""
        raise OSError(errno.EOPNOTSUPP, _NO_DETACH)

    def _check(self) -> None:
        if self._tcp.fileno() < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _peername(tcp: socket.socket) -> Any:
    try:
        return tcp.getpeername()
    except OSError:
        return None  # It has closed already.
