"""Views and reservations over SMC-R: received bytes in the registered buffer, room in the one that is sent from."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from smcfast import _core
from support.loops import LOOPS
from support.process import in_a_child
from support.streams import eventually
from vm.support.ours import Pair, Role, config_for, connected
from vm.support.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from vm.support.peers import Peer

    MakePeer = Callable[..., Peer]

OURS, THEIRS = 3, 4
"""Seeds of what each end writes."""
RING = 65536
LENGTH = 12 * RING + 12345

either_end = pytest.mark.parametrize(
    ("other", "role", "loop_kind"), [("kernel", "client", LOOPS[0]), ("smcfast", "client", LOOPS[1])]
)


@pytest.fixture
def make_peer(other: str, kernel_peer: Callable[[], Peer], smcfast_peer: MakePeer) -> MakePeer:
    """``make_peer(rmb_size=65536)``: the other end's process; the settings are for one of smcfast."""
    return smcfast_peer if other == "smcfast" else lambda **_: kernel_peer()


async def write(pair: Pair, length: int) -> None:
    """Our pattern by reservations; each is in the ring, since none asks for more than a byte."""
    pattern, at = Pattern(OURS), 0
    while at < length:
        with await pair.writer.reserve(min(20_000, length - at)) as room:
            assert isinstance(room, _core.Reservation)
            room[:] = pattern.take(at, len(room))
            at += len(room)
            room.commit()


async def read(pair: Pair, length: int) -> None:
    """Their pattern by views."""
    pattern, at = Pattern(THEIRS), 0
    while at < length:
        with await pair.reader.view(length - at) as view:
            assert isinstance(view, _core.View)
            used = min(len(view), 10_000)
            pattern.check(at, bytes(view)[:used])
            view.consume(used)
            at += used


@either_end
async def test_much_both_ways_in_place(make_peer: MakePeer, role: Role) -> None:
    peer = make_peer(rmb_size=RING)
    async with connected(role, peer, config_for(peer, rmb_size=RING)) as pair:
        await pair.assert_smc_r()
        sending = peer.start("send", pair.sock, THEIRS, LENGTH)
        receiving = peer.start("receive", pair.sock, OURS, LENGTH)
        await asyncio.gather(write(pair, LENGTH), read(pair, LENGTH))
        await peer.finish(sending)
        await peer.finish(receiving)


@either_end
async def test_a_reservation_waits_for_a_slow_reader(make_peer: MakePeer, role: Role) -> None:
    peer = make_peer(rmb_size=RING)
    async with connected(role, peer, config_for(peer, rmb_size=RING)) as pair:
        await pair.assert_smc_r()
        receiving = peer.start("receive", pair.sock, OURS, LENGTH, 0, 8192, 0.005)
        await write(pair, LENGTH)
        await peer.finish(receiving)


@either_end
async def test_readinto(make_peer: MakePeer, role: Role) -> None:
    peer = make_peer(rmb_size=RING)
    async with connected(role, peer, config_for(peer, rmb_size=RING)) as pair:
        await pair.assert_smc_r()
        sending = peer.start("send", pair.sock, THEIRS, LENGTH)
        buffer, at = bytearray(LENGTH), 0
        with memoryview(buffer) as whole:
            while at < LENGTH:
                at += await pair.reader.readinto(whole[at:])
        await peer.finish(sending)
        Pattern(THEIRS).check(0, buffer)


@either_end
async def test_buffers_outlive_the_peer_and_the_connection(make_peer: MakePeer, role: Role) -> None:
    peer = make_peer(rmb_size=RING)
    async with connected(role, peer, config_for(peer, rmb_size=RING)) as pair:
        await pair.assert_smc_r()
        await peer.do("send", pair.sock, THEIRS, 1000)
        view, room = await pair.reader.view(at_least=1000), await pair.writer.reserve(1000)
        seen, place = memoryview(view), memoryview(room)
        peer.kill()
        await eventually(lambda: pair.reader._endpoint.write_fault() is not None)  # type: ignore[attr-defined]
    Pattern(THEIRS).check(0, seen)
    place[:] = bytes(len(place))
    seen.release()
    place.release()
    with pytest.raises(ConnectionResetError):
        room.commit()


@either_end
async def test_a_forked_child_finds_zeroes_and_the_link_goes_on(make_peer: MakePeer, role: Role) -> None:
    """Pages that the device writes are neither shared with the child nor copied for it."""
    peer = make_peer(rmb_size=RING)
    async with connected(role, peer, config_for(peer, rmb_size=RING)) as pair:
        await pair.assert_smc_r()
        await peer.do("send", pair.sock, THEIRS, 1000)
        view, room = await pair.reader.view(at_least=1000), await pair.writer.reserve(1000)
        seen, place = memoryview(view), memoryview(room)
        place[:] = Pattern(OURS).take(0, len(place))

        def child() -> None:
            assert bytes(seen) == bytes(len(seen))
            assert bytes(place) == bytes(len(place))
            place[:] = b"x" * len(place)

        assert in_a_child(child) == ""
        Pattern(THEIRS).check(0, seen)
        size = len(place)
        seen.release()
        place.release()
        room.commit()
        view.consume()
        await peer.do("receive", pair.sock, OURS, size)
        await peer.do("send", pair.sock, THEIRS, 1000, 1000)
        Pattern(THEIRS).check(1000, await pair.reader.readexactly(1000))
