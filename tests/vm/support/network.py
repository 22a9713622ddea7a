"""What is done to the network and to the kernel's settings, each undone at the end of its ``with`` block."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vm.support.hosts import A, B, Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT: Final = 60.0  # seconds for one command
CAPTURES: Final = "TEST_VM_OUT"
"""The environment variable with the folder whose files outlive the machine."""


def run(*command: str) -> str:
    """What a command writes.

    :raises AssertionError: it fails; with what it wrote.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{done.stdout}"
    return done.stdout


def ip(*lines: str) -> None:
    """Several commands of ``ip`` by one process: starting one is slow where the machine is emulated.

    :raises AssertionError: one fails.
    """
    text = "\n".join(lines)
    done = subprocess.run(["ip", "-batch", "-"], input=text, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, f"{text}: {done.stderr}{done.stdout}"


@contextlib.contextmanager
def setting(name: str, value: object) -> Iterator[None]:
    """A sysctl, as ``setting("net.smc.smcr_testlink_time", 3)``."""
    path = Path("/proc/sys", *name.split("."))
    before = path.read_text()
    path.write_text(str(value))
    try:
        yield
    finally:
        path.write_text(before)


@contextlib.contextmanager
def loss(percent: float, *hosts: Host) -> Iterator[None]:
    """Packets that the hosts (both, when none is named) send are lost at random, RDMA's and TCP's alike."""
    interfaces = [host.interface for host in hosts or (A, B)]
    with contextlib.ExitStack() as stack:
        for interface in interfaces:
            run("tc", "qdisc", "add", "dev", interface, "root", "netem", "loss", f"{percent}%")
            stack.callback(run, "tc", "qdisc", "del", "dev", interface, "root")
        yield


@contextlib.contextmanager
def mtu(size: int, *hosts: Host) -> Iterator[None]:
    """The hosts' interfaces (both, when none is named) have this MTU, and their devices what fits into it."""
    with contextlib.ExitStack() as stack:
        for host in hosts or (A, B):
            before = str(interface(host)["mtu"])
            run("ip", "link", "set", host.interface, "mtu", str(size))
            stack.callback(run, "ip", "link", "set", host.interface, "mtu", before)
        yield


@contextlib.contextmanager
def down(host: Host) -> Iterator[None]:
    """The host's interface is down, which takes its port down and cuts the cable for both; up again at the end."""
    run("ip", "link", "set", host.interface, "down")
    try:
        yield
    finally:
        up(host)


def up(host: Host, prefix: int = 64) -> None:
    """Bring the interface up with what a link that goes down loses: its IPv6 address, of this prefix, and its routes."""
    peer = B if host == A else A
    table = 100 + int(host.interface.removeprefix("v"))
    pairs = ((host.address, peer.address), (host.address6, peer.address6))
    ip(
        f"link set {host.interface} up",
        f"address replace {host.address6}/{prefix} dev {host.interface} nodad",
        *(f"route replace {other} dev {host.interface} src {own} table {table}" for own, other in pairs),
    )


def interface(host: Host) -> dict[str, Any]:
    """What ``ip -json link`` says of the host's interface."""
    found: dict[str, Any] = json.loads(run("ip", "-json", "link", "show", "dev", host.interface))[0]
    return found


@contextlib.contextmanager
def another_cable() -> Iterator[tuple[Host, Host]]:
    """A second cable between the hosts, with RDMA devices and in the subnet of the first, which TCP goes on to use."""
    hosts = (Host("10.9.0.8", "", "v8", "rxe8"), Host("10.9.0.9", "", "v9", "rxe9"))
    run("ip", "link", "add", "v8", "type", "veth", "peer", "name", "v9")
    with contextlib.ExitStack() as stack:
        stack.callback(run, "ip", "link", "delete", "v8")
        for number, host, peer in ((8, hosts[0], hosts[1]), (9, hosts[1], hosts[0])):
            sysctls = Path("/proc/sys/net/ipv4/conf", host.interface)
            for name, value in (("accept_local", 1), ("rp_filter", 0), ("arp_ignore", 1), ("arp_announce", 2)):
                (sysctls / name).write_text(str(value))
            run("ip", "link", "set", host.interface, "up")
            run("ip", "address", "add", f"{host.address}/24", "dev", host.interface, "noprefixroute")
            rules = (f"{10 + number}", "iif", host.interface, "local"), (f"{100 + number}", "to", peer.address, "108")
            for preference, selector, selected, table in rules:
                run("ip", "rule", "add", "pref", preference, selector, selected, "lookup", table)
                stack.callback(run, "ip", "rule", "delete", "pref", preference)
            run("ip", "route", "add", peer.address, "dev", host.interface, "src", host.address, "table", "108")
            run("rdma", "link", "add", host.device, "type", "rxe", "netdev", host.interface)
            stack.callback(run, "rdma", "link", "delete", host.device)
            _wait_for_gid(host)
        yield hosts


def remove_device(host: Host) -> None:
    """As if it were pulled out: every queue pair on it is gone. `add_device` brings it back."""
    run("rdma", "link", "delete", host.device)


def add_device(host: Host) -> None:
    """The RDMA device of a host; its GIDs are there when this returns."""
    run("rdma", "link", "add", host.device, "type", "rxe", "netdev", host.interface)
    _wait_for_gid(host)


def renew_devices() -> None:
    """Both hosts' RDMA devices anew: no link group of the kernel, no queue pair and no counter is left on them."""
    for host in (A, B):
        if has_device(host):
            remove_device(host)
    for host in (A, B):
        add_device(host)


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Look until something is so that the kernel does by itself and tells nobody.

    :raises AssertionError: it is not within `LIMIT` seconds; with `what` should have been.
    """
    monitor = select.poll()  # nothing becomes readable: the time between two looks
    for _ in range(round(LIMIT / 0.1)):
        if is_so():
            return
        monitor.poll(100)
    raise AssertionError(f"after {LIMIT:.0f} s there is still no {what}")


def _wait_for_gid(host: Host) -> None:
    monitor = select.poll()  # nothing becomes readable: the time between two looks
    for _ in range(600):
        with contextlib.suppress(OSError):
            for number in range(3):
                path = Path(f"/sys/class/infiniband/{host.device}/ports/1/gids/{number}")
                if path.read_text().strip() == host.gid:
                    return
        monitor.poll(100)
    raise AssertionError(f"{host.device} has no GID {host.gid}")


def has_device(host: Host) -> bool:
    """Is the host's RDMA device there?"""
    return Path("/sys/class/infiniband", host.device).exists()


class Capture:
    """A running tcpdump; the file is whole when the block is left."""

    def __init__(self, path: Path) -> None:
        self.path = path


@contextlib.contextmanager
def capture(name: str, expression: str = "", *, host: Host = A) -> Iterator[Capture]:
    """Write what a host's interface sends and receives to a pcap file that outlives the machine.

    Packets count from the moment the block begins, and to the moment it is left.

    :param name: of the file, without its ending.
    :param expression: as tcpdump has them, "tcp" for the handshakes for example.
    :raises AssertionError: tcpdump does not start, or the kernel had to drop packets.
    """
    folder = Path(os.environ.get(CAPTURES, ".")) / "captures"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.pcap"
    command = [
        "tcpdump",
        "-i",
        host.interface,
        "-U",
        "--immediate-mode",
        "-s",
        "0",
        "-B",
        "16384",
        "-Z",
        "root",
        "-w",
        str(path),
    ]
    dump = subprocess.Popen([*command, *expression.split()], stderr=subprocess.PIPE, text=True)
    assert dump.stderr is not None
    try:
        said = dump.stderr.readline()
        while "listening on" not in said:
            assert said, f"tcpdump has not started: exit status {dump.wait(LIMIT)}"
            said = dump.stderr.readline()
        yield Capture(path)
        dump.send_signal(signal.SIGINT)
        _, closing = dump.communicate(timeout=LIMIT)
        assert "0 packets dropped by kernel" in closing, closing
    finally:
        dump.kill()
        dump.wait()
        dump.stderr.close()


def restore() -> None:
    """Bring the cable back to what tests expect, whatever a test that failed has left."""
    for host in (A, B):
        facts = interface(host)
        if "UP" not in facts["flags"]:
            up(host)
        if facts["qdisc"] == "netem":
            run("tc", "qdisc", "del", "dev", host.interface, "root")
        if not has_device(host):
            add_device(host)
