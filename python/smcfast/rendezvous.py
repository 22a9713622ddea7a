"""Names, credentials and frames of the rendezvous: the sockets of it, and no decisions.

All names are abstract (they vanish with their socket) and unversioned; versions are inside the frames.

| name | type | meaning |
|---|---|---|
| ``smcfast/l/<cookie>`` | datagram | the TCP listener with this cookie is served by smcfast; only its existence counts |
| ``smcfast/h/<cookie>`` | seqpacket | the holder of the former; workers that share the listener wait there to take over |
| ``smcfast/c/<cookie>`` | seqpacket | the connecting TCP socket with this cookie can be met here by its server |
| ``smcfast/a/<engine>/<port>`` | seqpacket | the same for an assumed peer: by engine id and local TCP port |
| ``smcfast/s/<cookie>`` | seqpacket | a process hands out its status page here; the cookie is that of the socket itself |

Cookies and engine ids are hexadecimal, ports decimal. Abstract names have no permissions, hence `credentials`.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from typing import TYPE_CHECKING

from smcfast import _native

if _native.AVAILABLE:
    from smcfast._loop import current

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FRAME_MAX = 4096
"""Bytes of the largest frame that is read; the present ones have at most 56."""
FDS_MAX = 4
"""File descriptors that are taken with one frame; the present ones carry at most two."""

_UCRED = struct.Struct("=iII")
_FD_SIZE = array.array("i").itemsize
_SEQPACKET = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_DATAGRAM = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


def listener_name(cookie: int) -> bytes:
    """Where a served listener shows that it is."""
    return b"\0smcfast/l/%x" % cookie


def holder_name(cookie: int) -> bytes:
    """Where the holder of a listener's name can be waited for."""
    return b"\0smcfast/h/%x" % cookie


def client_name(cookie: int) -> bytes:
    """Where a client waits for its server."""
    return b"\0smcfast/c/%x" % cookie


def assumed_name(engine: bytes, port: int) -> bytes:
    """Where a client of an assumed peer waits for its server."""
    return b"\0smcfast/a/%s/%d" % (engine.hex().encode(), port)


def status_name(cookie: int) -> bytes:
    """Where a process can be asked for its status page."""
    return b"\0smcfast/s/%x" % cookie


def _bound(kind: int, name: bytes, backlog: int | None) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        sock.bind(name)
        if backlog is not None:
            sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def listen(name: bytes, backlog: int) -> socket.socket:
    """A seqpacket listener at `name`.

    :raises OSError: EADDRINUSE when somebody has the name, EMFILE and its kin.
    """
    return _bound(_SEQPACKET, name, backlog)


def claim(name: bytes) -> socket.socket:
    """A datagram socket whose only purpose is to hold `name`; errors as for `listen`."""
    return _bound(_DATAGRAM, name, None)


def exists(name: bytes) -> bool:
    """Does a datagram socket hold `name`?

    :raises OSError: no socket could be had to find out.
    """
    with socket.socket(socket.AF_UNIX, _DATAGRAM) as sock:
        try:
            sock.connect(name)
        except OSError:
            return False
        return True


def call(name: bytes) -> socket.socket:
    """A seqpacket connection to `name`; on Linux it is complete at once or fails.

    :raises OSError: ECONNREFUSED when nobody listens, EAGAIN when the queue is full.
    """
    sock = socket.socket(socket.AF_UNIX, _SEQPACKET)
    try:
        sock.connect(name)
    except OSError:
        sock.close()
        raise
    return sock


def credentials(conn: socket.socket) -> tuple[int, int]:
    """Process id and user id of the other end, as the kernel recorded them at connect or listen; pid 0 is unknown."""
    pid, uid, _ = _UCRED.unpack(conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


def send(conn: socket.socket, frame: bytes, fds: Sequence[int] = ()) -> None:
    """Send one packet. Never blocks, never half of it.

    :raises OSError: `ConnectionError` when the other end is gone; EAGAIN when its queue is full; ETOOMANYREFS when too
        many descriptors are under way, ENOBUFS and its kin.
    """
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    conn.sendmsg([frame], ancillary, socket.MSG_NOSIGNAL)


def take_frame(conn: socket.socket) -> tuple[bytes, list[int]] | None:
    """The next packet and its descriptors, which are the caller's; None when there is none yet, b"" at the end.

    A packet that is larger, or has more descriptors, than any of ours is cut off, which its reader cannot take for one
    of ours. An empty one reads as the end: none of ours is. The end has no descriptors.

    :raises OSError: EMFILE: there was a packet, and here was no descriptor left for its own.
    """
    try:
        frame, ancillary, flags, _ = conn.recvmsg(
            FRAME_MAX, socket.CMSG_SPACE(FDS_MAX * _FD_SIZE), socket.MSG_CMSG_CLOEXEC
        )
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b"", []
    fds = _descriptors(ancillary)
    if not frame:
        close_fds(fds)
        return b"", []
    if flags & socket.MSG_CTRUNC and len(fds) < FDS_MAX:
        close_fds(fds)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return frame, fds


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _FD_SIZE])
    return fds.tolist()


def close_fds(fds: Iterable[int]) -> None:
    """Close descriptors that nobody wants."""
    for fd in fds:
        os.close(fd)


async def readable(socks: Sequence[socket.socket], deadline: float, spin: float = 0.0) -> bool:
    """Wait until one of `socks` has something to read or an end; False when `deadline` (monotonic) came first.

    :param spin: seconds to look before sleeping.
    """
    return await current().ready([sock.fileno() for sock in socks], (), deadline, spin)
