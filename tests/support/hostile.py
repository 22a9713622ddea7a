"""What a hostile peer can do to the memory of a connection: set any word of it at any time, and punch holes.

It works on the mappings that this process has, which are the same pages as the other process's.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random

HEADER = 4096
MAGIC = int.from_bytes(b"smcfast\0", "little")
SERVER_HALF, CLIENT_HALF = 256 // 8, 512 // 8
PRODUCER, CONSUMER, CPU, READER_ARMED, WRITER_ARMED = 1, 2, 8, 16, 17
"""Words of a half, see docs/private-protocols.md."""
LIVE = (PRODUCER, CONSUMER, CPU, READER_ARMED, WRITER_ARMED)
TOP = 2**64 - 1


class Mapping(NamedTuple):
    """One mapped DMB."""

    address: int
    length: int
    inode: int

    def words(self) -> ctypes.Array[ctypes.c_uint64]:
        """All of it as words; a store to one is atomic."""
        return (ctypes.c_uint64 * (self.length // 8)).from_address(self.address)

    def punch(self, offset: int, length: int) -> int:
        """Give pages back to the system, so that they read as zeros; 0, or the error."""
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.madvise(ctypes.c_void_p(self.address + offset), ctypes.c_size_t(length), mmap.MADV_REMOVE)
        return 0 if done == 0 else ctypes.get_errno()


def mappings() -> dict[int, Mapping]:
    """The DMBs that this process has mapped, one mapping of each, by inode."""
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *name = line.split()
        if name and name[0] == "/memfd:smcfast":
            first, last = (int(part, 16) for part in span.split("-"))
            found[int(inode)] = Mapping(first, last - first, int(inode))
    return found


class Memory(NamedTuple):
    """Both DMBs of one connection."""

    server: Mapping
    """The one whose header page has the control words."""
    client: Mapping

    def put(self, word: int, value: int) -> None:
        """Set a word of the control page."""
        self.server.words()[word] = value

    def get(self, word: int) -> int:
        """Look at a word of the control page."""
        return self.server.words()[word]


class Watch:
    """Finds the memory of a connection that is made after this."""

    def __init__(self) -> None:
        self._before = set(mappings())

    def memory(self) -> Memory:
        """That of the only new connection."""
        first, second = (each for inode, each in mappings().items() if inode not in self._before)
        if second.words()[0] == MAGIC:
            first, second = second, first
        assert (first.words()[0], second.words()[0]) == (MAGIC, 0)
        return Memory(first, second)


def values(size: int, rng: random.Random, count: int = 4) -> list[int]:
    """What a word is set to: the extremes, the size of a ring and its neighbours, bare and as a cursor, and random ones."""
    near = [size - 1, size, size + 1]
    cursors = [value << 16 for value in near] + [1 << 16, 1 << 16 | 1, size - 1 << 16 | 1]
    flags = [flag << 56 for flag in (0x80, 0x40, 0x20, 0xFF)]
    return [0, 1, TOP, TOP >> 1, *near, *cursors, *flags, *(rng.getrandbits(64) for _ in range(count))]


class Cursor(NamedTuple):
    """A word as the protocol reads it (little-endian machines)."""

    wrap: int
    offset: int
    producer_flags: int
    state_flags: int

    @classmethod
    def of(cls, word: int) -> Cursor:
        return cls(word & 0xFFFF, word >> 16 & 0xFFFF_FFFF, word >> 48 & 0xFF, word >> 56)

    def position(self, size: int) -> int | None:
        """Bytes since the start of a connection whose first round of wraps it is; None outside the ring."""
        return self.wrap * size + self.offset if self.offset < size else None
