"""sock_ops programs of others, put together by hand, and cgroups to attach them to."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import platform
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBER = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), -1)
_PROG_LOAD, _OBJ_GET, _PROG_GET_FD_BY_ID, _PROG_QUERY, _LINK_CREATE = 5, 7, 13, 16, 28
_ENABLE_STATS, _STATS_RUN_TIME = 32, 0
_PROGRAMS_MAX = 64
_SOCK_OPS, _CGROUP_SOCK_OPS = 13, 3
CONNECT: Final = 3
LISTEN: Final = 11
_HDR_OPT_LEN = 14
_SKB_TCP_FLAGS = 212  # where it lies in struct bpf_sock_ops
_ACK = 0x10
_SET_FLAGS, _RESERVE = 59, 144
_WRITES = 64  # BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG

_numbers = itertools.count()
_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result: int = _libc.syscall(_NUMBER, command, buffer, len(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(struct.unpack_from("=I", buffer, 24)[0]) if command == _PROG_QUERY else result


def _instruction(code: int, registers: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, registers, offset, value)


def _call(first: int, helper: int) -> bytes:
    """``helper(context, first, 0)``; the context is in r6."""
    moves = _instruction(0xBF, 0x61) + _instruction(0xB7, 2, 0, first) + _instruction(0xB7, 3)
    return moves + _instruction(0x85, 0, 0, helper)


_RETURN_ONE = _instruction(0xB7, 0, 0, 1) + _instruction(0x95)
NOTHING: Final = _RETURN_ONE
"""Looks at nothing."""


def crowding(begin: int, room: int) -> bytes:
    """Reserves `room` bytes in SYNs of sockets that it sees `CONNECT`, or in SYN/ACKs of those that `LISTEN`."""
    when_begun = _call(_WRITES, _SET_FLAGS)
    reserve = _call(room, _RESERVE)
    skip = len(reserve) // 8
    is_answer = _instruction(0x61, 0x67, _SKB_TCP_FLAGS)
    if begin == LISTEN:
        is_answer += _instruction(0x45, 7, 1, _ACK) + _instruction(0x05, 0, skip)
    else:
        is_answer += _instruction(0x45, 7, skip, _ACK)
    when_asked = is_answer + reserve
    return (
        _instruction(0xBF, 0x16)
        + _instruction(0x61, 0x17)  # r7: the callback
        + _instruction(0x55, 7, len(when_begun) // 8, begin)
        + when_begun
        + _instruction(0x55, 7, len(when_asked) // 8, _HDR_OPT_LEN)
        + when_asked
        + _RETURN_ONE
    )


def attach(program: bytes, cgroup: Path) -> int:
    """Attach a program beside others, for as long as the descriptor that is returned is open."""
    code, licence = ctypes.create_string_buffer(program, len(program)), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "=IIQQIIQII16sII",
        *(_SOCK_OPS, len(program) // 8, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0, 0),
        *(b"others", 0, _CGROUP_SOCK_OPS),
    )
    loaded = _bpf(_PROG_LOAD, attributes)
    target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _bpf(_LINK_CREATE, struct.pack("=IIII", loaded, target, _CGROUP_SOCK_OPS, 0))
    finally:
        os.close(target)
        os.close(loaded)


def attached(cgroup: Path) -> list[int]:
    """The numbers of the sock_ops programs that are attached to `cgroup`."""
    numbers = (ctypes.c_uint32 * _PROGRAMS_MAX)()
    target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        asked = struct.pack("=IIIIQII", target, _CGROUP_SOCK_OPS, 0, 0, ctypes.addressof(numbers), _PROGRAMS_MAX, 0)
        return list(numbers[: _bpf(_PROG_QUERY, asked)])
    finally:
        os.close(target)


def _told(fd: int, name: str) -> int:
    """What the kernel says of an object; closes it."""
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    finally:
        os.close(fd)
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def attached_by(link: Path) -> int:
    """The number of the program that a pinned link attaches."""
    path = ctypes.create_string_buffer(os.fsencode(link))
    return _told(_bpf(_OBJ_GET, struct.pack("=QII", ctypes.addressof(path), 0, 0)), "prog_id")


def runs(program: int) -> int:
    """How often a program has run while `counting_runs`."""
    return _told(_bpf(_PROG_GET_FD_BY_ID, struct.pack("=III", program, 0, 0)), "run_cnt")


@contextlib.contextmanager
def counting_runs() -> Iterator[None]:
    """Inside, the kernel counts how often programs run; for as long as anybody wants it, unlike the sysctl."""
    wanted = _bpf(_ENABLE_STATS, struct.pack("=I24x", _STATS_RUN_TIME))
    try:
        yield
    finally:
        os.close(wanted)


def hierarchy() -> Path | None:
    """Where cgroups of version 2 are mounted, with this process's own one; None when they are not."""
    own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, system = line.partition(" - ")
        if system.startswith("cgroup2 "):
            return Path(mount.split()[4] + own)
    return None


@contextlib.contextmanager
def new_cgroup() -> Iterator[Path]:
    """A cgroup of a test's own, below this process's one."""
    above = hierarchy()
    assert above is not None
    cgroup = above / f"smcfast-{os.getpid()}-{next(_numbers)}"
    cgroup.mkdir()
    try:
        yield cgroup
    finally:
        for process in (cgroup / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (above / "cgroup.procs").write_text(process)
        cgroup.rmdir()


def enter(cgroup: str) -> None:
    """Move this process to `cgroup`: the sockets that it makes from now on are seen by programs there."""
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
