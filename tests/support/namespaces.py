"""Namespaces as containers have them: networks of their own, and processes and IPC of their own."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_numbers = itertools.count()

ISOLATED = ("unshare", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")
"""Runs a program with process and IPC namespaces of its own; it ends with the one that was started."""


class Network(NamedTuple):
    """A network namespace with one interface beside the loopback."""

    name: str
    address: str
    address6: str

    @property
    def command(self) -> Sequence[str]:
        """Runs a program in it."""
        return ("ip", "netns", "exec", self.name)


@functools.cache
def why_none() -> str | None:
    """Why there can be no namespaces here, or None."""
    if os.geteuid() != 0:
        return "only root can make namespaces"
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"namespaces are made with {tool}, which is not here"
    try:
        with networks():
            _run(*ISOLATED, "true")
    except subprocess.CalledProcessError as error:
        return f"namespaces are refused here: {error.stderr.strip()}"
    return None


@contextlib.contextmanager
def networks() -> Iterator[tuple[Network, Network]]:
    """Two network namespaces, each with one end of a cable."""
    number = next(_numbers)
    pair = tuple(
        Network(f"smcfast-{os.getpid()}-{number}-{end}", f"10.199.0.{end}", f"fd00:199::{end}") for end in (1, 2)
    )
    with contextlib.ExitStack() as stack:
        for network in pair:
            _run("ip", "netns", "add", network.name)
            stack.callback(_run, "ip", "netns", "delete", network.name)
            _run("ip", "-n", network.name, "link", "set", "lo", "up")
        one, two = pair
        _run("ip", "-n", one.name, "link", "add", "cable", "type", "veth", "peer", "cable", "netns", two.name)
        for network in pair:
            _run("ip", "-n", network.name, "address", "add", f"{network.address}/24", "dev", "cable")
            _run("ip", "-n", network.name, "address", "add", f"{network.address6}/64", "dev", "cable", "nodad")
            _run("ip", "-n", network.name, "link", "set", "cable", "up")
        yield one, two


@contextlib.contextmanager
def network() -> Iterator[Sequence[str]]:
    """A network namespace that has its own loopback alone: the command that runs a program in it."""
    name = f"smcfast-{os.getpid()}-{next(_numbers)}"
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "-n", name, "link", "set", "lo", "up")
        yield ("ip", "netns", "exec", name)
    finally:
        _run("ip", "netns", "delete", name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
