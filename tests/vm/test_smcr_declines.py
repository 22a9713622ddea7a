"""What smcfast and the kernel say when they cannot speak SMC-R: the code on the wire and at both ends, and TCP goes on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

import smcfast
from smcfast import kernel as kernels
from vm.support import clc, network, smc
from vm.support.hosts import A, B
from vm.support.ours import CONFIG, Pair, meeting
from vm.support.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from vm.support.hosts import Host
    from vm.support.ours import Role
    from vm.support.peers import KernelPeer

    MakePeer = Callable[[], KernelPeer]

SEED, LENGTH = 29, 100_000
NO_R_DEVICE: Final = 0x0303_0002
NO_GID: Final = 0x0A00_0019
"""Local: smcfast has a device, and no address on it for this connection."""
PREFIX: Final = 0x0307_0000


@pytest.fixture
def loop_kind() -> str:
    """The core says what is said."""
    return "asyncio"


@contextlib.contextmanager
def elsewhere(host: Host, peer: Host) -> Iterator[Host]:
    """`host` at an address that is not in the subnet of its interface."""
    address = f"10.77.0.{host.address[-1]}"
    mac = network.interface(host)["address"]
    added = (
        f"address {{}} {address}/32 dev lo",
        f"route {{}} {address} dev {peer.interface} src {peer.address} table 77",
        f"rule {{}} pref 77 to {address} lookup 77",
        f"neighbour {{}} {address} lladdr {mac} dev {peer.interface}",
    )
    network.ip(*(line.format("add") for line in added))
    try:
        yield dataclasses.replace(host, address=address)
    finally:
        network.ip(*(line.format("delete") for line in added))


@contextlib.contextmanager
def another_prefix(host: Host) -> Iterator[Host]:
    """`host` takes its network of IPv6 for a smaller one than its peer does."""
    there, thus = (f"{host.address6}/{length} dev {host.interface}" for length in (64, 80))
    network.ip(f"address delete {there}", f"address add {thus} nodad")
    try:
        network.up(host, 80)
        yield host
    finally:
        network.ip(f"address delete {thus}")
        network.up(host)


@dataclass(frozen=True)
class Case:
    """Who declines what, and what is said of it."""

    role: Role
    """smcfast's."""
    by: str
    """Who declines: "client" or "server"."""
    version: int
    """Of the Decline."""
    code: int
    """On the wire."""
    why: int | None = None
    """smcfast's own reason, where it says more than the code."""
    eids: tuple[str, ...] = ("SMCFAST",)
    """The kernel's."""
    settings: dict[str, Any] = field(default_factory=dict)
    family: socket.AddressFamily = socket.AF_INET
    changed: Callable[[], AbstractContextManager[Host]] | None = None
    """What is done to the network; the server's host in it."""


V6: Final = socket.AF_INET6
CASES: Final = {
    "a server of the kernel's without an id": Case("client", "server", 2, smc.NO_DEVICE, eids=()),
    "a client of the kernel's without an id": Case("server", "client", 1, smc.NO_DEVICE, eids=()),
    "a server of the kernel's with another id": Case("client", "server", 2, smc.NO_DEVICE, eids=("OTHER",)),
    "a client of the kernel's with another id": Case("server", "server", 2, smc.NO_DEVICE, eids=("OTHER",)),
    "a server of the kernel's in another subnet": Case(
        "client", "server", 2, NO_R_DEVICE, changed=lambda: elsewhere(B, A)
    ),
    "a client of the kernel's from another subnet": Case(
        "server", "server", 2, NO_R_DEVICE, NO_GID, changed=lambda: elsewhere(A, B)
    ),
    "a server of the kernel's with another prefix": Case(
        "client", "server", 1, PREFIX, settings={"rocev2_in_v1": True}, family=V6, changed=lambda: another_prefix(B)
    ),
    "a server of the kernel's over IPv6": Case("client", "client", 1, smc.NO_DEVICE, NO_GID, family=V6),
    "a server of the kernel's over IPv6, to which version 1 is offered": Case(
        "client", "server", 1, smc.NO_DEVICE, settings={"rocev2_in_v1": True}, family=V6
    ),
    "a client of the kernel's over IPv6": Case("server", "client", 1, smc.NO_DEVICE, NO_GID, family=V6),
}


