"""What this process holds, to show that nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GUARD: Final = 30
"""Seconds that a forked child may take."""


def descriptors() -> dict[int, str]:
    """Every open file descriptor and what it is."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def abstract_names() -> set[str]:
    """The abstract unix names of smcfast that this process holds, without their leading NUL; others may hold some too.

    That of its status page, which stays until it ends, is left out.
    """
    own = set(descriptors().values())
    return {name for inode, name in _names().items() if inode in own and not name.startswith("smcfast/s/")}


def abandoned_names() -> set[str]:
    """The abstract unix names of smcfast, without their leading NUL, that no process is seen to hold."""
    names = _names()
    held = set()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            for fd in folder.iterdir():
                with contextlib.suppress(OSError):
                    held.add(os.readlink(fd))
    still = _names()
    return {name for inode, name in names.items() if inode not in held and inode in still}


def _names() -> dict[str, str]:
    """By the socket, without connections that nobody has accepted yet: they are called as their listener and are none yet."""
    fields = (line.split() for line in Path("/proc/net/unix").read_text().splitlines() if "@smcfast/" in line)
    return {f"socket:[{inode}]": name.removeprefix("@") for *_, inode, name in fields if inode != "0"}


def mappings(name: str) -> int:
    """How many memfds of this name the process has mapped."""
    return Path("/proc/self/maps").read_text().count(f"/memfd:{name} ")


def state(pid: int) -> str:
    """What the kernel says that a process does: R, S, T and so on; "" for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def resident() -> int:
    """Bytes of memory that this process has touched and not given back."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def in_a_child(function: Callable[[], object]) -> str:
    """Fork, run `function` in the child and wait for its end: what went wrong there, "" for nothing."""
    told, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        child = os.fork()
    if child == 0:
        _run_and_tell(function, tell)
    os.close(tell)
    with open(told, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said or (f"status {status}" if status else "")


def _run_and_tell(function: Callable[[], object], tell: int) -> NoReturn:
    signal.alarm(GUARD)
    status = 1
    try:
        function()
        gc.collect()
        status = 0
    except BaseException:  # noqa: BLE001 - told to the parent
        os.write(tell, traceback.format_exc().encode())
    finally:
        os._exit(status)


def become(uid: int) -> None:
    """Turn into another user: what is needed must be loaded, for the interpreter's files may be out of reach."""
    asyncio.new_event_loop().close()
    socket.getaddrinfo("127.0.0.1", 0)
    os.setgroups([])
    os.setuid(uid)


@contextlib.contextmanager
def no_more_descriptors() -> Iterator[None]:
    """Every attempt to open one fails with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Inside, this process can open `count` more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        top = max(descriptors())
        while (filler := os.open("/dev/null", os.O_RDONLY)) < top:  # the gaps
            stack.callback(os.close, filler)
        os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, (filler + count, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield
