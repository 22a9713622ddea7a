"""Which RDMA device, port and GIDs a TCP connection gets, or why none: by configuration, physical network or interface.

As the kernel chooses: the interface of the connection's route; the ports on its physical network if it has an id, else
those that are on the interface itself; the first active one with a GID that fits. An interface that is none of RDMA's, as
the loopback, has no device unless an id gives it one.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from smcfast import devices, log, netdev, netlink, pnet
from smcfast.devices import ACTIVE, ETHERNET, ROCE_V1, ROCE_V2, Gid, Port
from smcfast.reasons import explained, reason

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Sequence

    from smcfast.config import SmcConfig
    from smcfast.errors import Fallback
    from smcfast.netdev import Address, Interface
    from smcfast.pnet import Table

IPV6_PREFIXES_MAX: Final = 8
"""Prefixes that a Proposal has room for."""
HEADERS: Final = 96
"""Bytes of the headers of RoCE in an IP packet, by which the kernel gets from an interface's MTU to that of its device."""


@dataclass(frozen=True)
class Choice:
    """The device of one connection; at least one of the two GIDs is there."""

    device: str
    port: int
    netdev: str
    """The interface of the GIDs."""
    mac: bytes
    """The six bytes of its address."""
    mtu: int
    """The code of the greatest path MTU, 1 (256 bytes) to 5 (4096), as the interface's MTU allows; the device's own word,
    once it is open, counts."""
    v1: Gid | None
    """For version 1 of the handshake: RoCEv1, or RoCEv2 where the configuration allows that."""
    v2: Gid | None
    """For version 2: RoCEv2 with an IPv4 address."""
    ipv4: tuple[tuple[bytes, int], ...]
    """Subnets of the connection's interface with their lengths in bits, the connection's own first; IPv4 connections only."""
    ipv6: tuple[tuple[bytes, int], ...]
    """Likewise for IPv6 connections, eight at most."""


class Network(NamedTuple):
    """Where a connection is, and what else is there."""

    local: bytes
    """The own address: 4 or 16 bytes."""
    interface: Interface
    """That of the connection's route."""
    interfaces: dict[int, Interface]
    addresses: Sequence[Address]

    @property
    def base(self) -> Interface:
        """The interface at the bottom of the connection's."""
        return netdev.base(self.interface, self.interfaces)

    def named(self, name: str) -> Interface | None:
        """The interface called `name`."""
        return next((each for each in self.interfaces.values() if each.name == name), None)

    def of(self, interface: Interface) -> list[Address]:
        """The addresses of `interface`."""
        return [each for each in self.addresses if each.interface == interface.index]


def choose(tcp: socket.socket, config: SmcConfig) -> Choice | Fallback:
    """The device for the connected TCP socket `tcp`; else the reason, whose text has every device and why it is not."""
    if not devices.are_there():
        return reason("no_rdma_device")
    try:
        network = _network(tcp)
        table = pnet.Table() if config.device else pnet.table()
    except pnet.WrongTable as error:
        return explained("rdma_device", f"the table of physical networks is wrong: {error}")
    except OSError as error:
        return explained("rdma_device", f"the connection's network cannot be looked up: {error.strerror or error}")
    if network is None:
        return explained("rdma_device", "the connection has no route any more")
    return select(_ports(config), table, network, config)


def _ports(config: SmcConfig) -> tuple[Port, ...]:
    """The ports, with that place in their tables which the configuration names and which may be far behind free ones."""
    ports = devices.ports()
    index = config.gid_index
    if index is None:
        return ports
    entries = [devices.entry(port.device, port.number, index) for port in ports]
    pairs = zip(ports, entries, strict=True)
    return tuple(replace(port, gids=(gid,)) if gid is not None else port for port, gid in pairs)


def _network(tcp: socket.socket) -> Network | None:
    """Where `tcp` is; None when it is lost or has no route."""
    ends = netlink.ends(tcp)
    if ends is None:
        return None
    own, peer = ends
    route = netdev.route_of(tcp, own.host, own.port, peer.host, peer.port, own.scope or peer.scope)
    interfaces = netdev.interfaces()
    if route is None or route.interface not in interfaces:
        return None
    return Network(own.host, interfaces[route.interface], interfaces, netdev.addresses())


def select(ports: Sequence[Port], table: Table, network: Network, config: SmcConfig) -> Choice | Fallback:
    """The choice among `ports`, where nothing is looked up."""
    candidates, where = _candidates(ports, table, network, config)
    if not candidates:
        others = ", ".join(str(port) for port in ports)
        return explained("rdma_device", f"{where}; this machine has {others or 'no ports'}")
    skipped: list[_Skipped] = []
    for port in candidates:
        found = _examined(port, network, config)
        if isinstance(found, Choice):
            log.skipped([each.text for each in skipped])
            return found
        skipped.append(found)
    name = "rdma_gid" if any(each.name == "rdma_gid" for each in skipped) else "rdma_port"
    return explained(name, "; ".join(each.text for each in skipped))


class _Skipped(NamedTuple):
    """Why a port is not taken."""

    name: str
    """The reason."""
    text: str


