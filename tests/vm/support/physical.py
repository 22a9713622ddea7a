"""The kernel's table of physical networks (``SMC_PNETID``): which interfaces and RDMA ports it takes for being on one cable."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Final

from smcfast import nlmsg, pnet

if TYPE_CHECKING:
    from collections.abc import Iterator

_ADD, _FLUSH = 2, 4
_NAME, _INTERFACE, _DEVICE, _PORT = 1, 2, 3, 4
_GENERIC: Final = struct.Struct("=BBxx")


@contextlib.contextmanager
def table(*entries: dict[int, bytes]) -> Iterator[None]:
    """The kernel's table has these entries and no others; none when the block is left."""
    _tell(_FLUSH, {})
    try:
        for each in entries:
            _tell(_ADD, each)
        yield
    finally:
        _tell(_FLUSH, {})


def entry(network: str, interface: str, device: str) -> dict[int, bytes]:
    """An interface and port 1 of a device are on `network`; either may be "" for none."""
    found = {_NAME: network.encode() + b"\0"}
    if interface:
        found[_INTERFACE] = interface.encode() + b"\0"
    if device:
        found |= {_DEVICE: device.encode() + b"\0", _PORT: b"\1"}
    return found


def _tell(command: int, entry: dict[int, bytes]) -> None:
    nlmsg.ask(nlmsg.GENERIC, pnet._family(), _GENERIC.pack(command, 1) + nlmsg.packed(entry))
