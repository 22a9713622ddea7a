"""`SmcInfo`: what ``writer.get_extra_info("smc")`` answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping  # noqa: TC003 - for typing.get_type_hints
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from smcfast.errors import Fallback  # noqa: TC001 - likewise

_NO_COUNTERS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class SmcInfo:
    """The path of one connection, and what was agreed for it.

    Every field but `path` is None where the path does not have it; "tcp" has `fallback` and `setup_us`.

    :param path: "smc-d" (shared memory), "smc-r" (RDMA), "kernel" (a kernel SMC socket) or "tcp".
    :param fallback: why the path is "tcp": code, name and text. Default: None.
    :param mode: "smc-r" or "smc-d", on path "kernel". Default: None.
    :param version: the CLC version of the handshake. Default: None.
    :param release: the CLC release within the version, at the first connection of a link group: the others do not agree
        on one. Default: None.
    :param eid: the enterprise id that both ends share. Default: None.
    :param rmb_size: bytes of the own receive buffer. Default: None.
    :param peer_rmb_size: bytes of the peer's receive buffer. Default: None.
    :param mtu: path MTU in bytes: the smaller one of both ends (smc-r). Default: None.
    :param device: name of the RDMA device (smc-r). Default: None.
    :param port: number of the port on the device, from 1 on (smc-r). Default: None.
    :param gid: the own GID: the event loop's id (smc-d) or the RoCE address (smc-r), hexadecimal. Default: None.
    :param peer_gid: the peer's GID, likewise. Default: None.
    :param qpn: own queue pair number (smc-r). Default: None.
    :param link_group: number of the link group, which is all connections between two event loops in the same roles. On
        "smc-d" the server has given it, so it is the same at both ends; on "smc-r" each end counts for itself.
        Default: None.
    :param setup_us: microseconds until the streams were ready: from the start of the TCP connect (client) or from accept
        (server), with discovery, handshake and TLS, without the look-up of names. Default: None.
    :param read_counters: what `counters` asks. Default: None.
    """

    path: Literal["smc-d", "smc-r", "kernel", "tcp"]
    fallback: Fallback | None = None
    mode: Literal["smc-r", "smc-d"] | None = None
    version: int | None = None
    release: int | None = None
    eid: str | None = None
    rmb_size: int | None = None
    peer_rmb_size: int | None = None
    mtu: int | None = None
    device: str | None = None
    port: int | None = None
    gid: str | None = None
    peer_gid: str | None = None
    qpn: int | None = None
    link_group: int | None = None
    setup_us: int | None = None
    read_counters: Callable[[], Mapping[str, int]] | None = field(default=None, repr=False, compare=False)

    @property
    def counters(self) -> Mapping[str, int]:
        """Bytes, messages, wake-ups, spins and stalls as of now, in a fixed order; empty on path "tcp"."""
        return _NO_COUNTERS if self.read_counters is None else self.read_counters()

    @property
    def reason(self) -> str | None:
        """The fallback's short name, None when there was no fallback."""
        return None if self.fallback is None else self.fallback.name
