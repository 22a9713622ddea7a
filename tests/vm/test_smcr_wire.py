"""What passes the cable, read by Wireshark's dissector: TCP options and CLC messages, the kernel's and smcfast's."""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

import smcfast
from smcfast import reasons
from vm.support import dissected, network, smc
from vm.support.hosts import A, B
from vm.support.ours import CONFIG, EID, meeting

if TYPE_CHECKING:
    from collections.abc import Callable

    from smcfast import SmcInfo
    from vm.support.dissected import Fields
    from vm.support.peers import KernelPeer

    MakePeer = Callable[[], KernelPeer]

KERNELS, OURS = "01:01:fe:06:e2:d4:c3:d9", "fe:06:e2:d4:c3:d9:01:01"
"""The option as the kernel pads it, and as smcfast does."""
PROPOSAL, ACCEPT, CONFIRM, DECLINE = "1", "2", "3", "4"
V1: Final = dataclasses.replace(CONFIG, rocev2_in_v1=True)
MEMORY: Final = smcfast.SmcConfig(paths=("smc-d",))
NAMES: Final = {
    ACCEPT: ("smc.accept.server.qp.number", "smc.accept.server.preferred.gid", "smc.accept.rmb.buffer.size",
             "smc.accept.qp.mtu.value", "smc.accept.eid"),
    CONFIRM: ("smc.confirm.client.qp.number", "smc.client.gid", "smc.confirm.rmb.buffer.size",
              "smc.confirm.qp.mtu.value", "smc.confirm.eid"),
}  # fmt: skip
"""How the dissector calls queue pair, GID, size of the buffer, MTU and EID of an SMC-R message."""
SMALLEST_RMB: Final = 16384


@pytest.fixture
def loop_kind() -> str:
    """What is sent is the core's."""
    return "asyncio"


class Seen(NamedTuple):
    """One connection of the capture."""

    name: str
    port: int
    """Of the client."""
    kinds: str
    """Of its messages."""
    options: tuple[str, str] | None
    """In SYN and SYN/ACK."""
    info: SmcInfo
    """What smcfast says of it."""
    is_client: bool
    """Whether smcfast does so as the client."""


async def with_the_kernel(kernel_peer: MakePeer) -> list[Seen]:
    found = []
    for role, options in (("client", (OURS, KERNELS)), ("server", (KERNELS, OURS))):
        async with meeting(role, kernel_peer()) as both:  # type: ignore[arg-type]
            for name, kinds, eids in (
                ("first contact", PROPOSAL + ACCEPT + CONFIRM, [EID]),
                ("reuse", PROPOSAL + ACCEPT + CONFIRM, [EID]),
                ("another id", PROPOSAL + DECLINE, ["OTHER"]),
                ("no id", PROPOSAL + DECLINE if role == "client" else DECLINE, []),
            ):
                smc.set_eids(eids)
                pair = await both.connect()
                ends = [pair.writer.get_extra_info(end)[1] for end in ("sockname", "peername")]
                is_client = role == "client"
                port = ends[0] if is_client else ends[1]
                found.append(Seen(f"{name}, smcfast {role}", port, kinds, options, pair.info, is_client))
                await pair.close()
    smc.set_eids([EID])
    return found


async def with_smcfast(name: str, config: Any, other: Any, hosts: tuple[str, str], kinds: str) -> list[Seen]:
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    server = await smcfast.start_smc_server(lambda *pair: accepted.put(pair), hosts[1], 0, config=other)
    port = server.sockets[0].getsockname()[1]
    options = None if config is MEMORY else (OURS, OURS)
    found = []
    _, writer = await smcfast.open_smc_connection(hosts[1], port, local_addr=(hosts[0], 0), config=config)
    _, served = await accepted.get()
    for each, is_client in ((writer, True), (served, False)):
        info = each.get_extra_info("smc")
        found.append(Seen(name, writer.get_extra_info("sockname")[1], kinds, options, info, is_client))
    for each in (writer, served):
        each.close()
        await each.wait_closed()
    server.close()
    return found


async def test_a_dissector_reads_the_same(kernel_peer: MakePeer) -> None:
    three, ipv4 = PROPOSAL + ACCEPT + CONFIRM, (A.address, B.address)
    v6 = (A.address6, B.address6)
    with network.capture("wire", "tcp") as captured:
        seen = await with_the_kernel(kernel_peer)
        seen += await with_smcfast("version 2", CONFIG, CONFIG, ipv4, three)
        seen += await with_smcfast("version 1", V1, V1, v6, three)
        seen += await with_smcfast("a refusal in version 1", V1, CONFIG, v6, PROPOSAL + DECLINE)
        seen += await with_smcfast("shared memory", MEMORY, MEMORY, ipv4, three)
    frames = dissected.frames(captured.path)
    for each in seen:
        mine = [frame for frame in frames if str(each.port) in frame["tcp.port"]]
        check(each, mine)


def check(seen: Seen, frames: list[Fields]) -> None:
    syns = [frame["tcp.options"][0] for frame in frames if "smc" not in frame]
    if seen.options is None:
        assert not any("e2:d4:c3:d9" in options for options in syns), seen.name
    else:
        assert len(syns) == 2
        assert [wanted in options for wanted, options in zip(seen.options, syns, strict=True)] == [True, True], syns
    messages = [frame for frame in frames if "smc" in frame]
    assert "".join(frame["smc.clc_msg"][0] for frame in messages) == seen.kinds, seen.name
    for frame in messages:
        kind = frame["smc.clc_msg"][0]
        assert has_no_area(kind, frame) or dissected.complaints(frame) == [], f"{seen.name}: {kind}"
        if kind == DECLINE:
            assert seen.info.path == "tcp"
            assert seen.info.fallback is not None
            own = seen.info.fallback.code >> 16 == reasons.LOCAL  # says more than the code that is sent
            assert own or int(frame["smc.peer.diag.info"][0], 16) == seen.info.fallback.code
            assert frame["smc.decline.osync"] == ["0"]
        elif kind in NAMES and seen.info.path == "smc-r":
            check_end(seen, kind, frame)


def has_no_area(kind: str, frame: Fields) -> bool:
    """tshark 4.0 takes for granted that a Proposal has the SMC-D area, which one of version 1 for SMC-R has not: it reads what
    follows 40 bytes too far and calls the message malformed. `tests/tshark.rs` has its fields."""
    return kind == PROPOSAL and frame["smc.proposal.smc.version"] == ["1"]


def check_end(seen: Seen, kind: str, frame: Fields) -> None:
    """An Accept or Confirm of SMC-R has what smcfast says of that end."""
    info = seen.info
    qp, gid, size, mtu, eid = (frame.get(name, [""])[0] for name in NAMES[kind])
    is_own = (kind == CONFIRM) == seen.is_client
    if is_own:
        assert int(qp, 16) == info.qpn
    assert gid_of(gid) == (info.gid if is_own else info.peer_gid)
    assert SMALLEST_RMB << int(size) == (info.rmb_size if is_own else info.peer_rmb_size)
    assert 128 << int(mtu) == info.mtu
    assert eid.rstrip() == (info.eid or "")


def gid_of(text: str) -> str:
    return ipaddress.IPv6Address(text).packed.hex()
