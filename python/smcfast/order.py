"""Which path comes first where they exclude one another: a socket is one of TCP or one of the kernel's SMC from the start."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

from smcfast import devices, discovery, kernel

if TYPE_CHECKING:
    from smcfast.config import SmcConfig

INET: Final = (socket.AF_INET, socket.AF_INET6)


def is_kernels(config: SmcConfig, family: int) -> bool:
    """Is the kernel's SMC to be asked for what is between hosts? Not if smc-r is preferred and this machine has RDMA."""
    paths = config.paths
    if "kernel" not in paths or family not in INET:
        return False
    own_first = "smc-r" in paths[: paths.index("kernel")] and devices.are_there()
    return not own_first and kernel.why_none(family) is None


def is_kernels_at(config: SmcConfig, family: int, sockaddr: tuple[Any, ...]) -> bool:
    """The same for a connection to `sockaddr`: not if smc-d is preferred, and a server of smcfast is there on this host."""
    if not is_kernels(config, family):
        return False
    on_host_first = "smc-d" in config.paths[: config.paths.index("kernel")]
    return not (on_host_first and discovery.is_announced(sockaddr, config))
