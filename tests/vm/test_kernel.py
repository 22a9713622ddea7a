"""The machine itself: two hosts, software RoCE between them, and the kernel's SMC, which says of itself what it does."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

import pytest

from vm.conftest import EID
from vm.support import network, perftest, smc
from vm.support.hosts import A, B
from vm.support.peers import PeerFailed
from vm.support.smc import Mode, Role, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from vm.support.peers import KernelPeer

    MakePeer = Callable[[], KernelPeer]

SEED = 7
MORE = 3_000_001


@pytest.fixture
def loop_kind() -> str:
    """One kind is enough where nothing but steps are waited for."""
    return "asyncio"


async def connected(
    client: KernelPeer, server: KernelPeer, at: tuple[str, str] = (A.address, B.address)
) -> tuple[int, int]:
    """The sockets of a connection from the one address to the other."""
    listener, port = await server.listen(at[1])
    accepting = server.start("accept", listener)
    near = await client.connect(at[1], port, at[0])
    return near, await server.finish(accepting)


async def test_two_programs_of_the_kernel_speak_smc_r(kernel_peer: MakePeer) -> None:
    client, server = kernel_peer(), kernel_peer()
    before = smc.statistics()
    near, far = await connected(client, server)
    for peer, sock, device in ((client, near, A.device), (server, far, B.device)):
        found = await peer.about(sock)
        assert (found.mode, found.state, found.device, found.reason) == (Mode.SMC_R, State.ACTIVE, device, 0)
    there = [client.start("send", near, SEED, MORE), client.start("receive", near, SEED + 1, MORE)]
    back = [server.start("receive", far, SEED, MORE), server.start("send", far, SEED + 1, MORE)]
    for ticket in there:
        await client.finish(ticket)
    for ticket in back:
        await server.finish(ticket)
    after = smc.statistics()
    assert (after.clients, after.servers) == (before.clients + 1, before.servers + 1)
    assert after.sent_bytes - before.sent_bytes == 2 * MORE


async def test_link_groups_are_seen_from_both_sides(kernel_peer: MakePeer) -> None:
    await connected(kernel_peer(), kernel_peer())
    groups = {group.role: group for group in smc.groups() if group.connections}
    assert set(groups) == {Role.CLIENT, Role.SERVER}
    for group in groups.values():
        assert (group.eid, group.version) == (EID, 2)
        (link,) = (link for link in group.links if link.connections)
        here, there = (A, B) if group.role == Role.CLIENT else (B, A)
        assert (link.device, link.gid, link.peer_gid) == (here.device, here.gid, there.gid)
    assert {device.name for device in smc.devices()} >= {A.device, B.device}
    assert all(device.is_active for device in smc.devices())


async def test_half_close_urgent_data_and_the_end(kernel_peer: MakePeer) -> None:
    client, server = kernel_peer(), kernel_peer()
    near, far = await connected(client, server)
    await client.do("send_bytes", near, b"ab".hex())
    await client.do("send_urgent", near, ord("!"))
    await client.do("half_close", near)
    assert bytes.fromhex(await server.do("receive_some", far, 10)) == b"ab"
    assert await server.do("receive_urgent", far) == ord("!")
    assert await server.do("receive_some", far, 10) == ""
    await server.do("send", far, SEED, 1000)  # the other direction is open
    await server.do("close", far)
    assert await client.do("receive_to_end", near, SEED) == 1000


async def test_data_that_nobody_has_read_end_in_an_abort(kernel_peer: MakePeer) -> None:
    client, server = kernel_peer(), kernel_peer()
    near, far = await connected(client, server)
    await client.do("send", near, SEED, 1000)
    await server.do("receive", far, SEED, 1)
    await server.do("close", far)
    assert await client.do("receive_to_end", near, SEED) == 0  # a reader of the kernel's may take it for the end
    assert (await client.about(near)).state is State.PROCESSABORT


@pytest.mark.parametrize("speaks", ["client", "server"])
async def test_without_a_common_eid_it_is_tcp(kernel_peer: MakePeer, speaks: str) -> None:
    smc.set_eids([])
    client, server = kernel_peer(), kernel_peer()
    before = smc.fallbacks()
    near, far = await connected(client, server)
    here, there = await client.about(near), await server.about(far)
    assert (here.mode, there.mode) == (Mode.TCP, Mode.TCP)
    assert (here.reason, there.reason, there.peer_diagnosis) == (smc.NO_DEVICE, smc.DECLINED, smc.NO_DEVICE)
    after = smc.fallbacks()
    assert after["client", smc.NO_DEVICE] == before.get(("client", smc.NO_DEVICE), 0) + 1
    first, second = ((client, near), (server, far)) if speaks == "client" else ((server, far), (client, near))
    await first[0].do("send", first[1], SEED, 100_000)
    await second[0].do("receive", second[1], SEED, 100_000)


async def test_ipv6_is_tcp(kernel_peer: MakePeer) -> None:
    client, server = kernel_peer(), kernel_peer()
    near, far = await connected(client, server, (A.address6, B.address6))
    here, there = await client.about(near), await server.about(far)
    assert (here.mode, there.mode) == (Mode.TCP, Mode.TCP)
    assert (await client.do("names", near))[0][0] == A.address6
    await client.do("send", near, SEED, 100_000)
    await server.do("receive", far, SEED, 100_000)


async def test_packets_are_lost_and_no_byte_is(kernel_peer: MakePeer) -> None:
    client, server = kernel_peer(), kernel_peer()
    near, far = await connected(client, server)
    with network.loss(2):
        sending = client.start("send", near, SEED, 300_000)
        await server.do("receive", far, SEED, 300_000)
        await client.finish(sending)
        assert "Sent" in network.run("tc", "-s", "qdisc", "show", "dev", A.interface)
    assert (await client.about(near)).mode is Mode.SMC_R


async def test_a_capture_has_the_handshake(kernel_peer: MakePeer) -> None:
    client, server = kernel_peer(), kernel_peer()
    with network.capture("handshake", "tcp") as captured:
        await connected(client, server)
    assert b"\xe2\xd4\xc3\xd9" in captured.path.read_bytes()


async def test_devices_come_and_go(kernel_peer: MakePeer) -> None:
    network.remove_device(A)
    client, server = kernel_peer(), kernel_peer()
    near, _ = await connected(client, server)
    found = await client.about(near)
    assert (found.mode, found.reason) == (Mode.TCP, smc.NO_DEVICE)
    network.renew_devices()
    assert smc.groups() == []
    near, _ = await connected(client, server)
    assert (await client.about(near)).mode is Mode.SMC_R


async def test_a_killed_program_ends_its_connection(kernel_peer: MakePeer) -> None:
    client, server = kernel_peer(), kernel_peer()
    near, _ = await connected(client, server)
    server.kill()
    assert await client.do("receive_to_end", near, SEED) == 0
    assert (await client.about(near)).state is State.APPCLOSEWAIT1  # the kernel has closed it in order


async def test_a_step_that_fails_says_why(kernel_peer: MakePeer) -> None:
    peer = kernel_peer()
    _, port = await peer.listen(A.address)
    with pytest.raises(PeerFailed, match="ConnectionRefusedError") as caught:
        await peer.connect(B.address, port)
    assert caught.value.errno == errno.ECONNREFUSED


def test_settings_come_back() -> None:
    with network.setting("net.smc.smcr_testlink_time", 3):
        assert network.run("sysctl", "-n", "net.smc.smcr_testlink_time") == "3\n"
    assert network.run("sysctl", "-n", "net.smc.smcr_testlink_time") != "3\n"


@pytest.mark.parametrize("size", [1400, 9000])
async def test_the_mtu_of_a_device_follows_its_interface(size: int) -> None:
    with network.mtu(size):
        assert network.interface(A)["mtu"] == size
        wanted = {1400: "1024", 9000: "4096"}[size]
        assert f"active_mtu:\t\t{wanted} " in await asyncio.to_thread(network.run, "ibv_devinfo", "-d", A.device)


def test_the_raw_verbs_work() -> None:
    assert perftest.round_trip_us(count=50) > 0
    assert perftest.rate_mb_s(count=20) > 0


def test_a_cable_that_was_cut_comes_back(family: socket.AddressFamily) -> None:
    with network.down(B):
        assert "UP" not in network.interface(B)["flags"]
    with socket.socket(family) as listener, socket.socket(family) as client:
        listener.bind((B.at(family), 0))
        listener.listen()
        client.settimeout(network.LIMIT)
        client.bind((A.at(family), 0))
        client.connect((B.at(family), listener.getsockname()[1]))
        listener.accept()[0].close()
