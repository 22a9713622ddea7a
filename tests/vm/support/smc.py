"""What the kernel says of its SMC, by generic netlink (``SMC_GEN_NETLINK``) and by sock_diag (``smc_diag``).

This is the other side's word for which path a connection has taken: a socket that has fallen back works just as well.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from smcfast import nlmsg
from vm.support import network
from vm.support.hosts import A, B

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

IPPROTO_SMC: Final = 256
"""``socket.socket(family, socket.SOCK_STREAM, IPPROTO_SMC)`` is an SMC socket, from Linux 6.11 on."""
EID_MAX: Final = 32
"""Characters of a user EID."""
NO_DEVICE: Final = 0x03030000
"""The code of a fallback because neither RDMA nor an emulated ISM device can be used; no user EID is this one, too."""
DECLINED: Final = 0x05000000
"""The code of a fallback that the peer has asked for, whose own code is `Connection.peer_diagnosis`."""

_FAMILY: Final = b"SMC_GEN_NETLINK\0"
_VERSION: Final = 1
_GENERIC: Final = struct.Struct("=BBxx")
_CONTROL, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2

_LINKS, _DEVICES, _STATISTICS, _FALLBACKS = 3, 6, 7, 8
_EIDS, _ADD_EID, _REMOVE_EID = 9, 10, 11
"""Commands."""
_OF_GROUP, _OF_LINK, _OF_DEVICE, _OF_STATISTICS, _OF_FALLBACK = 2, 3, 6, 7, 8
"""Attributes around the whole of an answer."""

_SOCK_DIAG_BY_FAMILY: Final = 20
_AF_SMC: Final = 43
_DIAG: Final = struct.Struct("=BBBB2s2s48xQ")
_EVERYTHING: Final = 0x1F
_CONNECTION, _GROUP, _FALLBACK = 1, 2, 5
EnumT = TypeVar("EnumT", bound=enum.IntEnum)


class Mode(enum.Enum):
    """What carries the bytes of a connection."""

    SMC_R = 0
    TCP = 1
    SMC_D = 2


class State(enum.IntEnum):
    """Of an SMC socket."""

    ACTIVE = 1
    INIT = 2
    CLOSED = 7
    LISTEN = 10
    PEERCLOSEWAIT1 = 20
    PEERCLOSEWAIT2 = 21
    APPCLOSEWAIT1 = 22
    APPCLOSEWAIT2 = 23
    APPFINCLOSEWAIT = 24
    PEERFINCLOSEWAIT = 25
    PEERABORTWAIT = 26
    PROCESSABORT = 27


@dataclass(frozen=True)
class Connection:
    """An SMC socket of the kernel, by its ports: for sockets made by `IPPROTO_SMC` it tells no addresses."""

    port: int
    peer_port: int
    inode: int
    """As fstat has it; 0 for what no process has accepted."""
    state: State | int
    mode: Mode
    """Counts once the connection is established; before, an SMC socket is listed as SMC-R."""
    reason: int
    """Why it has fallen back, 0 for no fallback; `DECLINED` for what the peer has said."""
    peer_diagnosis: int
    """The code of the peer's Decline, 0 for none."""
    device: str
    """The RDMA device of its link, "" for none."""
    token: int
    """Its number in the link group, which the CDC carry."""
    rmb: int
    """Bytes of its receive buffer."""
    peer_rmb: int


class Role(enum.IntEnum):
    """Of the kernel in a link group."""

    CLIENT = 0
    SERVER = 1


class Kind(enum.IntEnum):
    """Of a link group."""

    NONE = 0
    SINGLE = 1
    SYMMETRIC = 2
    ASYMMETRIC_PEER = 3
    ASYMMETRIC_LOCAL = 4


class LinkState(enum.IntEnum):
    """Of a link."""

    UNUSED = 0
    INACTIVE = 1
    ACTIVATING = 2
    ACTIVE = 3


@dataclass(frozen=True)
class Link:
    """A queue pair of a link group."""

    number: int
    device: str
    port: int
    gid: str
    peer_gid: str
    connections: int
    state: LinkState | int


