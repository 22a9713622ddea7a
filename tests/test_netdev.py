"""Interfaces, addresses and routes of real network namespaces; VLANs and bonds, which not every kernel has, as messages."""

from __future__ import annotations

import ipaddress
import socket
import struct
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from smcfast import netdev, netlink, nlmsg
from support.namespaces import networks, why_none

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.channel import Channel
    from support.child import Child
    from support.namespaces import Network

    Spawn = Callable[..., Child]

needs_namespaces = pytest.mark.skipif(why_none() is not None, reason=str(why_none()))


@pytest.fixture
def here() -> Iterator[Network]:
    """A network namespace with one end of a cable."""
    with networks() as (one, _):
        yield one


def ip(network: Network, *arguments: str) -> None:
    subprocess.run(["ip", "-n", network.name, *arguments], check=True, capture_output=True, text=True, timeout=10)


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def look(_: Channel) -> dict[str, Any]:
    """Interfaces by name with the one at the bottom, and addresses of each."""
    found = netdev.interfaces()
    addresses = netdev.addresses()
    return {
        each.name: {
            "kind": each.kind,
            "mtu": each.mtu,
            "mac": each.mac.hex(":"),
            "base": netdev.base(each, found).name,
            "addresses": [
                [str(ipaddress.ip_address(one.host)), str(ipaddress.ip_address(one.subnet)), one.length]
                for one in addresses
                if one.interface == each.index
            ],
        }
        for each in found.values()
    }


def routes(_: Channel, questions: list[tuple[str, str]]) -> list[Any]:
    """For each destination and source the interface, and whether there is no gateway."""
    found = netdev.interfaces()
    answers = [netdev.route(packed(to), packed(source)) for to, source in questions]
    return [answer and [found[answer.interface].name, answer.direct] for answer in answers]


def route_of_a_connection(_: Channel, host: str, mark: int, interface: str) -> Any:
    """That of a client connected over the loopback."""
    found = netdev.interfaces()
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        with socket.create_connection(listener.getsockname()[:2]) as client:
            if mark:
                client.setsockopt(socket.SOL_SOCKET, netdev._SO_MARK, mark)
            if interface:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            ends = netlink.ends(client)
            assert ends is not None
            own, peer = ends
            answer = netdev.route_of(client, own.host, own.port, peer.host, peer.port, 0)
    return answer and [found[answer.interface].name, answer.direct]


@needs_namespaces
def test_interfaces_and_their_addresses(here: Network, spawn: Spawn) -> None:
    ip(here, "link", "set", "cable", "mtu", "1400")
    ip(here, "address", "add", "10.7.0.1", "peer", "10.7.9.2/32", "dev", "cable")
    found = spawn(look, within=here.command).result()
    assert set(found) == {"lo", "cable"}
    cable = found["cable"]
    assert (cable["kind"], cable["mtu"], cable["base"]) == ("veth", 1400, "cable")
    shown = subprocess.run(["ip", "-n", here.name, "link", "show", "cable"], capture_output=True, text=True, check=True)
    assert cable["mac"] in shown.stdout
    assert [here.address, "10.199.0.0", 24] in cable["addresses"]
    assert [here.address6, "fd00:199::", 64] in cable["addresses"]
    assert ["10.7.0.1", "10.7.9.2", 32] in cable["addresses"]
    assert ["127.0.0.1", "127.0.0.0", 8] in found["lo"]["addresses"]


@needs_namespaces
def test_the_interface_at_the_bottom(here: Network, spawn: Spawn) -> None:
    """A veth names its other end as its link, and does not stand on it."""
    ip(here, "link", "add", "near", "type", "veth", "peer", "name", "far")
    ip(here, "link", "add", "link", "near", "name", "above", "type", "macvlan")
    ip(here, "link", "add", "bridge0", "type", "bridge")
    ip(here, "link", "set", "cable", "master", "bridge0")
    ip(here, "link", "add", "link", "bridge0", "name", "top", "type", "macvlan")
    found = spawn(look, within=here.command).result()
    bases = {name: each["base"] for name, each in found.items()}
    assert bases == {
        "lo": "lo",
        "cable": "cable",
        "near": "near",
        "far": "far",
        "above": "near",
        "bridge0": "cable",
        "top": "cable",
    }


@needs_namespaces
def test_routes(here: Network, spawn: Spawn) -> None:
    ip(here, "route", "add", "10.50.0.0/16", "via", "10.199.0.2")
    ip(here, "route", "add", "fd50::/64", "via", "fd00:199::2")
    ip(here, "route", "add", "unreachable", "10.60.0.0/16")
    ip(here, "route", "add", "prohibit", "10.61.0.0/16")
    questions = {
        ("10.199.0.2", here.address): ["cable", True],
        ("fd00:199::2", here.address6): ["cable", True],
        ("10.50.1.1", here.address): ["cable", False],
        ("fd50::1", here.address6): ["cable", False],
        (here.address, here.address): ["lo", True],
        (here.address6, here.address6): ["lo", True],
        ("127.0.0.1", "127.0.0.1"): ["lo", True],
        ("10.60.1.1", here.address): None,
        ("10.61.1.1", here.address): None,
        ("10.70.1.1", here.address): None,
        ("10.199.0.2", "10.199.0.77"): None,  # not an own address
    }
    assert spawn(routes, list(questions), within=here.command).result() == list(questions.values())


