"""A peer that hands over something else than the memory and the doorbell that are agreed.

Whatever it is, it is refused before it is mapped or rung; both ends go on as TCP on the same connection, and no descriptor
of it stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import tempfile
from typing import TYPE_CHECKING

import pytest

from smcfast import SmcConfig, rendezvous
from support.relay import altered
from support.streams import Pair, connected, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

RING = 16 * 1024
LENGTH = RING + 4096
CONFIG = SmcConfig(rmb_size=RING)
GO, MEMORY = 2, 4
"""Kinds of frames: the client's with its memory and bell, the server's."""
FROM = {"client": GO, "server": MEMORY}
MFD_CLOEXEC, MFD_ALLOW_SEALING, MFD_HUGETLB = 1, 2, 4
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE = 1, 2, 4, 8, 16
SEALED = F_SEAL_SHRINK | F_SEAL_GROW
TFD_IOC_SET_TICKS = 0x4008_5400


pytestmark = pytest.mark.usefixtures("nothing_is_left")


def memfd(length: int = LENGTH, seals: int = SEALED, flags: int = 0) -> int:
    fd = os.memfd_create("smcfast", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, length)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def reopened(fd: int, flags: int) -> int:
    try:
        return os.open(f"/proc/self/fd/{fd}", flags)
    finally:
        os.close(fd)


def a_file(folder: str) -> int:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(LENGTH)
        return os.dup(file.fileno())


def read_end() -> int:
    read, write = os.pipe()
    os.close(write)
    return read


def epoll_set() -> int:
    with select.epoll() as epoll:
        return os.dup(epoll.fileno())


OTHER_KINDS: dict[str, Callable[[], int]] = {
    "a pipe": read_end,
    "a socket": lambda: socket.socket().detach(),
    "an epoll set": epoll_set,
    "a folder": lambda: os.open("/tmp", os.O_RDONLY),
    "a device": lambda: os.open("/dev/zero", os.O_RDWR),
    "a pidfd": lambda: os.pidfd_open(os.getpid()),
    "a file of /proc": lambda: os.open("/proc/self/maps", os.O_RDONLY),
    "an eventfd": lambda: os.eventfd(0),
    "a full eventfd": lambda: os.eventfd(2**32 - 1),
    "a semaphore": lambda: os.eventfd(1, os.EFD_SEMAPHORE),
}
MEMORIES: dict[str, Callable[[], int]] = {
    **OTHER_KINDS,
    "a file of /tmp": lambda: a_file("/tmp"),
    "a file of /dev/shm": lambda: a_file("/dev/shm"),
    "huge pages": lambda: memfd(2 << 20, SEALED, MFD_HUGETLB),
    "no seals": lambda: memfd(seals=0),
    "may grow": lambda: memfd(seals=F_SEAL_SHRINK | F_SEAL_SEAL),
    "may shrink": lambda: memfd(seals=F_SEAL_GROW | F_SEAL_SEAL),
    "too small": lambda: memfd(LENGTH - 4096),
    "one byte short": lambda: memfd(LENGTH - 1),
    "empty": lambda: memfd(0),
    "too large": lambda: memfd(LENGTH + 1),
    "much too large": lambda: memfd(2**62),
    "sealed against writing": lambda: memfd(seals=SEALED | F_SEAL_WRITE),
    "sealed against writing from now on": lambda: memfd(seals=SEALED | F_SEAL_FUTURE_WRITE),
    "open for reading": lambda: reopened(memfd(), os.O_RDONLY),
    "open for writing": lambda: reopened(memfd(), os.O_WRONLY),
    "no access": lambda: reopened(memfd(), os.O_PATH),
}
BELLS: dict[str, Callable[[], int]] = {**OTHER_KINDS, "memory": memfd}


def at(place: int, make: Callable[[], int]) -> Callable[[list[int]], list[int]]:
    return lambda fds: [*fds[:place], make(), *fds[place + 1 :]]


async def exchange(pair: Pair, data: bytes = b"hello") -> None:
    for one, other in (pair, reversed(pair)):
        one.writer.write(data)
        assert await other.reader.readexactly(len(data)) == data


async def both_are_tcp(what: str) -> None:
    """On one connection, with the code that blames the peer at both ends."""
    async with connected(config=CONFIG, path="tcp") as pair:
        assert [end.info.reason for end in pair] == ["internal_error"] * 2, what
        await exchange(pair)


@pytest.mark.parametrize("liar", FROM)
async def test_no_memory_as_agreed(monkeypatch: pytest.MonkeyPatch, liar: str) -> None:
    for what, make in MEMORIES.items():
        try:
            os.close(make())
        except OSError as error:
            print(f"not checked: {what}: not to be had here: {error}")
            continue
        with altered(monkeypatch, FROM[liar], at(0, make)):
            await both_are_tcp(what)


@pytest.mark.parametrize("liar", FROM)
async def test_no_doorbell(monkeypatch: pytest.MonkeyPatch, liar: str) -> None:
    for what, make in BELLS.items():
        with altered(monkeypatch, FROM[liar], at(1, make)):
            await both_are_tcp(what)


@pytest.mark.parametrize("liar", FROM)
async def test_another_number_of_descriptors(monkeypatch: pytest.MonkeyPatch, liar: str) -> None:
    for count in (0, 1, 3, 4, 5, 100):
        with altered(monkeypatch, FROM[liar], lambda fds, count=count: (fds * 50)[:count]):  # type: ignore[misc]
            await both_are_tcp(f"{count} descriptors")


@pytest.mark.parametrize("liar", FROM)
async def test_both_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch, liar: str) -> None:
    with altered(monkeypatch, FROM[liar], lambda fds: fds[::-1]):
        await both_are_tcp("reversed")


async def test_memory_that_the_peer_has_seen_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that hands the client's own memory back to it: sealed and sized as agreed, but nobody made a header page."""
    clients: list[int] = []

    def keep(fds: list[int]) -> list[int]:
        clients.append(os.dup(fds[0]))
        return fds

    with altered(monkeypatch, GO, keep), altered(monkeypatch, MEMORY, lambda fds: [os.dup(clients[0]), *fds[1:]]):
        await both_are_tcp("its own")
    rendezvous.close_fds(clients)


