"""`SmcInfo`: what ``writer.get_extra_info("smc")`` answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from smcfast.errors import Fallback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Fallback", "Path", "SmcInfo"]

Path: TypeAlias = Literal["smc-d", "smc-r", "kernel", "tcp"]

_NO_COUNTERS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class SmcInfo:
    """The path of one connection, and what was agreed for it. Fields that the path does not have are None."""

    path: Path
    """"smc-d" (shared memory), "smc-r" (RDMA), "kernel" (a kernel SMC socket) or "tcp"."""
    fallback: Fallback | None = None
    """Why the path is "tcp": code, name, text; None on every other path."""
    version: int | None = None
    """CLC version of the handshake."""
    release: int | None = None
    """CLC release within the version."""
    eid: str | None = None
    """The enterprise id that both ends share."""
    rmb_size: int | None = None
    """Bytes of the own receive buffer."""
    peer_rmb_size: int | None = None
    """Bytes of the peer's receive buffer."""
    mtu: int | None = None
    """Path MTU in bytes (smc-r)."""
    device: str | None = None
    """Name of the device (smc-r)."""
    gid: str | None = None
    """Own GID, hexadecimal."""
    peer_gid: str | None = None
    """The peer's GID, hexadecimal."""
    qpn: int | None = None
    """Own queue pair number (smc-r)."""
    link_group: str | None = None
    """The link group that carries the connection."""
    setup_us: int | None = None
    """Microseconds from the start of the connect (client) or from accept (server) until the stream was ready."""
    read_counters: Callable[[], Mapping[str, int]] | None = field(default=None, repr=False, compare=False)

    @property
    def counters(self) -> Mapping[str, int]:
        """Bytes, messages, wake-ups, spins and stalls each way, as of now; empty on path "tcp"."""
        return _NO_COUNTERS if self.read_counters is None else self.read_counters()

    @property
    def reason(self) -> str | None:
        """The fallback's short name, None when there was no fallback."""
        return None if self.fallback is None else self.fallback.name