@needs_namespaces
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_route_of_a_connection_is_that_of_its_socket(here: Network, spawn: Spawn, host: str) -> None:
    """Its mark and its interface count, as they do for its packets."""
    assert spawn(route_of_a_connection, host, 0, "", within=here.command).result() == ["lo", True]
    family = "-6" if ":" in host else "-4"
    # The table of local addresses comes first unless it is moved.
    ip(here, family, "rule", "add", "priority", "1000", "lookup", "local")
    ip(here, family, "rule", "delete", "priority", "0")
    ip(here, family, "rule", "add", "priority", "10", "fwmark", "7", "lookup", "77")
    ip(here, family, "route", "add", "unreachable", "default", "table", "77")
    assert spawn(route_of_a_connection, host, 7, "", within=here.command).result() is None
    if family == "-4":
        bound = spawn(route_of_a_connection, host, 0, "cable", within=here.command).result()
        assert bound is None or bound[0] == "cable"


def attribute(kind: int, value: bytes) -> bytes:
    return nlmsg.packed({kind: value})


def link(index: int, name: str, *more: bytes) -> bytes:
    header = struct.pack("=BxHiII", 0, 1, index, 0, 0)
    return header + attribute(3, name.encode() + b"\0") + attribute(4, struct.pack("=I", 1500)) + b"".join(more)


def test_a_vlan_and_what_it_stands_on() -> None:
    info = attribute(18 | 0x8000, attribute(1, b"vlan\0") + attribute(2 | 0x8000, attribute(1, struct.pack("=H", 5))))
    vlan = netdev._interface(link(4, "eth0.5", attribute(5, struct.pack("=I", 2)), info))
    assert (vlan.name, vlan.kind, vlan.vlan, vlan.lower, vlan.mtu) == ("eth0.5", "vlan", 5, 2, 1500)
    eth0 = netdev._interface(link(2, "eth0"))
    above = netdev.Interface(9, "mv0", b"", 1500, kind="macvlan", lower=4)
    known = {each.index: each for each in (vlan, eth0, above)}
    assert netdev.base(above, known) == eth0
    assert [netdev.vlan(each, known) for each in (above, vlan, eth0)] == [5, 5, 0]


def test_an_interface_that_stands_on_one_of_another_namespace_is_at_the_bottom() -> None:
    info = attribute(18, attribute(1, b"macvlan\0"))
    interface = netdev._interface(link(4, "mv0", attribute(5, struct.pack("=I", 2)), info, attribute(37, bytes(4))))
    assert interface.lower == 0


def test_the_first_part_of_a_bond() -> None:
    bond = netdev.Interface(3, "bond0", b"", 1500, kind="bond")
    parts = [netdev.Interface(index, f"eth{index}", b"", 1500, master=3) for index in (9, 5, 7)]
    known = {each.index: each for each in (bond, *parts)}
    assert netdev.base(bond, known).name == "eth5"


def test_interfaces_in_a_circle_have_an_end() -> None:
    one, two = (netdev.Interface(index, "", b"", 1500, lower=3 - index) for index in (1, 2))
    assert netdev.base(one, {1: one, 2: two}) in (one, two)
    assert netdev.vlan(one, {1: one, 2: two}) == 0


@pytest.mark.parametrize(
    ("host", "length", "expected"),
    [
        ("10.9.1.77", 24, "10.9.1.0"),
        ("10.9.1.77", 0, "0.0.0.0"),
        ("10.9.1.77", 32, "10.9.1.77"),
        ("fd00::7", 64, "fd00::"),
    ],
)
def test_the_bits_of_a_subnet(host: str, length: int, expected: str) -> None:
    assert netdev.masked(packed(host), length) == packed(expected)


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        (netdev._interface, bytes(15)),
        (netdev._interface, bytes(16) + b"\x20\0\3\0"),
        (netdev._interface, bytes(16) + b"\2\0\3\0"),
        (netdev._interface, link(4, "x", attribute(4, bytes(3)))),
        (netdev._address, bytes(7)),
        (netdev._address, bytes(8) + attribute(1, bytes(5))),
        (netdev._address, bytes(8)),
        (netdev._address, struct.pack("=BBBBI", 2, 33, 0, 0, 1) + attribute(1, bytes(4))),
    ],
)
def test_an_answer_that_is_none(function: Callable[[bytes], object], answer: bytes) -> None:
    with pytest.raises(nlmsg.Malformed):
        function(answer)
