"""RDMA devices, their ports and GID tables, as /sys/class/infiniband has them: no library and no privilege is needed.

A table may have a thousand places, each of which costs system calls, and the kernel takes the first free one for a new
entry. So a table is read until many places in a row are free.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SYS: Final = "/sys"
ROCE_V1: Final = "RoCE v1"
ROCE_V2: Final = "RoCE v2"
ACTIVE: Final = "ACTIVE"
ETHERNET: Final = "Ethernet"

FREE_MAX: Final = 32
"""Free places in a row after which a table is taken to be at its end."""

_KINDS: Final = {"IB/RoCE v1": ROCE_V1, "RoCE v2": ROCE_V2}
_MAPPED: Final = bytes(10) + b"\xff\xff"


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a GID table."""

    index: int
    raw: bytes
    """16 bytes."""
    kind: str
    """`ROCE_V1` or `ROCE_V2`."""
    netdev: str
    """The network interface that it belongs to."""

    @property
    def host(self) -> bytes:
        """The IP address that it is: 4 bytes if it is IPv4-mapped, else 16."""
        return self.raw[12:] if self.raw.startswith(_MAPPED) else self.raw


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an RDMA device."""

    device: str
    number: int
    """From 1."""
    state: str
    """ "ACTIVE", "DOWN"..."""
    link_layer: str
    """ "Ethernet" for RoCE."""
    gids: tuple[Gid, ...]
    """Those entries of the table that are in use."""

    def __str__(self) -> str:
        return f"{self.device} port {self.number}"


def are_there(root: str = SYS) -> bool:
    """Is there any device?"""
    return bool(_names(f"{root}/class/infiniband"))


def ports(root: str = SYS) -> tuple[Port, ...]:
    """All ports of all devices, in the order of their names; none where the kernel has no RDMA.

    :param root: where sysfs is.
    """
    folder = f"{root}/class/infiniband"
    return tuple(
        _port(root, device, int(number))
        for device in sorted(_names(folder), key=_natural)
        for number in sorted(_names(f"{folder}/{device}/ports"), key=_natural)
        if number.isdigit()
    )


def _port(root: str, device: str, number: int) -> Port:
    folder = _folder(root, device, number)
    return Port(device, number, _state(folder), _read(f"{folder}/link_layer") or "", tuple(_gids(folder)))


def _gids(folder: str) -> Iterator[Gid]:
    free = 0
    for index in itertools.count():
        gid = _gid(folder, index)
        free = free + 1 if gid is None else 0
        if free > FREE_MAX:
            return
        if gid is not None:
            yield gid


def _folder(root: str, device: str, port: int) -> str:
    return f"{root}/class/infiniband/{device}/ports/{port}"


def _state(folder: str) -> str:
    """The word in "4: ACTIVE"."""
    return (_read(f"{folder}/state") or "").rpartition(":")[2].strip()


def entry(device: str, port: int, index: int, root: str = SYS) -> Gid | None:
    """That place in the table of `port` of `device`, wherever it is; None when it is free."""
    return _gid(_folder(root, device, port), index)


def _gid(folder: str, index: int) -> Gid | None:
    """An entry; None for a free place, whose attributes cannot be read, and for none."""
    netdev = _read(f"{folder}/gid_attrs/ndevs/{index}")
    if not netdev:
        return None
    kind = _KINDS.get(_read(f"{folder}/gid_attrs/types/{index}") or "")
    digits = (_read(f"{folder}/gids/{index}") or "").replace(":", "")
    if kind is None or not re.fullmatch(r"[0-9a-fA-F]{32}", digits):
        return None
    raw = bytes.fromhex(digits)
    return Gid(index, raw, kind, netdev) if any(raw) else None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> str | None:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(256).decode("ascii", "replace").strip()
    except OSError:
        return None


def _natural(name: str) -> list[tuple[int, str]]:
    """The key that puts rxe2 before rxe10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"([0-9]+)", name)]