async def exchange(pair: Pair) -> None:
    """The bytes of the application, both ways."""
    sending = pair.kernel.start("send", pair.sock, SEED, LENGTH)
    Pattern(SEED).check(0, await pair.reader.readexactly(LENGTH))
    await pair.kernel.finish(sending)
    receiving = pair.kernel.start("receive", pair.sock, SEED + 1, LENGTH)
    pair.writer.write(Pattern(SEED + 1).take(0, LENGTH))
    await pair.writer.drain()
    await pair.kernel.finish(receiving)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_with(kernel_peer: MakePeer, case: Case) -> None:
    smc.set_eids(case.eids)
    config = dataclasses.replace(CONFIG, **case.settings)
    with contextlib.ExitStack() as stack:
        hosts = {"client": B, "server": A} if case.role == "server" else {"client": A, "server": B}
        if case.changed is not None:
            hosts["server"] = stack.enter_context(case.changed())
        ends = (hosts["client"], hosts["server"])
        async with meeting(case.role, kernel_peer(), config, case.family, ends) as both:
            with clc.cable(both.port) as cable:
                pair = await both.connect()
                await exchange(pair)
                messages = cable.messages()
            said = [each.kind for each in messages]
            assert said == ([clc.DECLINE] if case.by == "client" else [clc.PROPOSAL, clc.DECLINE])
            last = messages[-1]
            assert (last.is_servers, last.version) == (case.by == "server", case.version)
            assert (hex(last.diagnosis), last.is_out_of_sync) == (hex(case.code), False)
            found = await pair.assert_tcp(case.why or case.code)
            is_kernels = case.by != case.role
            reasons = (case.code, 0) if is_kernels else (smc.DECLINED, case.code)
            assert (hex(found.reason), hex(found.peer_diagnosis)) == tuple(map(hex, reasons))
            await pair.close()


async def test_two_of_smcfast_with_different_prefixes() -> None:
    config = dataclasses.replace(CONFIG, rocev2_in_v1=True)
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    with another_prefix(B):
        server = await smcfast.start_smc_server(lambda *pair: accepted.put(pair), B.address6, 0, config=config)
        port = server.sockets[0].getsockname()[1]
        with clc.cable(port) as cable:
            client = await smcfast.open_smc_connection(B.address6, port, local_addr=(A.address6, 0), config=config)
            ends = (client, await accepted.get())
            first, second = cable.messages()
        assert (first.kind, second.kind, second.version) == (clc.PROPOSAL, clc.DECLINE, 1)
        assert (second.diagnosis, second.is_out_of_sync) == (PREFIX, False)
        for _, writer in ends:
            assert writer.get_extra_info("smc").fallback.code == PREFIX
        await plain_exchange(*ends)
        server.close()


async def plain_exchange(near: Any, far: Any) -> None:
    """Bytes each way between streams, and the end."""
    for (reader, _), (_, writer) in ((near, far), (far, near)):
        writer.write(Pattern(SEED).take(0, LENGTH))
        Pattern(SEED).check(0, await reader.readexactly(LENGTH))
        await writer.drain()
    for _, writer in (near, far):
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("role", ["client", "server"])
async def test_a_host_without_the_kernels_module(role: Role) -> None:
    """Its programs know TCP alone. smcfast itself needs no module, and speaks SMC-R with smcfast."""
    with smc.unloaded():
        assert kernels.why_none() is not None
        for plain in (True, False):
            await meet_without_module(role, plain)


async def meet_without_module(role: Role, plain: bool) -> None:
    accepted: asyncio.Queue[Any] = asyncio.Queue()

    def accept(*pair: Any) -> Any:
        return accepted.put(pair)

    server: Any
    if plain and role == "client":
        server = await asyncio.start_server(accept, B.address, 0)
    else:
        server = await smcfast.start_smc_server(accept, B.address, 0, config=CONFIG)
    port = server.sockets[0].getsockname()[1]
    client: Any
    if plain and role == "server":
        client = await asyncio.open_connection(B.address, port, local_addr=(A.address, 0))
    else:
        client = await smcfast.open_smc_connection(B.address, port, local_addr=(A.address, 0), config=CONFIG)
    ends = {"client": client, "server": await accepted.get()}
    for name, (_, writer) in ends.items():
        info = writer.get_extra_info("smc")
        if not plain:
            assert info.path == "smc-r"
        elif name == role:
            assert (info.path, info.reason) == ("tcp", "peer_plain")
    await plain_exchange(*ends.values())
    server.close()