@dataclass(frozen=True)
class Group:
    """A link group of SMC-R, as one side has it: of two kernel sockets there are two."""

    id: int
    role: Role
    kind: Kind
    connections: int
    version: int
    release: int
    eid: str
    peer_host: str
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Device:
    """An RDMA device that the kernel's SMC knows."""

    name: str
    uses: int
    """How many link groups are on it."""
    is_active: bool
    """Is its port 1 up?"""


def eids() -> set[str]:
    """The kernel's user EIDs."""
    return {
        nlmsg.text(value).rstrip()
        for answer in _dump(_EIDS)
        for value in nlmsg.attributes(answer, _GENERIC.size).values()
    }


def set_eids(names: Iterable[str]) -> None:
    """Let these, four at most, be the kernel's user EIDs and no other. It lets nobody but root.

    :raises OSError: it refuses.
    """
    names = set(names)
    there = eids()
    for name in there - names:
        _tell(_REMOVE_EID, name)
    for name in names - there:
        _tell(_ADD_EID, name)


def groups() -> list[Group]:
    """The link groups of SMC-R."""
    found: list[tuple[Mapping[int, bytes], list[Link]]] = []
    for answer in _dump(_LINKS):  # a group, its links, the next group
        outer = nlmsg.attributes(answer, _GENERIC.size)
        if _OF_GROUP in outer:
            found.append((nlmsg.attributes(outer[_OF_GROUP]), []))
        if _OF_LINK in outer:
            found[-1][1].append(_link(nlmsg.attributes(outer[_OF_LINK])))
    return [_group(own, links) for own, links in found]


def _group(own: Mapping[int, bytes], links: list[Link]) -> Group:
    common = nlmsg.attributes(own.get(7, b""))
    return Group(
        id=nlmsg.number(own.get(1)),
        role=Role(nlmsg.number(own.get(2))),
        kind=Kind(nlmsg.number(own.get(3))),
        connections=nlmsg.number(own.get(6)),
        version=nlmsg.number(common.get(0)),
        release=nlmsg.number(common.get(1)),
        eid=nlmsg.text(common.get(3)).rstrip(),
        peer_host=nlmsg.text(common.get(4)).rstrip(),
        links=tuple(links),
    )


def _link(own: Mapping[int, bytes]) -> Link:
    return Link(
        number=nlmsg.number(own.get(1)),
        device=nlmsg.text(own.get(2)),
        port=nlmsg.number(own.get(3)),
        gid=nlmsg.text(own.get(4)),
        peer_gid=nlmsg.text(own.get(5)),
        connections=nlmsg.number(own.get(6)),
        state=_named(LinkState, nlmsg.number(own.get(10))),
    )


def devices() -> list[Device]:
    """The RDMA devices that the kernel's SMC may use."""
    found = []
    for answer in _dump(_DEVICES):
        own = nlmsg.attributes(nlmsg.attributes(answer, _GENERIC.size)[_OF_DEVICE])
        port = nlmsg.attributes(own.get(8, b""))
        active = nlmsg.number(port.get(4)) == 1
        found.append(Device(nlmsg.text(own.get(10)), nlmsg.number(own.get(1)), active))
    return found


def renew_ports() -> None:
    """Has the kernel look at the ports of both hosts again: it takes in their MTU when they come up."""

    def active() -> set[str]:
        return {each.name for each in devices() if each.is_active} & {A.device, B.device}

    with network.down(A):
        network.wait_until(lambda: not active(), "port that is down")
    network.wait_until(lambda: len(active()) == 2, "port that is up")


def fallbacks() -> dict[tuple[str, int], int]:
    """How often connections have fallen back since boot, by side ("client", "server") and code."""
    found = {}
    for answer in _dump(_FALLBACKS):
        own = nlmsg.attributes(nlmsg.attributes(answer, _GENERIC.size)[_OF_FALLBACK])
        side = "server" if nlmsg.number(own.get(1)) else "client"
        if nlmsg.number(own.get(4)):
            found[side, nlmsg.number(own[4])] = nlmsg.number(own.get(5))
    return found


@dataclass(frozen=True)
class Statistics:
    """What the kernel has counted since boot over SMC-R."""

    clients: int
    """Connections that it has made as SMC-R version 2."""
    servers: int
    """Connections that it has accepted as that."""
    urgent: int
    received_bytes: int
    sent_bytes: int


def statistics() -> Statistics:
    """The counters of SMC-R."""
    (answer,) = _dump(_STATISTICS)
    own = nlmsg.attributes(nlmsg.attributes(answer, _GENERIC.size)[_OF_STATISTICS])
    rdma = nlmsg.attributes(own[2])
    clients, servers, urgent, received, sent = (nlmsg.number(rdma.get(kind)) for kind in (8, 10, 15, 16, 17))
    return Statistics(clients, servers, urgent, received, sent)


def connections() -> list[Connection]:
    """Every SMC socket of the kernel, listeners included."""
    body = struct.pack("=BxxB48x", _AF_SMC, _EVERYTHING)
    return [_connection(answer) for answer in nlmsg.ask(nlmsg.SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, body, dump=True)]


def connection(port: int, peer_port: int) -> Connection:
    """The SMC socket that has the first port, and whose peer has the other.

    :raises LookupError: there is none.
    """
    listed = connections()
    for each in listed:
        if (each.port, each.peer_port) == (port, peer_port):
            return each
    raise LookupError(f"no SMC socket of port {port} to {peer_port} among {listed}")


def socket_of(inode: int) -> Connection:
    """The SMC socket with that inode, which stays the same when a connection breaks.

    :raises LookupError: there is none.
    """
    listed = connections()
    for each in listed:
        if each.inode == inode:
            return each
    raise LookupError(f"no SMC socket has the inode {inode} among {listed}")


def _connection(answer: bytes) -> Connection:
    _, state, mode, _, port, peer_port, inode = _DIAG.unpack_from(answer)
    own = nlmsg.attributes(answer, _DIAG.size)
    token, _, rmb, peer_rmb = struct.unpack_from("=4I", own.get(_CONNECTION, bytes(16)))
    reason, diagnosis = struct.unpack_from("=2I", own.get(_FALLBACK, bytes(8)))
    return Connection(
        port=int.from_bytes(port),
        peer_port=int.from_bytes(peer_port),
        inode=inode,
        state=_named(State, state),
        mode=Mode(mode),
        reason=reason,
        peer_diagnosis=diagnosis,
        device=nlmsg.text(own.get(_GROUP, b"")[1:65]),
        token=token,
        rmb=rmb,
        peer_rmb=peer_rmb,
    )


def _named(kind: type[EnumT], number: int) -> EnumT | int:
    try:
        return kind(number)
    except ValueError:
        return number


def _dump(command: int) -> list[bytes]:
    return nlmsg.ask(nlmsg.GENERIC, _family(), _GENERIC.pack(command, _VERSION), dump=True)


def _tell(command: int, eid: str) -> None:
    """A command about a user EID, which is exactly 32 characters for the kernel."""
    value = eid.ljust(EID_MAX).encode("ascii") + b"\0"
    body = _GENERIC.pack(command, _VERSION) + nlmsg.packed({1: value})
    try:
        nlmsg.ask(nlmsg.GENERIC, _family(), body)
    except BlockingIOError:
        pass  # it answers faults only, and before the question's call returns


@contextlib.contextmanager
def unloaded() -> Iterator[None]:
    """The kernel has no SMC, and loads none when it is asked for."""
    with network.setting("kernel.modprobe", "/bin/false"):
        network.run("modprobe", "--remove", "smc_diag", "smc")
        try:
            yield
        finally:
            network.run("modprobe", "--all", "smc", "smc_diag")
            _family.cache_clear()  # it has another number now


@functools.cache
def _family() -> int:
    body = _GENERIC.pack(_GET_FAMILY, 1) + nlmsg.packed({_FAMILY_NAME: _FAMILY})
    (answer,) = nlmsg.ask(nlmsg.GENERIC, _CONTROL, body)
    return nlmsg.number(nlmsg.attributes(answer, _GENERIC.size).get(_FAMILY_ID))
