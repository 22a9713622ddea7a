"""The two hosts that ``hosts.sh`` has laid out, or those of a machine that has RDMA of its own."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Final

HERE: Final = "TEST_RDMA_HERE"
"""The environment variable that allows the tests to run on this machine: 1 for the layout of ``hosts.sh``, or both hosts
as ``ADDRESS,ADDRESS6,INTERFACE,DEVICE ADDRESS,ADDRESS6,INTERFACE,DEVICE``."""


@dataclass(frozen=True)
class Host:
    """One end of a cable."""

    address: str
    """IPv4, which is what the kernel's SMC needs over RoCE v2."""
    address6: str
    interface: str
    device: str
    """Its RDMA device, of which port 1 counts."""

    def at(self, family: socket.AddressFamily) -> str:
        """Its address of a family."""
        return self.address6 if family == socket.AF_INET6 else self.address

    @property
    def gid(self) -> str:
        """The GID of the IPv4 address, as the kernel writes it."""
        high, low = (self._word(at) for at in (0, 2))
        return f"0000:0000:0000:0000:0000:ffff:{high:04x}:{low:04x}"

    def _word(self, at: int) -> int:
        return int.from_bytes(socket.inet_aton(self.address)[at : at + 2])


def cable(number: int) -> tuple[Host, Host]:
    """Hosts a and b at a cable of ``hosts.sh``, of which 0 is always there."""
    a, b = 2 * number, 2 * number + 1
    network = ipaddress.IPv6Network(f"fd09:{number}::/64")
    return (
        Host(f"10.9.{number}.1", str(network[1]), f"v{a}", f"rxe{a}"),
        Host(f"10.9.{number}.2", str(network[2]), f"v{b}", f"rxe{b}"),
    )


def _hosts() -> tuple[Host, Host]:
    given = os.environ.get(HERE, "1")
    if given == "1":
        return cable(0)
    a, b = (Host(*host.split(",")) for host in given.split())
    return a, b


A, B = _hosts()
FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