def overflow(fd: int) -> None:
    """What takes an eventfd to the state in which even a write of 0 waits: the most that a write can, and one more."""
    with contextlib.suppress(OSError):
        os.write(fd, struct.pack("=Q", 2**64 - 2))
    libc = ctypes.CDLL(None, use_errno=True)
    context = ctypes.c_ulong()
    io_setup, io_destroy, io_submit = {"x86_64": (206, 207, 209), "aarch64": (0, 1, 2)}[os.uname().machine]
    if libc.syscall(io_setup, 1, ctypes.byref(context)):
        return
    with open("/dev/zero", "rb") as zeros:
        into = ctypes.create_string_buffer(8)
        request = struct.pack("=QIIHhIQQqQII", 0, 0, 0, 0, 0, zeros.fileno(), ctypes.addressof(into), 8, 0, 0, 1, fd)
        block = ctypes.create_string_buffer(request)
        libc.syscall(io_submit, context, 1, (ctypes.c_void_p * 1)(ctypes.addressof(block)))
    libc.syscall(io_destroy, context)


def spoil(fd: int) -> None:
    """All that the holder of a bell can do to it: let it block, fill it, let it run, empty it."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    overflow(fd)
    libc = ctypes.CDLL(None, use_errno=True)
    fast = struct.pack("=qqqq", 0, 1, 0, 1)
    libc.timerfd_settime(fd, 0, ctypes.create_string_buffer(fast), None)
    for ticks in (2**64 - 1, 1):
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, TFD_IOC_SET_TICKS, struct.pack("=Q", ticks))
    os.read(fd, 8)


@pytest.mark.parametrize("liar", FROM)
async def test_a_doorbell_that_is_spoilt_later(monkeypatch: pytest.MonkeyPatch, liar: str) -> None:
    """Ringing it never blocks, whatever its owner does to the open file that both processes share."""
    kept: list[int] = []

    def keep(fds: list[int]) -> list[int]:
        kept.append(os.dup(fds[1]))
        return fds

    with altered(monkeypatch, FROM[liar], keep):
        async with connected(config=SmcConfig(rmb_size=RING, spin_us=0)) as pair:
            for _ in range(20):
                spoil(kept[0])
                await exchange(pair, pattern(3 * RING))
            assert [end.info.path for end in pair] == ["smc-d"] * 2
            assert pair.client.info.counters["wakeups_sent"] > 0
    rendezvous.close_fds(kept)


async def test_a_doorbell_that_rings_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without access nobody can ring it: its owner is the one that is not woken, until the connection ends."""

    def without_access(fds: list[int]) -> list[int]:
        return [fds[0], os.open(f"/proc/self/fd/{fds[1]}", os.O_PATH)]

    with altered(monkeypatch, GO, without_access):
        async with connected(config=SmcConfig(rmb_size=RING, spin_us=0)) as pair:
            reading = asyncio.ensure_future(pair.client.reader.read(100))
            await asyncio.sleep(0)
            pair.server.writer.write(b"unheard")
            pair.server.writer.close()
            assert await reading == b"unheard"  # the end of TCP is heard
