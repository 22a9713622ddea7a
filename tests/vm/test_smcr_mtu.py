"""Hosts whose interfaces have different MTUs: each tells its own, and both send what the smaller one carries."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import pytest

import smcfast
from vm.support import clc, network, smc
from vm.support.hosts import A, B
from vm.support.ours import CONFIG, ROLES, meeting
from vm.support.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vm.support.ours import Role
    from vm.support.peers import KernelPeer

    MakePeer = Callable[[], KernelPeer]

CODES: Final = {1500: 3, 9000: 5}
SIZES: Final = [(1500, 9000), (9000, 1500), (9000, 9000)]
SEED, LENGTH = 31, 30_000
FIRST_HEADERS: Final = 12 + 16 + 4
"""Bytes around the data in the first packet of a write: its headers and the checksum."""
_ETHERNET, _IPV4, _UDP, _ROCE = 14, 20, 8, 4791


@pytest.fixture
def loop_kind() -> str:
    """The kernel sends the packets, whatever the loop."""
    return "asyncio"


@contextlib.contextmanager
def mtus(here: int, there: int) -> Iterator[None]:
    """The MTUs of both interfaces, known to the kernel's SMC too."""
    try:
        with network.mtu(here, A), network.mtu(there, B):
            smc.renew_ports()
            yield
    finally:
        smc.renew_ports()


@contextlib.contextmanager
def packets() -> Iterator[Callable[[], dict[str, int]]]:
    """Bytes in the longest packet of RoCE that each address has sent over the cable, so far."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        raw.bind((A.interface, 0))
        raw.setblocking(False)

        def longest() -> dict[str, int]:
            found: defaultdict[str, int] = defaultdict(int)
            with contextlib.suppress(BlockingIOError):
                while frame := raw.recv(1 << 16):
                    packet = frame[_ETHERNET:]
                    if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_UDP:
                        udp = packet[_IPV4:]
                        if int.from_bytes(udp[2:4]) == _ROCE:
                            source = socket.inet_ntoa(packet[12:16])
                            found[source] = max(found[source], int.from_bytes(udp[4:6]) - _UDP)
            return dict(found)

        yield longest


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("here", "there"), SIZES)
async def test_with_the_kernel(kernel_peer: MakePeer, role: Role, here: int, there: int) -> None:
    smaller = CODES[min(here, there)]
    with mtus(here, there):
        async with meeting(role, kernel_peer(), CONFIG) as both:
            with clc.cable(both.port) as cable:
                pair = await both.connect()
                _, accept, confirm = cable.messages()
            assert accept.path_mtu == CODES[there if role == "client" else here]
            assert confirm.path_mtu == smaller
            await pair.assert_smc_r()
            assert pair.info.mtu == 128 << smaller
            with packets() as longest:
                sending = pair.kernel.start("send", pair.sock, SEED, LENGTH)
                Pattern(SEED).check(0, await pair.reader.readexactly(LENGTH))
                await pair.kernel.finish(sending)
                pair.writer.write(Pattern(SEED).take(0, LENGTH))
                await pair.kernel.do("receive", pair.sock, SEED, LENGTH)
                assert longest() == dict.fromkeys([A.address, B.address], (128 << smaller) + FIRST_HEADERS)
            await pair.close()


@pytest.mark.parametrize(("here", "there"), SIZES)
async def test_between_two_of_smcfast(here: int, there: int) -> None:
    smaller = CODES[min(here, there)]
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    with network.mtu(here, A), network.mtu(there, B):
        server = await smcfast.start_smc_server(lambda *pair: accepted.put(pair), B.address, 0, config=CONFIG)
        port = server.sockets[0].getsockname()[1]
        with clc.cable(port) as cable:
            client = await smcfast.open_smc_connection(B.address, port, local_addr=(A.address, 0), config=CONFIG)
            served = await accepted.get()
            _, accept, confirm = cable.messages()
        assert (accept.path_mtu, confirm.path_mtu) == (CODES[there], smaller)
        with packets() as longest:
            for (reader, _), (_, writer) in ((client, served), (served, client)):
                writer.write(Pattern(SEED).take(0, LENGTH))
                Pattern(SEED).check(0, await reader.readexactly(LENGTH))
            assert longest() == dict.fromkeys([A.address, B.address], (128 << smaller) + FIRST_HEADERS)
        for _, writer in (client, served):
            info = writer.get_extra_info("smc")
            assert (info.path, info.mtu) == ("smc-r", 128 << smaller)
            writer.close()
            await writer.wait_closed()
        server.close()
