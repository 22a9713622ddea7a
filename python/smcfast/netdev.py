"""Network interfaces, their addresses, and routes: what the kernel tells by rtnetlink, without privilege.

Each function raises OSError where the kernel or a sandbox refuses.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from smcfast import nlmsg

if TYPE_CHECKING:
    from collections.abc import Mapping

_GET_LINK: Final = 18
_GET_ADDRESS: Final = 22
_GET_ROUTE: Final = 26
_LINK: Final = struct.Struct("=BxHiII")
_ADDRESS: Final = struct.Struct("=BBBBI")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")

_LINK_ADDRESS, _LINK_NAME, _LINK_MTU, _LINK_LINK, _LINK_MASTER = 1, 3, 4, 5, 10
_LINK_INFO, _LINK_MASK, _LINK_NETNS = 18, 29, 37
_INFO_KIND, _INFO_DATA, _VLAN_ID = 1, 2, 1
_SKIP_STATISTICS: Final = struct.pack("=I", 8)
_ADDRESS_ADDRESS, _ADDRESS_LOCAL = 1, 2
_ROUTE_TO, _ROUTE_FROM, _ROUTE_INTERFACE, _ROUTE_GATEWAY, _ROUTE_MARK, _ROUTE_VIA = 1, 2, 4, 5, 16, 18
_ROUTE_PROTOCOL, _ROUTE_SOURCE_PORT, _ROUTE_PORT = 27, 28, 29
_SO_MARK: Final = 36
_SO_BINDTOIFINDEX: Final = 62

_NO_ROUTE: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL})
"""Answers about routes that the kernel has not: EACCES is a prohibited one, EINVAL that of an address that is not own."""
_STACKED: Final = frozenset({"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"})
"""Interfaces that stand on the one that they name as their link. For others, as veth, that is something else."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface."""

    index: int
    name: str
    mac: bytes
    """As many bytes as its kind has; six for Ethernet."""
    mtu: int
    """Bytes of an IP packet."""
    kind: str = ""
    """ "vlan", "veth", "bond"..., empty for hardware."""
    vlan: int = 0
    """The VLAN that it is the interface of, 0 for none."""
    lower: int = 0
    """The interface that it stands on, 0 for none."""
    master: int = 0
    """The bond, team or bridge that it is a part of, 0 for none."""


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address of an interface."""

    interface: int
    """The interface's index."""
    host: bytes
    """4 or 16 bytes."""
    subnet: bytes
    """The address of the subnet, without the host's bits."""
    length: int
    """Bits of the subnet."""

    def reaches(self, host: bytes) -> bool:
        """Is `host` in the subnet?"""
        return len(host) == len(self.subnet) and masked(host, self.length) == self.subnet


@dataclass(frozen=True, slots=True)
class Route:
    """Where packets of a connection go."""

    interface: int
    """Index of the interface."""
    direct: bool
    """No gateway is between."""


def masked(host: bytes, length: int) -> bytes:
    """The first `length` bits of `host`, and zeros."""
    bits = 8 * len(host)
    mask = ((1 << length) - 1) << (bits - length)
    return (int.from_bytes(host) & mask).to_bytes(len(host))


def interfaces() -> dict[int, Interface]:
    """All interfaces of this network namespace, by index."""
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + nlmsg.packed({_LINK_MASK: _SKIP_STATISTICS})
    found = (_interface(answer) for answer in nlmsg.ask(nlmsg.ROUTE, _GET_LINK, body, dump=True))
    return {each.index: each for each in found}


def _interface(answer: bytes) -> Interface:
    if len(answer) < _LINK.size:
        raise nlmsg.Malformed("an interface is cut off")
    index = _LINK.unpack_from(answer)[2]
    given = nlmsg.attributes(answer, _LINK.size)
    info = nlmsg.attributes(given.get(_LINK_INFO, b""))
    kind = nlmsg.text(info.get(_INFO_KIND))
    is_stacked = kind in _STACKED and _LINK_NETNS not in given
    data = nlmsg.attributes(info.get(_INFO_DATA, b"")) if kind == "vlan" else {}
    return Interface(
        index,
        nlmsg.text(given.get(_LINK_NAME)),
        given.get(_LINK_ADDRESS, b""),
        nlmsg.number(given.get(_LINK_MTU)),
        kind,
        nlmsg.number(data.get(_VLAN_ID)),
        nlmsg.number(given.get(_LINK_LINK)) if is_stacked else 0,
        nlmsg.number(given.get(_LINK_MASTER)),
    )


