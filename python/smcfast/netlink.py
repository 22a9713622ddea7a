"""Exact socket look-ups by sock_diag: who owns this TCP address pair?

The kernel answers within the send call, so a look-up never blocks and takes about 10 microseconds. It needs no
privilege. Containers and sandboxes may refuse it, which is `SockDiagUnavailable` and not the end of the world.

Facts: linux/sock_diag.h, linux/inet_diag.h, linux/netlink.h.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from typing import Any, NamedTuple

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLMSG_ERROR = 2
NLM_F_REQUEST = 1
SO_COOKIE = 57

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors that say nothing about the kernel's abilities, only about the moment."""

TCP_ESTABLISHED = 1
TCP_LISTEN = 10

PORT_MAX = 0xFFFF

_ANY_STATE = 0xFFFF_FFFF
_NO_COOKIE = b"\xff" * 8
_NLMSGHDR = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_REQ_V2 = struct.Struct("=BBBBI")  # family, protocol, extensions, pad, states
_PORTS = struct.Struct("!HH")
_INTERFACE = struct.Struct("=I")
_TAIL = struct.Struct("=5I")  # expires, rqueue, wqueue, uid, inode
_SOCKID_SIZE = 48
_REQUEST_SIZE = _NLMSGHDR.size + _REQ_V2.size + _SOCKID_SIZE
_COOKIE_AT = _NLMSGHDR.size + 4 + 40
_TAIL_AT = _NLMSGHDR.size + 4 + _SOCKID_SIZE
_REPLY_MIN = _TAIL_AT + _TAIL.size
_MAPPED = bytes(10) + b"\xff\xff"


class SockDiagUnavailable(Exception):
    """The kernel or a sandbox refuses socket look-ups; the cause is the OSError."""


class Address(NamedTuple):
    """A TCP address as sock_diag wants it: an IPv4-mapped one is IPv4, and a scope counts for link-local ones only."""

    family: int
    host: bytes
    port: int
    scope: int

    @property
    def is_any(self) -> bool:
        """True for 0.0.0.0 and ::."""
        return not any(self.host)


class Entry(NamedTuple):
    """What sock_diag tells of one socket."""

    state: int
    uid: int
    inode: int
    """0 as long as no process has accepted the connection."""
    cookie: int


def address(sockaddr: tuple[Any, ...]) -> Address:
    """A numeric `sockaddr` of `socket.getsockname` and its kin.

    :raises OSError: the host is not numeric.
    """
    host, port = sockaddr[0].partition("%")[0], sockaddr[1]
    if ":" not in host:
        return Address(socket.AF_INET, socket.inet_pton(socket.AF_INET, host), port, 0)
    packed = socket.inet_pton(socket.AF_INET6, host)
    if packed.startswith(_MAPPED):
        return Address(socket.AF_INET, packed[12:], port, 0)
    link_local = packed[0] == 0xFE and packed[1] & 0xC0 == 0x80
    return Address(socket.AF_INET6, packed, port, sockaddr[3] if link_local and len(sockaddr) == 4 else 0)


def destination(sockaddr: tuple[Any, ...]) -> Address:
    """Where a connect to `sockaddr` arrives: the kernel takes the any-address for the loopback one."""
    target = address(sockaddr)
    if not target.is_any:
        return target
    loopback = b"\x7f\0\0\1" if target.family == socket.AF_INET else bytes(15) + b"\1"
    return target._replace(host=loopback)


def ends(sock: socket.socket) -> tuple[Address, Address] | None:
    """The local and the remote address of a connected `sock`; None when the connection is lost already."""
    try:
        return address(sock.getsockname()), address(sock.getpeername())
    except OSError:
        return None


def cookie(sock: socket.socket) -> int:
    """The kernel's number of `sock`, unique in this boot; the same for every descriptor of it."""
    return int(struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0])


def listener_of(target: Address) -> Entry | None:
    """The socket that would get a connection to `target` now, None when nobody listens.

    A number that is no port has no listener: what is wrong with it, connect says best.

    :raises SockDiagUnavailable: look-ups are refused.
    """
    if not 0 <= target.port <= PORT_MAX:
        return None
    entry = look_up(target, Address(target.family, bytes(len(target.host)), 0, target.scope))
    return entry if entry is not None and entry.state == TCP_LISTEN else None


def look_up(own: Address, peer: Address) -> Entry | None:
    """The TCP socket whose local address is `own` and whose remote address is `peer`.

    :raises SockDiagUnavailable: look-ups are refused.
    :raises OSError: no descriptor or memory is left for one, see `EXHAUSTED`.
    """
    global _worked
    try:
        entry = _socket_of_this_thread().ask(own, peer)
    except OSError as error:
        _threads.diag = None
        if error.errno in EXHAUSTED:
            raise
        raise SockDiagUnavailable(str(error)) from error
    if entry is not None:
        _worked = True
    return entry


def works() -> bool:
    """Has a look-up found a socket in this process yet? A kernel without tcp_diag answers "no such socket" always."""
    return _worked


class _Diag:
    """One netlink socket."""

    def __init__(self) -> None:
        self._sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG
        )
        self._sequence = 0

    def __del__(self) -> None:
        # The thread's last reference goes without anybody to call close().
        if hasattr(self, "_sock"):
            self._sock.close()

    def ask(self, own: Address, peer: Address) -> Entry | None:
        self._sequence = self._sequence % 0xFFFF_FFFF + 1
        self._sock.sendto(_request(self._sequence, own, peer), (0, 0))
        while True:
            reply = self._sock.recv(4096)
            sequence, entry = _read_reply(reply)
            if sequence == self._sequence:
                return entry


def _request(sequence: int, own: Address, peer: Address) -> bytes:
    return b"".join(
        (
            _NLMSGHDR.pack(_REQUEST_SIZE, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, sequence, 0),
            _REQ_V2.pack(own.family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE),
            _PORTS.pack(own.port, peer.port),
            own.host.ljust(16, b"\0"),
            peer.host.ljust(16, b"\0"),
            _INTERFACE.pack(own.scope or peer.scope),
            _NO_COOKIE,
        )
    )


def _read_reply(reply: bytes) -> tuple[int, Entry | None]:
    """Sequence and entry of one answer; None says that there is no such socket."""
    if len(reply) < _NLMSGHDR.size:
        raise OSError(errno.EPROTO, "short netlink message")
    _, kind, _, sequence, _ = _NLMSGHDR.unpack_from(reply)
    if kind == NLMSG_ERROR:
        code = -struct.unpack_from("=i", reply, _NLMSGHDR.size)[0]
        if code == errno.ENOENT:
            return sequence, None
        raise OSError(code, os.strerror(code))
    if kind != SOCK_DIAG_BY_FAMILY or len(reply) < _REPLY_MIN:
        raise OSError(errno.EPROTO, "unexpected netlink message")
    _, _, _, uid, inode = _TAIL.unpack_from(reply, _TAIL_AT)
    return sequence, Entry(reply[_NLMSGHDR.size + 1], uid, inode, struct.unpack_from("=Q", reply, _COOKIE_AT)[0])


class _Threads(threading.local):
    diag: _Diag | None = None


_threads = _Threads()
_worked = False


def _socket_of_this_thread() -> _Diag:
    diag = _threads.diag
    if diag is None:
        diag = _threads.diag = _Diag()
    return diag


def _forget_after_fork() -> None:
    """A child must not take its parent's answers from a socket that both hold."""
    global _threads
    _threads = _Threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
