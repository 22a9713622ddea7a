"""RDMA devices as /sys/class/infiniband shows them, in a folder. What cannot be read there is not here."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

V1 = "IB/RoCE v1"
V2 = "RoCE v2"


def add_port(
    root: Path,
    device: str,
    gids: Mapping[int, tuple[str, str, str]],
    *,
    port: int = 1,
    state: str = "4: ACTIVE",
    link_layer: str = "Ethernet",
    places: int = 8,
) -> None:
    """A port; `gids` are by index: IP address, kind and interface. Free places have zeros and no attributes."""
    folder = root / "class" / "infiniband" / device / "ports" / str(port)
    for name in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (folder / name).mkdir(parents=True)
    (folder / "state").write_text(f"{state}\n")
    (folder / "link_layer").write_text(f"{link_layer}\n")
    for index in range(places):
        address, kind, netdev = gids.get(index, ("::", "", ""))
        (folder / "gids" / str(index)).write_text(f"{gid_text(address)}\n")
        if netdev:
            (folder / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")
            (folder / "gid_attrs" / "ndevs" / str(index)).write_text(f"{netdev}\n")


def gid(address: str) -> bytes:
    """The GID of an IP address."""
    host = ipaddress.ip_address(address).packed
    return host if len(host) == 16 else bytes(10) + b"\xff\xff" + host


def gid_text(address: str) -> str:
    """Likewise as sysfs writes it."""
    return ":".join(gid(address)[at : at + 2].hex() for at in range(0, 16, 2))
