"""The kernel's own SMC sockets: whether there are any, and how a connection over one runs.

Such a socket connects, accepts and carries bytes like one of TCP; the handshake is the kernel's. One whose peer or
network has no SMC goes on as TCP by itself, and then its descriptor stands for the TCP socket within. Which of the two it
is, and why, the kernel tells by smc_diag.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from smcfast import netlink, nlmsg, pnet
from smcfast.info import SmcInfo
from smcfast.reasons import PEER_DECLINED, diagnosis, explained, reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from smcfast.addresses import AddrInfo
    from smcfast.errors import Fallback

AF_SMC: Final = 43
"""The family of SMC sockets of older kernels, which Python can make but not bind or connect."""
SMCPROTO_SMC: Final = 0
"""The protocol of that family over IPv4."""
SMCPROTO_SMC6: Final = 1
"""The protocol of that family over IPv6."""
IPPROTO_SMC: Final = 256
"""The protocol of SMC sockets of AF_INET and AF_INET6, from kernel 6.11 on."""

HANDSHAKE_MAX: Final = 20.0
"""Seconds after which no handshake of the kernel's is under way any more: it waits 6 for each message. TCP alone waits longer
for a host that does not answer."""

_SO_PROTOCOL: Final = 38
_DIAG_BY_FAMILY: Final = 20
_EVERYTHING: Final = 0xFF
_REQUEST: Final = struct.Struct("=BxxB48x")
_MESSAGE: Final = struct.Struct("=xxBx48x4xQ")
"""Mode and inode; a user is between."""
_CONNECTION, _LINK, _FALLBACK = 1, 2, 5
_SIZES: Final = struct.Struct("=4xIII")
_LINK_INFO: Final = struct.Struct("=x64sx40s40s")
_CODES: Final = struct.Struct("=II")
_Mode: TypeAlias = Literal["smc-r", "tcp", "smc-d"] | None
_MODES: Final[dict[int, _Mode]] = {0: "smc-r", 1: "tcp", 2: "smc-d"}
_BROKEN: Final = frozenset({errno.EPROTO, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EAGAIN})
"""How a connect ends whose handshake has failed in a way that leaves no TCP connection."""
_MOMENTARY: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_refused: set[int] = set()


def why_none(family: int = socket.AF_INET) -> Fallback | None:
    """Why there are no SMC sockets of `family`; None when there are. The kernel loads its module when it may.

    Once refused, it is asked again only when the module has been loaded: the attempt to load it takes milliseconds.
    """
    if family in _refused and not pnet.has_smc():
        return reason("kernel_smc")
    try:
        socket.socket(family, socket.SOCK_STREAM, IPPROTO_SMC).close()
    except OSError as error:
        if error.errno in _MOMENTARY:
            return None
        _refused.add(family)
        return explained("kernel_smc", f"the kernel offers no SMC sockets: {error.strerror}")
    _refused.discard(family)
    return None


def is_smc(sock: socket.socket) -> bool:
    """Was `sock` made, or accepted, as one of the kernel's SMC?"""
    return sock.proto == IPPROTO_SMC and sock.family in (socket.AF_INET, socket.AF_INET6)


def carries(sock: socket.socket) -> bool:
    """Does the connected `sock` run over the kernel's SMC?"""
    return is_smc(sock) and not is_plain(sock)


def is_plain(sock: socket.socket) -> bool:
    """Does `sock`, connected and made as one of SMC, run as TCP?"""
    return sock.getsockopt(socket.SOL_SOCKET, _SO_PROTOCOL) == socket.IPPROTO_TCP


def instead(info: AddrInfo) -> AddrInfo:
    """The address `info` for a socket of SMC."""
    return (*info[:2], IPPROTO_SMC, *info[3:])


