"""The users whose processes may share memory with this one."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from smcfast.config import SmcConfig

NOBODY: Final = 65534
"""What the kernel calls a user whom the own user namespace does not know, unless the system says otherwise."""
USERS: Final = 2**32 - 1
"""User ids that there are; a namespace that knows them all has no strangers."""


def allowed_uids(config: SmcConfig) -> Collection[int]:
    """The own user and those of the configuration, but for one who could be anybody."""
    return {os.geteuid(), *config.allow_uids} - _anybody()


@functools.cache
def _anybody() -> frozenset[int]:
    """The id, if there is one, that stands for every user outside the own user namespace."""
    try:
        with open("/proc/self/uid_map") as file:
            known = sum(int(line.split()[2]) for line in file)
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return frozenset()  # a kernel without user namespaces
        known = 0
    except OSError:
        known = 0
    return frozenset() if known >= USERS else frozenset({_overflow()})


def _overflow() -> int:
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except OSError:
        return NOBODY
