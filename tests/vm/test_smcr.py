"""Streams of smcfast over SMC-R with an unmodified kernel, at either end, and with another smcfast: the same for all of them.

Both ends say that it is SMC-R; the kernel does so by netlink.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import TYPE_CHECKING

import pytest

from support.loops import LOOPS
from vm.support import network, smc
from vm.support.hosts import A, B
from vm.support.ours import Meeting, Pair, Role, config_for, connected, meeting
from vm.support.pattern import Pattern
from vm.support.peers import KernelPeer, PeerFailed
from vm.support.smc import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from vm.support.peers import Peer

    MakePeer = Callable[..., Peer]

OURS, THEIRS = 3, 4
"""Seeds of what each end writes."""
RING = 65536
"""Bytes of the kernel's receive buffer."""
SIZES = (1, 64, 16383, 16384, 16385, RING - 1, RING, RING + 1, 262144 + 1)
FULL = "TEST_FULL" in os.environ
"""In make soak."""
MUCH = 64 << 20 if FULL else 8 << 20
SHORT, SHORT_LENGTH = 1000 if FULL else 30, 100
AT_ONCE = 300
"""More than a link group of the kernel's has connections."""

LONGER_THAN_TCP_GRACE = 1.5
"""Seconds; the kernel ends TCP in good order with a half-close, and for a second smcfast waits for what that means."""

ENDS = [("kernel", "client", LOOPS[0]), ("smcfast", "client", LOOPS[0]), ("kernel", "server", LOOPS[1])]
either_end = pytest.mark.parametrize(("other", "role", "loop_kind"), ENDS)


@pytest.fixture
def make_peer(other: str, kernel_peer: Callable[[], Peer], smcfast_peer: MakePeer) -> MakePeer:
    """``make_peer(testlink_s=1.0)``: the other end's process; the settings are for one of smcfast."""
    return smcfast_peer if other == "smcfast" else lambda **_: kernel_peer()


async def write(pair: Pair, length: int, at: int = 0, chunk: int = RING) -> None:
    """The next bytes of our pattern, with back-pressure."""
    pattern = Pattern(OURS)
    for start in range(at, at + length, chunk):
        pair.writer.write(pattern.take(start, min(chunk, at + length - start)))
        await pair.writer.drain()


async def read(pair: Pair, length: int, at: int = 0, chunk: int = RING) -> None:
    """Exactly so many bytes of their pattern."""
    pattern, end = Pattern(THEIRS), at + length
    while at < end:
        data = await pair.reader.read(min(chunk, end - at))
        assert data, f"the stream ends {end - at} bytes too early"
        pattern.check(at, data)
        at += len(data)


async def both_ways(pair: Pair, length: int, at: int = 0) -> None:
    """So many bytes each way at once."""
    peer, sock = pair.peer, pair.sock
    sending = peer.start("send", sock, THEIRS, length, at)
    receiving = peer.start("receive", sock, OURS, length, at)
    await asyncio.gather(write(pair, length, at), read(pair, length, at))
    await peer.finish(sending)
    await peer.finish(receiving)


@either_end
async def test_sizes_around_the_buffers(make_peer: MakePeer, role: Role) -> None:
    peer = make_peer(rmb_size=RING)
    async with connected(role, peer, config_for(peer, rmb_size=RING)) as pair:
        await pair.assert_smc_r()
        at = 0
        for size in SIZES:
            await both_ways(pair, size, at)
            at += size


@pytest.mark.soak
@either_end
async def test_much_both_ways_at_once(make_peer: MakePeer, role: Role) -> None:
    async with connected(role, make_peer()) as pair:
        await pair.assert_smc_r()
        await both_ways(pair, MUCH)


@either_end
async def test_half_close_here(make_peer: MakePeer, role: Role) -> None:
    async with connected(role, make_peer()) as pair:
        await pair.assert_smc_r()
        await write(pair, 100_000)
        pair.writer.write_eof()
        assert await pair.peer.do("receive_to_end", pair.sock, OURS) == 100_000
        sending = pair.peer.start("send", pair.sock, THEIRS, 200_000)
        await read(pair, 200_000)
        await pair.peer.finish(sending)
        await pair.peer.do("close", pair.sock)
        assert await pair.reader.read() == b""


