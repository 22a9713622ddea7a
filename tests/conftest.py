"""Fixtures for every Python test.

A test that is a coroutine function runs once on each kind of event loop, with a guard of half a minute. A test that takes
``host`` runs once for IPv4, IPv6 and "localhost".
"""

from __future__ import annotations

import asyncio
import functools
import gc
import hashlib
import inspect
import os
import random
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

import smcfast
from smcfast import netlink, remembered
from support.addresses import HOSTS, why_unusable
from support.child import Child
from support.loops import LOOPS, run_on
from support.process import abstract_names, descriptors
from support.streams import DUAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# They need a machine that make test-vm boots around them; see tests/vm/conftest.py.
collect_ignore = [] if os.environ.keys() & {"TEST_VM_OUT", "TEST_RDMA_HERE"} else ["vm"]
if "TEST_APPS" not in os.environ:  # applications of others, which make test-apps installs
    collect_ignore.append("apps")

BASE_SEED = int(os.environ.get("TEST_SEED") or random.SystemRandom().getrandbits(32))

hypothesis.settings.register_profile("smcfast", deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("smcfast")


def pytest_configure() -> None:
    """The suite tests the wheel, never the source tree; and Ctrl-C works, here and in child processes."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell starts what runs in the background so
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not Path(smcfast.__file__).is_relative_to(sys.prefix):
        raise pytest.UsageError(f"smcfast comes from {smcfast.__file__}, not from the environment {sys.prefix}")


def pytest_report_header() -> list[str]:
    return [f"smcfast {smcfast.__version__} in {Path(smcfast.__file__).parent}", f"seed: TEST_SEED={BASE_SEED}"]


def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> None:
    if collector.funcnamefilter(name) and inspect.iscoroutinefunction(obj):
        pytest.mark.usefixtures("loop_kind")(obj)


def pytest_collection_finish() -> None:
    """Each test collects garbage several times: not among the thousands of tests and the modules, which stay to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What a first try has left is not for the second one to answer for (docs/decisions/0027)."""
    if getattr(item, "execution_count", 1) > 1:
        for name in ("last_traceback", "last_value", "last_exc"):
            setattr(sys, name, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = pyfuncitem.funcargs
    run_on(arguments["loop_kind"], pyfuncitem.obj, **{name: arguments[name] for name in names})
    return True


@pytest.fixture(scope="session", autouse=True)
def in_use() -> None:
    """What a process opens once and keeps, its status page for one, is there before a test counts descriptors."""
    run_on("asyncio", _serve_nobody)


async def _serve_nobody() -> None:
    server = await smcfast.start_smc_server(lambda *_: None, "127.0.0.1", 0)
    server.close()
    await server.wait_closed()


@pytest.fixture(params=LOOPS)
def loop_kind(request: pytest.FixtureRequest) -> str:
    """ "asyncio" or "uvloop"."""
    kind: str = request.param
    return kind


@pytest.fixture
def nothing_is_left(loop_kind: str) -> Iterator[None]:
    """A test begins with nothing remembered, and ends with the descriptors and names that it found."""
    remembered.listeners._until.clear()
    remembered.destinations._until.clear()
    run_on(loop_kind, asyncio.sleep, 0)  # uvloop's pipe for signals stays
    netlink.listener_of(netlink.destination(("127.0.0.1", 1)))  # and so does this thread's netlink socket
    gc.collect()  # a loop and its engine are in a cycle
    before = descriptors()
    yield
    gc.collect()
    assert descriptors() == before
    assert abstract_names() == set()


@pytest.fixture
def run(loop_kind: str) -> Callable[..., Any]:
    """``run(coroutine_function, *args)``: on a fresh loop of each kind, for tests that are not coroutines themselves."""
    return functools.partial(run_on, loop_kind)


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> str:
    """An address of this machine, by number and by name."""
    name: str = request.param
    if reason := why_unusable(name):
        pytest.skip(reason)
    return name


@pytest.fixture(params=(*HOSTS, *DUAL))
def stream_host(request: pytest.FixtureRequest) -> str:
    """For `support.streams.connected`: `host`, and both kinds of client of a listener for IPv4 and IPv6."""
    name: str = request.param
    if reason := why_unusable(DUAL.get(name, name)):
        pytest.skip(reason)
    return name


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    """``spawn(function, *args, loop=, env=, within=)`` starts a second process, see :mod:`support.child`; none outlives the
    test."""
    children: list[Child] = []

    def start(*args: Any, **options: Any) -> Child:
        child = Child(*args, **options)
        children.append(child)
        return child

    yield start
    for child in children:
        child.close()


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_python("-m", "smcfast", ...)``: run this environment's interpreter to its end, half a minute at most."""

    def start(*args: str, limit: float = 30.0, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=limit,
            check=False,
            env={**os.environ, **(env or {})},
        )

    return start


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed of this test's own; a failure prints it, and TEST_SEED of the header brings it back."""
    digest = hashlib.sha256(f"{BASE_SEED} {request.node.name}".encode()).digest()
    value = int.from_bytes(digest[:8])
    print(f"seed {value} (TEST_SEED={BASE_SEED})")
    return value


@pytest.fixture
def rng(seed: int) -> random.Random:
    """A generator that starts from :func:`seed`."""
    return random.Random(seed)
