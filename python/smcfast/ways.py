"""What this end can offer on one connection: shared memory, RDMA, both, or neither and why."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smcfast import _native, choice
from smcfast.errors import Fallback
from smcfast.reasons import explained, reason, trouble

if _native.AVAILABLE:
    from smcfast import _core
    from smcfast._loop import current

if TYPE_CHECKING:
    from smcfast._core import RdmaOffer
    from smcfast.choice import Choice
    from smcfast.config import SmcConfig
    from smcfast.devices import Gid

_LACKING = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE})


@dataclass(frozen=True)
class Ways:
    """The ways of one connection."""

    memory: bool
    """SMC-D."""
    rdma: RdmaOffer | None = None
    """SMC-R, over this device."""
    why: Fallback | None = None
    """Why there is no SMC-R although the configuration wants it."""

    @property
    def nothing(self) -> Fallback | None:
        """Why there is no way at all; None when there is one."""
        return None if self.memory or self.rdma is not None else self.why or reason("disabled")


MEMORY = Ways(memory=True)
"""Shared memory alone."""


def of(tcp: socket.socket, config: SmcConfig) -> Ways:
    """The ways that `config` wants and this machine has for the connection `tcp`."""
    memory = "smc-d" in config.paths
    if "smc-r" not in config.paths:
        return Ways(memory)
    found = _rdma(tcp, config)
    return Ways(memory, None, found) if isinstance(found, Fallback) else Ways(memory, found)


def without_memory(ways: Ways, why: Fallback | None = None) -> Ways:
    """`ways` to a peer with which no memory can be shared.

    :param why: the reason, where the peer would have been reached by it.
    """
    return Ways(False, ways.rdma, why or ways.why or reason("peer_elsewhere"))


def is_here(tcp: socket.socket) -> bool:
    """May the peer of `tcp` be on this host? It is when its address can be bound here."""
    try:
        host, _, *rest = tcp.getpeername()
        with socket.socket(tcp.family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0, *rest))
    except OSError:
        return False
    return True


def _rdma(tcp: socket.socket, config: SmcConfig) -> RdmaOffer | Fallback:
    found = choice.choose(tcp, config)
    if isinstance(found, Fallback):
        return found
    try:
        return _opened(found, config)
    except OSError as error:
        if error.errno in _LACKING:
            return trouble(error)
        return explained("rdma_library", f"{found.device}: {error.strerror or error}")


def _place(gid: Gid | None) -> tuple[int, bytes] | None:
    """A GID with its place in the table, for the core."""
    return None if gid is None else (gid.index, gid.raw)


def _opened(found: Choice, config: SmcConfig) -> RdmaOffer:
    """`found` for the core, which opens the device at its first use.

    :raises OSError: it cannot.
    """
    return _core.RdmaOffer(
        current().core,
        device=found.device,
        port=found.port,
        mac=found.mac,
        v1=_place(found.v1),
        v2=_place(found.v2),
        ueids=tuple(config.ueids),
        max_links=config.max_links,
        test_after=config.testlink_s,
        ipv4=found.ipv4,
        ipv6=found.ipv6,
    )
