"""The sockets of the rendezvous: whatever a peer sends, no descriptor of it stays where nobody wants it."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from smcfast import netlink, rendezvous
from smcfast.registration import Registration
from support import frames
from support.process import descriptors, descriptors_left
from support.streams import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def send(conn: socket.socket, frame: bytes, count: int) -> None:
    """Send `frame` and `count` descriptors with it."""
    with contextlib.ExitStack() as stack:
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
        for fd in fds:
            stack.callback(os.close, fd)
        conn.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def test_a_frame_and_its_descriptors(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    send(theirs, b"frame", 2)
    packet = rendezvous.take_frame(ours)
    assert packet is not None
    assert packet[0] == b"frame"
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in packet[1]] == ["/dev/null"] * 2
    assert not any(os.get_inheritable(fd) for fd in packet[1])
    rendezvous.close_fds(packet[1])
    assert rendezvous.take_frame(ours) is None
    theirs.close()
    assert rendezvous.take_frame(ours) == (b"", [])


@pytest.mark.parametrize(
    ("frame", "count"),
    [
        (b"", 1),
        (b"", rendezvous.FDS_MAX),
        (b"", rendezvous.FDS_MAX + 1),
    ],
    ids=["empty", "empty, 4", "empty, 5"],
)
def test_what_is_none_of_our_frames_is_the_end_and_leaves_nothing(
    ends: tuple[socket.socket, socket.socket], frame: bytes, count: int
) -> None:
    ours, theirs = ends
    before = descriptors()
    send(theirs, frame, count)
    assert rendezvous.take_frame(ours) == (b"", [])
    assert descriptors() == before


@pytest.mark.parametrize(("length", "count"), [(rendezvous.FRAME_MAX + 1, 2), (5, rendezvous.FDS_MAX + 1)])
def test_too_much_is_cut_off_and_never_taken_for_the_end(
    ends: tuple[socket.socket, socket.socket], length: int, count: int
) -> None:
    ours, theirs = ends
    before = descriptors()
    send(theirs, b"x" * length, count)
    packet = rendezvous.take_frame(ours)
    assert packet is not None
    assert packet[0] == b"x" * min(length, rendezvous.FRAME_MAX)
    assert len(packet[1]) == min(count, rendezvous.FDS_MAX)
    rendezvous.close_fds(packet[1])
    assert descriptors() == before


@pytest.mark.parametrize("left", [0, 1])
def test_descriptors_that_find_no_place_are_an_error(ends: tuple[socket.socket, socket.socket], left: int) -> None:
    ours, theirs = ends
    before = descriptors()
    send(theirs, b"frame", 2)
    with descriptors_left(left), pytest.raises(OSError, match="Too many open files"):
        rendezvous.take_frame(ours)
    assert descriptors() == before
    assert rendezvous.take_frame(ours) is None


@pytest.mark.parametrize("frame", [b"", b"frame"])
async def test_what_comes_after_the_deadline_leaves_nothing(frame: bytes) -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        assert await frames.last_frame(loop, ours, loop.time()) is None
        before = descriptors()
        with contextlib.suppress(BrokenPipeError):
            send(theirs, frame, 2)
        assert rendezvous.take_frame(ours) == (b"", [])
        assert descriptors() == before


@pytest.mark.parametrize("frame", [b"", b"frame"])
async def test_what_a_worker_sends_to_the_holder_is_dropped(frame: bytes) -> None:
    """A worker that waits for the name has nothing to say, so one that speaks is no worker of ours."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        name = rendezvous.holder_name(netlink.cookie(listener))
        with contextlib.closing(Registration(asyncio.get_running_loop(), listener)) as registration:
            before = set(descriptors())
            with rendezvous.call(name) as stranger:
                send(stranger, frame, 4)
                with rendezvous.call(name) as worker:
                    await eventually(lambda: len(registration._waiting) == 1)
                    known = {stranger.fileno(), worker.fileno(), registration._waiting[0].fileno()}
                    assert set(descriptors()) - before == known
