"""This process's status page: made at its first connection or listener, and served to tools.

The page has a name of its own, at which every loop of the process hands out descriptors that can only read it; to the own
user and to root. Whatever the system refuses of all this, connections do not notice.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from smcfast import _native, netlink, rendezvous

if _native.AVAILABLE:
    from smcfast import _core

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from smcfast._core import Endpoint, Status, StatusRow

GREETING: Final = b"smcstat\0"
"""The packet beside which the descriptor travels."""
BACKLOG: Final = 64
"""Tools that may wait for a busy process; for the others it is busy without waiting."""
REST: Final = 1.0
"""Seconds for which the name rests when descriptors have run out."""
_ATTRIBUTE = "_smcfast_status"


class _Own:
    """What belongs to this process and not to its forked children."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.page: Status | None = None
        self.name: socket.socket | None = None
        self.refused = False


_own = _Own()
_inherited: list[socket.socket] = []


def page() -> Status | None:
    """The page, made at its first use; None where not even memory for private counters can be had."""
    if _own.page is None and not _own.refused:
        with _own.lock:
            if _own.page is None:
                try:
                    _own.page = _core.Status(os.getpid()) if _native.AVAILABLE else None
                except OSError:
                    pass
                _own.refused = _own.page is None
    return _own.page


def show_ring(loop: asyncio.AbstractEventLoop | None, endpoint: Endpoint, sockname: Any, peername: Any) -> None:
    """Give `endpoint` a row; it is free again when the endpoint is.

    :param loop: which answers tools; without any they look for the page in /proc.
    """
    status = _served(loop)
    if status is not None:
        endpoint.show(status, _address(sockname), _address(peername))


def show_socket(
    loop: asyncio.AbstractEventLoop | None, sock: socket.socket, path: str, role: str, code: int
) -> StatusRow | None:
    """Give the connection over `sock` of `role` "client" or "server" a row; `code` is the reason if its path is "tcp"."""
    status = _served(loop)
    if status is None:
        return None
    return status.show_socket(path, role, _end(sock.getsockname), _end(sock.getpeername), code)


def show_listener(loop: asyncio.AbstractEventLoop | None, sock: socket.socket, path: str) -> StatusRow | None:
    """Give the listener `sock` a row; `path` is the best that it offers."""
    status = _served(loop)
    return None if status is None else status.show_listener(path, _address(sock.getsockname()))


def _end(name: Callable[[], Any]) -> tuple[bytes, int, int] | None:
    """One end of a connection, which may be lost already."""
    try:
        return _address(name())
    except OSError:
        return None


def _address(sockaddr: Any) -> tuple[bytes, int, int] | None:
    """What the page keeps of an address; None for a family that has neither hosts nor ports."""
    if not isinstance(sockaddr, tuple):
        return None
    known = netlink.address(sockaddr)
    return known.host, known.port, known.scope


def _served(loop: asyncio.AbstractEventLoop | None) -> Status | None:
    """The page, which `loop` hands out from now on if it can."""
    status = page()
    if loop is None:
        if status is not None and status.is_shared:
            with contextlib.suppress(OSError):
                _name(status)
        return status
    if status is None or not status.is_shared or getattr(loop, _ATTRIBUTE, None) is status:
        return status
    with contextlib.suppress(OSError):
        _Counter(loop, status, _name(status))
        setattr(loop, _ATTRIBUTE, status)
    return status


def _name(status: Status) -> socket.socket:
    """The socket that has the name, which is its own cookie."""
    with _own.lock:
        if _own.name is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            try:
                number = netlink.cookie(sock)
                sock.bind(rendezvous.status_name(number))
                sock.listen(BACKLOG)
            except OSError:
                sock.close()
                raise
            status.set_id(number)
            _own.name = sock
        return _own.name


class _Counter:
    """Where tools are served: the name, in one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, status: Status, name: socket.socket) -> None:
        self._loop = loop
        self._status = status
        self._name = name
        self._open()

    def _open(self) -> None:
        if self._name.fileno() >= 0:
            self._loop.add_reader(self._name.fileno(), self._serve)

    def _serve(self) -> None:
        if not self._status.is_ours:
            return  # A child goes on with its parent's loop: the parent serves.
        for _ in range(BACKLOG + 1):
            try:
                conn, _address = self._name.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return  # Another loop was faster, or the tool has gone.
            except OSError:
                self._rest()
                return
            with conn, contextlib.suppress(OSError):
                _hand_out(conn, self._status)

    def _rest(self) -> None:
        """The kernel would report the name as ready again and again."""
        if self._name.fileno() >= 0:
            self._loop.remove_reader(self._name.fileno())
            self._loop.call_later(REST, self._open)


def _hand_out(conn: socket.socket, status: Status) -> None:
    """Give the page to whoever may read it. Errors are of no interest: a tool that gets nothing looks elsewhere."""
    if rendezvous.credentials(conn)[1] not in (0, os.geteuid()):
        return
    fd = status.open()
    try:
        rendezvous.send(conn, GREETING, [fd])
    finally:
        os.close(fd)


def _close() -> None:
    if _own.name is not None:
        _own.name.close()


def _forget_after_fork() -> None:
    """A child has a page of its own, and does not keep the name of its parent alive."""
    global _own
    parent, _own = _own, _Own()
    if parent.name is None:
        return
    # The number stays taken: the parent's loop knows it, and the child may go on with that loop.
    _inherited.append(parent.name)
    with contextlib.suppress(OSError):
        with open(os.devnull, "r+b", buffering=0) as nothing:
            os.dup2(nothing.fileno(), parent.name.fileno(), inheritable=False)


if _native.AVAILABLE:
    os.register_at_fork(after_in_child=_forget_after_fork)
    atexit.register(_close)
