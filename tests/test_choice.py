"""Which RDMA device a connection gets. Devices are folders here; real ones are in tests/vm."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

import pytest

from smcfast import SmcConfig, choice, devices
from smcfast.choice import Choice, Network, mtu_code, select
from smcfast.devices import ROCE_V1, ROCE_V2, Gid
from smcfast.errors import Fallback
from smcfast.netdev import Address, Interface, masked
from smcfast.pnet import Table
from support.sandbox import forbid_netlink, why_no_seccomp
from support.sysfs import V1, V2, add_port, gid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.channel import Channel
    from support.child import Child

MAC = bytes.fromhex("02fc00000001")
ETH0 = Interface(2, "eth0", MAC, 1500)
ETH1 = Interface(3, "eth1", MAC[:5] + b"\x02", 9000)
VLAN = Interface(4, "eth0.5", MAC[:5] + b"\x03", 1500, kind="vlan", vlan=5, lower=2)
ABOVE = Interface(5, "mv0", MAC[:5] + b"\x04", 1500, kind="macvlan", lower=4)
BOND = Interface(6, "bond0", MAC[:5] + b"\x05", 1500, kind="bond")
PART = Interface(7, "part", MAC[:5] + b"\x06", 1500, master=6)
LO = Interface(1, "lo", bytes(6), 65536)
INTERFACES = {each.index: each for each in (LO, ETH0, ETH1, VLAN, ABOVE, BOND, PART)}


def address(interface: Interface, text: str) -> Address:
    """`text` is as "10.9.0.1/24"."""
    given = ipaddress.ip_interface(text)
    length = given.network.prefixlen
    return Address(interface.index, given.packed, masked(given.packed, length), length)


ADDRESSES = [
    address(LO, "127.0.0.1/8"),
    address(ETH0, "10.8.0.1/16"),
    address(ETH0, "10.9.0.1/24"),
    address(ETH1, "10.9.0.3/24"),
    address(VLAN, "10.5.0.1/24"),
    address(ABOVE, "10.5.0.2/24"),
    address(BOND, "10.6.0.1/24"),
    address(ETH0, "fe80::1/64"),
    address(ETH0, "fd00::1/64"),
    address(ETH0, "fd01::1/48"),
    address(ETH1, "fd00::3/64"),
]
RXE0 = {
    0: ("fe80::1", V2, "eth0"),
    1: ("10.8.0.1", V2, "eth0"),
    3: ("10.9.0.1", V2, "eth0"),
    4: ("fd01::1", V2, "eth0"),
    5: ("fd00::1", V2, "eth0"),
    6: ("10.5.0.1", V2, "eth0.5"),
}
RXE1 = {0: ("fe80::3", V2, "eth1"), 1: ("10.9.0.3", V2, "eth1")}
MLX = {0: ("fe80::1", V1, "eth0"), 1: ("fe80::1", V2, "eth0"), 2: ("10.9.0.1", V1, "eth0"), 3: ("10.9.0.1", V2, "eth0")}


def network(local: str, interface: Interface = ETH0) -> Network:
    return Network(ipaddress.ip_address(local).packed, interface, INTERFACES, ADDRESSES)


def chosen(root: Path, where: Network, table: Table | None = None, **settings: object) -> Choice:
    found = select(devices.ports(str(root)), table or Table(), where, SmcConfig(**settings))  # type: ignore[arg-type]
    assert isinstance(found, Choice), found
    return found


def refused(root: Path, where: Network, table: Table | None = None, **settings: object) -> Fallback:
    found = select(devices.ports(str(root)), table or Table(), where, SmcConfig(**settings))  # type: ignore[arg-type]
    assert isinstance(found, Fallback), found
    return found


def test_the_device_of_the_interface(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", RXE0)
    add_port(tmp_path, "rxe1", RXE1)
    assert chosen(tmp_path, network("10.9.0.1")) == Choice(
        device="rxe0",
        port=1,
        netdev="eth0",
        mac=MAC,
        mtu=3,
        v1=None,
        v2=Gid(3, gid("10.9.0.1"), ROCE_V2, "eth0"),
        ipv4=((bytes([10, 9, 0, 0]), 24), (bytes([10, 8, 0, 0]), 16)),
        ipv6=(),
    )
    other = chosen(tmp_path, network("10.9.0.3", ETH1))
    assert (other.device, other.netdev, other.mtu, other.mac) == ("rxe1", "eth1", 5, ETH1.mac)


def test_a_roce_v1_gid_is_for_version_1(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", MLX)
    found = chosen(tmp_path, network("10.9.0.1"))
    assert found.v1 == Gid(0, gid("fe80::1"), ROCE_V1, "eth0")
    assert found.v2 == Gid(3, gid("10.9.0.1"), ROCE_V2, "eth0")


def test_ipv6_has_version_1_alone(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", MLX)
    found = chosen(tmp_path, network("fd00::1"))
    assert (found.v1, found.v2) == (Gid(0, gid("fe80::1"), ROCE_V1, "eth0"), None)
    assert found.ipv4 == ()
    assert found.ipv6 == ((ipaddress.ip_address("fd00::").packed, 64), (ipaddress.ip_address("fd01::").packed, 48))


@pytest.mark.parametrize(("local", "index"), [("fd00::1", 5), ("fd01::1", 4), ("10.9.0.1", 3), ("10.8.0.1", 1)])
def test_roce_v2_gids_in_version_1_by_configuration(tmp_path: Path, local: str, index: int) -> None:
    add_port(tmp_path, "rxe0", RXE0)
    found = chosen(tmp_path, network(local), rocev2_in_v1=True)
    assert found.v1 == Gid(index, gid(local), ROCE_V2, "eth0")
    assert found.v2 == (found.v1 if "." in local else None)


def test_ipv6_and_roce_v2_need_that_configuration(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", RXE0)
    why = refused(tmp_path, network("fd00::1"))
    assert why.name == "rdma_gid"
    assert "rxe0 port 1 has no GID that fits" in why.text
    assert "3 RoCE v2 10.9.0.1 on eth0" in why.text


def test_a_gid_of_the_subnet_where_the_address_has_none(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe1", RXE1)
    table = Table({"eth0": "NET1"}, {("rxe1", 1): "NET1"})
    assert chosen(tmp_path, network("10.9.0.1"), table).v2 == Gid(1, gid("10.9.0.3"), ROCE_V2, "eth1")


def test_the_connections_own_address_is_the_best_gid(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", {0: ("10.9.0.99", V2, "eth0"), 1: ("10.9.0.1", V2, "eth0")})
    where = network("10.9.0.1")
    second = where._replace(addresses=[*ADDRESSES, address(ETH0, "10.9.0.99/24")])
    assert chosen(tmp_path, second).v2 == Gid(1, gid("10.9.0.1"), ROCE_V2, "eth0")


def test_a_gid_that_is_no_address_any_more_does_not_fit(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", {1: ("10.9.0.77", V2, "eth0")})
    assert refused(tmp_path, network("10.9.0.1")).name == "rdma_gid"


def test_the_vlan_has_to_be_the_connections(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", RXE0)
    for interface, local in ((VLAN, "10.5.0.1"), (ABOVE, "10.5.0.2")):
        found = chosen(tmp_path, network(local, interface))
        assert (found.v2, found.netdev) == (Gid(6, gid("10.5.0.1"), ROCE_V2, "eth0.5"), "eth0.5")
    why = refused(tmp_path, network("10.5.0.9"))
    assert "6 RoCE v2 10.5.0.1 on eth0.5" in why.text
    assert " in VLAN 5" in refused(tmp_path, network("10.9.0.1", VLAN)).text


def test_a_gid_on_a_vlan_is_none_for_a_connection_without(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", {0: ("fe80::1", V1, "eth0.5"), 1: ("10.5.0.1", V2, "eth0.5")})
    assert refused(tmp_path, network("10.5.0.1")).name == "rdma_gid"


def test_a_bond_is_where_its_first_part_is(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_bond_0", {0: ("10.6.0.1", V2, "bond0")})
    assert chosen(tmp_path, network("10.6.0.1", BOND)).netdev == "bond0"
    table = Table({"part": "NET1"}, {("mlx5_bond_0", 1): "NET1"})
    assert chosen(tmp_path, network("10.6.0.1", BOND), table).netdev == "bond0"


def test_the_physical_network_decides_and_not_the_interface(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", RXE0)
    add_port(tmp_path, "rxe1", RXE1)
    table = Table({"eth0": "NET1"}, {("rxe1", 1): "NET1", ("rxe0", 1): "NET2"})
    assert chosen(tmp_path, network("10.9.0.1"), table).device == "rxe1"
    lonely = refused(tmp_path, network("10.9.0.1"), Table({"eth0": "NET3"}, {("rxe1", 1): "NET1"}))
    assert lonely.name == "rdma_device"
    assert lonely.text.startswith("no RDMA device is on the physical network NET3 of eth0")
    assert lonely.text.endswith("this machine has rxe0 port 1, rxe1 port 1")
    # An entry of a port alone gives the interface no network.
    assert chosen(tmp_path, network("10.9.0.1"), Table({}, {("rxe0", 1): "NET1"})).device == "rxe0"


def test_the_loopback_has_no_device_unless_a_network_gives_it_one(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", RXE0)
    why = refused(tmp_path, network("10.9.0.1", LO))
    assert why.text.startswith("no RDMA device is on lo, the interface of the connection")
    table = Table({"lo": "NET1"}, {("rxe0", 1): "NET1"})
    assert chosen(tmp_path, network("10.9.0.1", LO), table).device == "rxe0"


def test_the_configuration_decides_before_all(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", RXE0)
    add_port(tmp_path, "mlx5_0", {0: ("10.9.0.3", V2, "eth1")}, port=2)
    add_port(tmp_path, "mlx5_0", {0: ("10.9.0.3", V2, "eth1")}, port=10)
    table = Table({"eth0": "NET1"}, {("rxe0", 1): "NET1"})
    assert chosen(tmp_path, network("10.9.0.1"), table, device="mlx5_0").port == 2
    assert chosen(tmp_path, network("10.9.0.1"), table, device="mlx5_0:10").port == 10
    why = refused(tmp_path, network("10.9.0.1"), table, device="mlx5_0:3")
    assert why.name == "rdma_device"
    assert "no RDMA device mlx5_0:3, which the configuration names" in why.text
    assert "mlx5_0 port 2, mlx5_0 port 10, rxe0 port 1" in why.text


def test_a_place_in_the_table_by_configuration(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", MLX)
    v2 = chosen(tmp_path, network("10.8.0.1"), gid_index=3)
    assert (v2.v1, v2.v2) == (None, Gid(3, gid("10.9.0.1"), ROCE_V2, "eth0"))
    v1 = chosen(tmp_path, network("10.9.0.1"), gid_index=2)
    assert (v1.v1, v1.v2) == (Gid(2, gid("10.9.0.1"), ROCE_V1, "eth0"), None)
    both = chosen(tmp_path, network("10.9.0.1"), gid_index=3, rocev2_in_v1=True)
    assert both.v1 == both.v2
    for index in (1, 7, 255):  # no IPv4 address, a free place, no place
        why = refused(tmp_path, network("10.9.0.1"), gid_index=index)
        assert f"gid_index={index} is not one for this connection" in why.text


def test_ports_that_are_not_active_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_port(tmp_path, "a", RXE0, state="1: DOWN")
    add_port(tmp_path, "b", RXE0, link_layer="InfiniBand")
    why = refused(tmp_path, network("10.9.0.1"))
    assert why.name == "rdma_port"
    assert why.text == "a port 1 is DOWN, not ACTIVE; b port 1 is InfiniBand, not RoCE"
    add_port(tmp_path, "c", {0: ("10.8.0.1", V2, "eth0")})
    assert refused(tmp_path, network("10.9.0.1")).name == "rdma_gid"
    add_port(tmp_path, "d", RXE0)
    caplog.set_level("DEBUG", "smcfast")
    assert chosen(tmp_path, network("10.9.0.1")).device == "d"
    assert f"passed over: {why.text}; c port 1 has no GID that fits" in caplog.text


def test_devices_are_looked_at_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("rxe10", "rxe9", "mlx5_0"):
        add_port(tmp_path, name, RXE0)
    assert [port.device for port in devices.ports(str(tmp_path))] == ["mlx5_0", "rxe9", "rxe10"]


def test_what_is_no_table_is_none(tmp_path: Path) -> None:
    """Whatever stands in the files: no exception, and no entry."""
    add_port(tmp_path, "rxe0", RXE0)
    folder = tmp_path / "class" / "infiniband" / "rxe0" / "ports" / "1"
    (folder / "gids" / "0").write_text("fe80:0000\n")
    (folder / "gids" / "1").write_bytes(b"\xff" * 39)
    (folder / "gids" / "nine").write_text("")
    (folder / "gid_attrs" / "types" / "3").write_text("RoCE v3\n")
    (folder / "gid_attrs" / "ndevs" / "4").write_text("\n")
    (folder / "gid_attrs" / "ndevs" / "5").unlink()
    (folder / "state").unlink()
    (port,) = devices.ports(str(tmp_path))
    assert [each.index for each in port.gids] == [6]
    assert port.state == ""
    assert devices.ports(str(tmp_path / "nowhere")) == ()
    assert not devices.are_there(str(tmp_path / "nowhere"))
    assert devices.are_there(str(tmp_path))


def test_a_table_ends_where_many_places_are_free(tmp_path: Path) -> None:
    """A place behind them is one that the configuration can name."""
    near, far = devices.FREE_MAX, 2 * devices.FREE_MAX + 2
    gids = {near: ("10.8.0.1", V2, "eth0"), far: ("10.9.0.1", V2, "eth0")}
    add_port(tmp_path, "rxe0", gids, places=1024)
    (port,) = devices.ports(str(tmp_path))
    assert [each.index for each in port.gids] == [near]
    assert devices.entry("rxe0", 1, far, str(tmp_path)) == Gid(far, gid("10.9.0.1"), ROCE_V2, "eth0")
    assert devices.entry("rxe0", 1, far + 1, str(tmp_path)) is None
    assert devices.entry("rxe0", 1, 4711, str(tmp_path)) is None


@pytest.mark.parametrize(
    ("mtu", "code"), [(68, 1), (351, 1), (608, 2), (1119, 2), (1120, 3), (1500, 3), (4191, 4), (4192, 5), (9000, 5)]
)
def test_the_mtu_of_an_interface_leaves_room_for_headers(mtu: int, code: int) -> None:
    assert mtu_code(mtu) == code


@pytest.fixture
def connected() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        yield sock


def devices_in(root: str) -> None:
    """`choice.choose` sees the devices of this folder."""
    for function in (devices.ports, devices.are_there, devices.entry):
        function.__defaults__ = (root,)  # type: ignore[attr-defined]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    devices_in(str(tmp_path))
    yield tmp_path
    devices_in(devices.SYS)


def test_a_machine_without_devices(connected: socket.socket, root: Path) -> None:
    assert choice.choose(connected, SmcConfig()).name == "no_rdma_device"  # type: ignore[union-attr]


def test_a_real_connection(connected: socket.socket, root: Path) -> None:
    """The loopback of this machine, and a device that is on it."""
    add_port(root, "rxe0", {0: ("::1", V2, "lo"), 77: ("127.0.0.1", V2, "lo")}, places=100)
    entry = Gid(77, gid("127.0.0.1"), ROCE_V2, "lo")
    found = choice.choose(connected, SmcConfig(device="rxe0", gid_index=77))
    assert isinstance(found, Choice), found
    assert (found.v2, found.ipv4) == (entry, ((bytes([127, 0, 0, 0]), 8),))
    (root / "class" / "infiniband" / "rxe0" / "ports" / "1" / "state").write_text("1: DOWN\n")
    for config in (SmcConfig(), SmcConfig(device="rxe0", gid_index=77), SmcConfig(gid_index=78)):
        why = choice.choose(connected, config)
        assert isinstance(why, Fallback)
        assert (why.name, why.text) == ("rdma_port", "rxe0 port 1 is DOWN, not ACTIVE")


def test_a_wrong_table_of_networks_is_the_reason(
    connected: socket.socket, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_port(root, "rxe0", {2: ("127.0.0.1", V2, "lo")})
    (root / "smcfast").mkdir()
    (root / "smcfast" / "pnet").write_text("NET1 lo\nNET2 lo\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(root))
    why = choice.choose(connected, SmcConfig())
    assert isinstance(why, Fallback)
    assert why.name == "rdma_device"
    assert why.text.endswith(f"{root}/smcfast/pnet, line 2: lo is on NET1 already")
    # A device that is named needs no table.
    assert isinstance(choice.choose(connected, SmcConfig(device="rxe0")), Choice)


def test_a_lost_connection_has_no_device(connected: socket.socket, root: Path) -> None:
    add_port(root, "rxe0", {2: ("127.0.0.1", V2, "lo")})
    connected.close()
    with socket.socket() as unconnected:
        why = choice.choose(unconnected, SmcConfig(device="rxe0"))
    assert why == choice.explained("rdma_device", "the connection has no route any more")


def choose_without_netlink(channel: Channel, root: str) -> list[str]:
    devices_in(root)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as connection:
            forbid_netlink()
            why = choice.choose(connection, SmcConfig())
    assert isinstance(why, Fallback)
    return [why.name, why.text]


@pytest.mark.skipif(why_no_seccomp() is not None, reason=str(why_no_seccomp()))
def test_a_sandbox_without_netlink(spawn: Callable[..., Child], tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", {2: ("127.0.0.1", V2, "lo")})
    name, text = spawn(choose_without_netlink, str(tmp_path)).result()
    assert name == "rdma_device"
    assert text.startswith("the connection's network cannot be looked up: ")
