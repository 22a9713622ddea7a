"""Real RDMA devices: what sysfs has, what the verbs say of the same, and which device a connection gets."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from smcfast import SmcConfig, choice, devices, pnet
from smcfast.choice import Choice
from smcfast.devices import ROCE_V2
from smcfast.errors import Fallback
from smcfast.pnet import Table
from vm.support import network, physical
from vm.support.hosts import A, B

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vm.support.hosts import Host

BY_VERBS = """
import json
from pyverbs.device import Context, get_device_list
found = []
for device in get_device_list():
    with Context(name=device.name.decode()) as context:
        port = context.query_port(1)
        gids = [[each.gid_index, each.gid_type, each.gid_str(), each.ndev_ifindex] for each in context.query_gid_table(64)]
        found.append([device.name.decode(), port.active_mtu, port.state, gids])
print(json.dumps(found))
"""
ROCE_V2_BY_VERBS = 2


@contextlib.contextmanager
def connected(family: socket.AddressFamily = socket.AF_INET) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection from host a to host b: both ends."""
    with socket.socket(family) as listener, socket.socket(family) as client:
        listener.bind((B.at(family), 0))
        listener.listen()
        client.settimeout(network.LIMIT)
        client.bind((A.at(family), 0))
        client.connect((B.at(family), listener.getsockname()[1]))
        server, _ = listener.accept()
        with server:
            yield client, server


def chosen(sock: socket.socket, **settings: Any) -> Choice:
    found = choice.choose(sock, SmcConfig(**settings))
    assert isinstance(found, Choice), found
    return found


def refused(sock: socket.socket, **settings: Any) -> Fallback:
    found = choice.choose(sock, SmcConfig(**settings))
    assert isinstance(found, Fallback), found
    return found


def test_sysfs_and_verbs_say_the_same() -> None:
    verbs = json.loads(network.run("/usr/bin/python3", "-c", BY_VERBS))
    ports = devices.ports()
    assert {port.device for port in ports} == {name for name, *_ in verbs} >= {A.device, B.device}
    for port in ports:
        (mtu, state, gids) = next(rest for name, *rest in verbs if name == port.device)
        assert (port.number, port.link_layer, port.state, state) == (1, "Ethernet", "ACTIVE", 4)
        assert {each.kind for each in port.gids} == {ROCE_V2}
        assert len(port.gids) >= 3
        ours = {
            (
                each.index,
                ROCE_V2_BY_VERBS,
                socket.inet_ntop(socket.AF_INET6, each.raw),
                socket.if_nametoindex(each.netdev),
            )
            for each in port.gids
        }
        theirs = {
            (index, kind, socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, gid)), interface)
            for index, kind, gid, interface in gids
        }
        assert ours == theirs
        interface = network.interface(A if port.device == A.device else B)
        assert choice.mtu_code(interface["mtu"]) == mtu


@pytest.mark.parametrize("size", [1500, 4200, 9000])
def test_the_mtu_of_a_choice_follows_the_interface(size: int) -> None:
    with network.mtu(size), connected() as (client, _):
        active = network.run("ibv_devinfo", "-d", A.device).partition("active_mtu:")[2].split()[0]
        assert 128 << chosen(client).mtu == int(active)


def test_each_end_gets_its_own_device() -> None:
    with connected() as ends:
        for sock, host in zip(ends, (A, B), strict=True):
            found = chosen(sock)
            assert (found.device, found.port, found.netdev) == (host.device, 1, host.interface)
            assert found.mac.hex(":") == network.interface(host)["address"]
            assert found.v1 is None
            assert found.v2 is not None
            assert (found.v2.kind, found.v2.host) == (ROCE_V2, socket.inet_aton(host.address))
            assert found.ipv4 == ((socket.inet_aton(host.address)[:3] + b"\0", 24),)
            assert found.ipv6 == ()


def test_ipv6_has_a_device_by_configuration_only() -> None:
    with connected(socket.AF_INET6) as ends:
        for sock, host in zip(ends, (A, B), strict=True):
            why = refused(sock)
            assert why.name == "rdma_gid"
            assert f"{host.device} port 1 has no GID that fits" in why.text
            found = chosen(sock, rocev2_in_v1=True)
            own = socket.inet_pton(socket.AF_INET6, host.address6)
            assert found.v1 is not None
            assert (found.device, found.v1.host, found.v2) == (host.device, own, None)
            assert (own[:8] + bytes(8), 64) in found.ipv6


