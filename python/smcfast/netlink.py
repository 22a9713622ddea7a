"""Exact socket look-ups by sock_diag: who owns this TCP address pair?

The core asks, and the kernel answers within the call: a look-up never blocks and takes about 10 microseconds. It needs
no privilege. Containers and sandboxes may refuse it, which is `SockDiagUnavailable` and not the end of the world.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from smcfast._core import SockDiag

SO_COOKIE = 57

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors that say nothing about the kernel's abilities, only about the moment."""

TCP_ESTABLISHED = 1
TCP_LISTEN = 10

PORT_MAX = 0xFFFF

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
    family, host, is_link_local = _numeric(sockaddr[0])
    return Address(family, host, sockaddr[1], sockaddr[3] if is_link_local and len(sockaddr) == 4 else 0)


@functools.lru_cache(maxsize=256)
def _numeric(host: str) -> tuple[int, bytes, bool]:
    """Family and bytes of a host, and whether its interface matters; ports change, and hosts hardly ever."""
    host = host.partition("%")[0]
    if ":" not in host:
        return socket.AF_INET, socket.inet_pton(socket.AF_INET, host), False
    packed = socket.inet_pton(socket.AF_INET6, host)
    if packed.startswith(_MAPPED):
        return socket.AF_INET, packed[12:], False
    return socket.AF_INET6, packed, packed[0] == 0xFE and packed[1] & 0xC0 == 0x80


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
        found = _socket_of_this_thread().ask(own.host, own.port, peer.host, peer.port, own.scope or peer.scope)
    except OSError as error:
        _threads.diag = None
        if error.errno in EXHAUSTED:
            raise
        raise SockDiagUnavailable(str(error)) from error
    if found is None:
        return None
    _worked = True
    return Entry(*found)


def are_refused() -> bool:
    """Are look-ups refused? Else this thread's socket is there from now on, in a moment without descriptors as well."""
    try:
        look_up(Address(socket.AF_INET, bytes(4), 0, 0), Address(socket.AF_INET, bytes(4), 0, 0))
    except SockDiagUnavailable:
        return True
    except OSError:
        pass  # EXHAUSTED, which may be over soon
    return False


def works() -> bool:
    """Has a look-up found a socket in this process yet? A kernel without tcp_diag answers "no such socket" always."""
    return _worked


class _Threads(threading.local):
    diag: SockDiag | None = None


_threads = _Threads()
_worked = False


def _socket_of_this_thread() -> SockDiag:
    diag = _threads.diag
    if diag is None:
        from smcfast._core import SockDiag  # Only where the core is: see smcfast._native.

        diag = _threads.diag = SockDiag()
    return diag


def _forget_after_fork() -> None:
    """A child must not take its parent's answers from a socket that both hold."""
    global _threads
    _threads = _Threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