@either_end
async def test_half_close_there(make_peer: MakePeer, role: Role) -> None:
    async with connected(role, make_peer()) as pair:
        await pair.assert_smc_r()
        await pair.peer.do("send", pair.sock, THEIRS, 50_000)
        await pair.peer.do("half_close", pair.sock)
        await read(pair, 50_000)
        assert await pair.reader.read() == b""
        await asyncio.sleep(LONGER_THAN_TCP_GRACE)
        receiving = pair.peer.start("receive", pair.sock, OURS, 300_000)
        await write(pair, 300_000)
        await pair.peer.finish(receiving)
        pair.writer.close()
        await pair.writer.wait_closed()
        assert await pair.peer.do("receive_some", pair.sock, 1) == ""


@either_end
async def test_a_slow_reader_there(make_peer: MakePeer, role: Role) -> None:
    peer = make_peer(rmb_size=RING)
    async with connected(role, peer) as pair:
        await pair.assert_smc_r()
        receiving = peer.start("receive", pair.sock, OURS, 10 * RING, 0, 8192, 0.005)
        await write(pair, 10 * RING, chunk=3 * RING)
        await peer.finish(receiving)


@either_end
async def test_a_slow_reader_here(make_peer: MakePeer, role: Role) -> None:
    peer = make_peer()
    async with connected(role, peer, config_for(peer, rmb_size=RING)) as pair:
        await pair.assert_smc_r()
        length, at, pattern = 8 * RING, 0, Pattern(THEIRS)
        sending = peer.start("send", pair.sock, THEIRS, length)
        while at < length:
            data = await pair.reader.read(5000)
            pattern.check(at, data)
            at += len(data)
            await asyncio.sleep(0.002)
        await peer.finish(sending)


@either_end
async def test_the_server_speaks_first(make_peer: MakePeer, role: Role) -> None:
    peer = make_peer()
    async with meeting(role, peer) as both:
        if role == "client":
            greeting = peer.start("greet", both.listener, THEIRS, 100_000)
            pair = Pair(*await both.dial(), peer, 0)
            await read(pair, 100_000)
            pair.sock = await peer.finish(greeting)
        else:
            calling = both.call()
            pair = Pair(*await both.accept(), peer, 0)
            await write(pair, 100_000)
            pair.sock = await peer.finish(calling)
            await peer.do("receive", pair.sock, OURS, 100_000)
        await pair.assert_smc_r()
        await pair.close()


@either_end
async def test_unread_data_here_are_an_abort_there(make_peer: MakePeer, role: Role) -> None:
    async with connected(role, make_peer()) as pair:
        await pair.assert_smc_r()
        # More than asyncio reads ahead, which a close keeps for a later read: one post of smcfast, and of the kernel all but a ring.
        await pair.peer.do("send", pair.sock, THEIRS, 4 * RING, 0, 4 * RING)
        await read(pair, 1)
        pair.writer.close()
        await pair.writer.wait_closed()
        if isinstance(pair.peer, KernelPeer):  # a reader of the kernel's may take it for the end
            with contextlib.suppress(PeerFailed):
                assert await pair.peer.do("receive_to_end", pair.sock, OURS) == 0
            assert (await pair.about()).state is State.PROCESSABORT
        else:
            with pytest.raises(PeerFailed, match="ConnectionResetError"):
                await pair.peer.do("receive_to_end", pair.sock, OURS)


@either_end
async def test_unread_data_there_are_a_reset_here(make_peer: MakePeer, role: Role) -> None:
    async with connected(role, make_peer()) as pair:
        await pair.assert_smc_r()
        pair.writer.write(Pattern(OURS).take(0, 4 * RING))
        await pair.peer.do("receive", pair.sock, OURS, 1)
        await pair.peer.do("close", pair.sock)
        with pytest.raises(ConnectionResetError):
            await pair.reader.read()
        with pytest.raises(ConnectionResetError):
            await write(pair, 1)