def base(interface: Interface, known: Mapping[int, Interface]) -> Interface:
    """The interface at the bottom: under VLANs and their kin, and the first one of a bond, team or bridge."""
    for _ in known:
        below = _below(interface, known)
        if below is None:
            break
        interface = below
    return interface


def vlan(interface: Interface, known: Mapping[int, Interface]) -> int:
    """The VLAN that the packets of `interface` are in, 0 for none."""
    for _ in known:
        below = _below(interface, known)
        if interface.vlan or below is None:
            break
        interface = below
    return interface.vlan


def _below(interface: Interface, known: Mapping[int, Interface]) -> Interface | None:
    parts = [index for index, each in known.items() if each.master == interface.index]
    return known.get(interface.lower or min(parts, default=0))


def addresses() -> list[Address]:
    """All IP addresses of this network namespace, those of an interface in the kernel's order."""
    body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    return [_address(answer) for answer in nlmsg.ask(nlmsg.ROUTE, _GET_ADDRESS, body, dump=True)]


def _address(answer: bytes) -> Address:
    if len(answer) < _ADDRESS.size:
        raise nlmsg.Malformed("an address is cut off")
    _, length, _, _, index = _ADDRESS.unpack_from(answer)
    given = nlmsg.attributes(answer, _ADDRESS.size)
    # Between two points, the address is the other end's, and the subnet that of it.
    far = given.get(_ADDRESS_ADDRESS) or given.get(_ADDRESS_LOCAL, b"")
    if len(far) not in (4, 16) or length > 8 * len(far):
        raise nlmsg.Malformed("an address has a wrong length")
    return Address(index, given.get(_ADDRESS_LOCAL, far), masked(far, length), length)


def route_of(sock: socket.socket, own: bytes, own_port: int, peer: bytes, peer_port: int, scope: int) -> Route | None:
    """Where the packets of the connected TCP socket `sock` go now; None when there is no route any more.

    :param scope: the interface of link-local addresses, else 0.
    """
    attributes = {
        _ROUTE_PROTOCOL: bytes([socket.IPPROTO_TCP]),
        _ROUTE_SOURCE_PORT: struct.pack("!H", own_port),
        _ROUTE_PORT: struct.pack("!H", peer_port),
    }
    for option, kind in ((_SO_MARK, _ROUTE_MARK), (_SO_BINDTOIFINDEX, _ROUTE_INTERFACE)):
        try:
            value = sock.getsockopt(socket.SOL_SOCKET, option)
        except OSError:  # The kernel is older than the option.
            continue
        if value:
            attributes[kind] = struct.pack("=I", value & 0xFFFFFFFF)
    if scope:
        attributes[_ROUTE_INTERFACE] = struct.pack("=I", scope)
    return route(peer, own, attributes)


def route(to: bytes, source: bytes, more: Mapping[int, bytes] | None = None) -> Route | None:
    """The route of packets from the own address `source` to the host `to`; None when there is none.

    :param more: attributes of the look-up.
    """
    bits = 8 * len(to)
    family = socket.AF_INET if len(to) == 4 else socket.AF_INET6
    attributes = {_ROUTE_TO: to, _ROUTE_FROM: source, **(more or {})}
    body = _ROUTE.pack(family, bits, bits, 0, 0, 0, 0, 0, 0) + nlmsg.packed(attributes)
    try:
        answers = nlmsg.ask(nlmsg.ROUTE, _GET_ROUTE, body)
    except OSError as error:
        if error.errno in _NO_ROUTE:
            return None
        raise
    if not answers or len(answers[0]) < _ROUTE.size:
        raise nlmsg.Malformed("a route is cut off")
    given = nlmsg.attributes(answers[0], _ROUTE.size)
    return Route(nlmsg.number(given.get(_ROUTE_INTERFACE)), not ({_ROUTE_GATEWAY, _ROUTE_VIA} & given.keys()))
