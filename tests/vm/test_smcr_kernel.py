"""smcfast and an unmodified kernel over SMC-R, smcfast at either end: what only the kernel does. `test_smcr` has the rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from support.loops import LOOPS
from vm.support import network
from vm.support.ours import ROLES, Role, config_for, connected, meeting
from vm.support.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from vm.support.peers import KernelPeer

    MakePeer = Callable[[], KernelPeer]

THEIRS = 4
"""The seed of what the kernel writes."""

either_end = pytest.mark.parametrize(("role", "loop_kind"), [*zip(ROLES, LOOPS, strict=True)])


@either_end
async def test_urgent_data_are_in_line(kernel_peer: MakePeer, role: Role) -> None:
    async with connected(role, kernel_peer()) as pair:
        await pair.assert_smc_r()
        for around in range(3):
            await pair.kernel.do("send_bytes", pair.sock, b"before".hex())
            await pair.kernel.do("send_urgent", pair.sock, ord("!"))
            # The kernel sends this when it knows that all of the others were read: nobody may wait for 13 bytes in the ring.
            sending = pair.kernel.start("send_bytes", pair.sock, b"behind".hex())
            assert await pair.reader.readexactly(13) == b"before!behind", around
            await pair.kernel.finish(sending)


@either_end
async def test_a_handler_that_blocks_the_loop_loses_nothing(kernel_peer: MakePeer, role: Role) -> None:
    """For 5 s, where the kernel tests the link after 1 s of silence and gives it up 2 s later."""
    with network.setting("net.smc.smcr_testlink_time", 1):
        peer, length = kernel_peer(), 500_000
        config = config_for(peer, testlink_s=1.0)
        async with connected(role, peer, config) as pair, meeting("server", peer, config) as more:
            await pair.assert_smc_r()
            sending = peer.start("send", pair.sock, THEIRS, length)
            time.sleep(2)  # noqa: ASYNC251 - that is the point
            calling = more.call()
            time.sleep(3)  # noqa: ASYNC251
            pattern, at = Pattern(THEIRS), 0
            while at < length:
                data = await pair.reader.read(65536)
                pattern.check(at, data)
                at += len(data)
            await peer.finish(sending)
            reader, writer = await more.accept()
            new = await peer.finish(calling)
            assert writer.get_extra_info("smc").path == "smc-r"
            assert writer.get_extra_info("smc").link_group == pair.info.link_group or role == "client"
            await pair.assert_smc_r()
            await peer.do("send", new, THEIRS, 1000)
            pattern.check(0, await reader.readexactly(1000))
            writer.close()
            await writer.wait_closed()
