"""Physical networks: which interfaces and RDMA ports are on one cable, by ids that the administrator has given.

The kernel's own table (``smc_pnet``) counts where its SMC is in use and the table has entries; else a file does that has
one entry in a line, for people and programs that have no such kernel:

    # id   interface, or device of RDMA with its port
    NET1   eth0
    NET1   mlx5_0:1
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from smcfast import nlmsg

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ID_MAX: Final = 16
"""Characters of an id: letters and digits, of which small ones count as capitals."""
PORTS_MAX: Final = 255

_FAMILY: Final = "SMC_PNETID"
_VERSION: Final = 1
_GET: Final = 1
_NAME, _INTERFACE, _DEVICE, _PORT = 1, 2, 3, 4
_NONE: Final = "n/a"
"""What the kernel writes for what an entry does not name."""
_CONTROL: Final = 16
_GET_FAMILY: Final = 3
_FAMILY_ID, _FAMILY_NAME = 1, 2
_GENERIC: Final = struct.Struct("=BBxx")
_KeyT = TypeVar("_KeyT")
_ID: Final = re.compile(r"[A-Za-z0-9]{1,16}", re.ASCII)


class WrongTable(ValueError):
    """The file is not as it should be: the message has the line and what is wrong with it."""


@dataclass(frozen=True)
class Table:
    """Ids of physical networks."""

    interfaces: Mapping[str, str] = field(default_factory=dict)
    """By name of the interface, at the bottom of what stands on it."""
    ports: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """By name of the RDMA device and number of the port."""


def table() -> Table:
    """The table that counts.

    :raises WrongTable: it is the file, and that is wrong.
    :raises OSError: the kernel has one and does not show it, or the file is there and cannot be read.
    """
    kernel = of_kernel()
    if kernel is not None and (kernel.interfaces or kernel.ports):
        return kernel
    for path in paths():
        try:
            with open(path, encoding="utf-8") as file:
                return parse(file, path)
        except FileNotFoundError:
            continue
    return Table()


def paths() -> list[str]:
    """Where the file may be; the first that is there counts."""
    user = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [os.path.join(user, "smcfast", "pnet"), "/etc/smcfast/pnet"]


def parse(lines: Iterable[str], name: str) -> Table:
    """The table that `lines` of the file `name` are.

    :raises WrongTable: they are none.
    """
    interfaces: dict[str, str] = {}
    ports: dict[tuple[str, int], str] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{name}, line {number}"
        if len(words) != 2:
            raise WrongTable(f"{where}: must be an id and an interface, or an id and DEVICE:PORT")
        network, thing = _identified(words[0], where), words[1]
        if ":" in thing:
            _enter(ports, _port(thing, where), network, thing, where)
        else:
            _enter(interfaces, thing, network, thing, where)
    return Table(interfaces, ports)


def _identified(text: str, where: str) -> str:
    if not _ID.fullmatch(text):
        raise WrongTable(f"{where}: {text!r} is no id, which is 1..{ID_MAX} letters and digits")
    return text.upper()


def _port(text: str, where: str) -> tuple[str, int]:
    device, _, number = text.rpartition(":")
    if not device or not (number.isascii() and number.isdigit() and 1 <= int(number) <= PORTS_MAX):
        raise WrongTable(f"{where}: {text!r} must be DEVICE:PORT with a port of 1..{PORTS_MAX}")
    return device, int(number)


def _enter(entries: dict[_KeyT, str], key: _KeyT, network: str, thing: str, where: str) -> None:
    if entries.setdefault(key, network) != network:
        raise WrongTable(f"{where}: {thing} is on {entries[key]} already")


def of_kernel() -> Table | None:
    """The kernel's table; None where its SMC is not loaded. Asking would load it, so that is looked up first.

    :raises OSError: it does not show its table.
    """
    if not has_smc():
        return None
    body = _GENERIC.pack(_GET, _VERSION)
    interfaces: dict[str, str] = {}
    ports: dict[tuple[str, int], str] = {}
    for answer in nlmsg.ask(nlmsg.GENERIC, _family(), body, dump=True):
        given = nlmsg.attributes(answer, _GENERIC.size)
        network = nlmsg.text(given.get(_NAME))
        interface, device = nlmsg.text(given.get(_INTERFACE)), nlmsg.text(given.get(_DEVICE))
        if interface != _NONE:
            interfaces[interface] = network
        if device != _NONE:
            ports[device, nlmsg.number(given.get(_PORT))] = network
    return Table(interfaces, ports)


def has_smc(protocols: str = "/proc/net/protocols") -> bool:
    """Is the kernel's SMC loaded?"""
    try:
        with open(protocols) as file:
            return any(line.startswith("SMC ") for line in file)
    except OSError:
        return False


def _family() -> int:
    """The number of the family of generic netlink that has the table."""
    body = _GENERIC.pack(_GET_FAMILY, 1) + nlmsg.packed({_FAMILY_NAME: _FAMILY.encode() + b"\0"})
    (answer,) = nlmsg.ask(nlmsg.GENERIC, _CONTROL, body)
    return nlmsg.number(nlmsg.attributes(answer, _GENERIC.size).get(_FAMILY_ID))