def rebound(sock: socket.socket) -> socket.socket:
    """A socket of SMC at the address of the bound TCP socket `sock`, which is closed; the options of a bind are kept.

    :raises OSError: it cannot be made or bound.
    """
    options = [(socket.SOL_SOCKET, socket.SO_REUSEADDR), (socket.SOL_SOCKET, socket.SO_REUSEPORT)]
    if sock.family == socket.AF_INET6:
        options.append((socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))
    other = socket.socket(sock.family, socket.SOCK_STREAM, IPPROTO_SMC)
    try:
        for level, option in options:
            other.setsockopt(level, option, sock.getsockopt(level, option))
        address = sock.getsockname()
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR):
            sock.close()  # Otherwise both can have the address, and nobody else gets it meanwhile.
        other.bind(address)
    except BaseException:
        other.close()
        raise
    finally:
        sock.close()
    return other


def cookie_within(listener: socket.socket) -> int | None:
    """The cookie of the TCP socket within a listener of SMC, by which clients can look it up; None for other listeners."""
    if not is_smc(listener):
        return None
    try:
        entry = netlink.listener_of(netlink.address(listener.getsockname()))
    except (netlink.SockDiagUnavailable, OSError):
        return None
    return None if entry is None else entry.cookie


def has_broken(error: OSError, seconds: float) -> bool:
    """Has a connect failed after `seconds` because of SMC, so that TCP may still work?"""
    nobody_answers = error.errno == errno.ETIMEDOUT and seconds > HANDSHAKE_MAX
    return error.errno in _BROKEN and not nobody_answers


def told(sock: socket.socket) -> SmcInfo | Fallback:
    """How the connected `sock` runs: over SMC, where only `SmcInfo.mode` may be unknown, or why as TCP."""
    mode, attributes = _found(os.fstat(sock.fileno()).st_ino)
    if is_plain(sock) or mode == "tcp":
        return _fallback(attributes)
    return _described(mode, attributes)


def _found(inode: int) -> tuple[_Mode, dict[int, bytes]]:
    """Mode and attributes of the SMC socket with that inode. The kernel begins with those that were made last."""
    try:
        for answer in _sockets():
            if len(answer) < _MESSAGE.size:
                raise nlmsg.Malformed("an SMC socket is cut off")
            mode, its_inode = _MESSAGE.unpack_from(answer)
            if its_inode == inode:
                return _MODES.get(mode), nlmsg.attributes(answer, _MESSAGE.size)
    except OSError:
        pass  # There is no smc_diag, or a sandbox stands before it.
    return None, {}


def _sockets() -> Iterator[bytes]:
    return nlmsg.each(nlmsg.SOCK_DIAG, _DIAG_BY_FAMILY, _REQUEST.pack(AF_SMC, _EVERYTHING))


def _fallback(attributes: dict[int, bytes]) -> Fallback:
    """The kernel's reason, or the peer's if that is it."""
    codes = attributes.get(_FALLBACK, b"")
    if len(codes) < _CODES.size:
        return reason("kernel_silent")
    own, peers = _CODES.unpack_from(codes)
    if own == PEER_DECLINED and peers:
        why = diagnosis(peers)
        return why._replace(text=f"the peer declined: {why.text}")
    return diagnosis(own)


def _described(mode: Literal["smc-r", "smc-d"] | None, attributes: dict[int, bytes]) -> SmcInfo:
    info = SmcInfo(path="kernel", mode=mode)
    sizes, link = attributes.get(_CONNECTION, b""), attributes.get(_LINK, b"")
    if len(sizes) >= _SIZES.size:
        _, own, peers = _SIZES.unpack_from(sizes)
        info = dataclasses.replace(info, rmb_size=own, peer_rmb_size=peers)
    if len(link) >= _LINK_INFO.size:
        device, gid, peer_gid = (nlmsg.text(each) for each in _LINK_INFO.unpack_from(link))
        info = dataclasses.replace(info, device=device, gid=gid.replace(":", ""), peer_gid=peer_gid.replace(":", ""))
    return info
