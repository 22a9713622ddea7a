"""Restrictions that a container or a service manager may put on a process; for child processes, they cannot be lifted."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
RET_ALLOW = 0x7FFF0000
RET_ERRNO = 0x00050000
LOAD_WORD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
SOCKET_CALLS = {"x86_64": 41, "aarch64": 198}


def why_no_seccomp() -> str | None:
    """Why `forbid_netlink` is not possible here, or None."""
    if platform.machine() not in SOCKET_CALLS:
        return f"the number of the socket call on {platform.machine()} is not known to this test"
    return None


def forbid_netlink() -> None:
    """From now on this thread gets EPERM for every netlink socket, as under docker's stricter profiles."""
    steps = [
        (LOAD_WORD, 0, 0, 0),  # the call's number
        (JUMP_EQUAL, 0, 3, SOCKET_CALLS[platform.machine()]),
        (LOAD_WORD, 0, 0, 16),  # its first argument
        (JUMP_EQUAL, 0, 1, socket.AF_NETLINK),
        (RETURN, 0, 0, RET_ERRNO | errno.EPERM),
        (RETURN, 0, 0, RET_ALLOW),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
