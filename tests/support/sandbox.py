"""Restrictions that a container or a service manager may put on a process; for child processes, they cannot be lifted."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import tempfile
from typing import TypeAlias

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
RET_ALLOW = 0x7FFF0000
RET_ERRNO = 0x00050000
LOAD_WORD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
CALLS = {
    "x86_64": {
        "madvise": 28,
        "socket": 41,
        "getsockopt": 55,
        "ftruncate": 77,
        "timerfd_create": 283,
        "fallocate": 285,
        "eventfd2": 290,
        "epoll_create1": 291,
        "memfd_create": 319,
        "pidfd_open": 434,
    },
    "aarch64": {
        "eventfd2": 19,
        "epoll_create1": 20,
        "ftruncate": 46,
        "fallocate": 47,
        "timerfd_create": 85,
        "socket": 198,
        "getsockopt": 209,
        "madvise": 233,
        "memfd_create": 279,
        "pidfd_open": 434,
    },
}
"""Numbers of system calls; facts: asm/unistd_64.h and asm-generic/unistd.h of Linux."""

_Step: TypeAlias = tuple[int, int, int, int]
_NUMBER: _Step = (LOAD_WORD, 0, 0, 0)
_FIRST_ARGUMENT: _Step = (LOAD_WORD, 0, 0, 16)
_REFUSED: _Step = (RETURN, 0, 0, RET_ERRNO | errno.EPERM)


def why_no_seccomp() -> str | None:
    """Why nothing can be forbidden here, or None."""
    if platform.machine() not in CALLS:
        return f"the numbers of system calls on {platform.machine()} are not known to this test"
    return None


def forbid_calls(*names: str) -> None:
    """From now on this thread gets EPERM from these calls, as under a profile that does not list them."""
    calls = CALLS[platform.machine()]
    steps = [_NUMBER]
    for name in names:
        steps += [(JUMP_EQUAL, 0, 1, calls[name]), _REFUSED]
    _install(steps)


def forbid_sockets(family: int) -> None:
    """From now on this thread gets EPERM for every new socket of `family`, but for pairs of them."""
    _install(
        [
            _NUMBER,
            (JUMP_EQUAL, 0, 3, CALLS[platform.machine()]["socket"]),
            _FIRST_ARGUMENT,
            (JUMP_EQUAL, 0, 1, family),
            _REFUSED,
        ]
    )


def refuse(name: str, error: int, only: tuple[int, int] | None = None) -> None:
    """From now on this thread gets `error` from this call, or from it with `only` this place and value of an argument."""
    argument = [] if only is None else [(LOAD_WORD, 0, 0, 16 + 8 * only[0]), (JUMP_EQUAL, 0, 1, only[1])]
    call = (JUMP_EQUAL, 0, 1 + len(argument), CALLS[platform.machine()][name])
    _install([_NUMBER, call, *argument, (RETURN, 0, 0, RET_ERRNO | error)])


def forbid_netlink() -> None:
    """From now on this thread has no look-ups of sockets, as under docker's stricter profiles."""
    forbid_sockets(socket.AF_NETLINK)


def _install(steps: list[_Step]) -> None:
    steps = [*steps, (RETURN, 0, 0, RET_ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def hide(path: str, content: str) -> None:
    """From now on this process, and nobody else, finds `content` in the file at `path`, be it one of /proc.

    :raises OSError: only root may, where that is not taken away as well.
    """
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(content)
        file.flush()
        _mount_privately(file.name, path, None, MS_BIND, None)


def shrink_dev_shm(size: int) -> None:
    """From now on this process, and nobody else, has a /dev/shm of `size` bytes; errors as for `hide`."""
    _mount_privately("tmpfs", "/dev/shm", "tmpfs", 0, f"size={size}")


def _mount_privately(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    check(libc.unshare(CLONE_NEWNS))
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    check(libc.mount(text(source), text(target), text(kind), flags, text(data)))