async def short_ones(both: Meeting) -> None:
    """Connections one after the other: the client says something, and the server says it back."""
    pattern, role = Pattern(OURS), both.role
    for number in range(SHORT):
        reader, writer = await (both.dial() if role == "client" else both.accept())
        assert writer.get_extra_info("smc").path == "smc-r"
        if role == "client":
            writer.write(pattern.take(number, SHORT_LENGTH))
            writer.write_eof()
        data = await reader.read()
        pattern.check(number, data)
        assert len(data) == SHORT_LENGTH
        if role == "server":
            writer.write(data)
        writer.close()
        await writer.wait_closed()


@pytest.mark.soak
@either_end
async def test_many_short_connections(make_peer: MakePeer, role: Role) -> None:
    peer, before = make_peer(), smc.statistics()
    async with meeting(role, peer) as both:
        if role == "client":
            serving = peer.start("serve_echo", both.listener, SHORT)
        else:
            serving = peer.start("converse", A.address, both.port, B.address, OURS, SHORT_LENGTH, SHORT)
        async with asyncio.TaskGroup() as group:
            group.create_task(peer.finish(serving))
            group.create_task(short_ones(both))
    assert_counted(peer, role, before, SHORT)


def assert_counted(peer: Peer, role: Role, before: smc.Statistics, count: int) -> None:
    """The kernel has counted so many connections of SMC-R since `before`, if it was the peer."""
    after = smc.statistics()
    if isinstance(peer, KernelPeer):
        counted = after.servers - before.servers if role == "client" else after.clients - before.clients
        assert counted == count


@pytest.mark.soak
@pytest.mark.parametrize(("other", "role", "loop_kind"), ENDS if FULL else ENDS[:1])
async def test_more_at_once_than_a_link_group_has(make_peer: MakePeer, role: Role) -> None:
    peer, before = make_peer(rmb_size=16384), smc.statistics()
    async with meeting(role, peer, config_for(peer, rmb_size=16384)) as both:
        pairs = [await both.connect() for _ in range(AT_ONCE)]
        assert {pair.info.path for pair in pairs} == {"smc-r"}
        assert len({pair.info.link_group for pair in pairs}) > 1
        assert_counted(peer, role, before, AT_ONCE)
        for pair in pairs:
            pair.writer.write(Pattern(OURS).take(0, SHORT_LENGTH))
        for pair in pairs:
            await peer.do("receive", pair.sock, OURS, SHORT_LENGTH)
            await peer.do("send", pair.sock, THEIRS, SHORT_LENGTH)
            await read(pair, SHORT_LENGTH)
        for pair in pairs:
            await peer.do("close", pair.sock)
            assert await pair.reader.read() == b""
            await pair.close()


@either_end
async def test_silence_that_is_longer_than_the_links_test(make_peer: MakePeer, role: Role) -> None:
    with network.setting("net.smc.smcr_testlink_time", 1):
        peer = make_peer(testlink_s=1.0)
        async with connected(role, peer, config_for(peer, testlink_s=1.0)) as pair:
            await pair.assert_smc_r()
            await both_ways(pair, 1000)
            with network.capture(f"testlink-{role}", "udp port 4791") as captured:
                await asyncio.sleep(3.5)
            tests = re.findall(rb"\x27\x2c\x00([\x00\x80])", captured.path.read_bytes())
            assert set(tests) == {b"\0", b"\x80"}, "a question of an end, and the answer"
            await both_ways(pair, 1000, 1000)


@either_end
async def test_packets_are_lost_and_no_byte_is(make_peer: MakePeer, role: Role) -> None:
    async with connected(role, make_peer()) as pair:
        await pair.assert_smc_r()
        with network.loss(2):
            await both_ways(pair, 300_000)
            dropped = re.search(r"dropped (\d+)", network.run("tc", "-s", "qdisc", "show", "dev", A.interface))
            assert dropped is not None
            assert int(dropped[1]) > 0
        await pair.assert_smc_r()
