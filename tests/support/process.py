"""What this process holds, to show that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def descriptors() -> dict[int, str]:
    """Every open file descriptor and what it is."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def abstract_names() -> set[str]:
    """The abstract unix names of smcfast that this process holds, without their leading NUL; others may hold some too."""
    own = set(descriptors().values())
    fields = (line.split() for line in Path("/proc/net/unix").read_text().splitlines() if "@smcfast/" in line)
    return {name.removeprefix("@") for *_, inode, name in fields if f"socket:[{inode}]" in own}


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