def _candidates(ports: Sequence[Port], table: Table, network: Network, config: SmcConfig) -> tuple[list[Port], str]:
    """The ports to look at, and in words which there should be."""
    if config.device is not None:
        device, _, number = config.device.partition(":")
        chosen = [port for port in ports if port.device == device and number in ("", str(port.number))]
        return chosen, f"there is no RDMA device {config.device}, which the configuration names"
    base = network.base
    name = table.interfaces.get(base.name)
    if name is None:
        mine = [port for port in ports if any(_stands_on(gid, base, network) for gid in port.gids)]
        return mine, f"no RDMA device is on {base.name}, the interface of the connection"
    same = [port for port in ports if table.ports.get((port.device, port.number)) == name]
    return same, f"no RDMA device is on the physical network {name} of {base.name}"


def _stands_on(gid: Gid, base: Interface, network: Network) -> bool:
    interface = network.named(gid.netdev)
    return interface is not None and netdev.base(interface, network.interfaces) == base


def _examined(port: Port, network: Network, config: SmcConfig) -> Choice | _Skipped:
    if port.link_layer != ETHERNET:
        return _Skipped("rdma_port", f"{port} is {port.link_layer or 'of an unknown kind'}, not RoCE")
    if port.state != ACTIVE:
        return _Skipped("rdma_port", f"{port} is {port.state or 'in an unknown state'}, not {ACTIVE}")
    fits = _Fits(port, network, config)
    v1, v2 = fits.v1(), fits.v2()
    gid = v2 or v1
    interface = None if gid is None else network.named(gid.netdev)
    if gid is None or interface is None:
        return _Skipped("rdma_gid", f"{port} has no GID that fits: {fits.wanted()}")
    ipv4, ipv6 = _subnets(network)
    return Choice(port.device, port.number, gid.netdev, interface.mac, mtu_code(interface.mtu), v1, v2, ipv4, ipv6)


class _Fits:
    """The GIDs of one port that a connection may have."""

    def __init__(self, port: Port, network: Network, config: SmcConfig) -> None:
        self._port = port
        self._network = network
        self._config = config
        self._vlan = netdev.vlan(network.interface, network.interfaces)

    def v2(self) -> Gid | None:
        """The RoCEv2 GID with an IPv4 address for an IPv4 connection."""
        return self._routed() if len(self._network.local) == 4 else None

    def v1(self) -> Gid | None:
        """The RoCEv1 GID, else what the configuration allows instead."""
        if not any(_subnets(self._network)):
            return None
        native = self._first(gid for gid in self._usable() if gid.kind == ROCE_V1)
        return native or (self._routed() if self._config.rocev2_in_v1 else None)

    def wanted(self) -> str:
        """What is looked for, and what there is instead."""
        there = ", ".join(f"{gid.index} {gid.kind} {_text(gid.host)} on {gid.netdev}" for gid in self._port.gids)
        index = self._config.gid_index
        if index is not None:
            return f"gid_index={index} is not one for this connection; the table has {there or 'none'}"
        vlan = f" in VLAN {self._vlan}" if self._vlan else ""
        return f"wanted is RoCE v2 in the subnet of {_text(self._network.local)}{vlan}; the table has {there or 'none'}"

    def _routed(self) -> Gid | None:
        """The RoCEv2 GID of the connection's address family: that address itself, else another one of its subnet."""
        gids = [gid for gid in self._usable() if gid.kind == ROCE_V2 and len(gid.host) == len(self._network.local)]
        if self._config.gid_index is not None:
            return self._first(gids)
        near = [gid for gid in gids if self._is_near(gid)]
        return self._first(gid for gid in near if gid.host == self._network.local) or self._first(near)

    def _usable(self) -> list[Gid]:
        """GIDs whose interface is here, and in the connection's VLAN; or the one that the configuration names."""
        if self._config.gid_index is not None:
            return [gid for gid in self._port.gids if gid.index == self._config.gid_index]
        return [gid for gid in self._port.gids if self._is_in_vlan(gid)]

    def _is_in_vlan(self, gid: Gid) -> bool:
        interface = self._network.named(gid.netdev)
        return interface is not None and interface.vlan == self._vlan

    def _is_near(self, gid: Gid) -> bool:
        """Is the GID an address of its interface, and the connection's one in the subnet of that?"""
        interface = self._network.named(gid.netdev)
        addresses = [] if interface is None else self._network.of(interface)
        return any(each.host == gid.host and each.reaches(self._network.local) for each in addresses)

    @staticmethod
    def _first(gids: Iterable[Gid]) -> Gid | None:
        return next(iter(gids), None)


def _subnets(network: Network) -> tuple[tuple[tuple[bytes, int], ...], tuple[tuple[bytes, int], ...]]:
    """IPv4 and IPv6 subnets of the connection's interface, those that a Proposal of its kind names."""
    mine = [each for each in network.of(network.interface) if len(each.host) == len(network.local)]
    mine.sort(key=lambda each: not each.reaches(network.local))
    subnets = tuple(dict.fromkeys((each.subnet, each.length) for each in mine))
    if len(network.local) == 4:
        near = bool(mine) and mine[0].reaches(network.local)
        return (subnets if near else ()), ()
    # As the kernel does: what is link-local says nothing about where a host is.
    return (), tuple(each for each in subnets if not ipaddress.ip_address(each[0]).is_link_local)[:IPV6_PREFIXES_MAX]


def mtu_code(mtu: int) -> int:
    """The code of the greatest path MTU that fits into an interface's MTU of so many bytes."""
    room = mtu - HEADERS
    return max((code for code in range(1, 6) if 128 << code <= room), default=1)


def _text(host: bytes) -> str:
    return str(ipaddress.ip_address(host))
