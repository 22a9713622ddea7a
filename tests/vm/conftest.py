"""Fixtures for the tests in the machine, beside those of ``tests/conftest.py``; `spawn` forks here, see `support.forked`.

Every test begins with the state that it expects and ends with it restored: the cable up, of MTU 1500 and lossless, both RDMA
devices there, the kernel with the user EID `EID` and no other.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from vm.support import network, peers, smc, streams
from vm.support.forked import ForkedChild, Nursery
from vm.support.hosts import FAMILIES, HERE
from vm.support.ours import EID, HANDSHAKE_TIMEOUT

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from vm.support.peers import KernelPeer, SmcfastPeer

IN_THE_MACHINE = network.CAPTURES in os.environ
"""Else they run on a machine with RDMA of its own, where not everything may be possible."""
NURSERY = pytest.StashKey[Nursery]()


def pytest_configure(config: pytest.Config) -> None:
    if not (IN_THE_MACHINE or HERE in os.environ):
        raise pytest.UsageError(f"these tests run in a machine that make test-vm boots, or here by {HERE}=1")
    config.stash[NURSERY] = Nursery()


def pytest_unconfigure(config: pytest.Config) -> None:
    if nursery := config.stash.get(NURSERY, None):
        nursery.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    """A test that is skipped in the machine, which has everything, has failed."""
    report: pytest.TestReport = yield
    if IN_THE_MACHINE and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which no test in the machine should be: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def pristine() -> Iterator[None]:
    """The kernel has the user EID, and everything else is as it was."""
    smc.set_eids([EID])
    yield
    let_go()
    network.restore()


def let_go() -> None:
    """No loop of a test is left, not even of one that has failed: it would hold on to its device, which cannot be removed then."""
    sys.last_traceback = sys.last_value = None
    gc.collect()


@pytest.fixture
def spawn(pytestconfig: pytest.Config) -> Iterator[Callable[..., ForkedChild]]:
    """As ``spawn`` of all tests, in a tenth of the time."""
    children: list[ForkedChild] = []

    def start(*args: Any, **options: Any) -> ForkedChild:
        children.append(ForkedChild(pytestconfig.stash[NURSERY], *args, **options))
        return children[-1]

    yield start
    for child in children:
        child.close()


@pytest.fixture
def kernel_peer(spawn: Callable[..., ForkedChild]) -> Callable[[], KernelPeer]:
    """``kernel_peer()`` starts a process that does with SMC sockets of the kernel what it is told, see `support.peers`."""
    return lambda: peers.KernelPeer(spawn(peers.main))


@pytest.fixture
def smcfast_peer(spawn: Callable[..., ForkedChild]) -> Callable[..., SmcfastPeer]:
    """``smcfast_peer(rmb_size=65536)`` starts a process with streams of smcfast over SMC-R, which does what it is told."""
    fixed = {
        "paths": ["smc-r"],
        "discovery": [],
        "assume": ["*:*"],
        "ueids": [EID],
        "handshake_timeout": HANDSHAKE_TIMEOUT,
    }
    return lambda **settings: peers.SmcfastPeer(spawn(streams.main, {**fixed, **settings}, loop="uvloop"))


@pytest.fixture(params=FAMILIES, ids=lambda family: "ipv6" if family == FAMILIES[1] else "ipv4")
def family(request: pytest.FixtureRequest) -> socket.AddressFamily:
    """IPv4 and IPv6, for ``host.at(family)``."""
    chosen: socket.AddressFamily = request.param
    return chosen