def test_the_loopback_has_no_device() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            why = refused(client)
    assert why.name == "rdma_device"
    assert why.text.startswith("no RDMA device is on lo")


def test_the_configuration_may_name_another_device() -> None:
    with connected() as (client, _):
        found = chosen(client, device=f"{B.device}:1")
        assert (found.device, found.netdev) == (B.device, B.interface)
        index = found.v2.index if found.v2 else -1
        assert chosen(client, device=B.device, gid_index=index).v2 == found.v2
        assert refused(client, device=B.device, gid_index=200).name == "rdma_gid"
        assert refused(client, device="nowhere").name == "rdma_device"


def test_the_kernels_table_decides() -> None:
    """TCP goes over one cable, and its interfaces are on physical networks with the devices of another."""
    assert pnet.of_kernel() == Table()
    with network.another_cable() as others:
        entries = [
            physical.entry("net1", A.interface, others[0].device),
            physical.entry("net2", B.interface, others[1].device),
        ]
        with physical.table(*entries):
            assert pnet.of_kernel() == Table(
                {A.interface: "NET1", B.interface: "NET2"},
                {(others[0].device, 1): "NET1", (others[1].device, 1): "NET2"},
            )
            with connected() as ends:
                for sock, other in zip(ends, others, strict=True):
                    found = chosen(sock)
                    assert (found.device, found.netdev) == (other.device, other.interface)
                    assert found.v2 is not None
                    assert found.v2.host == socket.inet_aton(other.address)
        with physical.table(physical.entry("net3", A.interface, "elsewhere")), connected() as (sock, _):
            assert "no RDMA device is on the physical network NET3" in refused(sock).text
    with connected() as (sock, _):
        assert chosen(sock).device == A.device


def test_a_port_that_is_down_is_named() -> None:
    with connected() as (client, _):
        assert chosen(client).device == A.device
        with network.down(B):
            why = refused(client)
            assert why.name == "rdma_port"
            assert why.text == f"{A.device} port 1 is DOWN, not ACTIVE"


def test_a_device_that_is_pulled_out_is_gone() -> None:
    with connected() as (client, _):
        assert chosen(client).device == A.device
        network.remove_device(A)
        why = refused(client)
        assert why.name == "rdma_device"
        assert f"no RDMA device is on {A.interface}" in why.text
        assert f"{B.device} port 1" in why.text


@contextlib.contextmanager
def vlan(host: Host, peer: Host, number: int) -> Iterator[tuple[str, str]]:
    """A VLAN on the host's interface, with an address; its name and address. Routed as ``hosts.sh`` does it."""
    name, own, other = f"{host.interface}.{number}", *(f"10.95.0.{each.address[-1]}" for each in (host, peer))
    table = str(200 + int(host.address[-1]))
    network.run("ip", "link", "add", "link", host.interface, "name", name, "type", "vlan", "id", str(number))
    try:
        for setting, value in (("accept_local", 1), ("rp_filter", 0), ("arp_ignore", 1), ("arp_announce", 2)):
            with open(f"/proc/sys/net/ipv4/conf/{name}/{setting}", "w") as file:
                file.write(str(value))
        network.run("ip", "link", "set", name, "up")
        network.run("ip", "address", "add", f"{own}/24", "dev", name)
        network.run("ip", "rule", "add", "pref", str(50 + int(host.address[-1])), "iif", name, "lookup", "local")
        network.run("ip", "rule", "add", "pref", table, "to", other, "lookup", table)
        network.run("ip", "route", "add", other, "dev", name, "src", own, "table", table)
        yield name, own
    finally:
        network.run("ip", "link", "delete", name)
        for preference in (str(50 + int(host.address[-1])), table):
            network.run("ip", "rule", "delete", "pref", preference)


def has_gid(device: str, address: str) -> bool:
    (port,) = (each for each in devices.ports() if each.device == device)
    return any(gid.host == socket.inet_aton(address) for gid in port.gids)


def test_the_gid_is_in_the_connections_vlan() -> None:
    with vlan(A, B, 5) as (name, own), vlan(B, A, 5) as (_, other):
        network.wait_until(lambda: has_gid(A.device, own), f"GID of {own}")
        with socket.create_server((other, 0)) as listener:
            with socket.create_connection(listener.getsockname(), network.LIMIT, (own, 0)) as client:
                found = chosen(client)
        assert found.v2 is not None
        assert (found.device, found.netdev, found.v2.host) == (A.device, name, socket.inet_aton(own))
        with connected() as (sock, _):
            assert chosen(sock).netdev == A.interface
